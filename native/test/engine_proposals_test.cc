// Rows with proposed tokens sample what the same sequence samples one token at a time, bit for bit, whatever is proposed.
#include "engine/engine.h"

#include "driver.h"
#include "grammar/structural_tag.h"
#include "test.h"
#include "tiny_model.h"

namespace tandem::test {
namespace {

using engine::Finish;
using ops::Element;

// Controls that look at earlier tokens, filters, ends and kinds of log-probabilities.
std::vector<Job> proposal_jobs() {
  std::vector<Job> all = {random_job(1, 1, 30),  random_job(2, 17, 25), random_job(3, 60, 20),
                          random_job(4, 33, 40), random_job(5, 16, 33), random_job(6, 15, 28)};
  all[0].params.sampling.temperature = 0;
  all[1].params.sampling.repetition_penalty = 1.4;
  all[1].params.sampling.frequency_penalty = 0.7;
  all[2].params.sampling.bad_words = {{5}, {7, 9}, {11, 12}};
  all[2].params.sampling.presence_penalty = 1.5;
  all[3].params.min_tokens = 12;
  for (int32_t id = 0; id < 30; ++id) all[3].params.stop_ids.push_back(id);
  all[4].params.sampling.top_p = 0.8;
  all[4].params.sampling.mode = ops::LogprobMode::kProcessed;
  all[5].params.sampling.top_k = 4;
  all[5].params.sampling.temperature = 0.3;
  return all;
}

std::vector<Job> plain(const std::shared_ptr<model::Model>& model, std::vector<Job> all) {
  Driver driver(model, driven_options());
  for (size_t i = 0; i < all.size(); ++i) driver.start(int64_t(i), all[i]);
  driver.run();
  return all;
}

// Runs the jobs with proposals; returns the number of steps.
int run_with(const std::shared_ptr<model::Model>& model, std::vector<Job>& all, const Driver::Propose& propose, int64_t chunk = 1 << 30) {
  Driver driver(model, driven_options(), 3);
  driver.set_chunk(chunk);
  driver.set_propose(propose);
  for (size_t i = 0; i < all.size(); ++i) driver.start(int64_t(all.size() - i), all[i]);
  int steps = 0;
  while (driver.step()) ++steps;
  return steps;
}

// The outputs to come of the job with that prompt, `most` of them; each is wrong with a chance of `wrong` in 100.
Driver::Propose prophet(const std::vector<Job>& truth, size_t most, int64_t wrong) {
  auto random = std::make_shared<Random>(uint64_t(most) * 101 + uint64_t(wrong));
  return [&truth, most, wrong, random](const Job& job) {
    std::vector<int32_t> proposals;
    for (const Job& t : truth) {
      if (t.prompt != job.prompt) continue;
      for (size_t i = job.output.size(); i < job.output.size() + most; ++i) {
        bool right = i < t.output.size() && random->whole(0, 99) >= wrong;
        proposals.push_back(right ? t.output[i].id : int32_t(random->whole(0, 99)));
      }
    }
    return proposals;
  };
}

TEST_ENGINE(proposals_change_no_bit_of_any_output) {
  for (Element element : {Element::kF32, Element::kBf16}) {
    for (int threads : {1, 2}) {
      auto model = TinyModel().load(element, threads);
      std::vector<Job> truth = plain(model, proposal_jobs());
      for (size_t most : {size_t(1), size_t(4), size_t(19)}) {
        for (int64_t wrong : {0, 25, 100}) {
          std::vector<Job> all = proposal_jobs();
          run_with(model, all, prophet(truth, most, wrong), 20);
          for (size_t i = 0; i < all.size(); ++i) check_same(all[i], truth[i]);
        }
      }
    }
  }
}

TEST_ENGINE(right_proposals_save_steps) {
  auto model = TinyModel().load(Element::kF32, 1);
  std::vector<Job> truth = plain(model, {random_job(4, 33, 40)}), all = {random_job(4, 33, 40)};
  CHECK_EQ(run_with(model, all, prophet(truth, 4, 0)), 8);
  all = {random_job(4, 33, 40)};
  // Each step gives the one token that it would give without.
  CHECK_EQ(run_with(model, all, [](const Job& j) { return std::vector<int32_t>(3, j.output.empty() ? 99 : 100); }), 40);
}

TEST_ENGINE(proposals_under_a_grammar_change_nothing) {
  std::vector<std::string> tokens = {""};
  for (char byte = ' '; byte <= '~'; ++byte) tokens.push_back(std::string(1, byte));
  for (const char* word : {"{\"", "\":", "\",\"", "\"}"}) tokens.push_back(word);
  auto shared = std::make_shared<const grammar::SharedMasks>(std::make_shared<const grammar::Vocabulary>(tokens, std::vector<int32_t>{}));
  grammar::Budget budget;
  const char* text =
      R"({"type":"object","properties":{"name":{"enum":["alpha","beta"]},"size":{"type":"integer"}},"required":["name","size"]})";
  auto program = engine::make_program(grammar::compile_json_schema(text, {}, budget), shared, budget);
  auto model = TinyModel().load(Element::kF32, 2);
  std::vector<Job> given = {random_job(1, 5, 60), random_job(2, 8, 40), random_job(3, 3, 90)};
  for (Job& j : given) {
    j.program = program;
    j.params.stop_ids = {0};
  }
  std::vector<Job> truth = plain(model, given);
  for (const Job& j : truth) CHECK(j.finished());
  for (int64_t wrong : {0, 30, 100}) {
    std::vector<Job> all = given;
    int steps = run_with(model, all, prophet(truth, 5, wrong));
    for (size_t i = 0; i < all.size(); ++i) check_same(all[i], truth[i]);
    if (wrong == 0) CHECK(steps < int(truth[0].output.size()));
  }
}

TEST_ENGINE(rows_with_proposals_are_checked) {
  auto model = TinyModel().load(Element::kF32, 1);
  engine::Engine engine(model, driven_options());
  engine::Plan plan;
  engine::Open open;
  open.slot = 0;
  open.prompt_length = 4;
  open.params.max_tokens = 9;
  plan.opens = {open};
  plan.pages = {{0, 0, 0}};
  plan.rows = {{0, 0, 6, 3}};
  plan.tokens = {1, 2, 3, 4, 5, 6};
  auto refuse = [&](const char* text, auto change) {
    engine::Plan bad = plan;
    change(bad);
    CHECK_ERROR(kRange, text, engine.step(bad));
  };
  refuse("rows: samples", [](auto& p) { p.rows[0].samples = 7; });
  refuse("rows: samples", [](auto& p) { p.rows[0].samples = -1; });
  refuse("lies in the prompt", [](auto& p) { p.rows[0].samples = 4; });
  refuse("tokens", [](auto& p) { p.tokens[5] = -1; });
  refuse("controls", [](auto& p) { p.controls.push_back({0, {}}); });
  engine::StepResult result = engine.step(plan);
  CHECK(result.samples.size() >= 1 && result.samples.size() <= 3);
}

}  // namespace
}  // namespace tandem::test
