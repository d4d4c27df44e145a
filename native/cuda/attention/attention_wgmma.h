// What kernels of attention on Hopper share: 64 keys and their values in shared memory as TMA leaves them and wgmma reads them, a ring of
// such tiles, and the products with a warp's rows. The instructions that make a row's bits are here, so they are the same everywhere.
#pragma once
#include "cuda/attention/attention_rows.h"
#include "cuda/common/hopper.h"
#include "cuda/common/tensor_map.h"

namespace tandem::cuda {

constexpr int kGroupThreads = kGroupTiles * kWarp;
constexpr int kColumns = 64;  // of a box
constexpr int kRowBytes = kColumns * int(sizeof(bf16));
constexpr int kPanelBytes = kTileKeys * kRowBytes;

// 64 keys and their values, each in panels of 64 columns; of the last one, columns beyond kDim are zero.
template <int kDim>
struct Stage {
  static constexpr int kPanels = (kDim + kColumns - 1) / kColumns;
  static constexpr int kKeyBytes = kPanels * kPanelBytes;
  static constexpr int kBytes = 2 * kKeyBytes;
};

#if TANDEM_HOPPER_CODE

constexpr int kTilePages = kTileKeys / kPagePositions;
constexpr int kPageBytes = kPagePositions * kRowBytes;

// The keys of a block, tile by tile, each in a stage whose barrier says when it has come.
struct KeyRing {
  unsigned char* stages;
  Barrier* full;
  const TensorMap *keys, *values;  // of the whole pool: rows are positions of pages
  int sequence, kv_head;
  Span span;  // from a multiple of kTileKeys on
  int at;     // position of the next tile
};

// An input of the step, which is read before the kernels ahead have ended: not from the first-level cache, which may hold an earlier step's.
__device__ __forceinline__ AttentionTile load_tile(const AttentionTile* from) {
  int32_t words[sizeof(AttentionTile) / sizeof(int32_t)];
  GPU_UNROLL
  for (int i = 0; i < int(sizeof words / sizeof words[0]); ++i) words[i] = __ldcg(reinterpret_cast<const int32_t*>(from) + i);
  AttentionTile tile;
  memcpy(&tile, words, sizeof tile);
  return tile;
}

// The pool's row at which the page of a position begins; beyond the last, where all is zero, if there is none. The table is an input of the
// step (common/early_launch.h).
__device__ __forceinline__ int pool_row(const PagedAttention& a, int sequence, int kv_head, int end, int position) {
  const uint32_t index = uint32_t(position) / kPagePositions, most = uint32_t(a.max_pages), pages = uint32_t(a.kv.pages);
  const bool wanted = position < end && index < most;
  const uint32_t page = wanted ? uint32_t(__ldcg(a.page_table + uint32_t(sequence) * most + index)) : pages;
  return int((min(page, pages) * uint32_t(a.kv.kv_heads) + kv_head) * kPagePositions);
}
__device__ __forceinline__ int pool_row(const PagedAttention& a, const KeyRing& ring, int position) {
  return pool_row(a, ring.sequence, ring.kv_head, ring.span.end, position);
}

// By one warp, of which each lane below kTilePages gives the row of its page.
template <int kDim>
__device__ void bring_tile(const KeyRing& ring, int stage, int row) {
  using S = Stage<kDim>;
  const int lane = int(threadIdx.x % kWarp);
  Barrier* full = &ring.full[stage];
  if (lane == 0) barrier_expect(full, S::kBytes);
  __syncwarp();
  if (lane >= kTilePages) return;
  unsigned char* to = ring.stages + stage * S::kBytes + lane * kPageBytes;
  GPU_UNROLL
  for (int panel = 0; panel < S::kPanels; ++panel) {
    bulk_load(to + panel * kPanelBytes, ring.keys, full, panel * kColumns, row);
    bulk_load(to + S::kKeyBytes + panel * kPanelBytes, ring.values, full, panel * kColumns, row);
  }
}

template <int kCount>
__device__ __forceinline__ float (&flat(float (&blocks)[kCount][4]))[4 * kCount] {
  return reinterpret_cast<float(&)[4 * kCount]>(blocks);
}

// scores += queries . keys^T, under way when this returns.
template <int kDim>
__device__ __forceinline__ void begin_scores(const Rows<kDim>& rows, const unsigned char* keys, float (&scores)[kTileKeys / 8][4]) {
  wgmma_fence();
  GPU_UNROLL
  for (int k = 0; k < kDim / 16; ++k) {
    wgmma_rows<kTileKeys, false>(flat(scores), rows.queries[k], tile_descriptor(keys + k / 4 * kPanelBytes, k % 4));
  }
  wgmma_commit();
}

// scores += queries . keys^T.
template <int kDim>
__device__ __forceinline__ void score_keys(const Rows<kDim>& rows, const unsigned char* keys, float (&scores)[kTileKeys / 8][4]) {
  begin_scores<kDim>(rows, keys, scores);
  wgmma_wait<0>(flat(scores));
  keep_rows(rows.queries);
}

using Weights = uint32_t[kTileKeys / 16][4];

// Values += weights . values of the keys, under way when this returns.
template <int kDim>
__device__ __forceinline__ void begin_values(Softmax<kDim>& s, const Weights& p, const unsigned char* values) {
  wgmma_fence();
  GPU_UNROLL
  for (int k = 0; k < kTileKeys / 16; ++k) {
    wgmma_rows<kDim, true>(flat(s.values), p[k], across_descriptor(values, k, kPanelBytes));
  }
  wgmma_commit();
}

template <int kDim>
__device__ __forceinline__ void add_values(Softmax<kDim>& s, const float (&weights)[kTileKeys / 8][4], const unsigned char* values) {
  Weights p;
  pack_weights(weights, p, [](float low, float high) { return pack_rounded(low, high); });
  begin_values<kDim>(s, p, values);
  wgmma_wait<0>(flat(s.values));
  keep_rows(p);
}

#endif

// Of all pages as one matrix, boxes of a page of a head and 64 of its columns.
template <int kDim>
TensorMap pool_map(const PagedAttention& a, const bf16* data) {
  return tensor_map(data, a.kv.pages * a.kv.kv_heads * kPagePositions, kDim, kDim, kPagePositions);
}

// Of at most `few_blocks` tiles and splits (attention_few_wgmma.cu); false: there are more, and nothing is done.
bool attend_few_wgmma(const PagedAttention& args, cudaStream_t stream);
// Of groups of tiles, every split in turn (attention_prefill_wgmma.cu).
void attend_groups_wgmma(const PagedAttention& args, cudaStream_t stream);

}  // namespace tandem::cuda
