// Attention of one token per tile that makes its rows itself: what rope_store() does, by the block that uses them. A block makes its group's
// queries; the one whose split holds the token also its key and value, which go to the pool and to their place among the tiles in shared
// memory, where the token's page has been brought meanwhile with whatever lies there.
#pragma once
#include "cuda/attention/attention_wgmma.h"
#include "cuda/rope/rope_row.h"

namespace tandem::cuda {

// Queries in shared memory: rows lie so that a warp's fragments meet no bank twice.
template <int kDim>
constexpr int kQueryRow = kDim + 8;
template <int kDim>
constexpr int kQueryBytes = kTileRows* kQueryRow<kDim>* int(sizeof(bf16));

#if TANDEM_HOPPER_CODE

// A thread's share of the block's heads: its group's queries, then the key and the value, kLanes threads each.
template <int kDim>
struct OwnHead {
  static constexpr int kLanes = rope::lanes_of(kDim), kHalf = kDim / 2;

  rope::Share share;
  rope::Constants constants;
  int query;  // of the group; or not a query
  bool stores;

  __device__ __forceinline__ OwnHead(const PagedAttention& a, const RopeStore& r, const AttentionTile& tile, int kv_head, bool holds) {
    const int own = int(threadIdx.x) / kLanes, group = group_of(a);
    rope::Share& s = share;
    s.kind = own < group ? rope::Kind::kQuery : own == group ? rope::Kind::kKey : rope::Kind::kValue;
    const int keys = int(a.heads), values = keys + int(a.kv.kv_heads);
    s.head = (own < group ? kv_head * group + own : own == group ? keys + kv_head : values + kv_head);
    s.row = tile.first_row;
    s.pair = 4 * (int(threadIdx.x) % kLanes);
    s.column = s.head * kDim + s.pair;
    const bool there = tile.tokens > 0 && own < group + (holds ? 2 : 0);
    s.left = there ? kHalf - s.pair : 0;
    query = own;
    constants = rope::load_constants<true>(r, s, kHalf);
    stores = there && own >= group && constants.valid;
  }

  __device__ __forceinline__ bool asks() const { return share.kind == rope::Kind::kQuery; }
};

// Four columns of a row of a tile in shared memory, as TMA leaves them (128-byte swizzle).
__device__ __forceinline__ void put_four(unsigned char* tile, int row, int column, const Four& v) {
  constexpr int kChunk = 16 / int(sizeof(bf16));
  const int within = column % kColumns, chunk = within / kChunk ^ row % 8;
  unsigned char* to = tile + column / kColumns * kPanelBytes + row * kRowBytes + chunk * 16 + within % kChunk * int(sizeof(bf16));
  store_four<true>(reinterpret_cast<bf16*>(to), 1, v);
}

// When the kernel's inputs are there: queries to `queries`, the key and the value to the pool and to row `row` of their tiles, which wait(of_key)
// says have come. The threads meet before they use them.
template <int kDim, class Wait>
__device__ __forceinline__ void make_own_head(const RopeStore& r, const OwnHead<kDim>& own, bf16* queries, unsigned char* keys,
                                              unsigned char* values, int row, const Wait& wait) {
  constexpr int kHalf = OwnHead<kDim>::kHalf;
  const rope::Share& s = own.share;
  Four pairs[2] = {};
  rope::load_pairs<true, 4>(r, s, kHalf, pairs);
  rope::add_bias(r, own.constants, pairs);
  rope::finish_pairs<OwnHead<kDim>::kLanes>(r, own.constants, pairs);
  if (s.left <= 0) return;
  if (own.asks()) {
    const Four nan{NAN, NAN, NAN, NAN};
    if (!own.constants.valid) pairs[0] = pairs[1] = nan;
    bf16* to = queries + own.query * kQueryRow<kDim> + s.pair;
    rope::store_pairs<true>(to, s, kHalf, pairs);
    return;
  }
  if (!own.stores) return;
  const bool key = s.kind == rope::Kind::kKey;
  const int slot = own.constants.slot, kv_head = s.head - int(r.heads) - (key ? 0 : int(r.kv.kv_heads));
  bf16* to = (key ? r.kv.keys : r.kv.values) + r.kv.offset(slot / kPagePositions, kv_head, slot % kPagePositions) + s.pair;
  rope::store_pairs<true>(to, s, kHalf, pairs);
  wait(key);
  unsigned char* tile = key ? keys : values;
  put_four(tile, row, s.pair, pairs[0]);
  put_four(tile, row, s.pair + kHalf, pairs[1]);
  shared_writes_fence();
}

// Fragments of the warp that has the tile's rows, one token of them; of others none.
template <int kDim>
__device__ __forceinline__ Rows<kDim> own_rows(const PagedAttention& a, const AttentionTile& tile, const bf16* queries, bool has_rows) {
  const int lane = int(threadIdx.x % kWarp);
  Rows<kDim> rows;
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    const bool valid = has_rows && tile.tokens > 0 && row < group_of(a);
    rows.position[r] = valid ? tile.first_position : -1;
    rows.out[r] = nullptr;
    GPU_UNROLL
    for (int k = 0; k < kDim / 16; ++k) {
      GPU_UNROLL
      for (int half = 0; half < 2; ++half) {
        const bf16* from = queries + row * kQueryRow<kDim> + k * 16 + half * 8 + lane % 4 * 2;
        rows.queries[k][half * 2 + r] = valid ? *reinterpret_cast<const uint32_t*>(from) : 0;
      }
    }
  }
  return rows;
}

#endif

}  // namespace tandem::cuda
