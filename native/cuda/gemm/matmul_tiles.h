// Tiles of a product by mma.sync (matmul.cu): 64 inputs of some tokens and some outputs, in shared memory.
#pragma once
#include <type_traits>

#include "cuda/gemm/matmul.h"
#include "cuda/gemm/split.h"
#include "cuda/gemm/widen.h"

namespace tandem::cuda {

constexpr int kTileDepth = kSplitDepth;  // inputs of a tile
constexpr int kTileChunk = 8;            // elements of a 16-byte copy
constexpr int kTileRowChunks = kTileDepth / kTileChunk;
constexpr int kOutputWarps = 4;
static_assert(kTileDepth == kQuantTile && kOutputWarps * 16 == kQuantPanel);

// What a block computes: four warps along the outputs, each with kTiles fragments of 16, and kTokenWarps along the tokens. kSums: it adds up
// several parts. kBlocks have room on a multiprocessor.
template <int kTiles_, int kWarpTokens_, int kTokenWarps, bool kSums_, int kBlocks_>
struct MmaShape {
  static constexpr int kTiles = kTiles_, kWarpTokens = kWarpTokens_, kBlocks = kBlocks_;
  static constexpr bool kSums = kSums_;
  static constexpr int kOutputs = kOutputWarps * 16 * kTiles, kTokens = kWarpTokens * kTokenWarps;
  static constexpr int kThreads = kOutputWarps * kTokenWarps * kWarp;
  static constexpr int kTokenBytes = kTokens * kTileDepth * int(sizeof(bf16));
  // Few tokens wait for weights: what the blocks of a multiprocessor have under way covers the memory's latency. No block needs more than the
  // 99 KiB that every device has.
  static constexpr int kStages = kTokens <= 32 && kTiles == 1 ? 6 : kTokens <= 64 ? 4 : 3;
  using Sums = float[kTiles][kWarpTokens / 8][4];
};

// Along the outputs, and along the tokens.
__device__ __forceinline__ int output_warp() { return int(threadIdx.x) / kWarp % kOutputWarps; }
__device__ __forceinline__ int token_warp() { return int(threadIdx.x) / (kWarp * kOutputWarps); }

// Where the 16-byte chunk of a tile's row lies: rows of 128 bytes, in each of kSame rows chunks permuted in one way, so that ldmatrix meets no
// bank twice where it takes every kSame-th.
template <int kSame = 1>
__device__ __forceinline__ bf16* tile_chunk(bf16* tile, int row, int chunk) {
  return tile + row * kTileDepth + (chunk ^ (row / kSame & 7)) * kTileChunk;
}

// Brings tiles of kRows rows, one after the other, of a matrix with `rows` rows and `columns` columns from (first, column) on; zero outside. What
// does not change from tile to tile is found once: beside few tokens loads are much of the work.
template <int kRows, int kThreads, int kSame = 1>
class RowLoader {
 public:
  __device__ __forceinline__ RowLoader(const bf16* matrix, int64_t ld, int64_t first, int64_t rows, int64_t column, int64_t columns) {
    const int row = int(threadIdx.x) / kTileRowChunks, chunk = int(threadIdx.x) % kTileRowChunks;
    from_ = matrix + (first + row) * ld + column + chunk * kTileChunk;
    ld_ = ld;
    rows_left_ = int(rows - first) - row;
    columns_left_ = int(columns - column) - chunk * kTileChunk;
  }

  // The next tile, so many rows and columns on from the one before. Where nothing is there, nothing is read.
  __device__ __forceinline__ void load(bf16* tile, int rows, int columns) {
    const int row = int(threadIdx.x) / kTileRowChunks, chunk = int(threadIdx.x) % kTileRowChunks;
    const int left = columns_left_ > 0 ? rows_left_ : 0;
    const bf16* from = from_;
    GPU_UNROLL
    for (int i = 0; i < kRows; i += kStep) {
      cp_async_16(tile_chunk<kSame>(tile, row + i, chunk), from, i < left ? 16 : 0);
      from += kStep * ld_;
    }
    from_ += rows * ld_ + columns;
    rows_left_ -= rows;
    columns_left_ -= columns;
  }

