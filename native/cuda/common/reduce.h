// Sums and maxima over a warp and a block in one fixed order: the result does not depend on timing or on other blocks.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

__device__ inline float warp_sum(float v) {
  for (int mask = 16; mask > 0; mask >>= 1) v += __shfl_xor_sync(kAllLanes, v, mask);
  return v;
}

__device__ inline float warp_max(float v) {
  for (int mask = 16; mask > 0; mask >>= 1) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, mask));
  return v;
}

// Of kLanes neighbours, a power of two.
template <int kLanes>
__device__ __forceinline__ float group_sum(float v) {
  GPU_UNROLL
  for (int mask = kLanes / 2; mask > 0; mask >>= 1) v += __shfl_xor_sync(kAllLanes, v, mask);
  return v;
}

// As block_sum(), of several numbers in a block of kThreads. With one barrier: once in a kernel.
template <int kThreads, int kSums>
__device__ __forceinline__ void block_sums_once(float (&v)[kSums]) {
  constexpr int kWarps = kThreads / kWarp;
  GPU_SHARED(parts, float[kSums][kWarps]);
  GPU_UNROLL
  for (int s = 0; s < kSums; ++s) v[s] = group_sum<kWarp>(v[s]);
  if (threadIdx.x % kWarp == 0) {
    GPU_UNROLL
    for (int s = 0; s < kSums; ++s) parts[s][threadIdx.x / kWarp] = v[s];
  }
  __syncthreads();
  GPU_UNROLL
  for (int s = 0; s < kSums; ++s) {
    v[s] = 0;
    GPU_UNROLL
    for (int i = 0; i < kWarps; ++i) v[s] += parts[s][i];
  }
}

// All threads of the block call and all get the result. blockDim.x a multiple of 32.
__device__ inline float block_sum(float v) {
  GPU_SHARED(parts, float[kWarp]);
  v = warp_sum(v);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = v;
  __syncthreads();
  float sum = 0;
  for (unsigned i = 0; i < blockDim.x / kWarp; ++i) sum += parts[i];
  __syncthreads();  // before the next use of parts
  return sum;
}

__device__ inline float block_max(float v) {
  GPU_SHARED(parts, float[kWarp]);
  v = warp_max(v);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = v;
  __syncthreads();
  float best = parts[0];
  for (unsigned i = 1; i < blockDim.x / kWarp; ++i) best = fmaxf(best, parts[i]);
  __syncthreads();
  return best;
}

}  // namespace tandem::cuda
