// Grammars in the engine's step: only allowed tokens come, every answer ends in time, and neither batch nor preemption changes one.
#include "engine/constraint.h"

#include <cmath>

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
  return engine::make_program(compile_json_schema(text, {}, budget), vocabulary());
}
std::shared_ptr<const Program> regex(const std::string& pattern) {
  Budget budget = patient_budget();
  return engine::make_program(compile_whole_regex(pattern, budget), vocabulary());
}

engine::Options options() {
  engine::Options o;
  o.max_sequences = 8;
  o.max_batch_tokens = 128;
  o.pages = 64;
  o.max_model_len = 160;
  o.samplable_vocab = 100;
  o.max_logprobs = 5;
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
  return {schema(kObject),   schema("{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"minItems\":1}"),
          schema("{}"),      regex("[a-c]{3,}x"),
          regex("(ab|cd)*"), schema("{\"type\":\"object\",\"minProperties\":2,\"additionalProperties\":{\"type\":\"boolean\"}}")};
}

std::vector<Job> jobs(int64_t most) {
  std::vector<Job> all;
  for (const auto& program : programs()) all.push_back(job(program, 10 + all.size(), most, all.size() % 3 == 0 ? 0 : 1));
  return all;
}

std::vector<Job> alone(const std::shared_ptr<model::Model>& model, std::vector<Job> all) {
  for (Job& j : all) {
    Driver driver(model, options());
    driver.start(0, j);
    driver.run();
  }
  return all;
}

TEST(constrained_outputs_stay_in_the_language_and_end_in_time) {
  auto model = TinyModel().load(ops::Element::kF32, 2);
  for (const auto& program : programs()) {
    int64_t least = std::max<int64_t>(1, int64_t(program->shortest.size()));
    for (int64_t most : {least, least + 1, least + 2, least + 5, least + 20}) {
      for (uint64_t seed = 1; seed <= 6; ++seed) {
        Job j = job(program, seed, most, seed == 1 ? 0 : 1.5);
        Driver driver(model, options());
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

TEST(an_answer_whose_shortest_text_does_not_fit_is_cut) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  Job j = job(regex("[a-c]{30}"), 3, 8);
  Driver driver(model, options());
  driver.start(0, j);
  driver.run();
  check_language(j, "cut");
  CHECK_EQ(j.output.size(), size_t(8));
  CHECK(j.output.back().finish == Finish::kLength);
}

TEST(a_shortest_text_of_few_tokens_and_many_bytes_is_reached) {
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
    Driver driver(model, options());
    driver.start(0, j);
    driver.run();
    CHECK_EQ(text_of(j), word);
    CHECK(j.output.back().finish == Finish::kComplete);
  }
}

TEST(constraints_change_no_bits_in_batches_and_after_preemption) {
  auto model = TinyModel().load(ops::Element::kF32, 2);
  std::vector<Job> truth = alone(model, jobs(24)), together = jobs(24), stopped = jobs(24);
  Driver driver(model, options(), 7);
  driver.set_chunk(3);
  for (size_t i = 0; i < together.size(); ++i) driver.start(int64_t(together.size() - i), together[i]);
  driver.run();
  Driver other(model, options(), 5);
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

TEST(raw_log_probabilities_come_before_the_mask) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  Job free = job(nullptr, 4, 1), bound = job(regex("~+"), 4, 1);
  free.params.sampling.logprobs = bound.params.sampling.logprobs = 5;
  Driver driver(model, options());
  driver.start(0, free);
  driver.start(1, bound);
  driver.run();
  CHECK_EQ(text_of(bound), std::string("~"));
  for (size_t i = 0; i < 5; ++i) {
    CHECK_EQ(bound.output[0].top[i].id, free.output[0].top[i].id);
    CHECK(same_bits(bound.output[0].top[i].logprob, free.output[0].top[i].logprob));
  }
}

TEST(where_nothing_may_come_the_answer_ends) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  std::vector<Job> all = {job(schema("false"), 1, 9), job(regex("abc"), 1, 9), job(regex("abc"), 1, 9), job(regex("(abc)?"), 1, 9)};
  all[1].params.sampling.allowed = {5, 6};
  all[2].params.sampling.bad_words = {{int32_t('b' - ' ' + 1)}};
  // The end token may come first; without one a text that can only end is at its end.
  all[3].params.stop_ids = {};
  all[3].params.sampling.allowed = {5};
  for (Job& j : all) {
    Driver driver(model, options());
    driver.start(0, j);
    driver.run();
    CHECK(j.output.back().finish == Finish::kNoToken);
    CHECK_EQ(j.output.back().id, -1);
  }
  CHECK_EQ(text_of(all[2]), std::string("a"));
}

TEST(an_end_token_comes_only_where_the_text_may_end_and_not_before_min_tokens) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Job j = job(regex("[ab]{2,}"), seed, 30), held = j;
    for (Job* one : {&j, &held}) one->params.sampling.bias = {{kEnd, 100.0f}};
    held.params.min_tokens = 5;
    Driver driver(model, options());
    driver.start(0, j);
    driver.start(1, held);
    driver.run();
    CHECK_EQ(j.output.size(), size_t(3));
    CHECK(j.output.back().finish == Finish::kStopToken && held.output.back().finish == Finish::kStopToken);
    CHECK_EQ(held.output.size(), size_t(6));
  }
}

TEST(a_vocabulary_that_is_too_small_is_refused) {
  auto model = TinyModel().load(ops::Element::kF32, 1);
  engine::Options more = options();
  more.samplable_vocab = 101;
  if (model->spec.vocab_size < 101) return;
  Job j = job(regex("a"), 1, 3);
  Driver driver(model, more);
  driver.start(0, j);
  CHECK_ERROR(kRange, "vocabulary", driver.step());
}

}  // namespace
}  // namespace tandem::test
