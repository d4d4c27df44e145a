// A block's warp that finishes what others multiply: it takes rows' states after a split, leaves them for the other splits' blocks, and merges
// them where it is the last. The warps that multiply go on meanwhile: to see that states are stored and counted takes as long as one or two tiles
// of keys.
#pragma once
#include "cuda/attention/attention_merge.h"
#include "cuda/common/hopper.h"

namespace tandem::cuda {

// In shared memory: one item's rows at a time, which are read 16 bytes at once.
template <int kDim>
struct alignas(16) Handed {
  float states[kTileRows][kStateFloats<kDim>];
  Item item;  // place -1: there are no more
  Barrier full, empty;
};

#if TANDEM_HOPPER_CODE

// By one thread, before all others see them.
template <int kDim>
__device__ __forceinline__ void open_handed(Handed<kDim>& handed) {
  barrier_init(&handed.full, 1);
  barrier_init(&handed.empty, 1);
}

// By the warp that has the rows, which may go on when this returns. `round`: of how many items it has handed over, whether that is odd.
template <int kDim>
__device__ __forceinline__ void hand_over(Handed<kDim>& handed, const PagedAttention& a, const Item& item, const Softmax<kDim>& s,
                                          int& round) {
  const int lane = int(threadIdx.x) % kWarp, count = item.place < 0 ? 0 : item.tile.tokens * group_of(a);
  barrier_wait(&handed.empty, round ^ 1);
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    if (row < count) store_state<kDim>(handed.states[row], s, r);
  }
  if (lane == 0) handed.item = item;
  __syncwarp();
  if (lane == 0) barrier_arrive(&handed.full);
  round ^= 1;
}

// To where blocks leave them for one another.
template <int kDim>
__device__ __forceinline__ void leave_states(const Handed<kDim>& handed, const PagedAttention& a, const Item& item, int count) {
  const int lane = int(threadIdx.x) % kWarp;
  GPU_UNROLL_2
  for (int row = 0; row < count; ++row) {
    const float* from = handed.states[row];
    float* to = state_of<kDim>(a, item.place, item.kv_head, item.split, row);
    if (lane < kDim / 4) *reinterpret_cast<float4*>(to + 4 * lane) = *reinterpret_cast<const float4*>(from + 4 * lane);
    if (lane == 0) *reinterpret_cast<float2*>(to + kDim) = *reinterpret_cast<const float2*>(from + kDim);
  }
}

// By the warp that finishes items, until there are no more.
template <int kDim>
__device__ __forceinline__ void finish_handed(Handed<kDim>& handed, const PagedAttention& a) {
  const int lane = int(threadIdx.x) % kWarp;
  for (int round = 0;; round ^= 1) {
    barrier_wait(&handed.full, round);
    const Item item = handed.item;
    if (item.place < 0) return;
    const int count = item.tile.tokens * group_of(a);
    leave_states<kDim>(handed, a, item, count);
    __syncwarp();
    if (lane == 0) barrier_arrive(&handed.empty);
    const Span splits = seen_splits(a, item.tile);
    const bool last = comes_last(item.tile, splits, a.arrivals + int64_t(item.place) * a.kv.kv_heads + item.kv_head);
    if (__ballot_sync(kAllLanes, last) == 0) continue;
    GPU_UNROLL_1
    for (int row = 0; row < count; row += 2) merge_left<kDim, 2, 8>(a, item, splits, row);
  }
}

#endif

}  // namespace tandem::cuda
