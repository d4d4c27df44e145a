// The gradient of attention over one packed row: sequences beside each other, some of which see the keys of a common prefix
// (FlashAttention 2, Dao 2023, with one pass for queries and one for keys, so that every sum has one owner and one order).
//
// A row (token) q sees the key of row k where own_first <= k <= q or prefix_first <= k < prefix_end, and where a window reaches it.
// dq sums over keys ascending; dk and dv over the heads of a group ascending, and in each over queries ascending. Probabilities come again
// from the scores and the log of their sum; they and their gradients are rounded to bf16 where they enter a product.
#pragma once
#include "cuda/attention/paged_attention.h"

namespace tandem::cuda {

constexpr int kBackwardTile = 64;  // rows of a tile of queries, and of keys

// What a token of the packed row sees, as rows of it.
struct PackedToken {
  int32_t position;  // in its sequence
  int32_t own_first;
  int32_t prefix_first, prefix_end;  // equal: no prefix
};

struct AttentionBackward {
  const bf16* queries;        // [rows][heads][dim]: normed and rotated
  const bf16* keys;           // [rows][kv_heads][dim]: likewise
  const bf16* values;         // [rows][kv_heads][dim]
  const bf16* out;            // [rows][heads][dim]: what attention gave
  const bf16* d_out;          // [rows][heads][dim]: its gradient
  const float* log_sums;      // [rows][heads], of paged_attention
  float* deltas;              // [rows][heads], scratch
  float* dq;                  // [rows][heads][dim]
  float* dk;                  // [rows][kv_heads][dim]
  float* dv;                  // [rows][kv_heads][dim]
  const PackedToken* tokens;  // rows
  // Of each tile of queries: what its rows see lies in rows of [own_first, the tile's last] and of [prefix_first, prefix_end).
  const PackedToken* tiles;
  int64_t rows, heads, kv_heads, dim;  // dim 32, 64, 96 or 128
  float scale;
  int64_t window;  // a query sees itself and window - 1 positions before it; 0 = all
  AttentionKernel kernel = AttentionKernel::kMma;
};

// In this order, each over all tiles once; the last two may be cut into ranges of tiles. Throw Error(kRange) naming the argument.
void attention_deltas(const AttentionBackward& args, cudaStream_t stream);
void attention_backward_queries(const AttentionBackward& args, int64_t first_tile, int64_t tile_count, cudaStream_t stream);
void attention_backward_keys(const AttentionBackward& args, int64_t first_tile, int64_t tile_count, cudaStream_t stream);

}  // namespace tandem::cuda
