// Grammars in the engine's step: only allowed tokens come, every answer ends in time, and neither batch nor preemption changes one.
#include "engine/constraint.h"

#include "driver.h"
#include "grammar/structural_tag.h"
#include "patient_budget.h"
#include "test.h"
#include "tiny_model.h"

namespace tandem::test {
namespace {

using engine::Finish;
using engine::Program;
using namespace grammar;

constexpr int32_t kEnd = 0;

// Token 0 ends a text; then printable ASCII, and a few longer tokens.
std::shared_ptr<const SharedMasks> vocabulary() {
  static const std::shared_ptr<const SharedMasks> made = [] {
    std::vector<std::string> tokens = {""};
    for (char byte = ' '; byte <= '~'; ++byte) tokens.push_back(std::string(1, byte));
    for (const char* word : {"{\"", "\":", "\",\"", "\"}"}) tokens.push_back(word);
    return std::make_shared<const SharedMasks>(std::make_shared<const Vocabulary>(tokens, std::vector<int32_t>{}));
  }();
  return made;
}

std::shared_ptr<const Program> schema(const std::string& text) {
  Budget budget = patient_budget();
  return engine::make_program(compile_json_schema(text, {}, budget), vocabulary(), budget);
}
std::shared_ptr<const Program> regex(const std::string& pattern) {
  Budget budget = patient_budget();
  return engine::make_program(compile_whole_regex(pattern, budget), vocabulary(), budget);
}

engine::Options masked_options() {
  engine::Options o = driven_options();
  o.max_batch_tokens = 128;
  o.max_model_len = 160;
  return o;
}

Job job(std::shared_ptr<const Program> program, uint64_t seed, int64_t most, double temperature = 1) {
  Random random(seed);
  Job j;
  for (int i = 0; i < 5; ++i) j.prompt.push_back(int32_t(random.whole(1, 99)));
  j.params.sampling.temperature = temperature;
  j.params.sampling.seed = seed;
  j.params.sampling.logprobs = 2;
  j.params.max_tokens = most;
  j.params.stop_ids = {kEnd};
  j.program = std::move(program);
  return j;
}

std::string text_of(const Job& j) {
  std::string out;
  for (const Token& token : j.output) {
    if (token.id >= 0) out += vocabulary()->vocabulary().bytes(token.id);
  }
  return out;
}

// Every output was in the brute-force set of its position, and the text is whole where the engine says so.
void check_language(const Job& j, const std::string& what) {
  Matcher matcher(j.program->masks);
  for (const Token& token : j.output) {
    if (token.id < 0) continue;
    bool ends = token.id == kEnd;
    if (ends ? !matcher.can_end() : !matcher.advance(token.id))
      return fail(__FILE__, __LINE__, what + ": a forbidden token after " + text_of(j));
  }
  Finish finish = j.output.back().finish;
  if ((finish == Finish::kComplete || finish == Finish::kStopToken) && !matcher.can_end())
    fail(__FILE__, __LINE__, what + ": not whole: " + text_of(j));
  if (finish == Finish::kNone && matcher.complete()) fail(__FILE__, __LINE__, what + ": went on after the end: " + text_of(j));
}

const char* const kObject =
    "{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"integer\"},\"c\":{\"type\":\"string\"},\"d\":{\"enum\":[\"x\",\"yy\"]}},"
    "\"required\":[\"ab\",\"c\"]}";

std::vector<std::shared_ptr<const Program>> programs() {
  return {schema(kObject),
          schema("{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"minItems\":1}"),
          schema("{}"),
          regex("[a-c]{3,}x"),
          regex("(ab|cd)*"),
          schema("{\"type\":\"object\",\"minProperties\":2,\"additionalProperties\":{\"type\":\"boolean\"}}"),
          schema("{\"type\":\"string\",\"pattern\":\"\\\\u0001\\\\u0002\\\"\"}")};
}

std::vector<Job> jobs(int64_t most) {
  std::vector<Job> all;
  for (const auto& program : programs()) all.push_back(job(program, 10 + all.size(), most, all.size() % 3 == 0 ? 0 : 1));
  return all;
}

std::vector<Job> alone(const std::shared_ptr<model::Model>& model, std::vector<Job> all) {
  for (Job& j : all) {
    Driver driver(model, masked_options());
    driver.start(0, j);
    driver.run();
  }
  return all;
}

TEST_ENGINE(constrained_outputs_stay_in_the_language_and_end_in_time) {
  auto model = TinyModel().load(ops::Element::kF32, 2);
  for (const auto& program : programs()) {
    int64_t least = std::max<int64_t>(1, int64_t(program->shortest.size()));
    for (int64_t most : {least, least + 1, least + 2, least + 5, least + 20}) {
      for (uint64_t seed = 1; seed <= 6; ++seed) {
        Job j = job(program, seed, most, seed == 1 ? 0 : 1.5);
        Driver driver(model, masked_options());
        driver.start(0, j);
        driver.run();
        check_language(j, "most " + std::to_string(most));
        Matcher matcher(program->masks);
        std::string text = text_of(j);
        if (!text.empty() && !matcher.advance_bytes(text)) fail(__FILE__, __LINE__, "not in the language: " + text);
        if (!matcher.can_end()) fail(__FILE__, __LINE__, "cut although the shortest text fits: " + text);
      }
    }
  }
}

// Nothing that could follow it fits: more tokens than are refused one by one.
TEST_ENGINE(an_answer_that_is_whole_and_has_no_room_to_go_on_ends) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  for (const char* pattern : {"([a-h]z{9})?", "x([a-h]z{9})?"}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      Job j = job(regex(pattern), seed, 4, seed == 1 ? 0 : 1.5);
      Driver driver(model, masked_options());
      driver.start(0, j);
      driver.run();
      CHECK_EQ(text_of(j), std::string(pattern[0] == 'x' ? "x" : ""));
      CHECK_EQ(j.output.back().id, kEnd);
      CHECK(j.output.back().finish == Finish::kStopToken);
    }
  }
}

