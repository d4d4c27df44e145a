// What blocks leave for one another where each attends to splits by themselves: the state of each row after its split, and how the last
// of a tile's blocks to come merges them. Which block that is changes nothing: splits are merged in order.
#pragma once
#include "cuda/attention/attention_rows.h"
#include "cuda/common/count.h"

namespace tandem::cuda {

// A row's state: its values, then its largest score and its sum. [tile][kv head][split][tile_rows].
template <int kDim>
constexpr int64_t kStateFloats = kDim + 4;

template <int kDim>
__device__ __forceinline__ float* state_of(const PagedAttention& a, uint32_t tile, uint32_t kv_head, uint32_t split, uint32_t row) {
  const uint32_t splits = uint32_t(a.longest + kSplitPositions - 1) / kSplitPositions;
  const uint32_t place = ((tile * uint32_t(a.kv.kv_heads) + kv_head) * splits + split) * uint32_t(a.tile_rows) + row;
  return a.workspace + place * kStateFloats<kDim>;
}

// Row r of this thread's two.
template <int kDim>
__device__ __forceinline__ void store_state(float* state, const Softmax<kDim>& s, int r) {
  const int own = int(threadIdx.x % 4) * 2;
  GPU_UNROLL
  for (int i = 0; i < kDim / 8; ++i) {
    *reinterpret_cast<float2*>(state + i * 8 + own) = float2{s.values[i][2 * r], s.values[i][2 * r + 1]};
  }
  if (own == 0) *reinterpret_cast<float2*>(state + kDim) = float2{s.largest[r], s.sum[r]};
}

// By the first warp: each member's row to where its own tile would have stored it, in which it is the first token's.
template <int kDim>
__device__ void store_members(const PagedAttention& a, const PrefixTile& tile, int kv_head, int split, const Softmax<kDim>& s) {
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = int(threadIdx.x % kWarp) / 4 + 8 * r, token = token_of(a, row);
    const int64_t at = member_of(a, tile, token).tile - a.first_tile;
    if (at < 0 || at >= a.tile_count) continue;
    store_state<kDim>(state_of<kDim>(a, uint32_t(at), kv_head, split, row - token * group_of(a)), s, r);
  }
}

// Columns of a row that a lane merges: runs of kRun, kWarp * kRun from one to the next.
template <int kDim>
struct Columns {
  static constexpr int kRun = kDim % 128 == 0 ? 4 : kDim % 64 == 0 ? 2 : 1;
  static constexpr int kRuns = kDim / (kWarp * kRun), kCount = kRun * kRuns;

  __device__ static int of_run(int run) { return (run * kWarp + int(threadIdx.x % kWarp)) * kRun; }

  // Other blocks wrote it.
  __device__ static void load(const float* state, float (&to)[kCount]) {
    GPU_UNROLL
    for (int run = 0; run < kRuns; ++run) {
      const float* from = state + of_run(run);
      float* out = to + run * kRun;
      if constexpr (kRun == 4) {
        const float4 v = __ldcg(reinterpret_cast<const float4*>(from));
        out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
      } else if constexpr (kRun == 2) {
        const float2 v = __ldcg(reinterpret_cast<const float2*>(from));
        out[0] = v.x, out[1] = v.y;
      } else {
        out[0] = __ldcg(from);
      }
    }
  }

  // As write_row().
  __device__ static void write(bf16* row, const float (&values)[kCount], float sum) {
    const float share = 1.0f / sum;
    GPU_UNROLL
    for (int run = 0; run < kRuns; ++run) {
      bf16* to = row + of_run(run);
      const float* v = values + run * kRun;
      if constexpr (kRun == 1) *to = bf16{uint16_t(pack_rounded(fmaf(v[0], share, 0.0f), 0.0f))};
      GPU_UNROLL
      for (int i = 0; i + 1 < kRun; i += 2) {
        *reinterpret_cast<uint32_t*>(to + i) = pack_rounded(fmaf(v[i], share, 0.0f), fmaf(v[i + 1], share, 0.0f));
      }
    }
  }
};

// What a warp has merged of a row, as Softmax::merge does it, kAtOnce splits at a time; how many that are changes no bit.
template <int kDim, int kAtOnce>
struct MergedRow {
  float largest = -INFINITY, sum = 0;
  float values[Columns<kDim>::kCount] = {};

  // States of splits: a lane has the largest score and the sum of its own.
  struct Parts {
    float2 state;
    float values[kAtOnce][Columns<kDim>::kCount];
  };