 private:
  static constexpr int kStep = kThreads / kTileRowChunks;
  static_assert(kRows % kStep == 0);
  const bf16* from_;
  int64_t ld_;
  int rows_left_, columns_left_;  // of this thread's first chunk
};

// part += the fragments' products with inputs [16 step, 16 step + 16) of this warp's tokens.
template <class S>
__device__ __forceinline__ void multiply_step(typename S::Sums& part, const uint32_t (&a)[S::kTiles][4], bf16* tokens, int step) {
  const int lane = threadIdx.x % kWarp, matrix = lane / 8, in_matrix = lane % 8;
  const int first = token_warp() * S::kWarpTokens + matrix / 2 * 8 + in_matrix;
  GPU_UNROLL
  for (int t = 0; t < S::kWarpTokens / 16; ++t) {
    uint32_t b[4];
    ldmatrix_x4(b, tile_chunk(tokens, first + t * 16, step * 2 + matrix % 2));
    const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
    GPU_UNROLL
    for (int i = 0; i < S::kTiles; ++i) {
      mma_m16n8k16(part[i][2 * t], a[i], low);
      mma_m16n8k16(part[i][2 * t + 1], a[i], high);
    }
  }
}

// The weights of a block's tiles, as bf16 in memory. Where they are not transposed a lane's outputs lie beside each other, as those of
// quantised weights do.
template <class S, bool kTransposed>
class PlainTiles {
 public:
  static constexpr int kBeside = kTransposed ? 1 : 2 * S::kTiles;
  __host__ __device__ static int stage_bytes(const MatMul&) { return S::kOutputs * kTileDepth * int(sizeof(bf16)); }

  __device__ PlainTiles(const MatMul& a, int first_output, int begin)
      : loader_(a.w, a.k, kTransposed ? begin * kTileDepth : first_output, a.n, kTransposed ? first_output : begin * kTileDepth, a.k),
        loader_beside_(a.w, a.k, kTransposed ? begin * kTileDepth : first_output, a.n, kTransposed ? first_output + kTileDepth : 0, a.k) {}

  // Of a block's outputs, the first of this lane's that lie beside each other in fragment `tile`; the others are 8 on.
  __device__ static int output_of(int warp, int row, int tile) {
    return warp * 16 * S::kTiles + (kTransposed ? tile * 16 + row : row * 2 * S::kTiles);
  }

  // The next tile, which is that number.
  __device__ __forceinline__ void load(unsigned char* stage, int) {
    bf16* to = reinterpret_cast<bf16*>(stage);
    loader_.load(to, kTransposed ? kTileDepth : 0, kTransposed ? 0 : kTileDepth);
    if constexpr (kTransposed) loader_beside_.load(to + kPanel, kTileDepth, 0);
  }

  __device__ __forceinline__ void multiply(typename S::Sums& part, unsigned char* stage, bf16* tokens, int) const {
    bf16* weights = reinterpret_cast<bf16*>(stage);
    GPU_UNROLL
    for (int step = 0; step < kTileDepth / 16; ++step) {
      uint32_t a[S::kTiles][4];
      GPU_UNROLL
      for (int i = 0; i < S::kTiles; ++i) load_fragment(a[i], weights, i, step);
      multiply_step<S>(part, a, tokens, step);
    }
  }

 private:
  static constexpr int kPanel = kTileDepth * kTileDepth;  // elements of 64 outputs, where these are a row's

  __device__ __forceinline__ void load_fragment(uint32_t (&a)[4], bf16* weights, int tile, int step) const {
    const int matrix = threadIdx.x % kWarp / 8, in_matrix = threadIdx.x % 8;
    if constexpr (kTransposed) {
      const int output = output_warp() * 16 * S::kTiles + tile * 16 + matrix % 2 * 8;
      ldmatrix_x4_trans(
          a, tile_chunk(weights + output / kTileDepth * kPanel, step * 16 + matrix / 2 * 8 + in_matrix, output % kTileDepth / 8));
    } else {
      const int output = (output_warp() * 8 + in_matrix) * 2 * S::kTiles + tile * 2 + matrix % 2;
      ldmatrix_x4(a, tile_chunk<2 * S::kTiles>(weights, output, step * 2 + matrix / 2));
    }
  }

  using Loader = std::conditional_t<kTransposed, RowLoader<kTileDepth, S::kThreads>, RowLoader<S::kOutputs, S::kThreads, 2 * S::kTiles>>;
  static_assert(!kTransposed || S::kTiles == 2);
  Loader loader_, loader_beside_;  // the second of the other 64 outputs, where these are a row's
};

// Quantised weights: a stage holds tiles as they lie in memory; of 64 outputs each, or on the way back of 64 outputs and the block's inputs.
template <class S, bool kTransposed>
class QuantTiles {
 public:
  static constexpr int kBeside = 2;
  static_assert(S::kTiles == 2);
  __host__ __device__ static int stage_bytes(const MatMul& a) { return 2 * int(a.quantised.most_tile_bytes) + (kTransposed ? kFloats : 0); }

