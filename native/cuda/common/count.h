// What tells other blocks that something is there for them.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

// By a whole warp, when its threads have written what it counts, or met those that have: that is there for who sees the count. Returns, to its
// first lane, what was counted before; what was written for that is there for the lane. One instruction that releases and acquires: the fences
// of __threadfence() order more than that, and take longer.
__device__ __forceinline__ int32_t count_up(int32_t* counter) {
  __syncwarp();
  if (threadIdx.x % kWarp != 0) return 0;
#ifdef TANDEM_GPU_EMULATION
  return atomicAdd(counter, 1);
#else
  int32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
#endif
}

}  // namespace tandem::cuda
