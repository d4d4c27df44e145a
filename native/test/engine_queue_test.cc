// Queued steps as the engine sees them, over a back-end that answers what it is told: what may be queued, what is asked of the back-end, who
// gets which results, and what a failure leaves behind.
#include <cmath>

#include "grammar/matcher.h"
#include "patient_budget.h"
#include "scripted_engine.h"

namespace tandem::test {
namespace {

using engine::Finish;

TEST_ONCE(engine_queues_steps_and_gives_each_its_results) {
  Script script;
  script.tokens = {{50, 60}, {51, 61}, {52, 62}};
  engine::Engine engine = scripted_engine(script);
  CHECK(engine.queue(prompts()));
  CHECK(engine.queue(decode(1, {0, 1})));
  CHECK(!engine.queue(decode(2, {0, 1})));
  CHECK(tokens_of(engine.finish()) == std::vector<int32_t>({0, 50, 1, 60}));
  CHECK(engine.queue(decode(2, {1, 0})));
  CHECK(tokens_of(engine.finish()) == std::vector<int32_t>({0, 51, 1, 61}));
  CHECK_EQ(tokens_of(engine.finish()).size(), size_t(4));
  const std::vector<int32_t> by_slot = {engine::sampled_by(0), engine::sampled_by(1)};
  CHECK(script.queued[1].batch.tokens == by_slot);
  CHECK_EQ(script.queued[1].draws[1].slot, int64_t(1));
  CHECK_EQ(script.queued[1].draws[1].input.index, uint64_t(1));
  CHECK_EQ(script.queued[2].draws[1].input.index, uint64_t(2));
  // Nothing is awaited any more: the host knows the tokens.
  CHECK(engine.queue(decode(3, {0, 1}, false)));
  CHECK(script.queued[3].batch.tokens == std::vector<int32_t>({62, 52}));
}

TEST_ONCE(engine_gives_no_result_for_what_an_earlier_step_ended) {
  Script script;
  script.tokens = {{kStop, 60}, {51, 61}, {62, 40}};
  engine::Engine engine = scripted_engine(script);
  engine.queue(prompts());
  engine.queue(decode(1, {0, 1}));
  const engine::StepResult first = engine.finish();
  CHECK_EQ(first.samples[0].finish, Finish::kStopToken);
  // The slot goes to another sequence while the old one's row is queued.
  Plan plan = decode(2, {1});
  plan.closes = {0};
  engine::Open open;
  open.slot = 0;
  open.prompt_length = 2;
  open.params.max_tokens = 1;
  plan.opens = {open};
  plan.pages = {{0, 0, 0}};
  plan.rows.push_back({0, 0, 2, 1});
  plan.tokens = {-1, 5, 6};
  CHECK(engine.queue(plan));
  CHECK(tokens_of(engine.finish()) == std::vector<int32_t>({1, 61}));
  CHECK(tokens_of(engine.finish()) == std::vector<int32_t>({1, 62, 0, 40}));
}

TEST_ONCE(engine_queues_no_step_that_closes_what_is_awaited) {
  Script script;
  script.tokens = {{50, 60}, {61}};
  engine::Engine engine = scripted_engine(script);
  engine.queue(prompts());
  Plan plan = decode(1, {1});
  plan.closes = {0};
  CHECK(!engine.queue(plan));
  CHECK_ERROR(kState, "not finished", engine.step(plan));
  CHECK_EQ(tokens_of(engine.finish()).size(), size_t(4));
  CHECK(engine.queue(plan));
  CHECK(tokens_of(engine.finish()) == std::vector<int32_t>({1, 61}));
}

// Over a token per letter: token 0 is an a, and so is 26.
std::shared_ptr<engine::Constraint> letters_only(const char* regex = "[a-y]*", bool jumps = false) {
  std::vector<std::string> tokens;
  for (int i = 0; i < 103; ++i) tokens.emplace_back(1, char('a' + i % 26));
  auto masks = std::make_shared<const grammar::SharedMasks>(std::make_shared<const grammar::Vocabulary>(tokens, std::vector<int32_t>()));
  grammar::Budget budget = grammar::patient_budget();
  auto program = engine::make_program(grammar::compile_whole_regex(regex, budget), masks, budget);
  return std::make_shared<engine::Constraint>(program, std::vector<int32_t>(), 10, jumps);
}

bool allows(const engine::Draw& draw, int32_t token) { return (draw.input.mask[token / 32] >> token % 32 & 1) != 0; }

TEST_ONCE(engine_draws_under_a_grammar_when_the_token_before_is_known) {
  Script script;
  script.tokens = {{0, 60}, {1, 61}, {2, 62}};
  engine::Engine engine = scripted_engine(script);
  Plan plan = prompts();
  plan.opens[0].constraint = letters_only("a[ab]c");
  CHECK(engine.queue(plan));
  engine.draw();
  CHECK(allows(script.queued[0].draws[0], 0) && !allows(script.queued[0].draws[0], 1));
  CHECK(engine.queue(decode(1, {0, 1})));
  engine.draw();  // it is the first step's turn still
  CHECK_EQ(script.order, "ldl");
  CHECK(tokens_of(engine.finish()) == std::vector<int32_t>({0, 0, 1, 60}));
  CHECK_EQ(script.order, "ldlr");
  // Whoever queues the next one has the draws put before it.
  CHECK(engine.queue(decode(2, {0, 1})));
  CHECK_EQ(script.order, "ldlrdl");
  const std::vector<engine::Draw>& second = script.queued[1].draws;
  CHECK(allows(second[0], 1) && !allows(second[0], 2));
  CHECK(second[1].input.mask == nullptr);
  CHECK_EQ(second[0].input.index, uint64_t(1));
  CHECK_EQ(second[1].input.index, uint64_t(1));
  CHECK(script.queued[2].batch.tokens == std::vector<int32_t>({engine::sampled_by(0), engine::sampled_by(1)}));
  CHECK(tokens_of(engine.finish()) == std::vector<int32_t>({0, 1, 1, 61}));
  const engine::StepResult last = engine.finish();
  CHECK_EQ(script.order, "ldlrdlrdr");
  CHECK(tokens_of(last) == std::vector<int32_t>({0, 2, 1, 62}));
  CHECK_EQ(last.samples[0].finish, Finish::kComplete);
}

TEST_ONCE(engine_draws_nothing_of_what_the_step_before_ended) {
  Script script;
  script.tokens = {{0, 60}, {61}};
  engine::Engine engine = scripted_engine(script);
  Plan plan = prompts();
  plan.opens[0].constraint = letters_only("a");
  plan.opens[1].constraint = letters_only();
  engine.queue(plan);
  engine.queue(decode(1, {0, 1}));
  CHECK_EQ(engine.finish().samples[0].finish, Finish::kComplete);
  engine.draw();
  CHECK_EQ(script.queued[1].draws.size(), size_t(1));
  CHECK_EQ(script.queued[1].draws[0].slot, int64_t(1));
  CHECK(tokens_of(engine.finish()) == std::vector<int32_t>({1, 61}));
}

TEST_ONCE(engine_tells_of_a_grammar_that_fails_between_two_queued_steps) {
  Script script;
  script.tokens = {{0, 60}, {61}};
  engine::Engine engine = scripted_engine(script);
  Plan plan = prompts();
  plan.opens[0].constraint = letters_only();
  const std::shared_ptr<engine::Constraint> constraint = plan.opens[0].constraint;
  engine.queue(plan);
  engine.queue(decode(1, {0, 1}));
  engine.finish();
  constraint->take(1, 25);
  const engine::StepResult result = engine.finish();
  CHECK(tokens_of(result) == std::vector<int32_t>({0, -1, 1, 61}));
  CHECK_EQ(result.samples[0].finish, Finish::kGrammar);
}

// "b" needs more letters than are left.
TEST_ONCE(engine_has_a_token_drawn_again_that_its_grammar_does_not_take) {
  Script script;
  script.tokens = {{1, 60}, {0, 61}};
  script.again = {27, 26};
  engine::Engine engine = scripted_engine(script);
  Plan plan = prompts();
  plan.opens[0].constraint = letters_only("a*|b[a-z]{20}");
  CHECK(engine.queue(plan));
  engine.draw();
  // What came out first may be in the way of everybody's layers: no step behind it draws before it is known.
  CHECK(engine.queue(decode(1, {0, 1})));
  CHECK_EQ(script.order, "ldl");
  CHECK(tokens_of(engine.finish()) == std::vector<int32_t>({0, 26, 1, 60}));
  CHECK(script.again.empty());
  CHECK(tokens_of(engine.finish()) == std::vector<int32_t>({0, 0, 1, 61}));
}

TEST_ONCE(engine_queues_no_whole_step_behind_one_whose_tokens_may_be_drawn_again) {
  for (bool asks : {false, true}) {
    Script script;
    script.tokens = {{0, 60}, {61}};
    engine::Engine engine = scripted_engine(script);
    Plan plan = prompts();
    if (asks) plan.opens[0].constraint = letters_only("a");
    else plan.opens[0].params.sampling.presence_penalty = 1;
    engine.queue(plan);
    CHECK(engine.queue(decode(1, {1})));
    CHECK_EQ(script.order, asks ? "ldl" : "ldw");
    engine.finish();
    engine.finish();
  }
}

TEST_ONCE(engine_penalises_the_tokens_of_the_step_before) {
  Script script;
  script.tokens = {{50, 60}, {51, 61}, {52, 62}};
  script.limits.edits = 16;
  engine::Engine engine = scripted_engine(script);
  Plan plan = prompts();
  plan.opens[0].params.sampling.presence_penalty = 1;
  plan.opens[1].params.sampling.bad_words = {{60, 61}};
  CHECK(engine.queue(plan));
  CHECK(engine.queue(decode(1, {0, 1})));
  engine.finish();
  CHECK(engine.queue(decode(2, {0, 1})));
  engine.finish();
  engine.draw();
  CHECK_EQ(script.order, "ldlrdlrd");
  CHECK(script.queued[0].draws[0].input.history->tokens() == std::vector<int32_t>({0, 1, 2, 3, 50, 51}));
  CHECK(script.queued[2].draws[1].input.history->tokens() == std::vector<int32_t>({0, 1, 2, 3, 4, 60, 61}));
  engine.finish();
  CHECK_EQ(script.order, "ldlrdlrdr");
}

// Slot 0's prompt of four, in pieces of 2, 1 and 1; nothing is drawn behind the first two. Slot 1 beside it, or not.
std::vector<Plan> pieces(bool beside) {
  std::vector<Plan> plans = {prompts(), decode(1, {1}), decode(2, {1})};
  plans[0].rows.erase(plans[0].rows.begin());
  plans[0].tokens.erase(plans[0].tokens.begin(), plans[0].tokens.begin() + 4);
  if (!beside) {
    plans[0].opens.pop_back();
    plans[0].pages.pop_back();
    for (Plan& plan : plans) plan.rows.clear(), plan.tokens.clear();
  }
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t first = i == 0 ? 0 : i + 1, count = i == 0 ? 2 : 1;
    plans[size_t(i)].rows.push_back({0, first, count, i == 2});
    for (int64_t k = 0; k < count; ++k) plans[size_t(i)].tokens.push_back(int32_t(first + k));
  }
  return plans;
}

// Alone, beside what draws, and beside what draws with a history of its own.
TEST_ONCE(engine_penalises_a_prompt_that_came_in_pieces) {
  for (int beside : {0, 1, 2}) {
    Script script;
    script.limits.edits = 32;
    if (beside == 0) script.tokens = {{}, {}, {50}};
    else script.tokens = {{60}, {61}, {62, 50}};
    engine::Engine engine = scripted_engine(script);
    std::vector<Plan> plans = pieces(beside > 0);
    plans[0].opens[0].params.sampling.repetition_penalty = 1.5;
    if (beside == 2) plans[0].opens[1].params.sampling.presence_penalty = 1;
    CHECK(engine.queue(plans[0]));
    CHECK(engine.queue(plans[1]));
    engine.finish();
    CHECK(engine.queue(plans[2]));
    engine.finish();
    engine.draw();
    CHECK(script.queued[2].draws.back().input.history->tokens() == std::vector<int32_t>({0, 1, 2, 3}));
    engine.finish();
  }
}

TEST_ONCE(engine_queues_no_more_ids_to_change_than_the_device_takes) {
  // Of both a stop id; four tokens and five, then one more of each, which the histories do not know yet.
  for (int64_t edits : {10, 11, 12, 13}) {
    for (bool repeats : {false, true}) {
      Script script;
      script.limits.edits = edits;
      engine::Engine engine = scripted_engine(script);
      Plan plan = prompts();
      for (engine::Open& open : plan.opens) open.params.sampling.repetition_penalty = 2;
      if (repeats) plan.tokens[3] = plan.tokens[2];
      CHECK_EQ(engine.queue(plan), edits >= 11);
      if (edits >= 11) CHECK_EQ(engine.queue(decode(1, {0, 1})), edits >= (repeats ? 12 : 13));
    }
  }
}

TEST_ONCE(engine_tells_why_draws_failed_when_the_step_is_finished) {
  Script script;
  engine::Engine engine = scripted_engine(script);
  Plan plan = prompts();
  plan.opens[0].constraint = letters_only();
  engine.queue(plan);
  script.draws_fail = true;
  CHECK_ERROR(kState, "the draws failed", engine.draw());
  script.draws_fail = false;
  CHECK_ERROR(kState, "half-way", engine.queue(decode(1, {0, 1})));
  engine.draw();
  CHECK_EQ(script.order, "l");
  CHECK_ERROR(kState, "the draws failed", engine.finish());
  CHECK_ERROR(kState, "half-way", engine.finish());
}

TEST_ONCE(engine_asks_for_scores_of_the_prompt_as_it_is_and_of_outputs_as_their_sequence_wants) {
  for (int64_t forced : {0, 2}) {
    Script script;
    engine::Engine engine = scripted_engine(script);
    Plan plan = prompts();
    plan.opens.resize(1);
    engine::Open& open = plan.opens[0];
    open.prompt_logprobs = 1;
    open.params.sampling.logprobs = 3;
    open.params.sampling.temperature = 0.5;
    open.params.sampling.mode = ops::LogprobMode::kTemperature;
    plan.pages.resize(1);
    plan.rows = {{0, 0, 6, 1, forced}};
    plan.tokens = {1, 2, 3, 4, 5, 6};
    const engine::StepResult result = engine.step(plan);
    // Each but the first of the prompt's four tokens, and the forced ones behind them.
    CHECK_EQ(result.fed.size(), size_t(3 + forced));
    CHECK_EQ(script.scored.size(), result.fed.size());
    for (size_t i = 0; i < script.scored.size(); ++i) {
      CHECK_EQ(result.fed[i].position, int32_t(i + 1));
      CHECK_EQ(script.scored[i].token, int32_t(i + 2));
      CHECK_EQ(script.scored[i].hidden.row, int64_t(i));
      CHECK_EQ(script.scored[i].best, i < 3 ? int64_t(1) : int64_t(3));
      CHECK_EQ(script.scored[i].scale, i < 3 ? 1.0f : 2.0f);
    }
  }
}

TEST_ONCE(engine_tells_of_a_grammar_that_cannot_go_on_and_no_log_probability_that_nobody_wants) {
  Script script;
  engine::Engine engine = scripted_engine(script);
  Plan plan = prompts();
  plan.opens[0].constraint = letters_only();
  plan.opens[0].constraint->take(0, 25);
  CHECK(plan.opens[0].constraint->failed());
  const engine::StepResult result = engine.step(plan);
  CHECK_EQ(result.samples.size(), size_t(2));
  CHECK_EQ(result.samples[0].finish, Finish::kGrammar);
  CHECK_EQ(result.samples[0].token, -1);
  CHECK_EQ(result.samples[1].token, 1);
  CHECK(std::isnan(result.samples[1].logprob));
}

TEST_ONCE(engine_queues_nothing_whose_results_decide_what_is_computed) {
  using Change = std::function<void(Plan&)>;
  const std::vector<Change> changes = {
      [](Plan& p) { p.opens[0].prompt_logprobs = 0; },
      [](Plan& p) { p.opens[0].constraint = letters_only("[a-y]*", true); },
      [](Plan& p) { p.rows[1].scored = 1; },
      [](Plan& p) {
        p.controls = {{1, {}}};
      },
      [](Plan& p) { p.opens[1].prompt_length = 2, p.rows[1].samples = 3; },
      [](Plan& p) { p.opens[1].params.sampling.logprobs = 5; },
      [](Plan& p) {
        p.opens[1].params.sampling.bias = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 1}, {8, 1}};
      },
  };
  for (const Change& change : changes) {
    Script script;
    engine::Engine engine = scripted_engine(script);
    Plan plan = prompts();
    change(plan);
    CHECK(!engine.queue(plan));
    CHECK(!engine.step(plan).samples.empty());
  }
  Script one;
  one.limits.draws = 1;
  CHECK(!scripted_engine(one).queue(prompts()));
  Script none;
  none.limits = {};
  CHECK(!scripted_engine(none).queue(prompts()));
  Script empty;
  CHECK(!scripted_engine(empty).queue({}));
  Script script;
  engine::Engine engine = scripted_engine(script);
  engine.queue(prompts());
  CHECK(!engine.queue(decode(1, {0}, false)));
  CHECK_ERROR(kRange, "position", engine.queue(decode(2, {0})));
}

TEST_ONCE(engine_fails_with_the_step_that_failed) {
  Script script;
  script.tokens = {{}};
  engine::Engine engine = scripted_engine(script);
  engine.queue(prompts());
  engine.queue(decode(1, {0, 1}));
  CHECK_ERROR(kState, "the GPU failed", engine.finish());
  CHECK_ERROR(kState, "half-way", engine.finish());
  CHECK_ERROR(kState, "half-way", engine.step(decode(2, {0})));
  CHECK_ERROR(kState, "half-way", engine.queue(decode(2, {0})));
}

TEST_ONCE(engine_finishes_what_was_queued_before_the_step_that_failed) {
  Script script;
  script.tokens = {{50, 60}};
  engine::Engine engine = scripted_engine(script);
  engine.queue(prompts());
  script.queue_fails = true;
  CHECK_ERROR(kState, "the launch failed", engine.queue(decode(1, {0, 1})));
  CHECK(tokens_of(engine.finish()) == std::vector<int32_t>({0, 50, 1, 60}));
  CHECK_ERROR(kState, "half-way", engine.step(decode(1, {0})));
}

}  // namespace
}  // namespace tandem::test
