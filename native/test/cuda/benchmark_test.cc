// What gpu_engine measures (benchmarks/engine), on a tiny model: every part runs, gives finite numbers, and finds the same bits.
#include "../../../benchmarks/engine/gpu_engine/parts.h"
#include "test.h"

namespace tandem::test {
namespace {

// The parts with such names; empty: all.
void check_parts(const std::string& shape, const std::vector<std::string>& names) {
  benchmarks::Bench bench(shape, "bf16", false);
  for (const benchmarks::Part& part : benchmarks::all_parts(bench.counts())) {
    const auto named = [&](const std::string& name) { return part.name.starts_with(name); };
    if (!names.empty() && std::none_of(names.begin(), names.end(), named)) continue;
    const size_t before = bench.results().size();
    if (!part.run(bench)) fail(__FILE__, __LINE__, part.name + " found what must not be");
    if (bench.results().size() == before) fail(__FILE__, __LINE__, part.name + " gave no result");
  }
  for (const benchmarks::Result& result : bench.results()) {
    if (!std::isfinite(result.value.median)) fail(__FILE__, __LINE__, result.name + " is no number");
  }
}

TEST_ENGINE(gpu_engine_benchmark_measures_every_part) { check_parts("tiny:1", {}); }

TEST_ENGINE(gpu_engine_benchmark_measures_mixtures) { check_parts("tiny-a3b:1", {"decode", "prefill", "LoRA"}); }

}  // namespace
}  // namespace tandem::test
