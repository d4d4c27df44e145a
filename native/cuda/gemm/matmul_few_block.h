// Quantised weights times few tokens: a block of the kernels that have some (matmul_few.cu, experts/). A warp has 16 outputs; what a lane
// multiplies of their weights it loads into its own registers, several tiles ahead, so weights meet no barrier and no shared memory.
// Tokens come through shared memory, some tiles per barrier. What is done per weight is what bounds these kernels: their loops are of one
// format each, of whose tiles every place is known when they are compiled.
#pragma once
#include "cuda/common/early_launch.h"
#include "cuda/gemm/matmul_few.h"
#include "cuda/gemm/matmul_store.h"
#include "cuda/gemm/widen.h"

namespace tandem::cuda {

constexpr int kFewThreads = 4 * kWarp;
constexpr int kFewChunk = 8;  // elements of a 16-byte copy
constexpr int kFewRowChunks = kQuantTile / kFewChunk;
static_assert(kQuantTile == kSplitDepth);

// kUnit tiles of tokens are a stage; kBlocks have room on a multiprocessor.
template <int kTokens_, int kUnit_, int kBlocks_>
struct FewShape {
  static constexpr int kTokens = kTokens_, kUnit = kUnit_, kBlocks = kBlocks_, kStages = 3;
  static constexpr int kTileBytes = kTokens * kQuantTile * int(sizeof(bf16)), kStageBytes = kUnit * kTileBytes;
  using Sums = float[kTokens / 8][4];
};
using Few8 = FewShape<8, 4, 4>;
using Few16 = FewShape<16, 4, 4>;
using Few32 = FewShape<32, 2, 4>;
using Few64 = FewShape<64, 2, 3>;
static_assert(kSplitTiles % Few8::kUnit == 0 && kSplitTiles % Few64::kUnit == 0);  // a part's last unit is whole, but at the end of k

// A block's tiles of one part.
struct Range {
  int begin, end;
};

// Rows of x that a thread brings chunks of, every kStep-th from its first on: as they lie.
template <int kEach, int kStep>
class OwnFew {
 public:
  __device__ __forceinline__ OwnFew(const MatMul& a, int row, int column)
      : from_(a.x + row * a.ldx + column), ld_(a.ldx), left_(int(a.m) - row) {}
  __device__ __forceinline__ bool there(int i) const { return i * kStep < left_; }
  __device__ __forceinline__ const bf16* row(int i) const { return from_ + i * kStep * ld_; }
  __device__ __forceinline__ void advance(int columns) { from_ += columns; }

 private:
  const bf16* from_;
  int64_t ld_;
  int left_;
};

// What becomes of a block's tokens: rows of x and of y as they lie.
struct OwnFewRows : OwnPlaces {
  static constexpr bool kKnownEarly = true;
  template <int kEach, int kStep>
  using Few = OwnFew<kEach, kStep>;
  template <int kEach, int kStep>
  __device__ __forceinline__ OwnFew<kEach, kStep> few(const MatMul& a, int row, int column) const {
    return OwnFew<kEach, kStep>(a, row, column);
  }
};

// Brings a block's tokens. A tile is rows of 128 bytes, whose chunks are permuted so that ldmatrix meets no bank twice.
template <class S, class Rows>
class TokenRing {
 public:
  __device__ __forceinline__ TokenRing(const MatMul& a, const Rows& rows, unsigned char* shared, const Range& range)
      : shared_(shared),
        from_(rows.template few<kEach, kRows>(a, own_row(), (range.begin + own_tile()) * kQuantTile + own_chunk() * kFewChunk)) {
    const int thread = int(threadIdx.x), chunk = own_chunk(), row = own_row(), tile = own_tile();
    const int column = (range.begin + tile) * kQuantTile + chunk * kFewChunk;
    // To the end of x's columns, which are whole chunks.
    columns_left_ = int((a.k + kFewChunk - 1) / kFewChunk * kFewChunk) - column;
    own_ = tile * S::kTileBytes + row * kRowBytes + (chunk ^ row % 8) * 16;
    const int lane = thread % kWarp;
    GPU_UNROLL
    for (int i = 0; i < 2; ++i) matrices_[i] = lane % 8 * kRowBytes + ((i * 4 + lane / 8) ^ lane % 8) * 16;
  }