  __device__ QuantTiles(const MatMul& a, int first_output, int begin) : a_(a) {
    first_output_ = first_output;
    if constexpr (kTransposed) ahead_ = panel_of(begin);
    else take_panel(begin);
  }

  // Of a block's outputs, the first of this lane's that lie beside each other in fragment `tile`.
  __device__ static int output_of(int warp, int row, int tile) {
    return warp * 32 + (kTransposed ? row / 4 * 16 + tile * 8 + row % 4 * 2 : tile * 16 + row * 2);
  }

  // The next tile, which is that number.
  __device__ __forceinline__ void load(unsigned char* stage, [[maybe_unused]] int tile) {
    if constexpr (kTransposed) {
      // A panel's facts are asked for a tile before they are used.
      const QuantPanel panel = ahead_;
      ahead_ = panel_of(tile + 1);
      const int at = tile % kRemembered * 4, bytes = panel.tile_bytes(), left = (int(a_.k) - first_output_ + kQuantTile - 1) / kQuantTile;
      shapes_ = (shapes_ & ~(15u << at)) | uint32_t(shape_number(panel)) << at;
      const uint8_t* head = a_.quantised.data + panel.first_byte;
      bring(stage, head + panel.head_bytes() + int64_t(first_output_ / kQuantTile) * bytes, 2 * bytes, left < 2 ? bytes : 2 * bytes);
      if (panel.floating && threadIdx.x < kFloats / 16) {
        cp_async_16(stage + 2 * a_.quantised.most_tile_bytes + threadIdx.x * 16, head + threadIdx.x * 16, 16);
      }
    } else {
      bring(panel_stage(stage), numbers_, tile_bytes_, there_ ? tile_bytes_ : 0);
      numbers_ += tile_bytes_;
    }
  }

  __device__ __forceinline__ void multiply(typename S::Sums& part, unsigned char* stage, bf16* tokens, int tile) const {
    if constexpr (kTransposed) {
      with_shape(int(shapes_ >> tile % kRemembered * 4 & 15), [&](auto shape) { multiply_across<decltype(shape)>(part, stage, tokens); });
    } else {
      with_shape(shape_, [&](auto shape) { multiply_along<decltype(shape)>(part, panel_stage(stage), tokens); });
    }
  }

 private:
  static constexpr int kFloats = kQuantPanel * 4;  // bytes
  static constexpr int kRemembered = 8;            // tiles whose shapes are kept, four bits each
  static_assert(S::kStages <= kRemembered);

  __device__ __forceinline__ int own_panel() const { return output_warp() * S::kTiles / kOutputWarps; }
  __device__ __forceinline__ unsigned char* panel_stage(unsigned char* stage) const {
    return stage + own_panel() * a_.quantised.most_tile_bytes;
  }

  // Threads that bring a panel's tiles, in 16-byte chunks, and most chunks of one of them.
  static constexpr int kWarps = kTransposed ? S::kThreads / kWarp : kOutputWarps / S::kTiles;
  static constexpr int kBringers = kTransposed ? S::kThreads : S::kThreads / S::kTiles;
  static constexpr int kMost = ((kTransposed ? 2 : 1) * Int8FineMinShape::kTileBytes / 16 + kBringers - 1) / kBringers;
  __device__ __forceinline__ int bringer() const {
    if constexpr (kTransposed) return int(threadIdx.x);
    else return token_warp() * kWarps * kWarp + int(threadIdx.x) % (kWarps * kWarp);
  }

  // That panel, or where there is none the last one.
  __device__ __forceinline__ QuantPanel panel_of(int panel) const {
    const int last = int(a_.n - 1) / kQuantPanel;
    return a_.quantised.panels[panel < last ? panel : last];
  }

