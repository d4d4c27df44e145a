// Tiles of a product by mma.sync (matmul.cu): 64 inputs of some tokens and some outputs, in shared memory.
#pragma once
#include "cuda/gemm/matmul.h"
#include "cuda/gemm/split.h"
#include "cuda/gemm/widen.h"

namespace tandem::cuda {

constexpr int kTileDepth = kSplitDepth;  // inputs of a tile
constexpr int kChunk = 8;                // elements of a 16-byte copy
constexpr int kRowChunks = kTileDepth / kChunk;
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
  // Few tokens wait for weights: what the blocks of a multiprocessor have under way covers the memory's latency.
  static constexpr int kStages = kTokens <= 32 ? 6 : kTokens <= 64 ? 4 : 3;
  using Sums = float[kTiles][kWarpTokens / 8][4];
};

// Along the outputs, and along the tokens.
__device__ __forceinline__ int output_warp() { return int(threadIdx.x) / kWarp % kOutputWarps; }
__device__ __forceinline__ int token_warp() { return int(threadIdx.x) / (kWarp * kOutputWarps); }

// Where the 16-byte chunk of a tile's row lies: rows of 128 bytes, in each of kSame rows chunks permuted in one way, so that ldmatrix meets no
// bank twice where it takes every kSame-th.
template <int kSame = 1>
__device__ __forceinline__ bf16* tile_chunk(bf16* tile, int row, int chunk) {
  return tile + row * kTileDepth + (chunk ^ (row / kSame & 7)) * kChunk;
}

// Rows [first, first + kRows) of a matrix with `rows` rows, columns [column, column + 64) of `columns`; zero outside.
template <int kRows, int kThreads, int kSame = 1>
__device__ __forceinline__ void load_tile(bf16* tile, const bf16* matrix, int64_t ld, int64_t first, int64_t rows, int64_t column,
                                          int64_t columns) {
  constexpr int kStep = kThreads / kRowChunks;
  static_assert(kRows % kStep == 0);
  const int row = int(threadIdx.x) / kRowChunks, chunk = int(threadIdx.x) % kRowChunks;
  const int64_t from_column = column + chunk * kChunk, rows_left = rows - first - row;
  const int left = from_column >= columns || rows_left < 0 ? 0 : int(rows_left < kRows ? rows_left : kRows);
  const bf16* from = matrix + (first + row) * ld + from_column;
  GPU_UNROLL
  for (int i = 0; i < kRows; i += kStep) {
    // Where nothing is there, nothing is read.
    cp_async_16(tile_chunk<kSame>(tile, row + i, chunk), from, i < left ? 16 : 0);
    from += kStep * ld;
  }
}

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
  static constexpr bool kBeside = !kTransposed;
  static constexpr int kStages = S::kStages;
  __host__ __device__ static int stage_bytes(const MatMul&) { return S::kOutputs * kTileDepth * int(sizeof(bf16)); }

  __device__ PlainTiles(const MatMul& a, int64_t first_output) : a_(a), first_output_(first_output) {}

  __device__ __forceinline__ void load(unsigned char* stage, int tile) const {
    bf16* to = reinterpret_cast<bf16*>(stage);
    const int64_t input = int64_t(tile) * kTileDepth;
    if constexpr (kTransposed) {
      GPU_UNROLL
      for (int panel = 0; panel < S::kTiles; ++panel) {
        load_tile<kTileDepth, S::kThreads>(to + panel * kPanel, a_.w, a_.k, input, a_.n, first_output_ + panel * kTileDepth, a_.k);
      }
    } else {
      load_tile<S::kOutputs, S::kThreads, 2 * S::kTiles>(to, a_.w, a_.k, first_output_, a_.n, input, a_.k);
    }
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
      ldmatrix_x4_trans(a, tile_chunk(weights + output / kTileDepth * kPanel, step * 16 + matrix / 2 * 8 + in_matrix, output % kTileDepth / 8));
    } else {
      const int output = (output_warp() * 8 + in_matrix) * 2 * S::kTiles + tile * 2 + matrix % 2;
      ldmatrix_x4(a, tile_chunk<2 * S::kTiles>(weights, output, step * 2 + matrix / 2));
    }
  }

  const MatMul& a_;
  int64_t first_output_;
};

// Quantised weights: a stage holds the numbers of a tile, all groups' one after the other, and then the groups' scales and minima.
template <class S, bool kTransposed>
class QuantTiles {
 public:
  static constexpr bool kBeside = true;
  static constexpr int kStages = S::kTokens <= 16 ? 8 : S::kStages;
  static_assert(!kTransposed || S::kTiles == 2);
  // A panel's tile per 64 outputs; on the way back also the scales of floating numbers.
  __host__ __device__ static int stage_bytes(const MatMul& a) { return S::kTiles * int(a.quantised.most_tile_bytes) + (kTransposed ? kFloats : 0); }

  __device__ QuantTiles(const MatMul& a, int64_t first_output) : a_(a), first_output_(first_output) {
    if constexpr (!kTransposed) take_panel();
  }

