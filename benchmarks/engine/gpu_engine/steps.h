// The time of a decode step.
#pragma once
#include "bench.h"

namespace tandem::benchmarks {

// Seconds of a step: handed over before the one before it has ended, or after it.
struct StepTimes {
  Timing ahead, in_turn;
};
// What a step holds: each request may be changed by its number.
using Change = std::function<void(size_t, Job&)>;

// Of so many streams behind prompts of so many tokens (0: Counts::prompt). Throws Error(kState) where a step is of another kind or a stream ends.
StepTimes time_steps(Bench& bench, int64_t streams, const Change& change, int64_t prompt = 0);
inline StepTimes time_greedy(Bench& bench, int64_t streams, int64_t prompt = 0) {
  return time_steps(
      bench, streams, [](size_t, Job&) {}, prompt);
}

// False: no profiler is meant to watch. Else it sees one such step, and nothing is timed.
bool profiled_step(Bench& bench, int64_t streams, const Change& change);

// "64 streams"
std::string streams_of(int64_t count);

}  // namespace tandem::benchmarks
