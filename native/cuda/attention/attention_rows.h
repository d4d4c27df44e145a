// What kernels of attention share, whichever instruction multiplies: the rows of a warp with their running softmax, and what of the keys
// belongs to which block. The arithmetic here is the same for all, so a row's bits depend on the products alone.
#pragma once
#include "cuda/attention/paged_attention.h"
#include "cuda/common/tensor_core.h"

namespace tandem::cuda {

constexpr int kTileKeys = 64;
constexpr int kGroupTiles = 4;  // of one sequence, which a block takes together where it does all splits
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// Query heads of a key/value head.
__device__ __forceinline__ int group_of(const PagedAttention& a) { return a.group; }
__device__ __forceinline__ int window_of(const PagedAttention& a) { return int(a.window); }
// Of a tile's row, one of kTileRows, its token: row / group.
__device__ __forceinline__ int token_of(const PagedAttention& a, int row) { return row * a.group_part >> 8; }

__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, 1));
  return fmaxf(v, __shfl_xor_sync(kAllLanes, v, 2));
}

__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(kAllLanes, v, 1);
  return v + __shfl_xor_sync(kAllLanes, v, 2);
}

// Running softmax of a warp's 16 rows. This thread holds rows lane / 4 (index 0) and lane / 4 + 8 (index 1), and of each the columns
// 8 * i + lane % 4 * 2 and the next one. Scores are to base 2: an exponential is one instruction.
struct Peaks {
  float largest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
};

template <int kDim>
struct Softmax : Peaks {
  float values[kDim / 8][4] = {};

  // With `other`, whose keys come after.
  __device__ void merge(const Softmax& other) {
    GPU_UNROLL
    for (int r = 0; r < 2; ++r) {
      if (other.largest[r] == -INFINITY) continue;
      const float top = fmaxf(largest[r], other.largest[r]);
      const float mine = exp2_flushed(largest[r] - top), theirs = exp2_flushed(other.largest[r] - top);
      largest[r] = top;
      sum[r] = fmaf(sum[r], mine, other.sum[r] * theirs);
      GPU_UNROLL
      for (int i = 0; i < kDim / 8; ++i) {
        GPU_UNROLL
        for (int j = 2 * r; j < 2 * r + 2; ++j) values[i][j] = fmaf(values[i][j], mine, other.values[i][j] * theirs);
      }
    }
  }
};

// What a warp works on: the rows of one tile and one key/value head.
template <int kDim>
struct Rows {
  uint32_t queries[kDim / 16][4];  // fragments
  int position[2];                 // of this thread's two rows; -1: no row
  bf16* out[2];
};

// Where a token of a tile is: its row of the batch, -1 = there is none.
struct TokenPlace {
  int row, position;
};

// Of a tile's row, one of that token, among all rows' heads.
__device__ __forceinline__ uint32_t head_place(const PagedAttention& a, int batch_row, int kv_head, int token, int row) {
  return uint32_t(batch_row) * uint32_t(a.heads) + uint32_t((kv_head - token) * group_of(a) + row);
}

template <int kDim, class PlaceOf>
__device__ Rows<kDim> load_placed_rows(const PagedAttention& a, int kv_head, const PlaceOf& place_of) {
  const int lane = int(threadIdx.x % kWarp);
  Rows<kDim> rows;
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r, token = token_of(a, row);
    const TokenPlace place = place_of(token);
    const bool valid = place.row >= 0;
    const int64_t at = int64_t(kDim) * head_place(a, place.row, kv_head, token, row);
    rows.position[r] = valid ? place.position : -1;
    rows.out[r] = valid ? a.out + at : nullptr;
    GPU_UNROLL
    for (int k = 0; k < kDim / 16; ++k) {
      GPU_UNROLL
      for (int half = 0; half < 2; ++half) {
        // Not memcpy(), which is four loads here: it does not know that columns are even.
        const bf16* from = a.queries + at + k * 16 + half * 8 + lane % 4 * 2;
        rows.queries[k][half * 2 + r] = valid ? *reinterpret_cast<const uint32_t*>(from) : 0;
      }
    }
  }
  return rows;
}

