// What gpu_engine does, part by part.
#pragma once
#include "bench.h"

namespace tandem::benchmarks {

struct Part {
  std::string name;
  std::function<bool(Bench&)> run;  // false: what must hold does not
};
// In the order in which they run. Under a profiler (kernels/profiled.h) one step of each kind runs for it, and nothing is timed.
std::vector<Part> all_parts(const Counts& counts);

// bits.cc: tokens, log-probabilities and alternatives of a request, bit for bit: alone, in chunks, in batches, queued, fed again and behind
// cached pages.
bool same_bits(Bench& bench);
// The trainer's log-probabilities of sampled tokens are the engine's, bit for bit.
bool same_logprobs(Bench& bench);

// decode.cc
void decode(Bench& bench);
void sampling(Bench& bench);

// adapters.cc
void adapters(Bench& bench);

// grammars.cc
void grammars(Bench& bench);

// prefill.cc
void prefill(Bench& bench, int64_t tokens);
void throughput(Bench& bench, double most_seconds);

// products.cc: what it costs that a row's bits do not depend on its batch: the products of a layer beside cuBLASLt's.
void invariance(Bench& bench);

// training.cc
void lora_step(Bench& bench);
void publication(Bench& bench);

}  // namespace tandem::benchmarks
