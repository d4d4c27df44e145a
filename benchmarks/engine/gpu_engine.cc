// The engine on a GPU with random weights in the shape of a real model: the same bits however a request runs, and in the trainer; decode (with
// steps queued ahead and in turn: the difference is the gap between two steps), prefill, a LoRA step, what adapters, sampling controls and
// grammars cost, how soon new factors serve, what batch invariance costs, offline throughput; beside the device's copy bandwidth and the rate
// of a large BF16 product measured in the same run. Needs no Node and no files.
// Usage: gpu_engine 0.6b|8b|30b-a3b[:LAYERS] [FILE.json [bf16|int8|int4|fp8 [PART...]]], PART being some of the name of what is to run, as "decode"
// (gpu_engine/parts.cc).
// A part that takes longer than TANDEM_TEST_SECONDS, where that is set, ends the program.
// With TANDEM_GPU_PROFILE=1 nothing is timed: a profiler sees one step of each kind (kernels/profiled.h).
#include <cstdio>
#include <cstring>

#include "deadline.h"
#include "gpu_engine/parts.h"

namespace {

using tandem::benchmarks::Bench;
using tandem::benchmarks::Part;

// Where a part fails the others still run.
bool run(const Part& part, Bench& bench) {
  try {
    return part.run(bench);
  } catch (const std::exception& error) {
    std::printf("FAILED %s: %s\n", part.name.c_str(), error.what());
    return false;
  }
}

bool wanted(const Part& part, int argc, char** argv) {
  return argc <= 4 || std::any_of(argv + 4, argv + argc, [&](const char* some) { return part.name.find(some) != std::string::npos; });
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // one that is ended has said what it measured
  try {
    tandem::require(argc > 1, tandem::ErrorKind::kRange, "usage: gpu_engine 0.6b|8b [FILE.json [bf16|int8|int4|fp8 [PART...]]]");
    Bench bench(argv[1], argc > 3 ? argv[3] : "bf16");
    bool good = true;
    for (const Part& part : tandem::benchmarks::all_parts(bench.counts())) {
      if (!wanted(part, argc, argv)) continue;
      tandem::test::Deadline::begin(part.name.c_str());
      good = run(part, bench) && good;
      if (argc > 2) bench.write(argv[2]);
    }
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_engine: %s\n", error.what());
    return 1;
  }
}
