// Factors of adapters, which no kernel writes: they are read before a kernel's inputs are there (common/early_launch.h).
#pragma once
#include "cuda/lora/lora_sums.h"

namespace tandem::cuda::lora {

// Not from the first-level cache, which may hold what was there in an earlier step: nothing has been waited for yet.
template <class T>
__device__ __forceinline__ T load_fresh(const T* from) {
  static_assert(sizeof(T) % sizeof(uint64_t) == 0);
  uint64_t words[sizeof(T) / sizeof(uint64_t)];
  GPU_UNROLL
  for (size_t i = 0; i < sizeof(T) / sizeof(uint64_t); ++i) {
    words[i] = __ldcg(reinterpret_cast<const unsigned long long*>(from) + i);
  }
  T out;
  memcpy(&out, words, sizeof out);
  return out;
}

// To the L2 cache the factors that the product behind this one reads, by `threads` threads together, of which this is number `thread`: when
// that asks for them itself, memory is busy with its weights, for longer than one row's adapters take in all.
__device__ __forceinline__ void fetch_next(const LoraPart& a, int thread, int threads) {
  constexpr int kPiece = 2048;  // elements
  // So many threads share a projection: each waits once for where an adapter's factors are, while others do for theirs.
  constexpr int kProjections = 4;
  static_assert(LoraPart::kMost <= kProjections);
  const int which = thread & (kProjections - 1);
  if (which >= int(a.next_count)) return;
  const LoraPart::Projection& projection = a.next[which];
  GPU_UNROLL_1
  for (int adapter = 0; adapter < int(a.adapter_count); ++adapter) {
    const LoraWeights w = load_fresh(projection.adapters + adapter);
    GPU_UNROLL_1
    for (int b = 0; b < 2; ++b) {
      const bf16* from = b == 0 ? w.a : w.b;
      const int elements = w.rank * int(b == 0 ? a.next_in : projection.out);
      if (!whole_vectors(from, elements, elements)) continue;
      GPU_UNROLL_1
      for (int at = thread / kProjections * kPiece; at < elements; at += threads / kProjections * kPiece) {
        fetch(from + at, min(kPiece, elements - at));
      }
    }
  }
}

}  // namespace tandem::cuda::lora
