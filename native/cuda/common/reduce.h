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

// All threads of the block call and all get the result. blockDim.x a multiple of 32.
__device__ inline float block_sum(float v) {
  __shared__ float parts[kWarp];
  v = warp_sum(v);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = v;
  __syncthreads();
  float sum = 0;
  for (unsigned i = 0; i < blockDim.x / kWarp; ++i) sum += parts[i];
  __syncthreads();  // before the next use of parts
  return sum;
}

__device__ inline float block_max(float v) {
  __shared__ float parts[kWarp];
  v = warp_max(v);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = v;
  __syncthreads();
  float best = parts[0];
  for (unsigned i = 1; i < blockDim.x / kWarp; ++i) best = fmaxf(best, parts[i]);
  __syncthreads();
  return best;
}

}  // namespace tandem::cuda
