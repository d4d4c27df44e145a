// Drives an engine as a scheduler would: slots, pages from a free list, prompts in chunks, one token per step after that.
#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "engine/engine.h"
#include "support.h"
#include "test.h"

namespace tandem::test {

struct Token {
  int32_t id;
  engine::Finish finish;
  float logprob;
  int32_t rank;
  std::vector<ops::TopEntry> top;
};

struct Job {
  std::vector<int32_t> prompt;
  engine::SequenceParams params;
  std::shared_ptr<const engine::Program> program{};
  std::shared_ptr<const model::Adapter> adapter = nullptr;
  std::vector<Token> output = {};

  int64_t length() const { return int64_t(prompt.size() + output.size()); }
  int32_t token(int64_t at) const { return at < int64_t(prompt.size()) ? prompt[size_t(at)] : output[size_t(at) - prompt.size()].id; }
  std::vector<int32_t> tokens() const {
    std::vector<int32_t> all = prompt;
    for (const Token& t : output) all.push_back(t.id);
    return all;
  }
  bool finished() const { return !output.empty() && output.back().finish != engine::Finish::kNone; }
};

// A prompt of random tokens of the tiny model.
inline Job random_job(uint64_t seed, int64_t prompt_length, int64_t outputs, double temperature = 1) {
  Random random(seed);
  Job job;
  for (int64_t i = 0; i < prompt_length; ++i) job.prompt.push_back(int32_t(random.whole(1, 99)));
  job.params.sampling.temperature = temperature;
  job.params.sampling.seed = seed;
  job.params.sampling.logprobs = 3;
  job.params.max_tokens = outputs;
  return job;
}

// Room for eight such jobs.
inline engine::Options driven_options() {
  engine::Options options;
  options.max_sequences = 8;
  options.max_batch_tokens = 256;
  options.pages = 64;
  options.max_model_len = 200;
  options.samplable_vocab = 100;
  options.max_logprobs = 5;
  return options;
}

inline bool same_token(const Token& a, const Token& b) {
  bool same = a.id == b.id && a.finish == b.finish && a.rank == b.rank && same_bits(a.logprob, b.logprob) && a.top.size() == b.top.size();
  for (size_t i = 0; same && i < a.top.size(); ++i) same = a.top[i].id == b.top[i].id && same_bits(a.top[i].logprob, b.top[i].logprob);
  return same;
}

inline void check_same(const Job& a, const Job& b) {
  CHECK_EQ(a.output.size(), b.output.size());
  for (size_t i = 0; i < std::min(a.output.size(), b.output.size()); ++i) CHECK(same_token(a.output[i], b.output[i]));
}

inline void check_same_jobs(const std::vector<Job>& a, const std::vector<Job>& b) {
  for (size_t j = 0; j < a.size(); ++j) check_same(a[j], b[j]);
}

class Driver {
 public:
  Driver(std::shared_ptr<model::Model> model, const engine::Options& options, uint64_t page_seed = 0)
      : Driver(std::make_unique<engine::Engine>(std::move(model), options), options, page_seed) {}
  Driver(std::unique_ptr<engine::Engine> engine, const engine::Options& options, uint64_t page_seed = 0)
      : engine_(std::move(engine)), options_(options) {
    for (int64_t p = 0; p < options.pages; ++p) free_.push_back(int32_t(p));
    if (page_seed != 0) Random(page_seed).shuffle(free_);
  }

  engine::Engine& engine() { return *engine_; }
  void set_chunk(int64_t chunk) { chunk_ = chunk; }
  // Feed the last token by its id instead of -1.
  void set_explicit_tokens(bool on) { explicit_ = on; }
  // Asked before each sampling row what may come next.
  using Propose = std::function<std::vector<int32_t>(const Job&)>;
  void set_propose(Propose propose) { propose_ = std::move(propose); }

  // Starts (or starts again, after stop) a job in a slot: what it has so far is fed as one text.
  void start(int64_t slot, Job& job) {
    slots_[slot] = {&job, 0, {}, 0};
    engine::Open open;
    open.slot = slot;
    open.prompt_length = int64_t(job.prompt.size());
    open.params = job.params;
    if (job.program) {
      int64_t most = std::min(job.params.max_tokens, options_.max_model_len - open.prompt_length);
      open.constraint = std::make_shared<engine::Constraint>(job.program, job.params.stop_ids, most);
      for (size_t i = 0; i < job.output.size(); ++i) open.constraint->take(int64_t(i), job.output[i].id);
    }
    open.adapter = job.adapter;
    plan_.opens.push_back(std::move(open));
  }
  void stop(int64_t slot) {
    for (int32_t page : slots_[slot].pages) free_.push_back(page);
    slots_.erase(slot);
    plan_.closes.push_back(int32_t(slot));
  }

