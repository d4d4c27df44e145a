// What gpu_engine measures (benchmarks/engine), on a tiny model: every part runs, gives finite numbers, and finds the same bits.
#include "../../../benchmarks/engine/gpu_engine/parts.h"
#include "test.h"

namespace tandem::test {
namespace {

void check_parts(const std::string& weights) {
  benchmarks::Bench bench("tiny", weights);
  for (const benchmarks::Part& part : benchmarks::all_parts(bench.counts())) {
    const size_t before = bench.results().size();
    if (!part.run(bench)) fail(__FILE__, __LINE__, part.name + " found what must not be");
    const bool measures = weights == "bf16" || part.name != "invariance";
    if (measures != (bench.results().size() > before)) fail(__FILE__, __LINE__, part.name + " gave no result");
  }
  for (const benchmarks::Result& result : bench.results()) {
    if (!std::isfinite(result.value.median)) fail(__FILE__, __LINE__, result.name + " is no number");
  }
}

TEST_ENGINE(gpu_engine_benchmark_measures_every_part) { check_parts("bf16"); }
TEST_ENGINE(gpu_engine_benchmark_measures_quantised_weights) { check_parts("int4"); }

}  // namespace
}  // namespace tandem::test
