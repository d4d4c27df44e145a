// Where the sums of a product's block go.
#pragma once
#include <type_traits>

#include "cuda/gemm/matmul.h"

namespace tandem::cuda {

// `to` = the sums, or what lies at `onto` and the sums: of kCount outputs beside each other, of which `left` are there.
template <int kCount>
__device__ __forceinline__ void store_sums(float* to, const float* onto, const float (&sums)[kCount], int64_t left, bool aligned) {
  if constexpr (kCount > 1) {
    using Vector = std::conditional_t<kCount == 2, float2, float4>;
    static_assert(sizeof(Vector) == sizeof sums);
    if (aligned && left >= kCount) {
      Vector vector = {};
      if (onto != nullptr) vector = *reinterpret_cast<const Vector*>(onto);
      float out[kCount];
      memcpy(out, &vector, sizeof out);
      GPU_UNROLL
      for (int i = 0; i < kCount; ++i) out[i] = onto != nullptr ? out[i] + sums[i] : sums[i];
      memcpy(&vector, out, sizeof out);
      *reinterpret_cast<Vector*>(to) = vector;
      return;
    }
  }
  GPU_UNROLL
  for (int i = 0; i < kCount; ++i) {
    if (i < left) to[i] = onto != nullptr ? onto[i] + sums[i] : sums[i];
  }
}

// Where a block's sums go: its part of the workspace [part][m][outputs], or y.
struct Target {
  float* to;
  const float* onto;  // null: nothing is added to
  int64_t ld, outputs, tokens;

  __device__ bool aligned(int bytes) const {
    return ld * int64_t(sizeof(float)) % bytes == 0 && (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(onto)) % bytes == 0;
  }
};

// Of the block's part, or with parts of their own among the blocks of that part.
__device__ __forceinline__ Target target_of(const MatMul& a, int64_t outputs, bool parts_in_grid, int part) {
  if (parts_in_grid) return {a.workspace + part * a.m * outputs, nullptr, outputs, outputs, a.m};
  return {a.y, !a.accumulate ? nullptr : a.onto != nullptr ? a.onto : a.y, a.ldy, outputs, a.m};
}

// Where the sums of a block's tokens go: rows as they lie.
struct OwnPlaces {
  // Where a token's row begins.
  __device__ __forceinline__ int64_t place(const Target& target, int64_t token) const { return token * target.ld; }
  template <int kCount>
  __device__ __forceinline__ void store(const Target& target, int64_t place, int64_t output, const float (&sums)[kCount],
                                        bool aligned) const {
    const int64_t at = place + output;
    store_sums(target.to + at, target.onto != nullptr ? target.onto + at : nullptr, sums, target.outputs - output, aligned);
  }
};

}  // namespace tandem::cuda
