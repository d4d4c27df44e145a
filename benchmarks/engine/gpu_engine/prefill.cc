#include "../../kernels/profiled.h"
#include "parts.h"

namespace tandem::benchmarks {

void prefill(Bench& bench, int64_t tokens) {
  if (profiling() && tokens != bench.counts().prefills.front()) return;
  constexpr size_t kTimes = 5;
  std::vector<Job> all = bench.jobs(kTimes, tokens, 1);
  Driver driver = bench.driver_of(bench.options(1, tokens, tokens + 16));
  size_t next = 0;
  const auto one = [&] {
    driver.start(0, all[next]);
    driver.run();
    driver.stop(0);
    ++next;
  };
  if (profiled(one)) return;
  const double rate = bench.product_rate();
  std::vector<double> times;
  while (next < kTimes) {
    const auto start = Clock::now();
    one();
    times.push_back(seconds_since(start));
  }
  const Timing time = timing_of(times);
  const double work = 2.0 * bench.weights_per_token() * double(tokens);
  const std::string name = "prefill of " + std::to_string(tokens);
  bench.add_rate(name, double(tokens), time, "tokens/s");
  bench.add_rate(name + ", products", work / 1e12, time, "TFLOP/s");
  bench.add_rate(name + ", of the large product's rate", work / rate, time, "");
}

constexpr int64_t kLoggedSteps = 50;

// How far all requests are: from these lines one sees what is slow, prompts, many streams or the last few.
void log_progress(const std::vector<Job>& all, double seconds) {
  int64_t outputs = 0, running = 0, context = 0;
  for (const Job& j : all) {
    outputs += int64_t(j.output.size());
    if (j.finished()) continue;
    ++running;
    context += j.length();
  }
  std::printf("  after %.3f s: %ld tokens, %ld requests go on with %ld of context\n", seconds, long(outputs), long(running), long(context));
}

// All at once, input and output of mixed lengths, temperature 0.6.
void throughput(Bench& bench, double most_seconds) {
  if (profiling()) return;
  const Counts& counts = bench.counts();
  Random random(7);
  std::vector<Job> all;
  engine::Options o = bench.options(counts.requests, 8192, 2 * counts.longest + 16);
  o.pages = 0;
  for (int64_t i = 0; i < counts.requests; ++i) {
    const int64_t prompt = random.whole(counts.shortest, counts.longest);
    all.push_back(bench.jobs(1, prompt, random.whole(counts.shortest, counts.longest))[0]);
    all.back().params.sampling.temperature = 0.6;
    all.back().params.sampling.seed = uint64_t(i);
    o.pages += (all.back().length() + all.back().params.max_tokens + simd::kPage - 1) / simd::kPage;
  }
  Driver driver = bench.driver_of(o);
  for (size_t i = 0; i < all.size(); ++i) driver.start(int64_t(i), all[i]);
  const auto start = Clock::now();
  auto unfinished = [&] { return std::any_of(all.begin(), all.end(), [](const Job& j) { return !j.finished(); }); };
  while (seconds_since(start) < most_seconds && unfinished()) {
    driver.run_ahead([] {}, kLoggedSteps);
    log_progress(all, seconds_since(start));
  }
  const double time = seconds_since(start);
  double outputs = 0;
  for (const Job& j : all) outputs += double(j.output.size());
  const std::string name = "offline throughput, " + std::to_string(counts.requests) + " requests";
  bench.add(unfinished() ? name + ", cut short" : name, outputs / time, "tokens/s");
}

}  // namespace tandem::benchmarks
