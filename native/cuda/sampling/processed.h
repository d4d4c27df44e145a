// What a row is drawn from: its logits under the mask, with the edits; of a slice by a block, of a warp's part of a slice, and again by the block
// that ends the row.
#pragma once
#include "cuda/sampling/row.h"

namespace tandem::cuda {

// A warp's part of a slice: four runs of neighbours.
constexpr int kTileRun = 4 * kWarp, kTileIds = kSliceIds / kSliceWarps;

__device__ __forceinline__ int tile_of(int id) { return id / kSliceIds * kSliceWarps + id % (4 * kSliceThreads) / kTileRun; }
__device__ __forceinline__ int place_in_tile(int id) { return id % kSliceIds / (4 * kSliceThreads) * kTileRun + id % kTileRun; }
// The slice's thread whose values this lane has of a tile.
__device__ __forceinline__ int tile_thread(int tile) { return tile % kSliceWarps * kWarp + int(threadIdx.x) % kWarp; }

// Ids that may not be sampled become -infinity.
__device__ inline void mask_values(const SampleBatch& a, const SampleRow& p, int slice, int thread, float (&v)[kSliceValues]) {
  const uint32_t* mask = mask_of(a, p);
  if (mask == nullptr && (slice + 1) * kSliceIds <= a.samplable) return;
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; i += 4) {
    const int first = slice_id(slice, thread, i);
    const uint32_t bits = !mask ? ~0u : first / 32 < a.mask_words ? mask[first / 32] >> (first % 32) : 0u;
    GPU_UNROLL
    for (int e = 0; e < 4; ++e) {
      if (first + e >= a.samplable || (bits >> e & 1u) == 0) v[i + e] = -INFINITY;
    }
  }
}

__device__ __forceinline__ const LogitEdit* edits_of(const SampleBatch& a, const SampleRow& p) { return a.edits + p.first_edit; }
__device__ __forceinline__ int edit_count(const SampleBatch& a, const SampleRow& p) {
  if (p.first_edit < 0 || p.first_edit >= a.edit_total) return 0;
  return int(min(int64_t(p.edit_count), a.edit_total - p.first_edit));
}
__device__ __forceinline__ float edited(const LogitEdit& e, float l) {
  l += e.bias;
  l = l > 0 ? l / e.repetition : l * e.repetition;
  return l - e.penalty;
}

// By the block that has the slice.
__device__ inline void edit_slice(const SampleBatch& a, const SampleRow& p, int slice, float (&v)[kSliceValues]) {
  GPU_SHARED(values, float[kSliceIds]);
  const LogitEdit* edits = edits_of(a, p);
  const int begin = slice * kSliceIds, end = min(begin + kSliceIds, int(a.samplable)), count = edit_count(a, p);
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) values[slice_id(slice, i) - begin] = v[i];
  __syncthreads();
  GPU_UNROLL_4
  for (int i = int(threadIdx.x); i < count; i += kSliceThreads) {
    const int32_t id = edits[i].id;
    if (id >= begin && id < end) values[id - begin] = edited(edits[i], values[id - begin]);
  }
  __syncthreads();
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) v[i] = values[slice_id(slice, i) - begin];
}

// The warp's own memory, for edits to find values by their ids.
using TileValues = float[kTileIds];

// By a warp, of the values of a tile.
__device__ inline void edit_tile(const SampleBatch& a, const SampleRow& p, int tile, TileValues& values, float (&v)[kSliceValues]) {
  const int lane = int(threadIdx.x) % kWarp, thread = tile_thread(tile), count = edit_count(a, p);
  const LogitEdit* edits = edits_of(a, p);
  for (int first = 0; first < count; first += kWarp) {
    const int at = first + lane, id = at < count ? edits[at].id : -1;
    const bool own = id >= 0 && id < a.samplable && tile_of(id) == tile;
    if (__ballot_sync(kAllLanes, own) == 0) continue;
    GPU_UNROLL
    for (int i = 0; i < kSliceValues; ++i) values[place_in_tile(slice_id(0, thread, i))] = v[i];
    __syncwarp();
    if (own) values[place_in_tile(id)] = edited(edits[at], values[place_in_tile(id)]);
    __syncwarp();
    GPU_UNROLL
    for (int i = 0; i < kSliceValues; ++i) v[i] = values[place_in_tile(slice_id(0, thread, i))];
  }
}

// The logits of ids [first, end) under a mask (null: none) and with edits, to `to`. By the block that ends the row.
__device__ GPU_CALLED void process_values(const float* logits, const uint32_t* mask, const LogitEdit* edits, int count, int first, int end,
                                          float* to) {
  for (int id = first + int(threadIdx.x); id < end; id += kFinishThreads) {
    to[id] = !mask || (mask[id / 32] >> (id % 32) & 1u) ? logits[id] : -INFINITY;
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < count; i += kFinishThreads) {
    const int32_t id = edits[i].id;
    if (id >= first && id < end) to[id] = edited(edits[i], to[id]);
  }
  __syncthreads();
}

// Of a changed row the values of ids [first, end), where they are not kept.
__device__ __forceinline__ void find_again(const SampleBatch& a, const SampleRow& p, const RowSpace& space, int first, int end) {
  if (!changed(p) || keeps_values(p)) return;
  process_values(space.logits, mask_of(a, p), edits_of(a, p), edit_count(a, p), first, min(end, int(a.samplable)), space.processed);
}

}  // namespace tandem::cuda