  __device__ __forceinline__ void load(unsigned char* stage, int tile) const {
    const int64_t inputs = (a_.k + kQuantStep - 1) / kQuantStep * kQuantStep;
    if constexpr (kTransposed) {
      const QuantPanel panel = a_.quantised.panels[tile];
      const uint8_t* head = a_.quantised.data + panel.first_byte;
      bring<S::kThreads>(stage, panel, first_output_, inputs - first_output_, S::kOutputs, int(threadIdx.x));
      if (panel.floating && threadIdx.x < kFloats / 16) {
        cp_async_16(stage + S::kTiles * a_.quantised.most_tile_bytes + threadIdx.x * 16, head + threadIdx.x * 16, 16);
      }
    } else {
      const int64_t input = int64_t(tile) * kTileDepth;
      // The threads whose outputs are a panel's bring it.
      constexpr int kWarps = kOutputWarps / S::kTiles;
      const int among = token_warp() * kWarps * kWarp + int(threadIdx.x) % (kWarps * kWarp);
      bring<S::kThreads / S::kTiles>(panel_stage(stage), panel_, input, there_ ? inputs - input : 0, kTileDepth, among);
    }
  }

  __device__ __forceinline__ void multiply(typename S::Sums& part, unsigned char* stage, bf16* tokens, int tile) const {
    if constexpr (kTransposed) {
      with_shape_of(a_.quantised.panels[tile], [&](auto shape) { multiply_across<decltype(shape)>(part, stage, tokens); });
    } else {
      with_shape_of(panel_, [&](auto shape) { multiply_blocks<decltype(shape)>(part, panel_stage(stage), tokens); });
    }
  }

 private:
  static constexpr int kFloats = kQuantPanel * 4;  // bytes

  __device__ __forceinline__ int own_panel() const { return output_warp() * S::kTiles / kOutputWarps; }
  __device__ __forceinline__ unsigned char* panel_stage(unsigned char* stage) const { return stage + own_panel() * a_.quantised.most_tile_bytes; }

  // The panel of this thread's outputs, or where there is none the last one, of which nothing is brought then.
  __device__ void take_panel() {
    const int64_t panel = first_output_ / kQuantPanel + own_panel(), last = (a_.n - 1) / kQuantPanel;
    there_ = panel <= last;
    panel_ = a_.quantised.panels[there_ ? panel : last];
    output_ = (output_warp() * 16 * S::kTiles) % kQuantPanel + fragment_row() * 2 * S::kTiles;
    if (!panel_.floating) return;
    float scales[2 * S::kTiles];
    load_beside(scales, a_.quantised.data + panel_.first_byte + output_ * 4);
    GPU_UNROLL
    for (int i = 0; i < 2 * S::kTiles; ++i) scales_[i] = pack_rounded(scales[i], scales[i]);
  }

  // `wanted` inputs of the panel from `input` on, of which `there` are there, if so many, by kThreads of which this is number `thread`. What is not there is zero:
  // weights that are zero.
  template <int kThreads>
  __device__ __forceinline__ void bring(unsigned char* to, const QuantPanel& panel, int64_t input, int64_t there, int wanted, int thread) const {
    const int number_chunks = panel.number_bytes() / 16, head_chunks = (panel.scale_bytes() + panel.minimum_bytes()) / 16;
    // All are powers of two.
    const int group_shift = panel.group == 32 ? 5 : 4, number_shift = number_chunks == 128 ? 7 : 6;
    const int head_shift = head_chunks == 32 ? 5 : head_chunks == 16 ? 4 : 3;
    const int groups = wanted >> group_shift, groups_there = int(there) >> group_shift, group_bytes = panel.group_bytes();
    const uint8_t* from = a_.quantised.data + panel.first_byte + panel.head_bytes() + (input >> group_shift) * group_bytes;
    auto copy = [&](unsigned char* at, int group, int offset) {
      cp_async_16(at, from + group * group_bytes + offset, group < groups_there ? 16 : 0);
    };
    for (int i = thread; i < groups * number_chunks; i += kThreads) {
      copy(to + word_chunk(i) * 16, i >> number_shift, (head_chunks + (i & (number_chunks - 1))) * 16);
    }
    unsigned char* heads = to + groups * number_chunks * 16;
    for (int i = thread; i < groups * head_chunks; i += kThreads) copy(heads + i * 16, i >> head_shift, (i & (head_chunks - 1)) * 16);
  }

  template <class F>
  __device__ __forceinline__ void multiply_blocks(typename S::Sums& part, const unsigned char* stage, bf16* tokens) const {
    const unsigned char* heads = stage + kQuantPanel * kTileDepth * F::kBits / 8;
    GPU_UNROLL
    for (int block = 0; block < kTileDepth / 32; ++block) {
      uint32_t a[2][S::kTiles][4];
      widen_block<F>(a, stage, heads, block, output_, scales_);
      multiply_step<S>(part, a[0], tokens, block * 2);
      multiply_step<S>(part, a[1], tokens, block * 2 + 1);
    }
  }

  template <class F>
  __device__ __forceinline__ void multiply_across(typename S::Sums& part, const unsigned char* stage, bf16* tokens) const {
    const int first = output_warp() * 32;  // of the warp's 32 outputs
    const unsigned char* heads = stage + kQuantPanel * S::kOutputs * F::kBits / 8 + first / F::kGroup * F::kHeadBytes;
    const unsigned char* scales = stage + S::kTiles * a_.quantised.most_tile_bytes;
    GPU_UNROLL
    for (int step = 0; step < kTileDepth / 16; ++step) {
      uint32_t a[2][4];
      widen_across<F>(a, stage, heads, first * F::kBits / 32, step, scales);
      multiply_step<S>(part, a, tokens, step);
    }
  }

  const MatMul& a_;
  int64_t first_output_;
  QuantPanel panel_ = {};
  bool there_ = false;
  int output_ = 0;                        // the first of this lane's, in its panel
  uint32_t scales_[2 * S::kTiles] = {};  // of floating numbers
};

}  // namespace tandem::cuda
