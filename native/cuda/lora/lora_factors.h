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
  constexpr int64_t kPiece = 2048;  // elements
  const int count = int(a.next_count * a.adapter_count);
  if (count == 0) return;
  // So many threads share a projection of an adapter: each waits once for where the factors are, while others do for theirs.
  const int sharing = max(1, threads / count);
  const auto fetch_all = [&](const bf16* from, int64_t elements) {
    if (!whole_vectors(from, elements, elements)) return;
    GPU_NO_UNROLL
    for (int64_t at = thread % sharing * kPiece; at < elements; at += sharing * kPiece) {
      fetch(from + at, elements - at < kPiece ? elements - at : kPiece);
    }
  };
  GPU_UNROLL_1
  for (int i = thread / sharing; i < count; i += threads / sharing) {
    const LoraPart::Projection& projection = a.next[i / a.adapter_count];
    const LoraWeights w = load_fresh(projection.adapters + i % a.adapter_count);
    fetch_all(w.a, w.rank * a.next_in);
    fetch_all(w.b, w.rank * projection.out);
  }
}

}  // namespace tandem::cuda::lora
