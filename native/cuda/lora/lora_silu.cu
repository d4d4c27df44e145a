#include "cuda/lora/lora_silu.h"

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/elementwise/swiglu.h"
#include "cuda/lora/lora_tile.h"

namespace tandem::cuda {
namespace {

using lora::kBlockRows;
using lora::kTileRows;
using lora::TileFactors;

constexpr int kSiluThreads = 256, kSiluRun = 4 * kSiluThreads;

// Four columns of a tile's rows; of rows that there are not the last again.
template <bool kWhole, class T>
__device__ __forceinline__ void load_tile_rows(const T* from, int64_t ld, int count, int left, Four (&rows)[kTileRows]) {
  GPU_UNROLL
  for (int r = 0; r < kTileRows; ++r) rows[r] = load_four<kWhole>(from + min(r, count - 1) * ld, left);
}

__device__ __forceinline__ TileFactors factors_of(const LoraSilu& a, const LoraWeights* table, const float* u, int64_t row) {
  const LoraWeights w = lora::weights_of(table, a.adapter_count, a.most_rank, a.row_adapters[row]);
  return {w.b, w.rank, u + row * a.most_rank, a.most_rank};
}

// Rows [first, first + count) of one adapter.
template <bool kWhole>
__device__ __forceinline__ void silu_tile(const LoraSilu& a, const TileFactors (&factors)[2], int64_t first, int count, int column) {
  const int width = int(a.silu.width), left = width - column;
  const float* x = a.silu.x + first * a.silu.ldx + column;
  Four gate[kTileRows], up[kTileRows];
  load_tile_rows<kWhole>(x, a.silu.ldx, count, left, gate);
  load_tile_rows<kWhole>(x + width, a.silu.ldx, count, left, up);
  lora::add_ranks<kWhole>(factors[0], width, count, column, left, gate);
  lora::add_ranks<kWhole>(factors[1], width, count, column, left, up);
  GPU_UNROLL
  for (int r = 0; r < kTileRows; ++r) {
    if (r >= count) continue;
    Four out;
    GPU_UNROLL
    for (int c = 0; c < 4; ++c) out.at[c] = swiglu(gate[r].at[c], up[r].at[c]);
    store_four<kWhole>(a.silu.y + (first + r) * a.silu.ldy + column, left, out);
    if (a.silu.kept == nullptr) continue;
    bf16* kept = a.silu.kept + (first + r) * 2 * width + column;
    store_four<kWhole>(kept, left, gate[r]);
    store_four<kWhole>(kept + width, left, up[r]);
  }
}

// Block (columns, rows), here and below.
template <bool kWhole>
__global__ void __launch_bounds__(kSiluThreads, 2) lora_silu_kernel(LoraSilu a) {
  wait_for_inputs();
  const int column = int(blockIdx.x) * kSiluRun + 4 * int(threadIdx.x);
  const int64_t begin = int64_t(blockIdx.y) * kBlockRows, end = min(begin + kBlockRows, a.silu.rows);
  int64_t row = begin;
  GPU_UNROLL_1
  while (row < end) {
    const int most = int(min(int64_t(kTileRows), end - row));
    int count = 1;
    while (count < most && a.row_adapters[row + count] == a.row_adapters[row]) ++count;
    const TileFactors factors[2] = {factors_of(a, a.gate, a.gate_u, row), factors_of(a, a.up, a.up_u, row)};
    const auto places = reinterpret_cast<uintptr_t>(factors[0].factors) | reinterpret_cast<uintptr_t>(factors[1].factors);
    if (kWhole && places % 8 == 0) silu_tile<true>(a, factors, row, count, column);
    else silu_tile<false>(a, factors, row, count, column);
    row += count;
  }
}

template <bool kWhole>
__device__ __forceinline__ void silu_tile_back(const LoraSiluBackward& a, int64_t first, int count, int column) {
  const int64_t width = a.silu.width;
  const int left = int(width) - column;
  const bf16* x = a.silu.x + first * 2 * width + column;
  Four gate[kTileRows], up[kTileRows], d[kTileRows];
  load_tile_rows<kWhole>(a.silu.d + first * a.silu.ldd + column, a.silu.ldd, count, left, d);
  load_tile_rows<kWhole>(x, 2 * width, count, left, gate);
  load_tile_rows<kWhole>(x + width, 2 * width, count, left, up);
  lora::add_ranks<kWhole>({a.a, a.rank, a.u + first * a.rank, a.rank}, width, count, column, left, d);
  GPU_UNROLL
  for (int r = 0; r < kTileRows; ++r) {
    if (r >= count) continue;
    Four y, d_gate, d_up;
    GPU_UNROLL
    for (int c = 0; c < 4; ++c) {
      const SwigluBack back = swiglu_back(gate[r].at[c], up[r].at[c], d[r].at[c]);
      y.at[c] = back.y, d_gate.at[c] = back.d_gate, d_up.at[c] = back.d_up;
    }
    if (a.silu.y != nullptr) store_four<kWhole>(a.silu.y + (first + r) * width + column, left, y);
    bf16* dx = a.silu.dx + (first + r) * 2 * width + column;
    store_four<kWhole>(dx, left, d_gate);
    store_four<kWhole>(dx + width, left, d_up);
  }
}

template <bool kWhole>
__global__ void __launch_bounds__(kSiluThreads, 2) lora_silu_backward_kernel(LoraSiluBackward a) {
  wait_for_inputs();
  const int column = int(blockIdx.x) * kSiluRun + 4 * int(threadIdx.x);
  const int64_t begin = int64_t(blockIdx.y) * kBlockRows, end = min(begin + kBlockRows, a.silu.rows);
  GPU_UNROLL_1
  for (int64_t row = begin; row < end; row += kTileRows) {
    silu_tile_back<kWhole>(a, row, int(min(int64_t(kTileRows), end - row)), column);
  }
}

dim3 grid_of(int64_t rows, int64_t width, const char* name) {
  const int64_t tiles = ceil_div(rows, kBlockRows);
  check_argument(tiles < 1 << 16, name, "rows");
  return dim3(unsigned(ceil_div(width, kSiluRun)), unsigned(tiles));
}

}  // namespace

void lora_silu_multiply(const LoraSilu& a, cudaStream_t stream) {
  const char* name = "lora_silu_multiply";
  const SiluMultiply& s = a.silu;
  check_argument(s.rows >= 0, name, "rows");
  check_argument(s.width >= 1 && 2 * s.width <= s.ldx && s.width <= s.ldy && s.width < 1 << 24, name, "width");
  check_argument(s.parts.count == 0, name, "parts");
  check_argument(a.most_rank >= 0 && a.most_rank <= 1024, name, "most_rank");
  const dim3 grid = grid_of(s.rows, s.width, name), block(kSiluThreads);
  if (s.rows == 0) return;
  const bool whole = s.width % 4 == 0 && in_fours(s.x, s.ldx) && in_fours(s.y, s.ldy) && in_fours(s.kept);
  if (whole) GPU_LAUNCH_EARLY(lora_silu_kernel<true>, grid, block, 0, stream, a);
  else GPU_LAUNCH_EARLY(lora_silu_kernel<false>, grid, block, 0, stream, a);
  check_launch(name);
}

void lora_silu_multiply_backward(const LoraSiluBackward& a, cudaStream_t stream) {
  const char* name = "lora_silu_multiply_backward";
  const SiluBackward& s = a.silu;
  check_argument(s.rows >= 0, name, "rows");
  check_argument(s.width >= 1 && s.width <= s.ldd && s.width < 1 << 24, name, "width");
  check_argument(s.d != nullptr && s.dx != nullptr, name, "d");
  check_argument(a.rank >= 0 && a.rank <= 1024, name, "rank");
  const dim3 grid = grid_of(s.rows, s.width, name), block(kSiluThreads);
  if (s.rows == 0) return;
  const bool whole = s.width % 4 == 0 && in_fours(s.x) && in_fours(s.d, s.ldd) && in_fours(s.dx) && in_fours(s.y) && in_fours(a.a);
  if (whole) GPU_LAUNCH_EARLY(lora_silu_backward_kernel<true>, grid, block, 0, stream, a);
  else GPU_LAUNCH_EARLY(lora_silu_backward_kernel<false>, grid, block, 0, stream, a);
  check_launch(name);
}

}  // namespace tandem::cuda
