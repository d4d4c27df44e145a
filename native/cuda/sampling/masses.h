// Probabilities as integers, whose sums have no order, and blocks that look for places in running sums of them.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

// One unit of a probability relative to the largest: sums of 2^18 of them stay below 2^63, and thirds of their bits can be added in 32 bits.
constexpr float kMassUnit = 2199023255552.0f;  // 2^41

using Mass = unsigned long long;

__device__ __forceinline__ Mass mass_of(float logit, float largest, float scale) {
  return Mass(expf((logit - largest) * scale) * kMassUnit);
}

// Larger floats have larger keys, both zeros the same; NaN does not come here.
__device__ __forceinline__ uint32_t order_key(float f) {
  const float one_zero = f + 0.0f;
  uint32_t u;
  memcpy(&u, &one_zero, 4);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

__device__ __forceinline__ float value_of_key(uint32_t key) {
  const uint32_t u = key & 0x80000000u ? key & 0x7fffffffu : ~key;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

// The whole block; the result for all.
template <class T>
__device__ GPU_CALLED T block_total(T v) {
  GPU_SHARED(parts, T[kWarp]);
  for (int mask = 16; mask > 0; mask >>= 1) v += __shfl_xor_sync(kAllLanes, v, mask);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = v;
  __syncthreads();
  T sum = 0;
  for (unsigned i = 0; i < blockDim.x / kWarp; ++i) sum += parts[i];
  __syncthreads();
  return sum;
}

__device__ inline int warp_least(int v) {
  for (int mask = 16; mask > 0; mask >>= 1) v = min(v, __shfl_xor_sync(kAllLanes, v, mask));
  return v;
}

// The sum of v in the threads before this one.
__device__ GPU_CALLED Mass block_before(Mass v) {
  GPU_SHARED(totals, Mass[kWarp]);
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  Mass sum = v;
  for (int delta = 1; delta < kWarp; delta <<= 1) {
    const Mass other = __shfl_up_sync(kAllLanes, sum, delta);
    if (lane >= delta) sum += other;
  }
  if (lane == kWarp - 1) totals[warp] = sum;
  __syncthreads();
  Mass before = sum - v;
  for (int w = 0; w < warp; ++w) before += totals[w];
  __syncthreads();
  return before;
}

struct Found {
  int index;    // -1: nowhere
  Mass before;  // the sum of the amounts before it
};

// Of amounts in a row, of which each thread holds Count neighbours, the first at which the running amount exceeds `target`.
template <int Count>
__device__ Found block_find(const Mass (&amounts)[Count], Mass target) {
  GPU_SHARED(found, Found);
  if (threadIdx.x == 0) found = {-1, 0};
  Mass own = 0;
  GPU_UNROLL
  for (int i = 0; i < Count; ++i) own += amounts[i];
  Mass before = block_before(own);
  if (before <= target && before + own > target) {
    GPU_UNROLL
    for (int i = 0; i < Count; ++i) {
      if (before <= target && before + amounts[i] > target) found = {int(threadIdx.x) * Count + i, before};
      before += amounts[i];
    }
  }
  __syncthreads();
  const Found result = found;
  __syncthreads();
  return result;
}

}  // namespace tandem::cuda