  // The next unit. Where nothing is there, nothing is read.
  __device__ __forceinline__ void load() {
    GPU_UNROLL
    for (int i = 0; i < S::kUnit; i += kTiles) {
      GPU_UNROLL
      for (int j = 0; j < S::kTokens; j += kRows) {
        const bool there = from_.there(j / kRows) && i * kQuantTile < columns_left_;
        cp_async_16(shared_ + next_ + own_ + i * S::kTileBytes + j * kRowBytes, from_.row(j / kRows) + i * kQuantTile, there ? 16 : 0);
      }
    }
    cp_async_commit();
    from_.advance(S::kUnit * kQuantTile);
    columns_left_ -= S::kUnit * kQuantTile;
    next_ = next_ == (S::kStages - 1) * S::kStageBytes ? 0 : next_ + S::kStageBytes;
  }

  // When the next unit is there for all.
  __device__ __forceinline__ void take() {
    cp_async_wait<S::kStages - 2>();
    __syncthreads();  // and all are done with the stage that is loaded next
    unit_ = at_;
    at_ = at_ == (S::kStages - 1) * S::kStageBytes ? 0 : at_ + S::kStageBytes;
  }

  // Of the unit's tile: inputs [32 half, + 32) of tokens [8 block, + 8), two fragments.
  __device__ __forceinline__ void fragments(uint32_t (&b)[4], int tile, int half, int block) const {
    ldmatrix_x4(b, shared_ + unit_ + matrices_[half] + tile * S::kTileBytes + block * 8 * kRowBytes);
  }

 private:
  static constexpr int kRowBytes = kQuantTile * int(sizeof(bf16));
  // Rows of a tile, and tiles, that the block brings at once.
  static constexpr int kRows = S::kTokens < kFewThreads / kFewRowChunks ? S::kTokens : kFewThreads / kFewRowChunks,
                       kTiles = kFewThreads / kFewRowChunks / kRows, kEach = S::kTokens / kRows;
  __device__ __forceinline__ static int own_chunk() { return int(threadIdx.x) % kFewRowChunks; }
  __device__ __forceinline__ static int own_row() { return int(threadIdx.x) / kFewRowChunks % kRows; }
  __device__ __forceinline__ static int own_tile() { return int(threadIdx.x) / kFewRowChunks / kRows; }
  unsigned char* shared_;
  typename Rows::template Few<kEach, kRows> from_;
  int columns_left_, own_, matrices_[2];
  int next_ = 0, at_ = 0, unit_ = 0;
};

// What a lane has of a tile. Scales of 4 bits take as long to prepare as three weights; so of a unit of four tiles lane t of the four that have
// the same outputs prepares tile t's.
template <class F, class S>
constexpr bool kTradesScales = F::kBits == 4 && !F::kWide && S::kUnit == 4;

template <class F, class S>
struct LaneTile {
  static constexpr int kHeadWords = F::kFloating || kTradesScales<F, S> ? 1 : F::kPairBytes / 4;
  uint32_t words[F::kWords];
  uint32_t head[kHeadWords];
};

// A warp's weights: a ring of tiles in registers.
template <class F, class S>
class WeightRing {
 public:
  // As many as there are registers for.
  static constexpr int kMost = F::kBits == 4 && !F::kWide && S::kTokens <= 16 ? 8 : 4;
  static constexpr int kTiles = F::kGroup == 32 ? kMost : F::kMinima ? 1 : 2;
  static constexpr bool kTrades = kTradesScales<F, S>;

  __device__ __forceinline__ WeightRing(const uint8_t* panel, int begin) {
    const int strip = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp, pair = strip * 8 + fragment_row();
    const uint8_t* tile = panel + (F::kFloating ? kQuantPanel * 4 : 0) + int64_t(begin) * F::kTileBytes;
    numbers_ = tile + F::kHeadBytes + strip * F::kStripBytes + lane * 16;
    heads_ = tile + pair * F::kPairBytes + (kTrades ? fragment_pair() * F::kTileBytes : 0);
    if constexpr (F::kFloating) floats_ = load_float_scaling(panel + pair * 8);
  }

  // The first tiles of `left`.
  __device__ __forceinline__ void begin(int left) {
    GPU_UNROLL
    for (int i = 0; i < kTiles; ++i) {
      if (kTrades && i % S::kUnit == 0) load_unit_head(i, left);
      if (i < left) load(i);
    }
  }

