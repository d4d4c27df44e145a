#include "cuda/lora/lora_silu.h"

#include "cuda/common/early_launch.h"
#include "cuda/common/fours.h"
#include "cuda/common/launch.h"
#include "cuda/elementwise/swiglu.h"
#include "cuda/lora/lora_launch.h"
#include "cuda/lora/lora_outputs.h"

namespace tandem::cuda {
namespace {

using namespace lora;

// A warp has kWarpOutputs columns of kRows rows at a time; a block's rows follow each other, so that factors come from the first-level cache.
constexpr int kBlockRows = 2 * kRows, kBlockColumns = kThreads / kWarp * kWarpOutputs;

// What a lane has of a tile: two rows of twice four columns.
struct LaneRows {
  Four at[2][2];
};

// Calls use(row of the lane's two, half of its columns, row of the tile, column, how many are left) for those of `rows` rows.
template <class Use>
__device__ __forceinline__ void each_four(int rows, int first_column, int width, const Use& use) {
  GPU_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int row = int(threadIdx.x) % kQuad * 2 + i / 2, column = first_column + lane_output(i % 2);
    if (row < rows) use(i / 2, i % 2, row, column, width - column);
  }
}

__device__ __forceinline__ int first_column() { return int(blockIdx.x) * kBlockColumns + int(threadIdx.x) / kWarp * kWarpOutputs; }

// Rows [begin, end) of a tile get B u.
template <bool kWhole>
__device__ __forceinline__ void add_ranks(const RankFactors& f, const float* u, int64_t ldu, int begin, int end, int column,
                                          LaneRows& rows) {
  if (f.rank == 0) return;
  const int of_group = int(threadIdx.x) % kWarp / kQuad;
  OutputSums sums{};
  sum_ranks<kWhole>(f, of_group >= begin && of_group < end ? u + of_group * ldu : nullptr, column, sums);
  each_four(end, column, f.width, [&](int row, int half, int of_tile, int, int) {
    if (of_tile < begin) return;
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) rows.at[row][half].at[i] += sums.of(row, 4 * half + i);
  });
}

// Those of rows [begin, end) of the tile from `first` on, which have one adapter.
__device__ __forceinline__ void add_adapter(const LoraSilu& a, const LoraWeights& w, const float* u, int64_t first, int begin, int end,
                                            int column, LaneRows& rows) {
  const RankFactors f{w.b, w.rank, int(a.silu.width)};
  const float* of_tile = u + first * a.most_rank;
  if (f.width % 4 == 0 && reinterpret_cast<uintptr_t>(w.b) % 8 == 0) add_ranks<true>(f, of_tile, a.most_rank, begin, end, column, rows);
  else add_ranks<false>(f, of_tile, a.most_rank, begin, end, column, rows);
}

template <bool kWhole>
__device__ __forceinline__ void silu_tile(const LoraSilu& a, int64_t first, int count, int column) {
  const int width = int(a.silu.width);
  LaneRows gate{}, up{};
  each_four(count, column, width, [&](int row, int half, int of_tile, int at, int left) {
    const float* x = a.silu.x + (first + of_tile) * a.silu.ldx + at;
    gate.at[row][half] = load_four<kWhole>(x, left);
    up.at[row][half] = load_four<kWhole>(x + width, left);
  });
  const TileAdapters adapters(a.row_adapters + first, count);
  GPU_UNROLL_1
  for (int begin = 0; begin < count;) {
    const int end = adapters.end_of(begin);
    const int32_t adapter = adapters.at(begin);
    const LoraWeights of_gate = weights_of(a.gate, a.adapter_count, a.most_rank, adapter);
    const LoraWeights of_up = weights_of(a.up, a.adapter_count, a.most_rank, adapter);
    add_adapter(a, of_gate, a.gate_u, first, begin, end, column, gate);
    add_adapter(a, of_up, a.up_u, first, begin, end, column, up);
    begin = end;
  }
  each_four(count, column, width, [&](int row, int half, int of_tile, int at, int left) {
    Four out;
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) out.at[i] = swiglu(gate.at[row][half].at[i], up.at[row][half].at[i]);
    store_four<kWhole>(a.silu.y + (first + of_tile) * a.silu.ldy + at, left, out);
    if (a.silu.kept == nullptr) return;
    bf16* kept = a.silu.kept + (first + of_tile) * 2 * width + at;
    store_four<kWhole>(kept, left, gate.at[row][half]);
    store_four<kWhole>(kept + width, left, up.at[row][half]);
  });
}

