#include "../../kernels/profiled.h"
#include "cuda/common/device_info.h"
#include "parts.h"
#include "training_steps.h"

namespace tandem::benchmarks {
namespace {

void time_row(Bench& bench, train::Trainer& trainer, const train::Row& row, const std::string& name) {
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    whole_step(trainer, row);
    times.push_back(seconds_since(start));
  }
  const Timing time = timing_of(times);
  // There and back through the weights and the head; attention's own products are not counted.
  const double tokens = double(row.size());
  const double work = 4.0 * (bench.weights_per_token() + double(bench.spec().vocab_size * bench.spec().hidden_size)) * tokens;
  bench.add_rate(name, tokens, time, "tokens/s");
  bench.add_rate(name + ", products", work / 1e12, time, "TFLOP/s");
  bench.add_rate(name + ", of the large product's rate", work / bench.product_rate(), time, "");
}

}  // namespace

// A row of one sequence, and one packed from shorter ones. The activations again where memory is short.
void lora_step(Bench& bench) {
  const int64_t tokens = profiling() ? bench.counts().profiled_row : bench.counts().row;
  if (!profiling()) bench.product_rate();  // which takes memory, before the trainer does
  auto trainer = bench.trainer_of(tokens, false);
  const bool recompute = double(trainer->row_bytes(tokens)) > 0.9 * double(cuda::device_free_bytes());
  if (recompute) {
    trainer.reset();
    trainer = bench.trainer_of(tokens, true);
  }
  const std::vector<int32_t> prompt = bench.jobs(1, tokens + 1, 1)[0].prompt;
  const train::Row row = row_of(prompt);
  if (profiled([&] { whole_step(*trainer, row); })) return;
  const int64_t packed = bench.counts().packed;
  const std::string name = "LoRA step of " + std::to_string(tokens), again = recompute ? ", activations again" : "";
  time_row(bench, *trainer, row, name + again);
  time_row(bench, *trainer, packed_row_of(prompt, packed), name + " packed from sequences of " + std::to_string(packed) + again);
}

// From an optimizer step that has ended to a token that was sampled under the new factors, while others decode: the factors become an adapter
// on this thread, as in the server, and a request under it joins the next step.
void publication(Bench& bench) {
  if (profiling()) return;
  const Counts& counts = bench.counts();
  auto trainer = bench.trainer_of(counts.prompt, false);
  const train::Row row = row_of(bench.jobs(1, counts.prompt + 1, 1)[0].prompt);
  const int64_t streams = counts.streams, steps = counts.steps;
  std::vector<Job> others = bench.jobs(streams, counts.prompt, 900);
  Driver driver = bench.driver_of(bench.options(streams + 1, std::max<int64_t>(512, streams * counts.prompt), 1024));
  for (int64_t i = 0; i < streams; ++i) driver.start(i, others[size_t(i)]);
  for (int64_t i = 0; i < counts.warm; ++i) driver.step();
  std::vector<double> making, whole, in_steps;
  for (int64_t round = 0; round < counts.rounds + 1; ++round) {
    whole_step(*trainer, row);
    const auto before = Clock::now();
    driver.run_ahead([] {}, steps);
    const double step = seconds_since(before) / double(steps);
    Job first = bench.jobs(1, 1, 1)[0];
    int64_t landed = 0;
    Clock::time_point start, ended;
    driver.run_ahead(
        [&] {
          if (++landed == steps / 2) {
            start = Clock::now();
            first.adapter = trainer->adapter();
            making.push_back(seconds_since(start));
            driver.start(streams, first);
          }
          if (first.finished() && ended == Clock::time_point()) ended = Clock::now();
        },
        steps + 4);
    require(first.finished(), ErrorKind::kState, "no token came under the new factors");
    driver.stop(streams);
    whole.push_back(std::chrono::duration<double>(ended - start).count());
    in_steps.push_back(whole.back() / step);
  }
  // The first round's kernels and batch sizes are new.
  for (std::vector<double>* times : {&making, &whole, &in_steps}) times->erase(times->begin());
  bench.add_time("publication, making the adapter that serves", timing_of(making));
  bench.add_time("publication, from the optimizer's step to a token, " + std::to_string(streams) + " streams", timing_of(whole));
  bench.add("publication, from the optimizer's step to a token, in decode steps", timing_of(in_steps), "steps");
}

}  // namespace tandem::benchmarks