  // Before the unit whose first tile is `first`.
  __device__ __forceinline__ void begin_unit(int first, int left) {
    if constexpr (kTrades) {
      // Numbers that are not there have scales of 0.
      uint32_t(&head)[2] = unit_heads_[first / S::kUnit % kUnits];
      GPU_UNROLL
      for (int i = 0; i < 2; ++i) own_[i] = split_scales(head[i]);
      load_unit_head(first + kTiles, left);
    } else if (left < first + S::kUnit) {
      // At the end of k the unit may be short.
      GPU_UNROLL
      for (int i = 1; i < S::kUnit && i < kTiles; ++i) {
        if (first + i >= left) clear(first + i);
      }
    }
  }

  // sums += the product of a tile, which is the tokens' `at`; then its registers are those of the tile that comes so many later.
  template <class Tokens>
  __device__ __forceinline__ void multiply(typename S::Sums& sums, int tile, const Tokens& tokens, int at) const {
    const LaneTile<F, S>& own = tiles_[tile % kTiles];
    GPU_UNROLL
    for (int half = 0; half < 2; ++half) {
      uint32_t a[2][4], b[4];
      GPU_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int step = half * 2 + i;
        widen_step<F>(a[i], own.words + step * F::kStepWords, scaling(own, step * 16 / F::kGroup, at));
      }
      GPU_UNROLL
      for (int block = 0; block < S::kTokens / 8; ++block) {
        tokens.fragments(b, at, half, block);
        const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
        mma_m16n8k16(sums[block], a[0], first);
        mma_m16n8k16(sums[block], a[1], second);
      }
    }
  }
  __device__ __forceinline__ void load_next(int tile, int at, int left) {
    if (tile + kTiles < left) load(tile + kTiles);
    else if (!kTrades && at + kTiles < S::kUnit) clear(tile + kTiles);
  }

  __device__ __forceinline__ void advance(int tiles) {
    numbers_ += tiles * F::kTileBytes;
    heads_ += tiles * F::kTileBytes;
  }

 private:
  static constexpr int kUnits = kTrades ? kTiles / S::kUnit : 1;

  __device__ __forceinline__ void load(int tile) {
    LaneTile<F, S>& to = tiles_[tile % kTiles];
    GPU_UNROLL
    for (int i = 0; i < F::kWords / 4; ++i) {
      uint32_t words[4];
      load_once(words, numbers_ + tile * F::kTileBytes + i * kWarp * 16);
      GPU_UNROLL
      for (int j = 0; j < 4; ++j) to.words[4 * i + j] = words[j];
    }
    if constexpr (!F::kFloating && !kTrades) load_head(to.head, heads_ + tile * F::kTileBytes);
  }

  // Weights that are zero.
  __device__ __forceinline__ void clear(int tile) { tiles_[tile % kTiles] = {}; }

  __device__ __forceinline__ void load_unit_head(int first, int left) {
    uint32_t(&head)[2] = unit_heads_[first / S::kUnit % kUnits];
    if (first + fragment_pair() < left) {
      load_among_lanes(head, heads_ + first * F::kTileBytes);
    } else {
      head[0] = 0;
      head[1] = 0;
    }
  }

  template <int kCount>
  __device__ __forceinline__ static void load_head(uint32_t (&head)[kCount], const uint8_t* from) {
    constexpr int kRun = kCount < 4 ? kCount : 4;
    GPU_UNROLL
    for (int i = 0; i < kCount; i += kRun) {
      uint32_t run[kRun];
      load_among_lanes(run, from + i * 4);
      GPU_UNROLL
      for (int j = 0; j < kRun; ++j) head[i + j] = run[j];
    }
  }

  __device__ __forceinline__ Scaling<F> scaling(const LaneTile<F, S>& tile, int group, int at) const {
    if constexpr (F::kFloating) {
      return floats_;
    } else if constexpr (kTrades) {
      return {__shfl_sync(kAllLanes, own_[group].high, at, 4), __shfl_sync(kAllLanes, own_[group].low, at, 4)};
    } else {
      constexpr int kScaleWords = F::kWide ? 2 : 1;
      uint32_t words[F::kGroupWords];
      GPU_UNROLL
      for (int i = 0; i < F::kGroupWords; ++i) {
        words[i] = tile.head[i < kScaleWords ? group * kScaleWords + i : F::kScaleBytes / 4 + group * 2 + i - kScaleWords];
      }
      return scaling_of<F>(words);
    }
  }

