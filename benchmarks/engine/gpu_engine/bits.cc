#include "../../kernels/profiled.h"
#include "device_adapter.h"
#include "parts.h"
#include "training_steps.h"

namespace tandem::benchmarks {
namespace {

constexpr int64_t kOutputs = 12, kAlternatives = 3, kChunk = 33;

// Requests whose bits are to be the same however they run.
class Compared {
 public:
  explicit Compared(Bench& bench) : bench_(bench), adapter_(bench, 8) {
    for (int64_t length : bench.counts().compared) asked_.push_back(bench.jobs(1, length, kOutputs)[0]);
    for (size_t i = 0; i < asked_.size(); ++i) {
      ops::SamplingParams& s = asked_[i].params.sampling;
      s.temperature = i % 2 ? 0.8 : 0;
      s.seed = i;
      s.logprobs = kAlternatives;
      if (i % 3 == 2) asked_[i].adapter = adapter_.get();
    }
    const int64_t longest = bench.counts().compared.back() + kOutputs;
    sequences_ = bench.counts().streams;
    options_ = bench.options(sequences_, std::max<int64_t>(512, longest), longest + 16);
    truth_ = asked_;
    for (Job& job : truth_) {
      Driver driver = bench.driver_of(options_);
      driver.start(0, job);
      driver.run();
    }
  }

  bool in_chunks() {
    std::vector<Job> jobs = asked_;
    Driver driver = bench_.driver_of(options_, 7);
    driver.set_chunk(kChunk);
    start(driver, jobs);
    driver.run();
    return same(jobs);
  }
  bool queued_in_chunks() {
    std::vector<Job> jobs = asked_;
    Driver driver = bench_.driver_of(options_, 3);
    driver.set_chunk(kChunk);
    start(driver, jobs);
    return driver.run_ahead() > 0 && same(jobs);
  }
  // In a full batch of others, some of them under an adapter.
  bool among_many() {
    std::vector<Job> jobs = asked_, others = bench_.jobs(sequences_ - int64_t(jobs.size()), 40, kOutputs);
    for (size_t i = 0; i < others.size(); i += 3) others[i].adapter = adapter_.get();
    Driver driver = bench_.driver_of(options_, 5);
    for (size_t i = 0; i < others.size(); ++i) driver.start(int64_t(jobs.size() + i), others[i]);
    start(driver, jobs);
    return driver.run_ahead() > 0 && same(jobs);
  }
  // What was sampled is fed again as one text, as after a preemption: prefill gives the bits of decode.
  bool fed_again() {
    std::vector<Job> jobs = asked_;
    Driver driver = bench_.driver_of(options_, 9);
    for (Job& job : jobs) {
      driver.start(0, job);
      while (int64_t(job.output.size()) < kOutputs / 2) driver.step();
      driver.stop(0);
      driver.start(0, job);
      driver.run();
      driver.stop(0);
    }
    return same(jobs);
  }
  // The prompt's whole pages were written by another sequence, which goes on beside it.
  bool behind_cached_pages() {
    bool good = true;
    for (const Job& job : truth_) good = continues(job) && good;
    return good;
  }

 private:
  void start(Driver& driver, std::vector<Job>& jobs) {
    for (size_t i = 0; i < jobs.size(); ++i) driver.start(int64_t(i), jobs[i]);
  }

  bool same(const std::vector<Job>& jobs) const {
    bool good = true;
    for (size_t i = 0; i < jobs.size(); ++i) {
      const std::vector<test::Token>&a = truth_[i].output, &b = jobs[i].output;
      good = good && a.size() == size_t(kOutputs) && std::equal(a.begin(), a.end(), b.begin(), b.end(), test::same_token);
    }
    return good;
  }

  static void feed(engine::Plan& plan, const Job& job, int64_t slot, int64_t first, int64_t count) {
    plan.rows.push_back({slot, first, count, 1});
    for (int64_t i = 0; i < count; ++i) plan.tokens.push_back(first + i < int64_t(job.prompt.size()) ? job.prompt[size_t(first + i)] : -1);
  }

  bool continues(const Job& job) const {
    const int64_t prompt = int64_t(job.prompt.size()), shared = (prompt - 1) / simd::kPage;
    const int64_t pages = (prompt + kOutputs + simd::kPage - 1) / simd::kPage;
    const auto engine = bench_.engine_of(options_);
    engine::Plan plan;
    for (int64_t slot : {0, 1}) {
      engine::Open open{};
      open.slot = slot;
      open.prompt_length = prompt;
      open.params = job.params;
      open.adapter = job.adapter;
      const int64_t cached = slot == 0 ? 0 : shared * simd::kPage;
      open.cached.assign(job.prompt.begin(), job.prompt.begin() + cached);
      plan.opens.push_back(open);
      for (int64_t p = 0; p < pages; ++p) plan.pages.push_back({slot, p, slot == 0 || p < shared ? p : pages + p});
      feed(plan, job, slot, cached, prompt - cached);
      if (slot == 0) engine->step(std::exchange(plan, {}));
    }
    bool good = true;
    for (int64_t i = 0; i < kOutputs; ++i) {
      const engine::StepResult result = engine->step(std::exchange(plan, {}));
      for (const engine::Sampled& s : result.samples) {
        good = good && same_sample(s, result, job.output[size_t(i)]);
      }
      for (int64_t slot = 0; slot < 2 && i + 1 < kOutputs; ++slot) feed(plan, job, slot, prompt + i, 1);
    }
    return good;
  }

  static bool same_sample(const engine::Sampled& s, const engine::StepResult& result, const test::Token& truth) {
    const auto begin = result.top.begin() + s.top_offset;
    return test::same_token({s.token, s.finish, s.logprob, s.rank, {begin, begin + s.top_count}}, truth);
  }

  Bench& bench_;
  DeviceAdapter adapter_;
  int64_t sequences_;
  engine::Options options_;
  std::vector<Job> asked_, truth_;
};

}  // namespace

bool same_bits(Bench& bench) {
  if (profiling()) return true;
  Compared compared(bench);
  const std::pair<const char*, bool> ways[] = {{"in chunks with others", compared.in_chunks()},
                                               {"in chunks with others, queued ahead", compared.queued_in_chunks()},
                                               {"in a full batch with adapters", compared.among_many()},
                                               {"fed again", compared.fed_again()},
                                               {"behind cached pages", compared.behind_cached_pages()}};
  bool good = true;
  for (const auto& [way, same] : ways) {
    bench.add(std::string("same bits alone and ") + way, same ? 1 : 0, "1 = yes");
    good = good && same;
  }
  return good;
}

bool same_logprobs(Bench& bench) {
  if (profiling()) return true;
  const int64_t prompt = bench.counts().compared[1], outputs = 3 * kOutputs;
  std::vector<Job> one = bench.jobs(1, prompt, outputs);
  one[0].params.sampling.logprobs = 0;
  auto trainer = bench.trainer_of(prompt + outputs, false);
  one[0].adapter = trainer->adapter();
  Driver driver = bench.driver_of(bench.options(1, 512, 1024));
  driver.start(0, one[0]);
  driver.run();
  whole_forward(*trainer, row_of(one[0].tokens()));
  bool same = int64_t(one[0].output.size()) == outputs;
  for (size_t i = 0; i < one[0].output.size(); ++i) {
    same = same && test::same_bits(one[0].output[i].logprob, trainer->scores().logprobs[one[0].prompt.size() - 1 + i]);
  }
  bench.add("same log-probabilities in the trainer", same ? 1 : 0, "1 = yes");
  return same;
}

}  // namespace tandem::benchmarks
