// The tokens of a block that multiplies pairs of one expert (experts.h), which lie anywhere, and where its sums go.
#pragma once
#include "cuda/common/fours.h"
#include "cuda/elementwise/swiglu.h"
#include "cuda/experts/experts.h"
#include "cuda/gemm/matmul_store.h"
#include "cuda/gemm/matmul_tiles.h"

namespace tandem::cuda {

// As RowLoader (gemm/matmul_tiles.h): row i of a tile is that of pair order[i].
template <int kRows, int kThreads>
class PairLoader {
 public:
  __device__ __forceinline__ PairLoader(const bf16* x, int64_t ld, const int32_t* order, int count, unsigned shared, int64_t column,
                                        int64_t columns) {
    const int chunk = int(threadIdx.x) % kTileRowChunks;
    columns_left_ = int(columns - column) - chunk * kTileChunk;
    there_ = 0;
    GPU_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int row = int(threadIdx.x) / kTileRowChunks + i * kStep;
      from_[i] = x;
      if (row >= count) continue;
      from_[i] = x + int64_t(unsigned(order[row]) / shared) * ld + column + chunk * kTileChunk;
      there_ |= 1u << i;
    }
  }

  // Of the same rows the next tile, so many columns on.
  __device__ __forceinline__ void load(bf16* tile, int, int columns) {
    const int row = int(threadIdx.x) / kTileRowChunks, chunk = int(threadIdx.x) % kTileRowChunks;
    const unsigned there = columns_left_ > 0 ? there_ : 0;
    GPU_UNROLL
    for (int i = 0; i < kEach; ++i) {
      cp_async_16(tile_chunk(tile, row + i * kStep, chunk), from_[i], there >> i & 1 ? 16 : 0);
      from_[i] += columns;
    }
    columns_left_ -= columns;
  }

 private:
  static constexpr int kStep = kThreads / kTileRowChunks, kEach = kRows / kStep;
  static_assert(kRows % kStep == 0);
  const bf16* from_[kEach];
  unsigned there_;
  int columns_left_;  // of this thread's chunk
};

// As OwnFew (gemm/matmul_few_block.h).
template <int kEach, int kStep>
class PairFew {
 public:
  __device__ __forceinline__ PairFew(const MatMul& a, const int32_t* order, unsigned shared, int row, int column)
      : from_(a.x + column), left_(int(a.m) - row) {
    GPU_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const unsigned pair = there(i) ? unsigned(order[row + i * kStep]) : 0;
      chunks_[i] = pair / shared * unsigned(a.ldx / kTileChunk);
    }
  }
  __device__ __forceinline__ bool there(int i) const { return i * kStep < left_; }
  __device__ __forceinline__ const bf16* row(int i) const { return from_ + int64_t(chunks_[i]) * kTileChunk; }
  __device__ __forceinline__ void advance(int columns) { from_ += columns; }

 private:
  const bf16* from_;
  unsigned chunks_[kEach];  // of 16 bytes, to the rows
  int left_;
};

// Where a tile's sums go: rows of their pairs, or activations. `order` begins with the tile's first.
struct PairPlaces {
  // Which expert's weights are read is known with the inputs.
  static constexpr bool kKnownEarly = false;
  static constexpr int first = 0;
  const int32_t* order;
  unsigned shared;
  bf16 *gated, *kept;

  // Rows of activations are half as long.
  __device__ __forceinline__ int64_t place(const Target& target, int64_t token) const {
    return order[token] * (gated != nullptr ? target.outputs / 2 : target.ld);
  }
  template <int kCount>
  __device__ __forceinline__ void store(const Target& target, int64_t place, int64_t output, const float (&sums)[kCount],
                                        bool aligned) const {
    if (gated == nullptr) return store_sums(target.to + place + output, nullptr, sums, target.outputs - output, aligned);
    if constexpr (kCount > 1) {
      // Whole groups: there are so many outputs.
      if (output >= target.outputs) return;
      store_gated(gated + place + output / 2, sums);
      if (kept != nullptr) store_rounded(kept + 2 * place + output, sums);
    }
  }

 private:
  __device__ __forceinline__ static void store_gated(bf16* to, const float (&sums)[2]) { *to = to_bf16(swiglu(sums[0], sums[1])); }
  __device__ __forceinline__ static void store_gated(bf16* to, const float (&sums)[4]) {
    *reinterpret_cast<uint32_t*>(to) = pack_rounded(swiglu(sums[0], sums[1]), swiglu(sums[2], sums[3]));
  }
  __device__ __forceinline__ static void store_rounded(bf16* to, const float (&sums)[2]) {
    *reinterpret_cast<uint32_t*>(to) = pack_rounded(sums[0], sums[1]);
  }
  __device__ __forceinline__ static void store_rounded(bf16* to, const float (&sums)[4]) {
    store_four<true>(to, 4, Four{sums[0], sums[1], sums[2], sums[3]});
  }
};

// Tokens of a tile, for matmul_block().
template <class S>
struct PairRows : PairPlaces {
  __device__ __forceinline__ explicit PairRows(const PairPlaces& places) : PairPlaces(places) {}
  using Loader = PairLoader<S::kTokens, S::kThreads>;
  __device__ __forceinline__ Loader loader(const MatMul& a, int64_t column, int64_t columns) const {
    return Loader(a.x, a.ldx, order, int(a.m), shared, column, columns);
  }
};

// For matmul_few_block().
struct PairFewRows : PairPlaces {
  __device__ __forceinline__ explicit PairFewRows(const PairPlaces& places) : PairPlaces(places) {}
  template <int kEach, int kStep>
  using Few = PairFew<kEach, kStep>;
  template <int kEach, int kStep>
  __device__ __forceinline__ PairFew<kEach, kStep> few(const MatMul& a, int row, int column) const {
    return PairFew<kEach, kStep>(a, order, shared, row, column);
  }
};

__device__ __forceinline__ PairPlaces places_of(const ExpertsMatMul& e, const ExpertTile& tile) {
  PairPlaces places{};
  places.order = e.order + tile.first;
  places.shared = unsigned(e.shared);
  places.gated = e.gated;
  places.kept = e.kept;
  return places;
}

// Of quantised weights.
__device__ __forceinline__ int64_t first_panel(const ExpertsMatMul& e, const ExpertTile& tile) {
  return int64_t(tile.expert) * ((e.n + kQuantPanel - 1) / kQuantPanel);
}

// One expert's product: so many pairs of it.
__device__ __forceinline__ MatMul product_of(const ExpertsMatMul& e, const ExpertTile& tile) {
  MatMul a{e.x, e.ldx, tile.count, nullptr, e.n, e.k, e.y, e.ldy, false, nullptr, 0};
  if (e.quantised.data == nullptr) {
    a.w = e.w + int64_t(tile.expert) * e.n * e.k;
  } else {
    a.quantised = e.quantised;
    a.quantised.panels += first_panel(e, tile);
  }
  return a;
}

// experts_few.cu: tiles of at most so many pairs, of quantised weights.
constexpr int64_t kFewPairs = 64;
void experts_matmul_few(const ExpertsMatMul& e, int64_t tile_pairs, cudaStream_t stream);

}  // namespace tandem::cuda
