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
  GPU_UNROLL_1
  for (int i = 0; i < int(a.next_count); ++i) {
    GPU_UNROLL_1
    for (int adapter = 0; adapter < int(a.adapter_count); ++adapter) {
      const LoraPart::Projection& projection = a.next[i];
      const LoraWeights w = load_fresh(projection.adapters + adapter);
      GPU_UNROLL_1
      for (int half = 0; half < 2; ++half) {
        const bf16* from = half == 0 ? w.a : w.b;
        const int count = min(w.rank, int32_t(a.most_rank)) * int(half == 0 ? a.next_in : projection.out);
        if (!whole_vectors(from, count, count)) continue;
        GPU_NO_UNROLL
        for (int at = thread * kPiece; at < count; at += threads * kPiece) fetch(from + at, min(count - at, kPiece));
      }
    }
  }
}

}  // namespace tandem::cuda::lora
