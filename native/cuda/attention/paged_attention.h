// softmax(q . k^T * scale) . v over paged keys and values: causal, grouped query heads, an optional window. Prefill and decode alike.
//
// The arithmetic of a row depends on its own keys alone: positions are cut into splits of kSplitPositions at absolute positions; a split
// is an online softmax over tiles of 64 keys ascending (FlashAttention 2, Dao 2023), and splits are merged in order. Whether one block
// does all splits of a row or each its own, and which rows share a tile, changes nothing: a tile in which a row sees nothing
// multiplies by exactly 1 and adds exactly 0. It does depend on the kernel (attention_variants.h), so one serves all of an engine's rows.
#pragma once
#include <vector>

#include "cuda/attention/kv_layout.h"
#include "cuda/common/gpu.h"

namespace tandem::cuda {

constexpr int kTileRows = 16;  // query rows of a warp: tokens times the heads of a group
constexpr int kSplitPositions = 256;

// Consecutive tokens of one sequence, at most attention_tile_tokens(heads, kv_heads) of them; `tokens` 0 is an empty tile.
struct AttentionTile {
  int32_t first_row;  // of the batch
  int32_t tokens;
  int32_t first_position;     // of the first token in its sequence
  int32_t sequence;           // row of the page table
  int32_t shared_splits = 0;  // so many of its first splits a prefix tile computes
  int32_t stored = 0;         // positions of the sequence before the batch's first one
  int32_t items_before = 0;   // splits_of() of all tiles before it in the list: needed where splits_in_grid (number_items)
};

// Splits that a tile attends to by itself, whether or not its window shows them.
__host__ __device__ inline int splits_of(const AttentionTile& tile) {
  return tile.tokens == 0 ? 0 : (tile.first_position + tile.tokens - 1) / kSplitPositions + 1 - tile.shared_splits;
}

// Makes the numbers of a list. Throws Error(kRange) where they are too large.
void number_items(std::vector<AttentionTile>& tiles);

// Tokens of several sequences, each alone in its tile, that begin with the same pages: the splits of these are read once for all of them.
struct PrefixTile {
  int32_t first_member, members;  // at most attention_tile_tokens(heads, kv_heads) of them
  int32_t splits;                 // whole ones, before every member's position
  int32_t sequence;               // whose pages are read
};

struct PrefixMember {
  int32_t row;  // of the batch
  int32_t position;
  int32_t tile;  // its own
};

struct RopeStore;

enum class AttentionKernel : uint8_t { kMma, kWgmma };

struct PagedAttention {
  const bf16* queries;        // [rows][heads][dim]
  KvLayer kv;                 // dim 32, 64, 96 or 128
  const int32_t* page_table;  // [sequences][max_pages]
  int64_t sequences, max_pages;
  const AttentionTile* tiles;  // where splits_in_grid any part of a list that has its numbers
  int64_t tile_count;
  int64_t longest;   // positions of the longest sequence, with its new tokens
  int64_t heads;     // a multiple of kv_heads, at most 16 times as many
  float scale;       // above zero
  int64_t window;    // a query sees itself and window - 1 positions before it; 0 = all
  bf16* out;         // [rows][heads][dim]
  float* workspace;  // attention_workspace_floats(...): needed where splits_in_grid
  int64_t workspace_floats;
  int64_t tile_rows = kTileRows;  // for which there is room: as many as any tile has, its tokens times the heads of a group
  int32_t* arrivals;              // attention_arrivals(...) zeros, needed where splits_in_grid; zeros again when it is done
  // true: every tile and split by itself (few tokens, long contexts). false: blocks of four tiles, which must be of one sequence.
  bool splits_in_grid;
  // Only where splits_in_grid. Members' tiles are counted from a place that lies `first_tile` before `tiles`; those that are not in `tiles`
  // are left out.
  const PrefixTile* prefixes = nullptr;
  int64_t prefix_count = 0;
  const PrefixMember* members = nullptr;
  int64_t member_count = 0;
  int64_t first_tile = 0;
  // What tiles say is stored was written before the last launch on the stream that waited for all ahead of it, as a pass's first one does: it
  // may be read before the kernels ahead have ended.
  bool stored_is_old = false;
  // Where splits_in_grid makes at most so many blocks each has a multiprocessor of a large device to itself (wgmma). It changes no bit.
  int64_t few_blocks = 132;
  // Null, or what rope_store() would do for the same rows before: then `queries` is not read, and the kernel makes its rows and stores the new
  // keys and values itself, with the same bits. Only where attention_rotates() says so, and every sequence has one new token.
  const RopeStore* rope = nullptr;
  float* log_sums = nullptr;  // [rows][heads], for the way back: the log of the sum of exp(score); may be null
  AttentionKernel kernel = AttentionKernel::kMma;
  // Made by paged_attention(), as a division takes a kernel long: heads / kv_heads, and 256 over that, rounded up.
  int32_t group = 0, group_part = 0;
};

// Whether a launch can have that `rope`: one token per tile (tile_rows says so), few of them, by wgmma.
bool attention_rotates(const PagedAttention& args);

int64_t attention_tile_tokens(int64_t heads, int64_t kv_heads);
// Blocks that have come to each tile and head, and what was given out to blocks.
int64_t attention_arrivals(int64_t tile_count, int64_t kv_heads);
int64_t attention_workspace_floats(int64_t tile_count, int64_t kv_heads, int64_t dim, int64_t longest, int64_t tile_rows = kTileRows);

// Throws Error(kRange) naming the argument. A page id outside the memory reads as zeros.
void paged_attention(const PagedAttention& args, cudaStream_t stream);

}  // namespace tandem::cuda