// Calls use(first row, how many) for the block's tiles.
template <class Use>
__device__ __forceinline__ void each_tile(int64_t rows, const Use& use) {
  const int64_t begin = int64_t(blockIdx.y) * kBlockRows, end = min(begin + kBlockRows, rows);
  GPU_UNROLL_1
  for (int64_t row = begin; row < end; row += kRows) use(row, int(min(int64_t(kRows), end - row)));
}

// Block (columns, rows), here and below.
template <bool kWhole>
__global__ void __launch_bounds__(kThreads, 2) lora_silu_kernel(LoraSilu a) {
  wait_for_inputs();
  const int column = first_column();
  if (column >= a.silu.width) return;
  each_tile(a.silu.rows, [&](int64_t first, int count) { silu_tile<kWhole>(a, first, count, column); });
}

template <bool kWhole>
__device__ __forceinline__ void silu_tile_back(const LoraSiluBackward& a, int64_t first, int count, int column) {
  const int width = int(a.silu.width);
  LaneRows d{}, gates{}, ups{};
  each_four(count, column, width, [&](int row, int half, int of_tile, int at, int left) {
    const bf16* x = a.silu.x + (first + of_tile) * 2 * width + at;
    gates.at[row][half] = load_four<kWhole>(x, left);
    ups.at[row][half] = load_four<kWhole>(x + width, left);
    d.at[row][half] = load_four<kWhole>(a.silu.d + (first + of_tile) * a.silu.ldd + at, left);
  });
  add_ranks<kWhole>({a.a, int(a.rank), width}, a.u + first * a.rank, a.rank, 0, count, column, d);
  each_four(count, column, width, [&](int row, int half, int of_tile, int at, int left) {
    const Four &gate = gates.at[row][half], &up = ups.at[row][half];
    Four y, d_gate, d_up;
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      const SwigluBack back = swiglu_back(gate.at[i], up.at[i], d.at[row][half].at[i]);
      y.at[i] = back.y, d_gate.at[i] = back.d_gate, d_up.at[i] = back.d_up;
    }
    if (a.silu.y != nullptr) store_four<kWhole>(a.silu.y + (first + of_tile) * width + at, left, y);
    bf16* dx = a.silu.dx + (first + of_tile) * 2 * width + at;
    store_four<kWhole>(dx, left, d_gate);
    store_four<kWhole>(dx + width, left, d_up);
  });
}

template <bool kWhole>
__global__ void __launch_bounds__(kThreads, 2) lora_silu_backward_kernel(LoraSiluBackward a) {
  wait_for_inputs();
  const int column = first_column();
  if (column >= a.silu.width) return;
  each_tile(a.silu.rows, [&](int64_t first, int count) { silu_tile_back<kWhole>(a, first, count, column); });
}

dim3 grid_of(int64_t rows, int64_t width, const char* name) {
  const int64_t tiles = ceil_div(rows, kBlockRows);
  check_argument(tiles < 1 << 16, name, "rows");
  return dim3(unsigned(ceil_div(width, kBlockColumns)), unsigned(tiles));
}

}  // namespace

void lora_silu_multiply(const LoraSilu& a, cudaStream_t stream) {
  const char* name = "lora_silu_multiply";
  const SiluMultiply& s = a.silu;
  check_argument(s.rows >= 0, name, "rows");
  check_argument(s.width >= 1 && 2 * s.width <= s.ldx && s.width <= s.ldy && s.width < 1 << 24, name, "width");
  check_argument(s.parts.count == 0, name, "parts");
  check_argument(a.most_rank >= 0 && a.most_rank <= 1024, name, "most_rank");
  const dim3 grid = grid_of(s.rows, s.width, name), block(kThreads);
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
  const dim3 grid = grid_of(s.rows, s.width, name), block(kThreads);
  if (s.rows == 0) return;
  const bool whole = s.width % 4 == 0 && in_fours(s.x) && in_fours(s.d, s.ldd) && in_fours(s.dx) && in_fours(s.y) && in_fours(a.a);
  if (whole) GPU_LAUNCH_EARLY(lora_silu_backward_kernel<true>, grid, block, 0, stream, a);
  else GPU_LAUNCH_EARLY(lora_silu_backward_kernel<false>, grid, block, 0, stream, a);
  check_launch(name);
}

}  // namespace tandem::cuda
