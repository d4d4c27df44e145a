// An engine over a back-end that answers what it is told and notes what it was asked, and plans for it.
#pragma once
#include <deque>

#include "driver.h"
#include "test.h"
#include "tiny_model.h"

namespace tandem::test {

using engine::Answer;
using engine::Plan;

struct Asked {
  model::ForwardBatch batch;
  std::vector<engine::Draw> draws;
};

// Each fetch answers the next list of tokens; an empty one fails where there are draws. A token that is not taken is drawn again from `again`.
struct Script {
  engine::QueueLimits limits{2, 8, 4};
  std::deque<std::vector<int32_t>> tokens;
  std::deque<int32_t> again;
  bool queue_fails = false, draws_fail = false;
  std::vector<Asked> queued;
  std::string order;  // of what was asked: whole steps (w), layers (l), draws (d), results (r)
  size_t fetched = 0;
  std::vector<engine::ScoreQuery> scored;
};

class ScriptedBackend final : public engine::Backend {
 public:
  explicit ScriptedBackend(Script& script) : script_(script) {}

  size_t page_bytes() const override { return 0; }
  void read_page(int32_t, uint8_t*) override {}
  void write_page(int32_t, const uint8_t*) override {}
  void forward(const model::ForwardBatch&) override {}
  void copy_hidden(int64_t, float*) override {}
  void sample(const std::vector<engine::SampleQuery>& queries) override {
    for (const engine::SampleQuery& query : queries) {
      ops::SampleInput input{};
      if (query.begin(input)) query.take(answer(1));
    }
  }
  std::vector<Answer> score(const std::vector<engine::ScoreQuery>& queries) override {
    script_.scored = queries;
    return std::vector<Answer>(queries.size());
  }
  engine::QueueLimits queue_limits() const override { return script_.limits; }
  void queue(const model::ForwardBatch& batch, const std::vector<engine::Draw>& draws) override {
    require(!script_.queue_fails, ErrorKind::kState, "the launch failed");
    script_.queued.push_back({batch, draws});
    script_.order += 'w';
  }
  void queue_layers(const model::ForwardBatch& batch) override {
    script_.queued.push_back({batch, {}});
    script_.order += 'l';
  }
  void queue_draws(const std::vector<engine::Draw>& draws) override {
    require(!script_.draws_fail, ErrorKind::kState, "the draws failed");
    script_.queued[script_.fetched].draws = draws;
    script_.order += 'd';
  }
  std::vector<Answer> fetch() override {
    script_.order += 'r';
    std::vector<int32_t> tokens = script_.tokens.front();
    script_.tokens.pop_front();
    const std::vector<engine::Draw>& draws = script_.queued[script_.fetched].draws;
    require(!tokens.empty() || draws.empty(), ErrorKind::kState, "the GPU failed");
    ++script_.fetched;
    CHECK_EQ(draws.size(), tokens.size());
    std::vector<Answer> answers;
    for (size_t i = 0; i < tokens.size(); ++i) {
      while (draws[i].input.takes && !draws[i].input.takes(tokens[i])) {
        tokens[i] = script_.again.front();
        script_.again.pop_front();
      }
      answers.push_back(answer(tokens[i]));
    }
    return answers;
  }

 private:
  static Answer answer(int32_t token) {
    Answer a;
    a.sample.token = token;
    return a;
  }
  Script& script_;
};

inline engine::Options queue_options() {
  engine::Options o;
  o.max_sequences = 3;
  o.max_batch_tokens = 40;
  o.pages = 8;
  o.max_model_len = 60;
  o.samplable_vocab = 103;
  o.max_logprobs = 5;
  return o;
}

inline engine::Engine scripted_engine(Script& script) {
  auto make = [&](const engine::Options&) { return std::make_unique<ScriptedBackend>(script); };
  return engine::Engine(TinyModel().load(ops::Element::kBf16, 1), queue_options(), make);
}

inline constexpr int32_t kStop = 7;

// Slots 0 and 1 with prompts of 4 and 5 tokens.
inline Plan prompts() {
  Plan plan;
  for (int64_t slot : {0, 1}) {
    engine::Open open;
    open.slot = slot;
    open.prompt_length = 4 + slot;
    open.params.max_tokens = 10;
    open.params.stop_ids = {kStop};
    plan.opens.push_back(open);
    plan.pages.push_back({slot, 0, slot});
    plan.rows.push_back({slot, 0, 4 + slot, 1});
    for (int32_t i = 0; i < 4 + slot; ++i) plan.tokens.push_back(i);
  }
  return plan;
}

// The step so many after the prompts'.
inline Plan decode(int64_t step, const std::vector<int64_t>& slots, bool ahead = true) {
  Plan plan;
  plan.ahead = ahead;
  for (int64_t slot : slots) plan.rows.push_back({slot, 3 + slot + step, 1, 1});
  plan.tokens.assign(slots.size(), -1);
  return plan;
}

inline std::vector<int32_t> tokens_of(const engine::StepResult& result) {
  std::vector<int32_t> all;
  for (const engine::Sampled& s : result.samples) {
    all.push_back(s.slot);
    all.push_back(s.token);
  }
  return all;
}

}  // namespace tandem::test
