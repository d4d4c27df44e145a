#include "device_adapter.h"
#include "parts.h"
#include "steps.h"

namespace tandem::benchmarks {
namespace {

// Small enough that what an adapter adds stays below what the weights give.
constexpr float kFactors = 0.02f;

void add_adapters(Bench& bench, const std::string& name, const StepTimes& with, const StepTimes& without) {
  bench.add_time(name + ", a step queued ahead", with.ahead);
  bench.add_cost(name + ", cost", with.ahead, without.ahead);
}

}  // namespace

DeviceAdapter::DeviceAdapter(const Bench& bench, int64_t rank) {
  const model::Spec& spec = bench.spec();
  int64_t size = 0;
  for (model::Module module : test::all_modules()) {
    const ops::LoraShape shape = model::shape_of(spec, module);
    size += rank * (shape.in + shape.out);
  }
  memory_ = device_noise(size_t(size * spec.layers), kFactors);
  std::vector<cuda::LoraWeights> weights;
  const cuda::bf16* next = memory_.data();
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    for (model::Module module : test::all_modules()) {
      if (!model::has(spec, layer, module)) {
        weights.push_back({nullptr, nullptr, 0, 0});
        continue;
      }
      const ops::LoraShape shape = model::shape_of(spec, module);
      weights.push_back({next, next + rank * shape.in, int32_t(rank), 1.0f});
      next += rank * (shape.in + shape.out);
    }
  }
  const auto& facts = bench.model().facts();
  model::Adapter empty(facts, std::vector<std::array<ops::LoraFactors, model::kModules>>(size_t(spec.layers)));
  adapter_ = std::make_shared<const device::Adapter>(std::move(empty), std::move(weights));
}

void adapters(Bench& bench) {
  const Counts& counts = bench.counts();
  std::vector<DeviceAdapter> mixed;
  const int64_t ranks = counts.most_rank / counts.least_rank;
  for (int64_t i = 0; i < counts.adapters; ++i) mixed.emplace_back(bench, counts.least_rank * (1 + i % ranks));
  const DeviceAdapter one(bench, 2 * counts.least_rank);
  const Change every = [&](size_t, Job& job) { job.adapter = one.get(); };
  const Change by_turns = [&](size_t i, Job& job) { job.adapter = mixed[i % mixed.size()].get(); };
  if (profiled_step(bench, 1, every) && profiled_step(bench, counts.streams, every) && profiled_step(bench, counts.streams, by_turns))
    return;
  for (int64_t streams : {int64_t(1), counts.streams}) {
    const StepTimes without = time_greedy(bench, streams);
    const std::string name = "adapters, " + streams_of(streams) + ", ";
    bench.add_time(name + "none, a step queued ahead", without.ahead);
    const std::string rank = "one of rank " + std::to_string(2 * counts.least_rank);
    add_adapters(bench, name + rank, time_steps(bench, streams, every), without);
    if (streams == 1) continue;
    const std::string all = std::to_string(counts.adapters) + " of ranks " + std::to_string(counts.least_rank) + " to ";
    add_adapters(bench, name + all + std::to_string(counts.most_rank), time_steps(bench, streams, by_turns), without);
  }
}

}  // namespace tandem::benchmarks