template <int kDim>
__device__ Rows<kDim> load_rows(const PagedAttention& a, const AttentionTile& tile, int kv_head) {
  return load_placed_rows<kDim>(a, kv_head, [&](int token) {
    return token < tile.tokens ? TokenPlace{tile.first_row + token, tile.first_position + token} : TokenPlace{-1, -1};
  });
}

// Of raw products of row r of this thread's two, -infinity where it does not see a key; the first of them is at position `first`.
template <int kDim>
__device__ __forceinline__ void mask_row(const PagedAttention& a, const Rows<kDim>& rows, int first, float (&scores)[kTileKeys / 8][4],
                                         int r) {
  const uint32_t window = window_of(a) == 0 ? 1u << 30 : uint32_t(window_of(a));
  const int last = rows.position[r] - first - int(threadIdx.x % 4) * 2;
  GPU_UNROLL
  for (int i = 0; i < kTileKeys / 8; ++i) {
    GPU_UNROLL
    for (int j = 0; j < 2; ++j) {
      // One way for all threads: branches would be most of the work. A key behind the row is too far before it, as a number without a sign.
      if (uint32_t(last - (i * 8 + j)) >= window) scores[i][2 * r + j] = -INFINITY;
    }
  }
}

template <int kDim>
__device__ void mask_scores(const PagedAttention& a, const Rows<kDim>& rows, int first, float (&scores)[kTileKeys / 8][4]) {
  mask_row<kDim>(a, rows, first, scores, 0);
  mask_row<kDim>(a, rows, first, scores, 1);
}

// The largest score of raw products of row r.
__device__ __forceinline__ float largest_score(float scale, const float (&scores)[kTileKeys / 8][4], int r) {
  float top = -INFINITY;
  GPU_UNROLL
  for (int i = 0; i < kTileKeys / 8; ++i) top = fmaxf(top, fmaxf(scores[i][2 * r], scores[i][2 * r + 1]));
  return quad_max(top) * (scale * kLog2E);
}

// Raw products of row r, of which `largest` is the largest score -> probabilities relative to the new maximum. Returns the factor that scales
// what was there to it.
__device__ __forceinline__ float weigh_below(Peaks& s, float largest, float scale, float (&scores)[kTileKeys / 8][4], int r) {
  const float scale2 = scale * kLog2E;
  const float top = fmaxf(s.largest[r], largest);
  const float base = top == -INFINITY ? 0.0f : top;
  const float factor = exp2_flushed(s.largest[r] - base);  // exactly 1 where the maximum stays
  s.largest[r] = top;
  float sum = 0;
  GPU_UNROLL
  for (int i = 0; i < kTileKeys / 8; ++i) {
    GPU_UNROLL
    for (int j = 2 * r; j < 2 * r + 2; ++j) scores[i][j] = exp2_flushed(fmaf(scores[i][j], scale2, -base));
    sum += scores[i][2 * r] + scores[i][2 * r + 1];
  }
  s.sum[r] = fmaf(s.sum[r], factor, quad_sum(sum));
  return factor;
}

__device__ __forceinline__ float weigh_scores(Peaks& s, float scale, float (&scores)[kTileKeys / 8][4], int r) {
  return weigh_below(s, largest_score(scale, scores, r), scale, scores, r);
}

template <int kDim>
__device__ __forceinline__ void scale_values(Softmax<kDim>& s, float factor, int r) {
  GPU_UNROLL
  for (int i = 0; i < kDim / 8; ++i) {
    GPU_UNROLL
    for (int j = 2 * r; j < 2 * r + 2; ++j) s.values[i][j] *= factor;
  }
}

template <int kDim>
__device__ __forceinline__ void weigh_row(Softmax<kDim>& s, float scale, float (&scores)[kTileKeys / 8][4], int r) {
  const float factor = weigh_scores(s, scale, scores, r);
  scale_values<kDim>(s, factor, r);
}

