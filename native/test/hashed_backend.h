// A back-end whose layers and logits are hashes of what a row can see: as quick as the engine itself, and different for everything that a row
// must not see. What is queued is done as late as somebody waits for it, or at once, by turns; what it reads of the host is copied when a
// device reads it, and adapters when it runs.
#pragma once
#include <array>
#include <deque>
#include <set>

#include "engine/backend.h"
#include "support.h"
#include "test.h"

namespace tandem::test {

inline uint64_t mixed(uint64_t a, uint64_t b) { return Random(a * 0x9e3779b97f4a7c15ull ^ b).bits(); }

// Of a job; what runs under it must not outlive it.
struct HashedAdapter final : model::Adapter {
  HashedAdapter(model::Adapter empty, uint64_t of) : model::Adapter(std::move(empty)), tag(of) { alive().insert(this); }
  ~HashedAdapter() override { alive().erase(this); }
  HashedAdapter(const HashedAdapter&) = delete;
  static std::set<const model::Adapter*>& alive() {
    static std::set<const model::Adapter*> all;
    return all;
  }
  uint64_t tag;
};

class HashedBackend final : public engine::Backend {
 public:
  // A prompt with this token has logits that are not finite.
  static constexpr int32_t kBroken = 101;

  HashedBackend(const model::Spec& spec, const engine::Options& o, const engine::QueueLimits& limits, uint64_t seed)
      : spec_(spec), samplable_(o.samplable_vocab), limits_(limits), random_(seed), kv_(size_t(o.pages)),
        last_(size_t(o.max_sequences), -1) {}

  size_t page_bytes() const override { return 0; }
  void read_page(int32_t, uint8_t*) override {}
  void write_page(int32_t, const uint8_t*) override {}
  void forward(const model::ForwardBatch& batch) override {
    wait();
    const auto step = step_of(batch);
    add([this, step] { run_layers(*step); });
  }
  void copy_hidden(int64_t row, float* out) override {
    wait();
    std::memcpy(out, &hidden_[size_t(row)], sizeof(uint64_t));
  }
  void sample(const std::vector<engine::SampleQuery>& queries) override {
    for (const engine::SampleQuery& query : queries) {
      ops::SampleInput input{};
      if (!query.begin(input)) continue;
      wait();
      std::vector<float> row = logits(hidden_of(query.hidden));
      input.logits = row.data();
      query.take(drawn(input));
    }
  }
  std::vector<engine::Answer> score(const std::vector<engine::ScoreQuery>& queries) override {
    std::vector<engine::Answer> answers;
    for (const engine::ScoreQuery& query : queries) {
      wait();
      std::vector<float> row = logits(hidden_of(query.hidden));
      engine::Answer answer;
      answer.sample = ops::score(kernels(), row.data(), spec_.vocab_size, query.token, query.best, query.scale, scratch_, answer.top);
      answers.push_back(std::move(answer));
    }
    return answers;
  }

  engine::QueueLimits queue_limits() const override { return limits_; }
  void queue(const model::ForwardBatch& batch, const std::vector<engine::Draw>& draws) override {
    queue_layers(batch);
    put_draws(queued_.back(), draws);
  }
  void queue_layers(const model::ForwardBatch& batch) override {
    if (queued_.empty()) wait();
    const auto step = step_of(batch);
    queued_.push_back(step);
    add([this, step] { run_layers(*step); });
  }
  void queue_draws(const std::vector<engine::Draw>& draws) override { put_draws(queued_.front(), draws); }
  std::vector<engine::Answer> fetch() override {
    const auto step = queued_.front();
    queued_.pop_front();
    while (!step->done) run_next();
    bool again = false;
    for (size_t i = 0; i < step->asking.size(); ++i) again = redraw(*step, i) || again;
    if (again && !queued_.empty()) add([this, next = queued_.front()] { run_layers(*next); });
    return std::move(step->answers);
  }

 private:
  // What a draw reads of the host when it is sent.
  struct Sent {
    int64_t row, slot;
    ops::SampleInput input;
    ops::SamplingParams params;
    std::vector<int32_t> banned;
    std::vector<uint32_t> mask;
    ops::TokenHistory history;
  };
  struct Step {
    model::ForwardBatch batch;
    std::vector<std::vector<int32_t>> pages;  // of each run
    std::vector<Sent> draws;
    std::vector<engine::Draw> asking;
    std::vector<engine::Answer> answers;
    bool done = false;
  };
  struct Stored {
    uint64_t value = 0;
    bool broken = false;
  };

  std::shared_ptr<Step> step_of(const model::ForwardBatch& batch) const {
    auto step = std::make_shared<Step>();
    step->batch = batch;
    for (const ops::AttentionRun& run : batch.runs) {
      step->pages.emplace_back(run.pages, run.pages + (run.first_position + run.count + simd::kPage - 1) / simd::kPage);
    }
    return step;
  }

