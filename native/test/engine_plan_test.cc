// Bad plans: each is refused with the name of what is wrong, and the engine goes on as if it had never seen it.
#include <functional>
#include <limits>

#include "driver.h"
#include "test.h"
#include "tiny_model.h"

namespace tandem::test {
namespace {

using engine::Plan;

engine::Options planned_options() {
  engine::Options o;
  o.max_sequences = 3;
  o.max_batch_tokens = 40;
  o.pages = 8;
  o.max_model_len = 60;
  o.samplable_vocab = 103;
  o.max_logprobs = 2;
  return o;
}

engine::Open open_of(int64_t slot) {
  engine::Open open;
  open.slot = slot;
  open.prompt_length = 20;
  open.params.max_tokens = 10;
  open.params.sampling.logprobs = 1;
  return open;
}

// Slot 0 with a prompt of 20 on pages 3 and 5.
Plan first_plan() {
  Plan plan;
  plan.opens = {open_of(0)};
  plan.pages = {{0, 0, 3}, {0, 1, 5}};
  plan.rows = {{0, 0, 20, true}};
  for (int32_t i = 0; i < 20; ++i) plan.tokens.push_back(i + 1);
  return plan;
}

// Goes on with slot 0 and opens slot 1 with 4 tokens.
Plan second_plan() {
  Plan plan;
  plan.opens = {open_of(1)};
  plan.pages = {{1, 0, 2}};
  plan.rows = {{0, 20, 1, true}, {1, 0, 4, true}};
  plan.tokens = {-1, 7, 8, 9, 10};
  return plan;
}

struct Fault {
  const char* text;
  std::function<void(Plan&)> spoil;
};

// A table, a fault a line.
// clang-format off
std::vector<Fault> slot_faults() {
  auto nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  return {
      {"opens: slot", [](Plan& p) { p.opens[0].slot = -1; }},
      {"opens: slot", [](Plan& p) { p.opens[0].slot = 3; }},
      {"opens: slot", [](Plan& p) { p.opens[0].slot = INT64_MAX; }},
      {"slot is in use", [](Plan& p) { p.opens[0].slot = 0; }},
      {"slot is in use", [](Plan& p) { p.opens.push_back(p.opens[0]); }},
      {"promptLength", [](Plan& p) { p.opens[0].prompt_length = 0; }},
      {"promptLength", [](Plan& p) { p.opens[0].prompt_length = 61; }},
      {"temperature", [=](Plan& p) { p.opens[0].params.sampling.temperature = -0.1; }},
      {"temperature", [=](Plan& p) { p.opens[0].params.sampling.temperature = nan; }},
      {"temperature", [=](Plan& p) { p.opens[0].params.sampling.temperature = inf; }},
      {"topP", [=](Plan& p) { p.opens[0].params.sampling.top_p = 0; }},
      {"topP", [=](Plan& p) { p.opens[0].params.sampling.top_p = 1.01; }},
      {"topP", [=](Plan& p) { p.opens[0].params.sampling.top_p = nan; }},
      {"minP", [=](Plan& p) { p.opens[0].params.sampling.min_p = -0.01; }},
      {"minP", [=](Plan& p) { p.opens[0].params.sampling.min_p = nan; }},
      {"topK", [](Plan& p) { p.opens[0].params.sampling.top_k = -1; }},
      {"topK", [](Plan& p) { p.opens[0].params.sampling.top_k = int64_t(1) << 31; }},
      {"choice", [](Plan& p) { p.opens[0].params.sampling.choice = -1; }},
      {"logprobs", [](Plan& p) { p.opens[0].params.sampling.logprobs = 3; }},
      {"logprobs", [](Plan& p) { p.opens[0].params.sampling.logprobs = -2; }},
      {"maxTokens", [](Plan& p) { p.opens[0].params.max_tokens = 0; }},
      {"maxTokens", [](Plan& p) { p.opens[0].params.max_tokens = 61; }},
      {"minTokens", [](Plan& p) { p.opens[0].params.min_tokens = 11; }},
      {"minTokens", [](Plan& p) { p.opens[0].params.min_tokens = -1; }},
      {"stopIds", [](Plan& p) { p.opens[0].params.stop_ids = {103}; }},
      {"stopIds", [](Plan& p) { p.opens[0].params.stop_ids = {-1}; }},
      {"stopIds", [](Plan& p) { p.opens[0].params.stop_ids.assign(1025, 1); }},
      {"penalty", [=](Plan& p) { p.opens[0].params.sampling.repetition_penalty = 0; }},
      {"penalty", [=](Plan& p) { p.opens[0].params.sampling.repetition_penalty = nan; }},
      {"penalty", [=](Plan& p) { p.opens[0].params.sampling.frequency_penalty = nan; }},
      {"penalty", [=](Plan& p) { p.opens[0].params.sampling.presence_penalty = inf; }},
      {"biasIds", [](Plan& p) { p.opens[0].params.sampling.bias = {{103, 1.0f}}; }},
      {"biasIds", [](Plan& p) { p.opens[0].params.sampling.bias = {{-1, 1.0f}}; }},
      {"biasValues", [](Plan& p) { p.opens[0].params.sampling.bias = {{1, NAN}}; }},
      {"allowedIds", [](Plan& p) { p.opens[0].params.sampling.allowed = {1, 103}; }},
      {"allowedIds", [](Plan& p) { p.opens[0].params.sampling.allowed = {-5, 1}; }},
      {"allowedIds", [](Plan& p) { p.opens[0].params.sampling.allowed = {9, 1}; }},
      {"badWords", [](Plan& p) { p.opens[0].params.sampling.bad_words = {{1, 2}, {}}; }},
      {"badWords", [](Plan& p) { p.opens[0].params.sampling.bad_words = {{1, 103}}; }},
      {"barredIds", [](Plan& p) { p.opens[0].params.barred_ids = {103}; }},
      {"barredIds", [](Plan& p) { p.opens[0].params.barred_ids = {-1}; }},
      {"barredIds.length", [](Plan& p) { p.opens[0].params.barred_ids.assign(1025, 1); }},
      {"promptLogprobs must be", [](Plan& p) { p.opens[0].prompt_logprobs = 3; }},
      {"promptLogprobs must be", [](Plan& p) { p.opens[0].prompt_logprobs = -2; }},
      {"needs an empty cached", [](Plan& p) { p.opens[0].cached.assign(16, 1), p.opens[0].prompt_logprobs = 0; }},
      {"cached.length", [](Plan& p) { p.opens[0].cached.assign(60, 1); }},
      {"cached must fill whole pages", [](Plan& p) { p.opens[0].cached.assign(15, 1); }},
      {"cached must be", [](Plan& p) { p.opens[0].cached.assign(16, 103); }},
      {"cached must be", [](Plan& p) { p.opens[0].cached.assign(16, -1); }},
      {"closes: slot", [](Plan& p) { p.closes = {-1}; }},
      {"closes: slot", [](Plan& p) { p.closes = {3}; }},
      {"closes: slot is not open", [](Plan& p) { p.closes = {2}; }},
      {"closes: slot is not open", [](Plan& p) { p.closes = {0, 0}; }},
  };
}

std::vector<Fault> row_faults() {
  return {
      {"pages: slot", [](Plan& p) { p.pages[0].slot = -1; }},
      {"pages: slot", [](Plan& p) { p.pages[0].slot = 3; }},
      {"pages: slot is not open", [](Plan& p) { p.pages[0].slot = 2; }},
      {"pages: index", [](Plan& p) { p.pages[0].index = 1; }},
      {"pages: index", [](Plan& p) { p.pages[0].index = -1; }},
      {"pages: index", [](Plan& p) { p.pages[0].slot = 0; }},
      {"pages: index", [](Plan& p) { p.pages = {{1, 0, 2}, {1, 1, 1}, {1, 2, 0}, {1, 3, 4}, {1, 4, 6}}; }},
      {"pages: page", [](Plan& p) { p.pages[0].page = 8; }},
      {"pages: page", [](Plan& p) { p.pages[0].page = -1; }},
      {"rows: slot", [](Plan& p) { p.rows[1].slot = -1; }},
      {"rows: slot", [](Plan& p) { p.rows[1].slot = 3; }},
      {"rows: slot is not open", [](Plan& p) { p.rows[1].slot = 2; }},
      {"two rows", [](Plan& p) { p.rows[1].slot = 0; }},
      {"controls: slot", [](Plan& p) { p.controls = {{2, {}}}; }},
      {"controls: slot", [](Plan& p) { p.controls = {{-1, {}}}; }},
      {"controls: slot", [](Plan& p) { p.controls = {{p.rows[1].slot, {}}, {p.rows[1].slot, {}}}; }},
      {"controls.biasIds", [](Plan& p) { p.controls = {{p.rows[1].slot, {{{103, 1.0f}}, {}}}}; }},
      {"controls.biasValues", [](Plan& p) { p.controls = {{p.rows[1].slot, {{{1, NAN}}, {}}}}; }},
      {"controls.allowedIds", [](Plan& p) { p.controls = {{p.rows[1].slot, {{}, {103}}}}; }},
      {"controls.allowedIds", [](Plan& p) { p.controls = {{p.rows[1].slot, {{}, {9, 1}}}}; }},
      {"rows: slot is not open", [](Plan& p) { p.closes = {0}; }},
      {"rows: count", [](Plan& p) { p.rows[1].count = 0; }},
      {"rows: count", [](Plan& p) { p.rows[1].count = -4; }},
      {"rows: count", [](Plan& p) { p.rows[1].count = 41; }},
      {"rows: position", [](Plan& p) { p.rows[1].first_position = 1; }},
      {"rows: position", [](Plan& p) { p.rows[0].first_position = 19; }},
      {"rows: position", [](Plan& p) { p.rows[0].first_position = 21; }},
      {"rows: position", [](Plan& p) { p.rows[0].first_position = -1; }},
      {"has no page", [](Plan& p) { p.rows[1].count = 17; p.tokens.resize(18, 1); }},
      {"has no page", [](Plan& p) { p.pages.clear(); }},
      {"maxModelLen", [](Plan& p) { p.rows[1].count = 40; p.rows[0].count = 41; }},
      {"write the same page", [](Plan& p) { p.pages[0].page = 5; }},
      {"rows: scored must be", [](Plan& p) { p.rows[1].scored = 5; }},
      {"rows: scored must be", [](Plan& p) { p.rows[1].scored = -1; }},
      {"before a scored token was not fed", [](Plan& p) { p.rows[1].samples = 2, p.rows[1].scored = p.rows[1].count - 1; }},
      {"tokens: fewer", [](Plan& p) { p.tokens.pop_back(); }},
      {"tokens: more", [](Plan& p) { p.tokens.push_back(1); }},
      {"tokens: id", [](Plan& p) { p.tokens[1] = 103; }},
      {"tokens: id", [](Plan& p) { p.tokens[1] = -2; }},
      {"tokens: id", [](Plan& p) { p.tokens[1] = -1; }},
      {"tokens: id", [](Plan& p) { p.tokens[1] = INT32_MIN; }},
      {"tokens.length", [](Plan& p) {
         p.rows[1].count = 40;
         p.tokens.resize(41, 1);
         p.pages = {{1, 0, 2}, {1, 1, 1}, {1, 2, 0}};
       }},
  };
}
// clang-format on

void check_same(const engine::StepResult& a, const engine::StepResult& b) {
  CHECK_EQ(a.samples.size(), b.samples.size());
  for (size_t i = 0; i < a.samples.size(); ++i) {
    CHECK_EQ(a.samples[i].token, b.samples[i].token);
    CHECK(same_bits(a.samples[i].logprob, b.samples[i].logprob));
  }
}

void check_faults(const std::vector<Fault>& faults) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  engine::Engine disturbed(model, planned_options()), calm(model, planned_options());
  check_same(disturbed.step(first_plan()), calm.step(first_plan()));
  for (const Fault& fault : faults) {
    Plan plan = second_plan();
    fault.spoil(plan);
    if (std::string(fault.text) == "maxModelLen") continue;
    CHECK_ERROR(kRange, fault.text, disturbed.step(plan));
  }
  engine::StepResult result = calm.step(second_plan());
  CHECK_EQ(result.samples.size(), size_t(2));
  check_same(disturbed.step(second_plan()), result);
}

TEST_ONCE(plans_with_bad_slots_change_nothing) { check_faults(slot_faults()); }
TEST_ONCE(plans_with_bad_rows_change_nothing) { check_faults(row_faults()); }

TEST_ONCE(plans_past_the_longest_context_are_refused) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  engine::Engine engine(model, planned_options());
  Plan plan = first_plan();
  plan.opens[0].prompt_length = 60;
  plan.pages = {{0, 0, 3}, {0, 1, 5}, {0, 2, 6}, {0, 3, 7}};
  plan.rows = {{0, 0, 40, false}};
  plan.tokens.assign(40, 5);
  engine.step(plan);
  Plan more;
  more.rows = {{0, 40, 21, true}};
  more.tokens.assign(21, 5);
  CHECK_ERROR(kRange, "maxModelLen", engine.step(more));
  more.rows[0].count = 20;
  more.tokens.pop_back();
  CHECK_EQ(engine.step(more).samples[0].finish, engine::Finish::kLength);
}

