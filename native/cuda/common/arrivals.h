// Counters of blocks, by which others know that what these wrote is there.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

#ifdef TANDEM_GPU_EMULATION

inline int32_t count_arrival(int32_t* count) { return atomicAdd(count, 1); }
using gpu_emulation::wait_for_count;

#else

// How many came before. What the block wrote before its threads met is there for who comes later.
__device__ __forceinline__ int32_t count_arrival(int32_t* count) {
  int32_t before;
  asm volatile("atom.acq_rel.gpu.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
  return before;
}

// Until so many have come, which began before.
__device__ __forceinline__ void wait_for_count(const int32_t* count, int32_t wanted) {
  int32_t seen;
  do {
    asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
  } while (seen < wanted);
}

#endif

}  // namespace tandem::cuda