  void put_draws(const std::shared_ptr<Step>& step, const std::vector<engine::Draw>& draws) {
    for (const engine::Draw& draw : draws) {
      Sent sent{draw.row, draw.slot, draw.input, *draw.input.params, *draw.input.banned, {}, *draw.input.history};
      if (draw.input.mask) sent.mask.assign(draw.input.mask, draw.input.mask + (samplable_ + 31) / 32);
      sent.input.takes = nullptr;
      step->draws.push_back(std::move(sent));
      if (draw.input.takes) step->asking = draws;
    }
    CHECK(int64_t(draws.size()) <= limits_.draws);
    add([this, step] { run_draws(*step); });
  }

  void run_layers(const Step& step) {
    size_t row = 0;
    hidden_.assign(step.batch.tokens.size(), 0);
    for (size_t r = 0; r < step.batch.runs.size(); ++r) {
      const ops::AttentionRun& run = step.batch.runs[r];
      const model::Adapter* adapter = step.batch.adapters[r];
      CHECK(adapter == nullptr || HashedAdapter::alive().contains(adapter));
      const uint64_t tag = adapter ? static_cast<const HashedAdapter*>(adapter)->tag : 0;
      for (int64_t p = run.first_position; p < run.first_position + run.count; ++p, ++row) {
        const int32_t given = step.batch.tokens[row], token = given < -1 ? last_[size_t(-2 - given)] : given;
        Stored& stored = at(step.pages[r], p);
        stored = {mixed(uint64_t(token), mixed(uint64_t(p), tag)), token < 0 || token == kBroken};
      }
    }
    // What the rows that are not wanted have is nobody's.
    for (uint64_t& hidden : hidden_) hidden = random_.bits() | 1;
    for (int32_t wanted : step.batch.wanted) hidden_[size_t(wanted)] = hidden_at(step, wanted);
  }

  uint64_t hidden_at(const Step& step, int64_t row) {
    size_t r = 0;
    while (row >= step.batch.runs[r].first_row + step.batch.runs[r].count) ++r;
    const ops::AttentionRun& run = step.batch.runs[r];
    uint64_t hidden = 1;
    bool broken = false;
    for (int64_t p = 0; p <= run.first_position + row - run.first_row; ++p) {
      hidden = mixed(hidden, at(step.pages[r], p).value);
      broken = broken || at(step.pages[r], p).broken;
    }
    return (hidden & ~uint64_t(1)) | (broken ? 1 : 0);
  }

  Stored& at(const std::vector<int32_t>& pages, int64_t position) {
    return kv_[size_t(pages[size_t(position / simd::kPage)])][size_t(position % simd::kPage)];
  }

  uint64_t hidden_of(const engine::HiddenRow& from) const {
    if (!from.copy) return hidden_[size_t(from.row)];
    uint64_t hidden;
    std::memcpy(&hidden, from.copy, sizeof hidden);
    return hidden;
  }

  std::vector<float> logits(uint64_t hidden) const {
    Random random(hidden);
    std::vector<float> row(size_t(spec_.vocab_size));
    for (float& x : row) x = float(6 * random.unit());
    if (hidden & 1) row[0] = NAN;
    return row;
  }

  engine::Answer drawn(const ops::SampleInput& input) {
    engine::Answer answer;
    answer.sample = ops::sample(kernels(), input, scratch_, answer.top);
    return answer;
  }

  void run_draws(Step& step) {
    logits_.clear();
    for (Sent& sent : step.draws) {
      logits_.push_back(logits(hidden_[size_t(sent.row)]));
      std::vector<float> row = logits_.back();
      ops::SampleInput input = sent.input;
      input.logits = row.data();
      input.params = &sent.params;
      input.banned = &sent.banned;
      input.history = &sent.history;
      input.mask = sent.mask.empty() ? nullptr : sent.mask.data();
      step.answers.push_back(drawn(input));
      last_[size_t(sent.slot)] = step.answers.back().sample.token;
    }
    step.done = true;
  }

  // Draws again until the token is taken.
  bool redraw(Step& step, size_t i) {
    ops::SampleInput input = step.asking[i].input;
    if (!input.takes) return false;
    bool again = false;
    for (; step.answers[i].sample.token >= 0 && !step.asking[i].input.takes(step.answers[i].sample.token); again = true) {
      wait();
      std::vector<float> row = logits_[i];
      input.logits = row.data();
      input.takes = nullptr;
      step.answers[i] = drawn(input);
      last_[size_t(step.asking[i].slot)] = step.answers[i].sample.token;
    }
    return again;
  }

  void add(std::function<void()> work) {
    if (waiting_.empty()) at_once_ = random_.whole(0, 1) == 1;
    waiting_.push_back(std::move(work));
    if (at_once_) wait();
  }
  void run_next() {
    waiting_.front()();
    waiting_.pop_front();
  }
  void wait() {
    while (!waiting_.empty()) run_next();
  }

  const model::Spec& spec_;
  int64_t samplable_;
  engine::QueueLimits limits_;
  Random random_;
  std::vector<std::array<Stored, simd::kPage>> kv_;
  std::vector<uint64_t> hidden_;
  std::vector<int32_t> last_;
  std::vector<std::vector<float>> logits_;  // of the draws that ran last
  std::deque<std::shared_ptr<Step>> queued_;
  std::deque<std::function<void()>> waiting_;
  bool at_once_ = false;
  ops::SamplingScratch scratch_;
};

}  // namespace tandem::test