TEST_ENGINE(an_answer_whose_shortest_text_does_not_fit_is_cut) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  Job j = job(regex("[a-c]{30}"), 3, 8);
  Driver driver(model, masked_options());
  driver.start(0, j);
  driver.run();
  check_language(j, "cut");
  CHECK_EQ(j.output.size(), size_t(8));
  CHECK(j.output.back().finish == Finish::kLength);
}

TEST_ENGINE(a_shortest_text_of_few_tokens_and_many_bytes_is_reached) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  // 1200 bytes, 600 tokens: longer than what is looked for at a token, so it is followed from the start.
  std::string word;
  for (int i = 0; i < 25; ++i) word += "{\"\":";
  auto program = regex("(z{130}|" + [&] {
    std::string out;
    for (char c : word) out += std::string(c == '{' ? "\\" : "") + c;
    return out;
  }() + ")");
  CHECK_EQ(program->shortest.size(), size_t(50));
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Job j = job(program, seed, 50);
    Driver driver(model, masked_options());
    driver.start(0, j);
    driver.run();
    CHECK_EQ(text_of(j), word);
    CHECK(j.output.back().finish == Finish::kComplete);
  }
}

TEST_ENGINE(constraints_change_no_bits_in_batches_and_after_preemption) {
  auto model = TinyModel().load(ops::Element::kF32, 2);
  std::vector<Job> truth = alone(model, jobs(24)), together = jobs(24), stopped = jobs(24);
  Driver driver(model, masked_options(), 7);
  driver.set_chunk(3);
  for (size_t i = 0; i < together.size(); ++i) driver.start(int64_t(together.size() - i), together[i]);
  driver.run();
  Driver other(model, masked_options(), 5);
  for (size_t i = 0; i < stopped.size(); ++i) other.start(int64_t(i), stopped[i]);
  for (int step = 0; other.step(); ++step) {
    size_t victim = size_t(step) % stopped.size();
    if (step > 20 || stopped[victim].finished()) continue;
    other.stop(int64_t(victim));
    other.start(int64_t(victim), stopped[victim]);
  }
  for (size_t i = 0; i < truth.size(); ++i) {
    check_same(together[i], truth[i]);
    check_same(stopped[i], truth[i]);
  }
}

TEST_ENGINE(raw_log_probabilities_come_before_the_mask) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  Job free = job(nullptr, 4, 1), bound = job(regex("~+"), 4, 1);
  free.params.sampling.logprobs = bound.params.sampling.logprobs = 5;
  Driver driver(model, masked_options());
  driver.start(0, free);
  driver.start(1, bound);
  driver.run();
  CHECK_EQ(text_of(bound), std::string("~"));
  for (size_t i = 0; i < 5; ++i) {
    CHECK_EQ(bound.output[0].top[i].id, free.output[0].top[i].id);
    CHECK(same_bits(bound.output[0].top[i].logprob, free.output[0].top[i].logprob));
  }
}

