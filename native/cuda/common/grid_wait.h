// Blocks of a launch that wait for what others of it have counted. It ends only where who is waited for runs: blocks begin in the order of
// their numbers, so those of the first ones, not more than the device has multiprocessors, which wait for nobody before they have counted.
// Kernels of other streams end by themselves; but two such launches at the same time, of two engines on one device, might wait for each other.
#pragma once
#include "cuda/common/count.h"
#include "cuda/common/early_launch.h"

namespace tandem::cuda {

#ifdef TANDEM_GPU_EMULATION

using gpu_emulation::wait_for_count;

#else

// The emulation runs all blocks of the grid at the same time.
#define GPU_LAUNCH_EARLY_TOGETHER(kernel, grid, block, shared_bytes, stream, ...) \
  GPU_LAUNCH_EARLY(kernel, grid, block, shared_bytes, stream, __VA_ARGS__)

// Until the counter in device memory has come to `count`. What was there for who counted by count_up() is there for this thread.
__device__ __forceinline__ void wait_for_count(const int32_t* counter, int32_t count) {
  int32_t seen;
  for (;;) {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    if (seen >= count) return;
    __nanosleep(64);
  }
}

#endif

}  // namespace tandem::cuda
