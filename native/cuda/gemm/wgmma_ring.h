// What products by wgmma share: groups of four warps that multiply the tiles which one more warp brings by TMA, through a ring of stages.
#pragma once
#include "cuda/common/hopper.h"
#include "cuda/gemm/split.h"

namespace tandem::cuda {

constexpr int kGroupThreads = 4 * kWarp;
constexpr int kGroupRows = 64;       // of a wgmma
constexpr int kDepth = kSplitDepth;  // inputs of a stage

#if TANDEM_HOPPER_CODE

constexpr int kStep = 16;  // inputs of a wgmma

// A stage's barriers: `full` when its copies have come, `empty` when every warp that multiplies is done with it; and `weights` when these
// have come, where they have a barrier of their own.
struct Ring {
  Barrier *full, *empty, *weights;
};

// With barriers in that place, which are there for all threads of the block when this returns. `apart`: weights have their own.
__device__ __forceinline__ Ring open_ring(unsigned char* barriers, int stages, int groups, bool apart = false) {
  Barrier* first = reinterpret_cast<Barrier*>(barriers);
  const Ring ring{first, first + stages, apart ? first + 2 * stages : first};
  if (threadIdx.x == 0) {
    GPU_NO_UNROLL
    for (int stage = 0; stage < stages; ++stage) {
      barrier_init(&ring.full[stage], 1);
      barrier_init(&ring.empty[stage], groups * kGroupThreads / kWarp);
      if (apart) barrier_init(&ring.weights[stage], 1);
    }
    barrier_init_fence();
  }
  __syncthreads();  // the barriers are there for all
  return ring;
}

// This warp is done with the first `until` of the block's tiles. Where only wgmma reads them it has met already, in the wait for its products.
template <class S>
__device__ void give_back(const Ring& ring, int& done, int until) {
  __syncwarp();
  for (; done < until; ++done) {
    if (threadIdx.x % kWarp == 0) barrier_arrive(&ring.empty[done % S::kStages]);
  }
}

// The shuffle tells the compiler that a warp takes one path.
__device__ __forceinline__ int own_warp() { return __shfl_sync(kAllLanes, int(threadIdx.x) / kWarp, 0); }

#endif

}  // namespace tandem::cuda