  // Of `count` states, at most kAtOnce, `stride` floats from one to the next. All of them are on their way together.
  __device__ __forceinline__ static void load(int count, const float* from, int stride, Parts& parts) {
    const int lane = threadIdx.x % kWarp;
    const float2 none{-INFINITY, 0};
    parts.state = lane < count ? __ldcg(reinterpret_cast<const float2*>(from + lane * stride + kDim)) : none;
    GPU_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (i < count) Columns<kDim>::load(from, parts.values[i]);
      from += stride;
    }
  }

  __device__ __forceinline__ void add(const Parts& parts) {
    // A lane has the largest scores before and with its split; what came before and the split itself are weighed by these.
    const int lane = threadIdx.x % kWarp;
    const float2 state = parts.state;
    float top = fmaxf(largest, state.x);
    GPU_UNROLL
    for (int distance = 1; distance < kAtOnce; distance *= 2) top = fmaxf(top, __shfl_up_sync(kAllLanes, top, distance));
    const float below = __shfl_up_sync(kAllLanes, top, 1), before = lane == 0 ? largest : below;
    const float mine = exp2_flushed(before - top), theirs = exp2_flushed(state.x - top);
    // One vote, which is the same for all lanes as the compiler knows: else each shuffle has code for lanes that are not together.
    const unsigned seeing = __ballot_sync(kAllLanes, state.x != -INFINITY);
    GPU_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if ((seeing >> i & 1) == 0) continue;  // it saw nothing, or there is none
      const float m = __shfl_sync(kAllLanes, mine, i), t = __shfl_sync(kAllLanes, theirs, i);
      sum = fmaf(sum, m, __shfl_sync(kAllLanes, state.y, i) * t);
      GPU_UNROLL
      for (int c = 0; c < Columns<kDim>::kCount; ++c) values[c] = fmaf(values[c], m, parts.values[i][c] * t);
    }
    largest = __shfl_sync(kAllLanes, top, kAtOnce - 1);
  }
};

// Splits of which a tile's rows see keys.
__device__ __forceinline__ Span seen_splits(const PagedAttention& a, const AttentionTile& tile) {
  return {first_seen(a, tile.first_position) / kSplitPositions, (tile.first_position + tile.tokens - 1) / kSplitPositions + 1};
}

// By a warp, when the block's states are stored. To its first lane: whether all others of the tile had come before; theirs are there then.
__device__ __forceinline__ bool comes_last(const AttentionTile& tile, const Span& splits, int* arrivals) {
  const int blocks = splits.end - max(splits.begin, tile.shared_splits);
  const bool last = count_up(arrivals) == blocks - 1 && threadIdx.x % kWarp == 0;
  if (last) *arrivals = 0;  // for the next launch
  return last;
}

// Of a tile's row among all rows' heads.
__device__ __forceinline__ int64_t place_of(const PagedAttention& a, const AttentionTile& tile, int kv_head, int row) {
  const int token = token_of(a, row);
  return head_place(a, tile.first_row + token, kv_head, token, row);
}

// What is attended to at a time: a split of a tile and a kv head.
struct Item {
  AttentionTile tile;
  int32_t place;  // the tile's in the launch
  int32_t kv_head, split;
};

// By a warp: a row's states that blocks left.
template <int kDim, int kAtOnce>
__device__ __forceinline__ void merge_row(const PagedAttention& a, const Item& item, const Span& splits, int row) {
  using Merged = MergedRow<kDim, kAtOnce>;
  const int stride = int(a.tile_rows * kStateFloats<kDim>);
  Merged merged;
  GPU_NO_UNROLL
  for (int split = splits.begin; split < splits.end; split += kAtOnce) {
    typename Merged::Parts parts = {};  // what is never written would take registers from one item of a block to the next
    Merged::load(min(splits.end - split, kAtOnce), state_of<kDim>(a, item.place, item.kv_head, split, row), stride, parts);
    merged.add(parts);
  }
  const int64_t out = place_of(a, item.tile, item.kv_head, row);
  if (a.log_sums != nullptr && threadIdx.x % kWarp == 0) a.log_sums[out] = log_sum(merged.largest, merged.sum);
  Columns<kDim>::write(a.out + out * kDim, merged.values, merged.sum);
}

// By a team of so many of the block's warps beside each other, row by row.
template <int kDim>
__device__ void merge_splits(const PagedAttention& a, const Item& item, const Span& splits, int warps) {
  GPU_NO_UNROLL
  for (int row = int(threadIdx.x / kWarp) % warps; row < item.tile.tokens * group_of(a); row += warps) {
    merge_row<kDim, 8>(a, item, splits, row);
  }
}

// By the team's first warp: each row's state is stored; or written as its result, where no other split has anything of it.
template <int kDim>
__device__ void store_or_write(const PagedAttention& a, const Item& item, const Softmax<kDim>& s, bool store) {
  const int count = item.tile.tokens * group_of(a);
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = int(threadIdx.x % kWarp) / 4 + 8 * r;
    if (row >= count) continue;
    if (store) store_state<kDim>(state_of<kDim>(a, item.place, item.kv_head, item.split, row), s, r);
    else write_row<kDim>(a, a.out + place_of(a, item.tile, item.kv_head, row) * kDim, s, r);
  }
}

// By a team of so many of the block's warps beside each other; the tile's rows are the first one's. meet(vote): all of these threads, whether
// the first one votes for it.
template <int kDim, class Meet>
__device__ __forceinline__ void finish_split(const PagedAttention& a, const Item& item, const Softmax<kDim>& s, int warps,
                                             const Meet& meet) {
  const Span splits = seen_splits(a, item.tile);
  const bool first_warp = int(threadIdx.x / kWarp) % warps == 0;
  if (splits.end - splits.begin == 1) {
    if (first_warp) store_or_write<kDim>(a, item, s, false);
    return;
  }
  bool last = false;
  if (first_warp) {
    store_or_write<kDim>(a, item, s, true);
    last = comes_last(item.tile, splits, a.arrivals + int64_t(item.place) * a.kv.kv_heads + item.kv_head);
  }
  if (meet(last)) merge_splits<kDim>(a, item, splits, warps);
}

}  // namespace tandem::cuda