TEST_ONCE(plans_without_rows_open_and_close) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  engine::Engine engine(model, planned_options());
  CHECK(engine.step({}).samples.empty());
  Plan plan;
  plan.opens = {open_of(2)};
  CHECK(engine.step(plan).samples.empty());
  CHECK_ERROR(kRange, "slot is in use", engine.step(plan));
  plan.closes = {2};  // closed and opened in one plan
  CHECK(engine.step(plan).samples.empty());
  plan.opens.clear();
  engine.step(plan);
  CHECK_ERROR(kRange, "slot is not open", engine.step(plan));
}

TEST_ONCE(the_last_token_is_known_only_after_a_sample) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  engine::Engine engine(model, planned_options());
  Plan plan = first_plan();
  plan.rows[0].samples = 0;
  CHECK(engine.step(plan).samples.empty());
  Plan next;
  next.rows = {{0, 20, 1, true}};
  next.tokens = {-1};
  CHECK_ERROR(kRange, "tokens: id", engine.step(next));
  next.tokens = {4};
  int32_t token = engine.step(next).samples[0].token;
  CHECK(token >= 0);
  next.rows = {{0, 21, 2, true}};
  next.tokens = {4, -1};
  CHECK_ERROR(kRange, "tokens: id", engine.step(next));  // only as the first of a row
}