TEST_ENGINE(where_nothing_may_come_the_answer_ends) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  std::vector<Job> all = {job(schema("false"), 1, 9), job(regex("abc"), 1, 9), job(regex("abc"), 1, 9), job(regex("(abc)?"), 1, 9)};
  all[1].params.sampling.allowed = {5, 6};
  all[2].params.sampling.bad_words = {{int32_t('b' - ' ' + 1)}};
  // The end token may come first; without one a text that can only end is at its end.
  all[3].params.stop_ids = {};
  all[3].params.sampling.allowed = {5};
  for (Job& j : all) {
    Driver driver(model, masked_options());
    driver.start(0, j);
    driver.run();
    CHECK(j.output.back().finish == Finish::kNoToken);
    CHECK_EQ(j.output.back().id, -1);
  }
  CHECK_EQ(text_of(all[2]), std::string("a"));
}

TEST_ENGINE(an_end_token_comes_only_where_the_text_may_end_and_not_before_min_tokens) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Job j = job(regex("[ab]{2,}"), seed, 30), held = j;
    for (Job* one : {&j, &held}) one->params.sampling.bias = {{kEnd, 100.0f}};
    held.params.min_tokens = 5;
    Driver driver(model, masked_options());
    driver.start(0, j);
    driver.start(1, held);
    driver.run();
    CHECK_EQ(j.output.size(), size_t(3));
    CHECK(j.output.back().finish == Finish::kStopToken && held.output.back().finish == Finish::kStopToken);
    CHECK_EQ(held.output.size(), size_t(6));
  }
}

std::vector<int32_t> letters(const std::string& text) {
  std::vector<int32_t> out;
  for (char byte : text) out.push_back(int32_t(byte - ' ' + 1));
  return out;
}

// The last of the vocabulary: {" ": "," "}
constexpr int32_t kOpens = 96;

engine::Constraint jumper(const std::shared_ptr<const Program>& program, int64_t most = 50) {
  return engine::Constraint(program, {kEnd}, most, true);
}

TEST_ENGINE(a_jump_takes_forced_text_and_leaves_what_is_not_settled) {
  struct Case {
    std::string pattern, forced;
    std::vector<int32_t> tokens;
    size_t taken;
  };
  std::vector<Case> cases = {
      {"abc[xy]", "abc", letters("abc"), 3},
      {"abc", "abc", letters("abc"), 2},          // the last token of a text is sampled
      {"abc[xy]", "abc", letters("ab"), 2},       // a beginning
      {"abc[xy]", "abc", letters("acb"), 1},      // what does not spell it is left
      {"[ab]c", "", letters("a"), 0},             // nothing is forced
      {"(abc)?", "", letters("a"), 0},            // the text may end instead
      {"z[{](b|a)", "z{", letters("z{"), 2},      // {" cannot come
      {"z[{](\"|a)", "z{", letters("z{"), 1},     // {" may come in place of {
      {"z\":(b|a)", "z\":", letters("z\":"), 3},  // no token goes on after ":
      {"z\"(:|a)", "z\"", letters("z\""), 1},     // ": may come in place of "
      {"abcd[xy]", "abcd", {letters("a")[0], -1}, 1},
      {"abcd[xy]", "abcd", {letters("a")[0], kEnd}, 1},
      {"abcd[xy]", "abcd", {letters("a")[0], 1 << 20}, 1},
  };
  for (const Case& c : cases) {
    engine::Constraint constraint = jumper(regex(c.pattern));
    CHECK_EQ(constraint.forced(), c.forced);
    CHECK_EQ(constraint.is_forced(), !c.forced.empty());
    if (constraint.jump(c.tokens) != c.taken) fail(__FILE__, __LINE__, c.pattern);
    CHECK_EQ(constraint.forced(), c.forced.substr(c.taken));
    // What comes next is what may come after the tokens that were taken.
    std::vector<int32_t> taken(c.tokens.begin(), c.tokens.begin() + int64_t(c.taken));
    engine::Constraint fed(regex(c.pattern), {kEnd}, 50);
    for (size_t i = 0; i < taken.size(); ++i) fed.take(int64_t(i), taken[i]);
    constraint.prepare(int64_t(c.taken));
    fed.prepare(int64_t(c.taken));
    CHECK(std::equal(fed.mask(), fed.mask() + 4, constraint.mask()));
  }
}