  // The panel of this thread's outputs, or where there is none the last one, of which nothing is brought then.
  __device__ void take_panel(int begin) {
    const int panel = first_output_ / kQuantPanel + own_panel();
    const QuantPanel own = panel_of(panel);
    shape_ = shape_number(own);
    tile_bytes_ = own.tile_bytes();
    numbers_ = a_.quantised.data + own.first_byte + own.head_bytes() + int64_t(begin) * tile_bytes_;
    there_ = int64_t(panel) * kQuantPanel < a_.n;
    if (!own.floating) return;
    GPU_UNROLL
    for (int i = 0; i < 2; ++i)
      floats_[i] = load_float_scaling(a_.quantised.data + own.first_byte + (own_strip(i) * 8 + fragment_row()) * 8);
  }
  // In its panel.
  __device__ __forceinline__ int own_strip(int tile) const { return output_warp() % 2 * 2 + tile; }

  // So many bytes that lie one after the other; behind those that are there are zeros: weights that are zero.
  __device__ __forceinline__ void bring(unsigned char* to, const uint8_t* from, int bytes, int there) const {
    GPU_UNROLL
    for (int i = 0; i < kMost; ++i) {
      const int at = (bringer() + i * kBringers) * 16;
      if (at < bytes) cp_async_16(to + at, from + at, at < there ? 16 : 0);
    }
  }

  template <class F>
  __device__ __forceinline__ Scaling<F> scaling(const unsigned char* tile, int pair, int group, int strip) const {
    if constexpr (F::kFloating) return floats_[strip];
    else return load_scaling<F>(tile + pair * F::kPairBytes, group);
  }

  template <class F>
  __device__ __forceinline__ void multiply_along(typename S::Sums& part, const unsigned char* tile, bf16* tokens) const {
    // Two steps share instructions; beside many sums there are no registers for more.
    GPU_UNROLL_2
    for (int step = 0; step < kTileDepth / 16; ++step) {
      uint32_t a[2][4];
      GPU_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int strip = own_strip(i), lane = int(threadIdx.x) % kWarp;
        const unsigned char* numbers = tile + F::kHeadBytes + strip * F::kStripBytes;
        uint32_t words[F::kStepWords];
        if constexpr (F::kBits == 8) load_beside(words, numbers + (step / 2 * kWarp + lane) * 16 + step % 2 * 8);
        else load_beside(words, numbers + lane * 16 + step * 4);
        widen_step<F>(a[i], words, scaling<F>(tile, strip * 8 + fragment_row(), step * 16 / F::kGroup, i));
      }
      multiply_step<S>(part, a, tokens, step);
    }
  }

  // Strips of the panel's outputs one after the other: 16 inputs of a warp's fragments. The inputs are of one of the stage's two tiles, half of it.
  template <class F>
  __device__ __forceinline__ void multiply_across(typename S::Sums& part, const unsigned char* stage, bf16* tokens) const {
    const int own = fragment_row(), step = output_warp() % 2 * 2 + own / 4;
    const unsigned char* tile = stage + output_warp() / 2 * F::kTileBytes;
    const unsigned char* floats = stage + 2 * a_.quantised.most_tile_bytes;
    GPU_UNROLL
    for (int strip = 0; strip < kTileDepth / 16; ++strip) {
      uint32_t a[2][4];
      GPU_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int row = h * 4 + fragment_pair(), pair = strip * 8 + row, lane = row * 4 + own % 4;
        const unsigned char* numbers = tile + F::kHeadBytes + strip * F::kStripBytes;
        uint32_t words[F::kStepWords], two[2][2];
        if constexpr (F::kBits == 8) load_beside(words, numbers + (step / 2 * kWarp + lane) * 16 + step % 2 * 8);
        else load_beside(words, numbers + lane * 16 + step * 4);
        if constexpr (F::kFloating) widen_across<F>(two, words, load_float_scaling(floats + pair * 8));
        else widen_across<F>(two, words, load_scaling<F>(tile + pair * F::kPairBytes, step * 16 / F::kGroup));
        GPU_UNROLL
        for (int i = 0; i < 4; ++i) a[i / 2][h * 2 + i % 2] = two[i / 2][i % 2];
      }
      multiply_step<S>(part, a, tokens, strip);
    }
  }

  const MatMul& a_;
  int first_output_;
  int shape_ = -1, tile_bytes_ = 0;  // of the panel of this thread's outputs
  bool there_ = true;
  const uint8_t* numbers_ = nullptr;  // of its next tile
  QuantPanel ahead_ = {};             // on the way back: of the next tile
  uint32_t shapes_ = 0;               // and of the tiles that are brought
  Scaling<Fp8Shape> floats_[2] = {};  // of floating numbers
};

}  // namespace tandem::cuda