template <int kDim>
__device__ void weigh(Softmax<kDim>& s, float scale, float (&scores)[kTileKeys / 8][4]) {
  weigh_row<kDim>(s, scale, scores, 0);
  weigh_row<kDim>(s, scale, scores, 1);
}

// Probabilities as fragments of the left side of a product with 64 keys' values. `pair` rounds two numbers.
template <class Pair>
__device__ __forceinline__ void pack_weights(const float (&weights)[kTileKeys / 8][4], uint32_t (&out)[kTileKeys / 16][4],
                                             const Pair& pair) {
  GPU_UNROLL
  for (int i = 0; i < kTileKeys / 8; ++i) {
    GPU_UNROLL
    for (int r = 0; r < 2; ++r) out[i / 2][i % 2 * 2 + r] = pair(weights[i][2 * r], weights[i][2 * r + 1]);
  }
}

// Of a row: the log of the sum of exp(score).
__device__ __forceinline__ float log_sum(float largest, float sum) { return fmaf(largest, kLn2, logf(sum)); }

// Row r of this thread's two. That 0 is added makes a state that was merged with nothing and one that was not merged the same: -0 is 0.
template <int kDim>
__device__ __forceinline__ void write_row(const PagedAttention& a, bf16* out, const Softmax<kDim>& s, int r) {
  const int lane = threadIdx.x % kWarp;
  if (a.log_sums != nullptr && lane % 4 == 0) a.log_sums[(out - a.out) / kDim] = log_sum(s.largest[r], s.sum[r]);
  const float share = 1.0f / s.sum[r];
  GPU_UNROLL
  for (int i = 0; i < kDim / 8; ++i) {
    const uint32_t pair = pack_rounded(fmaf(s.values[i][2 * r], share, 0.0f), fmaf(s.values[i][2 * r + 1], share, 0.0f));
    *reinterpret_cast<uint32_t*>(out + i * 8 + lane % 4 * 2) = pair;
  }
}

template <int kDim>
__device__ void write_rows(const PagedAttention& a, const Rows<kDim>& rows, const Softmax<kDim>& s) {
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) {
    if (rows.out[r] != nullptr) write_row<kDim>(a, rows.out[r], s, r);
  }
}

// The first position that a token there sees.
__device__ __forceinline__ int first_seen(const PagedAttention& a, int first_position) {
  return window_of(a) == 0 ? 0 : max(0, first_position - window_of(a) + 1);
}

// Positions [begin, end); none where end <= begin.
struct Span {
  int begin, end;
};

// Of a split, what a tile attends to by itself.
__device__ __forceinline__ Span own_span(const PagedAttention& a, const AttentionTile& tile, int split) {
  const int begin = split * kSplitPositions;
  const int end = min(tile.first_position + tile.tokens, begin + kSplitPositions);
  const bool seen = tile.tokens > 0 && begin + kSplitPositions > first_seen(a, tile.first_position);
  return {begin, seen && split >= tile.shared_splits ? end : begin};
}

// What the tiles of a group see together, from the beginning of a split on.
__device__ __forceinline__ Span group_span(const PagedAttention& a, const AttentionTile* tiles) {
  Span span{1 << 30, 0};
  for (int i = 0; i < kGroupTiles; ++i) {
    if (tiles[i].tokens == 0) continue;
    span.begin = min(span.begin, first_seen(a, tiles[i].first_position));
    span.end = max(span.end, tiles[i].first_position + tiles[i].tokens);
  }
  span.begin = span.begin / kSplitPositions * kSplitPositions;
  return span;
}

// The member whose rows these are; with tile -1 where there is none.
__device__ __forceinline__ PrefixMember member_of(const PagedAttention& a, const PrefixTile& tile, int token) {
  const int64_t at = int64_t(tile.first_member) + token;
  if (token >= tile.members || at < 0 || at >= a.member_count) return {-1, -1, -1};
  return a.members[at];
}

}  // namespace tandem::cuda