TEST_ENGINE(a_jump_leaves_room_for_the_end) {
  auto program = regex("abcd(x|y{20})");
  CHECK_EQ(jumper(program, 5).jump(letters("abcd")), size_t(4));
  CHECK_EQ(jumper(program, 4).jump(letters("abcd")), size_t(3));
  CHECK_EQ(jumper(program, 1).jump(letters("abcd")), size_t(0));
  // Spelled by more tokens than the shortest way, the text would not end in time.
  auto opens = regex("[{]\"(x|y)");
  CHECK_EQ(jumper(opens, 3).jump(letters("{\"")), size_t(2));
  CHECK_EQ(jumper(opens, 2).jump(letters("{\"")), size_t(0));
  CHECK_EQ(jumper(opens, 2).jump({kOpens}), size_t(1));
}

TEST_ENGINE(a_constraint_jumps_only_where_it_may) {
  engine::Constraint constraint(regex("abc[xy]"), {kEnd}, 50);
  CHECK_EQ(constraint.jump(letters("ab")), size_t(0));
  engine::Constraint broken = jumper(regex("abc[xy]"));
  broken.take(0, letters("b")[0]);
  CHECK_EQ(broken.jump(letters("ab")), size_t(0));
  CHECK_EQ(broken.forced(), std::string());
}

// A jump in the driver's way: the tokens are fed as one row, scored as if each had been the only one.
TEST_ENGINE(jumped_tokens_are_scored_as_sampled_ones_in_any_chunks) {
  auto model = TinyModel().load(ops::Element::kF32, 2);
  std::vector<int32_t> prompt = {5, 9, 13, 21, 33}, forced = letters("abcdefg");
  auto run = [&](const std::vector<int64_t>& chunks, ops::LogprobMode mode) {
    engine::Engine engine(model, masked_options());
    engine::Open open;
    open.slot = 0;
    open.prompt_length = int64_t(prompt.size());
    open.params.max_tokens = 30;
    open.params.sampling.logprobs = 3;
    open.params.sampling.temperature = 0.5;
    open.params.sampling.mode = mode;
    open.constraint = std::make_shared<engine::Constraint>(regex("abcdefg[xy]+"), std::vector<int32_t>{}, 30, true);
    CHECK_EQ(open.constraint->jump(forced), forced.size());
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), forced.begin(), forced.end());
    std::vector<float> scores;
    engine::Plan plan;
    plan.opens = {open};
    plan.pages = {{0, 0, 7}};
    int64_t at = 0;
    for (int64_t count : chunks) {
      int64_t end = at + count;
      plan.rows = {{0, at, count, end == int64_t(all.size()), std::max<int64_t>(0, end - std::max(at, int64_t(prompt.size())))}};
      plan.tokens.assign(all.begin() + at, all.begin() + end);
      engine::StepResult result = engine.step(plan);
      for (const engine::Scored& s : result.fed) {
        CHECK_EQ(int64_t(s.position), int64_t(prompt.size() + scores.size()));
        CHECK_EQ(s.top_count, 3);
        scores.push_back(s.logprob);
      }
      for (const engine::Sampled& s : result.samples) CHECK(s.token == letters("x")[0] || s.token == letters("y")[0]);
      plan = {};
      at = end;
    }
    return scores;
  };
  for (auto mode : {ops::LogprobMode::kRaw, ops::LogprobMode::kTemperature}) {
    std::vector<float> whole = run({12}, mode);
    CHECK_EQ(whole.size(), forced.size());
    for (const std::vector<int64_t>& chunks : std::vector<std::vector<int64_t>>{{5, 7}, {6, 6}, {4, 3, 5}, {5, 1, 1, 1, 1, 1, 1, 1}}) {
      std::vector<float> cut = run(chunks, mode);
      CHECK_EQ(cut.size(), whole.size());
      for (size_t i = 0; i < whole.size(); ++i) CHECK(same_bits(cut[i], whole[i]));
    }
    // The truth: each sampled alone, as the only one that is allowed.
    Job j = job(nullptr, 1, int64_t(forced.size()), 0.5);
    j.prompt = prompt;
    j.params.stop_ids = {};
    j.params.sampling.mode = mode;
    j.program = regex("abcdefg");
    Driver driver(model, masked_options());
    driver.start(0, j);
    driver.run();
    CHECK_EQ(text_of(j), std::string("abcdefg"));
    for (size_t i = 0; i < whole.size(); ++i) CHECK(same_bits(j.output[i].logprob, whole[i]));
  }
}