  const uint8_t *numbers_, *heads_;
  LaneTile<F, S> tiles_[kTiles] = {};
  uint32_t unit_heads_[kUnits][2] = {};
  Scaling<Int4Shape> own_[2] = {};  // of the two groups of this lane's tile of the unit
  Scaling<Fp8Shape> floats_ = {};
};

// sums += the product of a unit, whose first tile is number `first` of those that are `left`.
template <class F, class S, class Rows>
__device__ __forceinline__ void multiply_unit(typename S::Sums& sums, WeightRing<F, S>& weights, TokenRing<S, Rows>& tokens, int first,
                                              int left) {
  tokens.take();
  tokens.load();
  weights.begin_unit(first, left);
  GPU_UNROLL
  for (int i = 0; i < S::kUnit; ++i) {
    weights.multiply(sums, first + i, tokens, i);
    weights.load_next(first + i, i, left);
  }
}

// The sums of a part, of one format.
template <class F, class S, class Rows>
__device__ __forceinline__ void sum_part(typename S::Sums& sums, const MatMul& a, const Rows& rows, const uint8_t* panel,
                                         unsigned char* shared, const Range& range) {
  using Ring = WeightRing<F, S>;
  constexpr int kBody = Ring::kTiles > S::kUnit ? Ring::kTiles : S::kUnit;
  Ring weights(panel, range.begin);
  weights.begin(range.end - range.begin);
  TokenRing<S, Rows> tokens(a, rows, shared, range);
  if constexpr (Rows::kKnownEarly) wait_for_inputs();
  GPU_NO_UNROLL
  for (int i = 0; i < S::kStages - 1; ++i) tokens.load();
  GPU_NO_UNROLL
  for (int left = range.end - range.begin; left > 0; left -= kBody) {
    GPU_UNROLL
    for (int first = 0; first < kBody; first += S::kUnit) {
      if (left > first) multiply_unit<F, S, Rows>(sums, weights, tokens, first, left);
    }
    weights.advance(kBody);
  }
}

template <class S, class Rows>
__device__ __forceinline__ void store_few(const typename S::Sums& sums, const Rows& rows, const Target& target) {
  const int thread = thread_again(), output = int(blockIdx.y) * kQuantPanel + thread / kWarp * 16 + thread % kWarp / 4 * 2;
  const bool aligned = target.aligned(2 * int(sizeof(float)));
  GPU_UNROLL
  for (int i = 0; i < S::kTokens / 4; ++i) {
    const int64_t token = i / 2 * 8 + thread % 4 * 2 + i % 2;
    if (token >= target.tokens) continue;
    const float run[2] = {sums[i / 2][i % 2], sums[i / 2][2 + i % 2]};
    rows.store(target, rows.place(target, token), output, run, aligned);
  }
}

// A block's tokens and the panel blockIdx.y of the product, which is that number among all panels of the weights.
template <class S, class Rows>
__device__ __forceinline__ void matmul_few_block(const MatMul& a, const Rows& rows, int64_t index, int tiles_per_part, bool parts_in_grid) {
  GPU_SHARED_BYTES(shared);
  QuantPanel panel = a.quantised.alike;
  if (a.quantised.alike_bytes > 0) panel.first_byte = index * a.quantised.alike_bytes;
  else panel = a.quantised.panels[index];
  const int all_tiles = int((a.k + kQuantTile - 1) / kQuantTile), begin = int(blockIdx.z) * tiles_per_part;
  const Range range{begin, parts_in_grid ? min(begin + tiles_per_part, all_tiles) : all_tiles};
  typename S::Sums sums = {};
  with_shape(shape_number(panel),
             [&](auto shape) { sum_part<decltype(shape), S, Rows>(sums, a, rows, a.quantised.data + panel.first_byte, shared, range); });
  store_few<S, Rows>(sums, rows, target_of(a, a.n, parts_in_grid, int(blockIdx.z)));
}

}  // namespace tandem::cuda