TEST_ONCE(the_spec_is_checked_by_name) {
  auto refuse = [](const char* text, auto change) {
    TinyModel tiny;
    change(tiny.spec);
    CHECK_ERROR(kRange, text, model::check(tiny.spec));
  };
  model::check(TinyModel().spec);
  for (int64_t bad : {int64_t(0), int64_t(-1), int64_t(1) << 40, INT64_MAX, INT64_MIN}) {
    refuse("vocabSize", [&](auto& s) { s.vocab_size = bad; });
    refuse("hiddenSize", [&](auto& s) { s.hidden_size = bad; });
    refuse("intermediateSize", [&](auto& s) { s.intermediate_size = bad; });
    refuse("layers", [&](auto& s) { s.layers = bad; });
    refuse("heads", [&](auto& s) { s.heads = bad; });
    refuse("kvHeads", [&](auto& s) { s.kv_heads = bad; });
    refuse("headDim", [&](auto& s) { s.head_dim = bad; });
    refuse("maxPosition", [&](auto& s) { s.max_position = bad; });
    if (bad != 0) refuse("slidingWindow", [&](auto& s) { s.sliding_window = bad; });
  }
  refuse("headDim", [](auto& s) { s.head_dim = 11; });
  refuse("multiple of kvHeads", [](auto& s) { s.kv_heads = 4; });
  refuse("32 heads", [](auto& s) { s.heads = 33, s.kv_heads = 1; });
  refuse("windowLayers", [](auto& s) { s.window_layers.pop_back(); });
  for (double bad : {0.0, -1.0, double(NAN), double(INFINITY)}) {
    refuse("rmsNormEps", [&](auto& s) { s.rms_norm_eps = bad; });
    refuse("ropeTheta", [&](auto& s) { s.rope.theta = bad; });
    refuse("factor", [&](auto& s) { s.rope.factor = bad; });
    refuse("lowFreqFactor", [&](auto& s) { s.rope.low_freq_factor = bad; });
    refuse("highFreqFactor", [&](auto& s) { s.rope.high_freq_factor = bad; });
  }
  refuse("must differ", [](auto& s) { s.rope.low_freq_factor = s.rope.high_freq_factor = 2; });
  refuse("originalMaxPosition", [](auto& s) { s.rope.original_max_position = 0; });
  auto yarn = [](auto& s) { s.rope.scaling = ops::RopeScaling::kYarn; };
  for (double bad : {0.0, -1.0, double(NAN), double(INFINITY)}) {
    refuse("betaFast", [&](auto& s) { yarn(s), s.rope.beta_fast = bad; });
    refuse("betaSlow", [&](auto& s) { yarn(s), s.rope.beta_slow = bad; });
    refuse("attentionFactor", [&](auto& s) { yarn(s), s.rope.attention_factor = bad; });
  }
  refuse("ropeTheta", [&](auto& s) { yarn(s), s.rope.theta = 1; });
  refuse("originalMaxPosition", [&](auto& s) { yarn(s), s.rope.original_max_position = 0; });
  auto factors = [](auto& s, size_t count) { s.rope.scaling = ops::RopeScaling::kFactors, s.rope.factors.assign(count, 1.0f); };
  refuse("ropeScaling.factors", [&](auto& s) { factors(s, 4); });
  for (float bad : {0.0f, -1.0f, NAN, INFINITY}) {
    refuse("ropeScaling.factors", [&](auto& s) { factors(s, 5), s.rope.factors[4] = bad; });
  }
}

}  // namespace
}  // namespace tandem::test