TEST_ENGINE(a_scored_token_needs_the_position_before_it) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  engine::Engine engine(model, masked_options());
  engine::Plan plan;
  plan.opens.resize(1);
  plan.opens[0].slot = 0;
  plan.opens[0].prompt_length = 1;
  plan.pages = {{0, 0, 0}};
  plan.rows = {{0, 0, 2, true, 2}};
  plan.tokens = {1, 2};
  CHECK_ERROR(kRange, "scored", engine.step(plan));
  plan.rows[0].scored = 3;
  CHECK_ERROR(kRange, "scored", engine.step(plan));
}

// The position before it was fed last, but by then nothing was to be scored behind it.
TEST_ENGINE(a_token_behind_a_sampled_one_is_not_scored_from_an_earlier_position) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  engine::Engine engine(model, masked_options());
  const std::vector<int32_t> forced = letters("ab");
  engine::Plan plan;
  plan.opens.resize(1);
  plan.opens[0].slot = 0;
  plan.opens[0].prompt_length = 2;
  plan.opens[0].params.max_tokens = 9;
  plan.opens[0].params.sampling.logprobs = 0;
  plan.opens[0].constraint = std::make_shared<engine::Constraint>(regex("abcdefg"), std::vector<int32_t>{}, 9, true);
  plan.pages = {{0, 0, 0}};
  plan.rows = {{0, 0, 1, 0}};
  plan.tokens = {1};
  engine.step(plan);
  plan = {};
  plan.rows = {{0, 1, 1, 1}};
  plan.tokens = {2};
  CHECK_EQ(engine.step(plan).samples[0].token, forced[0]);
  plan.rows = {{0, 2, 1, 0, 1}};
  plan.tokens = {forced[0]};
  CHECK_ERROR(kRange, "scored", engine.step(plan));
  plan.rows[0].scored = 0;
  engine.step(plan);
  plan.rows = {{0, 3, 1, 0, 1}};
  plan.tokens = {forced[1]};
  CHECK_EQ(engine.step(plan).fed.size(), size_t(1));
}

// The search for its shortest text is a part of a grammar's compilation.
TEST_ONCE(a_client_that_left_is_not_searched_a_shortest_text_for) {
  Budget budget = patient_budget();
  GrammarRef grammar = compile_whole_regex("[a-z]{1000}", budget);
  auto cancelled = std::make_shared<std::atomic<bool>>(true);
  CHECK_ERROR(kState, "cancelled", engine::make_program(grammar, vocabulary(), Budget({}, cancelled)));
  *cancelled = false;
  CHECK_EQ(engine::make_program(grammar, vocabulary(), Budget({}, cancelled))->shortest.size(), size_t(1000));
}

TEST_ENGINE(a_vocabulary_that_is_too_small_is_refused) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  engine::Options more = masked_options();
  more.samplable_vocab = 101;
  if (model->spec.vocab_size < 101) return;
  Job j = job(regex("a"), 1, 3);
  Driver driver(model, more);
  driver.start(0, j);
  CHECK_ERROR(kRange, "vocabulary", driver.step());
}

// Half of what a lexer may remember is left to those that have the program.
TEST_ONCE(a_program_says_when_its_numbers_are_worn) {
  const auto program = schema(R"({"type":"array","minItems":100000,"items":{"type":"integer","not":{"multipleOf":7}}})");
  engine::Constraint constraint(program, {kEnd}, 10'000'000);
  int64_t taken = 0;
  const auto take = [&](const std::string& text) {
    for (char c : text) constraint.take(taken++, c - ' ' + 1);
  };
  take("[");
  int64_t number = 100'000'002;  // no multiple of 7, nor is what follows
  for (; !program->worn && !constraint.failed(); number += 7'000'007) {
    take(std::to_string(number));
    constraint.prepare(taken);
    take(",");
  }
  CHECK(number > 1'000'000'000);
  CHECK(!constraint.failed());
  CHECK(program->worn);
}

}  // namespace
}  // namespace tandem::test