  // One step with every slot; false when none is left that runs.
  bool step() {
    const std::vector<int64_t> sampled = add_rows();
    if (plan_.rows.empty()) return false;
    take(engine_->step(std::exchange(plan_, {})));
    go_back(sampled);
    return true;
  }
  void run() {
    while (step()) {
    }
  }
  // Queues each step before the results of the one before it are known, where the engine takes it so, until `most` were made; how many were
  // queued behind another one. `landed` is called when results have come; it may start jobs, and stop those that have finished.
  int64_t run_ahead(
      const std::function<void()>& landed = [] {}, int64_t most = INT64_MAX) {
    int64_t queued = 0, behind = 0;
    auto land = [&] {
      take(engine_->finish());
      --queued;
      landed();
    };
    for (int64_t made = 0;;) {
      const std::vector<int64_t> sampled = made < most ? add_rows() : std::vector<int64_t>();
      const bool planned = !plan_.rows.empty();
      if (!planned && queued == 0) return behind;
      plan_.ahead = queued > 0;
      made += planned;
      if (planned && engine_->queue(plan_)) {
        plan_ = {};
        behind += queued++;
        if (queued < 2) continue;
      } else if (planned) {
        const engine::Plan plan = std::exchange(plan_, {});
        while (queued > 0) land();
        take(engine_->step(plan));
        if (propose_) go_back(sampled);
        landed();
        continue;
      }
      land();
    }
  }

 private:
  struct Running {
    Job* job;
    int64_t position;
    std::vector<int32_t> pages;
    int64_t awaited;  // tokens that are sampled by steps without results
  };

  // A row for every slot that has something to feed; those that sample.
  std::vector<int64_t> add_rows() {
    std::vector<int64_t> sampled;
    int64_t budget = options_.max_batch_tokens;
    for (auto& [slot, s] : slots_) {
      const int64_t outputs = int64_t(s.job->output.size()) + s.awaited, length = s.job->length() + s.awaited;
      const bool full = s.awaited > 0 && (outputs >= s.job->params.max_tokens || length >= options_.max_model_len);
      if (!s.job->finished() && !full && budget > 0) add_row(slot, s, budget, sampled);
    }
    return sampled;
  }

  void add_row(int64_t slot, Running& s, int64_t& budget, std::vector<int64_t>& sampled) {
    const int64_t length = s.job->length() + s.awaited;
    int64_t count = std::min({chunk_, budget, length - s.position});
    bool sample = s.position + count == length;
    std::vector<int32_t> proposals = sample && propose_ && s.awaited == 0 ? propose_(*s.job) : std::vector<int32_t>{};
    int64_t room = std::min(budget - count, options_.max_model_len - s.position - count);
    proposals.resize(size_t(std::min(int64_t(proposals.size()), room)));
    int64_t fed = count + int64_t(proposals.size());
    while (int64_t(s.pages.size()) * simd::kPage < s.position + fed) {
      require(!free_.empty(), ErrorKind::kState, "the driver has no page left");
      plan_.pages.push_back({slot, int64_t(s.pages.size()), free_.back()});
      s.pages.push_back(free_.back());
      free_.pop_back();
    }
    plan_.rows.push_back({slot, s.position, fed, sample ? fed - count + 1 : 0});
    bool known = s.awaited == 0 && (explicit_ || fed_[slot] != s.job || s.job->output.empty());
    bool last = count == 1 && sample && s.position > 0 && !known;
    for (int64_t i = 0; i < count; ++i) plan_.tokens.push_back(last ? -1 : s.job->token(s.position + i));
    plan_.tokens.insert(plan_.tokens.end(), proposals.begin(), proposals.end());
    fed_[slot] = sample ? s.job : nullptr;
    s.position += count;
    budget -= fed;
    if (!sample) return;
    ++s.awaited;
    sampled.push_back(slot);
  }

  // What was proposed and not sampled is written again.
  void go_back(const std::vector<int64_t>& sampled) {
    for (int64_t slot : sampled) slots_[slot].position = slots_[slot].job->length() - 1;
  }

  // A row with proposals has several results, and what ended before has none.
  void take(const engine::StepResult& result) {
    int32_t before = -1;
    for (const engine::Sampled& s : result.samples) {
      auto begin = result.top.begin() + s.top_offset;
      Running& running = slots_[s.slot];
      running.job->output.push_back({s.token, s.finish, s.logprob, s.rank, {begin, begin + s.top_count}});
      if (s.slot != before) --running.awaited;
      before = s.slot;
    }
  }

  std::unique_ptr<engine::Engine> engine_;
  engine::Options options_;
  std::vector<int32_t> free_;
  std::map<int64_t, Running> slots_;
  std::map<int64_t, Job*> fed_;  // the job whose last token the slot sampled itself
  engine::Plan plan_;
  int64_t chunk_ = 1 << 30;
  bool explicit_ = false;
  Propose propose_;
};

inline void run_together(Driver& driver, std::vector<Job>& all) {
  for (size_t i = 0; i < all.size(); ++i) driver.start(int64_t(i), all[i]);
  driver.run();
}

}  // namespace tandem::test
