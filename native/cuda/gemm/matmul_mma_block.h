// A block's product by mma.sync, for every kernel that has some (matmul.cu, experts/).
#pragma once
#include <type_traits>

#include "cuda/common/early_launch.h"
#include "cuda/gemm/matmul_store.h"
#include "cuda/gemm/matmul_tiles.h"

namespace tandem::cuda {

// The product as the kernel sees it: the weights have `outputs` rows of `depth` inputs, or where they are transposed the reverse.
struct Sides {
  int64_t outputs, depth;
};
template <bool kTransposed>
__host__ __device__ Sides sides_of(const MatMul& a) {
  return kTransposed ? Sides{a.k, a.n} : Sides{a.n, a.k};
}

template <class S, bool kQuantised, bool kTransposed>
using TilesOf = std::conditional_t<kQuantised, QuantTiles<S, kTransposed>, PlainTiles<S, kTransposed>>;

template <class S, class Tiles>
__host__ __device__ int stage_bytes(const MatMul& a) {
  return Tiles::stage_bytes(a) + S::kTokenBytes;
}

// This thread's sums, of the block's tokens from `first_token` and outputs from `first_output` on.
template <class S, class Tiles, class Rows>
__device__ __forceinline__ void store_tile(const typename S::Sums& sums, const Target& target, const Rows& rows, int first_output) {
  constexpr int kCount = Tiles::kBeside;
  const int thread = thread_again(), row = thread % kWarp / 4, pair = thread % 4, warp = thread / kWarp;
  const int first_token = rows.first + warp / kOutputWarps * S::kWarpTokens;
  const bool aligned = target.aligned(kCount * int(sizeof(float)));
  GPU_UNROLL
  for (int i = 0; i < S::kWarpTokens / 4; ++i) {
    const int64_t token = first_token + i / 2 * 8 + pair * 2 + i % 2;
    if (token >= target.tokens) continue;
    const int64_t place = rows.place(target, token);
    GPU_UNROLL
    for (int j = 0; j < 2 * S::kTiles; j += kCount) {
      const int64_t output = first_output + Tiles::output_of(warp % kOutputWarps, row, j / 2) + j % 2 * 8;
      float run[kCount];
      GPU_UNROLL
      for (int c = 0; c < kCount; ++c) run[c] = sums[(j + c) / 2][i / 2][(j + c) % 2 * 2 + i % 2];
      rows.store(target, place, output, run, aligned);
    }
  }
}

template <class S>
__device__ __forceinline__ void set_sums(typename S::Sums& sums, float value) {
  GPU_UNROLL
  for (int i = 0; i < S::kTiles * S::kWarpTokens / 2; ++i) sums[i / 4 / (S::kWarpTokens / 8)][i / 4 % (S::kWarpTokens / 8)][i % 4] = value;
}

// total += the part; which is 0 then.
template <class S>
__device__ __forceinline__ void add_part(typename S::Sums& total, typename S::Sums& part) {
  GPU_UNROLL
  for (int i = 0; i < S::kTiles * S::kWarpTokens / 2; ++i) {
    const int tile = i / 4 / (S::kWarpTokens / 8), column = i / 4 % (S::kWarpTokens / 8);
    total[tile][column][i % 4] += part[tile][column][i % 4];
  }
  set_sums<S>(part, 0.0f);
}

// A block's tokens, as they lie in x and in y.
template <class S>
struct OwnRows : OwnPlaces {
  static constexpr bool kKnownEarly = true;
  int first;

  __device__ __forceinline__ explicit OwnRows(int first) : first(first) {}
  using Loader = RowLoader<S::kTokens, S::kThreads>;
  __device__ __forceinline__ Loader loader(const MatMul& a, int64_t column, int64_t columns) const {
    return Loader(a.x, a.ldx, first, a.m, column, columns);
  }
};

// A block's tile of tokens and of outputs. With `parts_in_grid` it computes one part, number blockIdx.z, into the workspace; otherwise all parts,
// and where there are several (kSums) adds them in order.
template <class S, bool kQuantised, bool kTransposed, class Rows>
__device__ __forceinline__ void matmul_block(const MatMul& a, const Rows& rows, int first_output, int tiles_per_part, bool parts_in_grid) {
  using Tiles = TilesOf<S, kQuantised, kTransposed>;
  constexpr int kStages = S::kStages;
  GPU_SHARED_BYTES(shared);
  const int64_t outputs = sides_of<kTransposed>(a).outputs, depth = sides_of<kTransposed>(a).depth;
  const int all_tiles = int((depth + kTileDepth - 1) / kTileDepth), part_index = parts_in_grid ? int(blockIdx.z) : 0;
  const int64_t x_columns = (depth + kTileChunk - 1) / kTileChunk * kTileChunk;
  const int begin = part_index * tiles_per_part, end = parts_in_grid ? min(begin + tiles_per_part, all_tiles) : all_tiles;
  Tiles weights(a, first_output, begin);
  typename Rows::Loader tokens = rows.loader(a, begin * kTileDepth, x_columns);
  const int stage = stage_bytes<S, Tiles>(a), weight_bytes = Tiles::stage_bytes(a);
  auto tokens_of = [&](int at) { return reinterpret_cast<bf16*>(shared + at + weight_bytes); };
  auto load_weights = [&](int at, int tile) {
    if (tile < end) weights.load(shared + at, tile);
  };
  auto load_tokens = [&](int at, int tile) {
    if (tile < end) tokens.load(tokens_of(at), 0, kTileDepth);
  };
  typename S::Sums part = {};
  [[maybe_unused]] typename S::Sums total;
  if constexpr (S::kSums) set_sums<S>(total, -0.0f);  // the first part added to it is that part
  // Weights are there before the tokens; the first group of copies has all of these.
  GPU_NO_UNROLL
  for (int i = 0; i < kStages - 1; ++i) load_weights(i * stage, begin + i);
  if constexpr (Rows::kKnownEarly) wait_for_inputs();
  GPU_NO_UNROLL
  for (int i = 0; i < kStages - 1; ++i) {
    load_tokens(i * stage, begin + i);
    cp_async_commit();  // also when empty: the count of groups stays in step
  }
  int at = 0, next = (kStages - 1) * stage;
  for (int tile = begin; tile < end;) {
    const int until = S::kSums ? min(tile + tiles_per_part, end) : end;
    for (; tile < until; ++tile) {
      cp_async_wait<kStages - 2>();
      __syncthreads();  // the tile is there for all, and all are done with the stage that is loaded next
      load_weights(next, tile + kStages - 1);
      load_tokens(next, tile + kStages - 1);
      cp_async_commit();
      weights.multiply(part, shared + at, tokens_of(at), tile);
      next = at;
      at = at + stage == kStages * stage ? 0 : at + stage;
    }
    if constexpr (S::kSums) add_part<S>(total, part);
  }
  const Target target = target_of(a, outputs, parts_in_grid, part_index);
  if constexpr (S::kSums) store_tile<S, Tiles, Rows>(total, target, rows, first_output);
  else store_tile<S, Tiles, Rows>(part, target, rows, first_output);
}

}  // namespace tandem::cuda
