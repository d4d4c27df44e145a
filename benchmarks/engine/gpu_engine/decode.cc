#include "../../kernels/profiled.h"
#include "parts.h"
#include "steps.h"

namespace tandem::benchmarks {
namespace {

constexpr int64_t kContext = 1024;

// Requests that last longer than all steps, their prompts read.
class Decoding {
 public:
  Decoding(Bench& bench, int64_t streams, int64_t prompt, const Change& change)
      : jobs_(bench.jobs(streams, prompt, kContext - prompt)),
        driver_(bench.driver_of(bench.options(streams, std::max<int64_t>(512, streams * prompt), kContext))) {
    for (size_t i = 0; i < jobs_.size(); ++i) {
      change(i, jobs_[i]);
      driver_.start(int64_t(i), jobs_[i]);
    }
    for (int64_t i = 0; i < bench.counts().warm; ++i) driver_.step();
    driver_.run_ahead([] {}, bench.counts().warm);
  }

  Driver& driver() { return driver_; }
  void check_going_on() const {
    const bool ended = std::any_of(jobs_.begin(), jobs_.end(), [](const Job& j) { return j.finished(); });
    require(!ended, ErrorKind::kState, "a stream has ended while steps were timed");
  }

 private:
  std::vector<Job> jobs_;
  Driver driver_;
};

void all_controls(size_t number, Job& job) {
  ops::SamplingParams& s = job.params.sampling;
  s.temperature = 0.7;
  s.top_k = 50;
  s.top_p = 0.9;
  s.min_p = 0.02;
  s.seed = number;
  s.logprobs = 5;
  s.bias = {{11, 1.5f}, {17, -1.0f}, {101, 0.5f}, {211, -100.0f}};
}

void all_controls_and_penalties(size_t number, Job& job) {
  all_controls(number, job);
  ops::SamplingParams& s = job.params.sampling;
  s.repetition_penalty = 1.1;
  s.presence_penalty = 0.5;
  s.frequency_penalty = 0.5;
}

}  // namespace

std::string streams_of(int64_t count) { return count == 1 ? "one stream" : std::to_string(count) + " streams"; }

StepTimes time_steps(Bench& bench, int64_t streams, const Change& change, int64_t prompt) {
  const Counts& counts = bench.counts();
  Decoding decoding(bench, streams, prompt > 0 ? prompt : counts.prompt, change);
  std::vector<double> ahead, in_turn;
  for (int64_t round = 0; round < counts.rounds; ++round) {
    auto start = Clock::now();
    const int64_t queued = decoding.driver().run_ahead([] {}, counts.steps);
    require(queued == counts.steps - 1, ErrorKind::kState, "steps were not queued behind one another");
    ahead.push_back(seconds_since(start) / double(counts.steps));
    start = Clock::now();
    for (int64_t i = 0; i < counts.steps; ++i) decoding.driver().step();
    in_turn.push_back(seconds_since(start) / double(counts.steps));
  }
  decoding.check_going_on();
  return {timing_of(ahead), timing_of(in_turn)};
}

bool profiled_step(Bench& bench, int64_t streams, const Change& change) {
  if (!profiling()) return false;
  Decoding decoding(bench, streams, bench.counts().prompt, change);
  return profiled([&] { decoding.driver().step(); });
}

void decode(Bench& bench) {
  const int64_t many = bench.counts().streams;
  const Change plain = [](size_t, Job&) {};
  if (profiled_step(bench, 1, plain) && profiled_step(bench, many, plain)) return;
  const double limit = bench.copy_rate();
  for (int64_t streams : {int64_t(1), many}) {
    const StepTimes t = time_greedy(bench, streams);
    const std::string name = "decode, " + streams_of(streams);
    bench.add_time(name + ", a step in turn", t.in_turn);
    bench.add_time(name + ", a step queued ahead", t.ahead);
    bench.add(name + ", gap that queueing closes", (t.in_turn.median - t.ahead.median) * 1e6, "us");
    bench.add_rate(name, double(streams), t.ahead, "tokens/s");
    bench.add_rate(name + ", weights read", bench.bytes_per_step(streams) / 1e9, t.ahead, "GB/s");
    bench.add_rate(name + ", of the copy's bandwidth", bench.bytes_per_step(streams) / limit, t.ahead, "");
    const int64_t longer = bench.counts().longer_prompt;
    const std::string behind = "decode, " + streams_of(streams) + " behind " + std::to_string(longer) + " tokens, a step queued ahead";
    bench.add_time(behind, time_greedy(bench, streams, longer).ahead);
  }
}

void sampling(Bench& bench) {
  const int64_t many = bench.counts().streams;
  if (profiled_step(bench, many, all_controls_and_penalties)) return;
  for (int64_t streams : {int64_t(1), many}) {
    const StepTimes greedy = time_greedy(bench, streams);
    const StepTimes controls = time_steps(bench, streams, all_controls);
    const StepTimes penalties = time_steps(bench, streams, all_controls_and_penalties);
    const std::string name = "sampling, " + streams_of(streams) + ", ";
    bench.add_time(name + "greedy, a step queued ahead", greedy.ahead);
    bench.add_time(name + "controls but penalties, a step queued ahead", controls.ahead);
    bench.add_cost(name + "controls but penalties, cost", controls.ahead, greedy.ahead);
    bench.add_time(name + "all controls, a step in turn", penalties.in_turn);
    bench.add_cost(name + "all controls, cost over greedy in turn", penalties.in_turn, greedy.in_turn);
    bench.add_time(name + "all controls, a step queued ahead", penalties.ahead);
    bench.add_cost(name + "all controls, cost over greedy queued ahead", penalties.ahead, greedy.ahead);
  }
}

}  // namespace tandem::benchmarks
