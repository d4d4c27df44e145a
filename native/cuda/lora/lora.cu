#include "cuda/lora/lora.h"

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/common/reduce.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
// Of a block that gathers a factor's gradient.
constexpr int kOuterWarps = 16;
constexpr int kOuterRanks = 8;

__device__ __forceinline__ LoraWeights weights_of(const Lora& a, int64_t row) {
  const int32_t index = a.row_adapters[row];
  if (index < 0 || index >= a.adapter_count) return {nullptr, nullptr, 0, 0};
  LoraWeights w = a.adapters[index];
  w.rank = min(w.rank, int32_t(a.most_rank));
  return w;
}

// Block (row, group of ranks): a warp per rank.
__global__ void __launch_bounds__(kThreads) shrink_kernel(Lora a) {
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const LoraWeights w = weights_of(a, row);
  const int rank = int(blockIdx.y) * kWarps + int(threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  if (rank >= w.rank) return;
  const bf16* x = a.x + row * a.ldx;
  const bf16* factor = w.a + rank * a.in;
  float sum = 0;
  for (int64_t k = lane; k < a.in; k += kWarp) sum = fmaf(to_float(x[k]), to_float(factor[k]), sum);
  sum = warp_sum(sum);
  if (lane == 0) a.u[row * a.most_rank + rank] = w.scale * sum;
}

// B u of a row for one output.
__device__ __forceinline__ void expand_row(const Lora& a, int64_t row, int64_t output) {
  const LoraWeights w = weights_of(a, row);
  if (output >= a.out || w.rank == 0) return;
  const float* u = a.u + row * a.most_rank;
  float sum = 0;
  for (int r = 0; r < w.rank; ++r) sum = fmaf(to_float(w.b[r * a.out + output]), u[r], sum);
  a.y[row * a.ldy + output] += sum;
}

// Block (row, tile of outputs): a thread per output.
__global__ void __launch_bounds__(kThreads) expand_kernel(Lora a) {
  wait_for_inputs();
  expand_row(a, blockIdx.x, int64_t(blockIdx.y) * kThreads + threadIdx.x);
}

void check(const Lora& a, const char* name) {
  check_argument(a.rows >= 0 && a.rows < 1 << 30, name, "rows");
  check_argument(a.in >= 1 && a.in <= a.ldx, name, "in");
  check_argument(a.out >= 1 && a.out <= a.ldy && a.out < 1 << 23, name, "out");
  check_argument(a.most_rank >= 0 && a.most_rank <= 1024, name, "most_rank");
}

bool nothing_to_do(const Lora& a) { return a.rows == 0 || a.most_rank == 0 || a.adapter_count == 0; }

// Many rows, as in prefill and in training, most of them of one adapter: a warp takes several rows and ranks, so that what it loads meets
// several others. Each sum is that of the kernels above, link by link.
constexpr int64_t kManyRows = 512;
constexpr int kWarpRows = 4, kWarpRanks = 8, kShrinkWarps = 4;
constexpr int kBlockRows = 16;

// Whether rows [first, first + count) that there are have one adapter.
__device__ __forceinline__ bool one_adapter(const Lora& a, int64_t first, int count) {
  bool one = true;
  for (int i = 1; i < count; ++i) one = one && a.row_adapters[min(first + i, a.rows - 1)] == a.row_adapters[first];
  return one;
}

// u of rows [first, first + kRows) that there are, for at most kWarpRanks ranks from `first_rank` on.
template <int kRows>
__device__ __forceinline__ void shrink_rows(const Lora& a, const LoraWeights& w, int64_t first, int first_rank) {
  const int ranks = min(kWarpRanks, w.rank - first_rank), lane = int(threadIdx.x) % kWarp;
  if (ranks <= 0) return;
  const bf16 *x[kRows], *factors[kWarpRanks];
  for (int r = 0; r < kRows; ++r) x[r] = a.x + min(first + r, a.rows - 1) * a.ldx;
  for (int i = 0; i < kWarpRanks; ++i) factors[i] = w.a + (first_rank + min(i, ranks - 1)) * a.in;
  float sums[kWarpRanks][kRows] = {};
  GPU_UNROLL_4
  for (int64_t k = lane; k < a.in; k += kWarp) {
    float row[kRows];
    GPU_UNROLL
    for (int r = 0; r < kRows; ++r) row[r] = to_float(x[r][k]);
    GPU_UNROLL
    for (int i = 0; i < kWarpRanks; ++i) {
      const float factor = to_float(factors[i][k]);
      GPU_UNROLL
      for (int r = 0; r < kRows; ++r) sums[i][r] = fmaf(row[r], factor, sums[i][r]);
    }
  }
  GPU_UNROLL
  for (int i = 0; i < kWarpRanks; ++i) {
    GPU_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const float sum = warp_sum(sums[i][r]);
      if (lane == 0 && i < ranks && first + r < a.rows) a.u[(first + r) * a.most_rank + first_rank + i] = w.scale * sum;
    }
  }
}

// Block (tile of rows, group of ranks): a warp per kWarpRows rows.
__global__ void __launch_bounds__(kShrinkWarps* kWarp) shrink_rows_kernel(Lora a) {
  wait_for_inputs();
  const int64_t first = (int64_t(blockIdx.x) * kShrinkWarps + threadIdx.x / kWarp) * kWarpRows;
  const int first_rank = int(blockIdx.y) * kWarpRanks;
  if (first >= a.rows) return;
  if (one_adapter(a, first, kWarpRows)) return shrink_rows<kWarpRows>(a, weights_of(a, first), first, first_rank);
  for (int64_t row = first; row < min(first + kWarpRows, a.rows); ++row) shrink_rows<1>(a, weights_of(a, row), row, first_rank);
}

// Block (tile of kBlockRows rows, tile of outputs): a thread per output.
__global__ void __launch_bounds__(kThreads) expand_rows_kernel(Lora a) {
  __shared__ float u[kWarpRanks][kBlockRows];
  wait_for_inputs();
  const int64_t first = int64_t(blockIdx.x) * kBlockRows, output = int64_t(blockIdx.y) * kThreads + threadIdx.x;
  const int count = int(min(int64_t(kBlockRows), a.rows - first));
  if (!one_adapter(a, first, count)) {
    for (int64_t row = first; row < first + count; ++row) expand_row(a, row, output);
    return;
  }
  const LoraWeights w = weights_of(a, first);
  if (w.rank == 0) return;
  float sums[kBlockRows] = {};
  for (int first_rank = 0; first_rank < w.rank; first_rank += kWarpRanks) {
    __syncthreads();  // all are done with the ranks before
    if (threadIdx.x < kWarpRanks * kBlockRows) {
      const int rank = first_rank + int(threadIdx.x) % kWarpRanks, row = int(threadIdx.x) / kWarpRanks;
      u[threadIdx.x % kWarpRanks][row] = rank < w.rank && row < count ? a.u[(first + row) * a.most_rank + rank] : 0.0f;
    }
    __syncthreads();  // u is there for all
    if (output >= a.out) continue;
    const int ranks = min(kWarpRanks, w.rank - first_rank);
    for (int i = 0; i < ranks; ++i) {
      const float factor = to_float(w.b[(first_rank + i) * a.out + output]);
      GPU_UNROLL
      for (int r = 0; r < kBlockRows; ++r) sums[r] = fmaf(factor, u[i][r], sums[r]);
    }
  }
  if (output >= a.out) return;
  float* y = a.y + first * a.ldy + output;
  float old[kBlockRows];
  GPU_UNROLL
  for (int r = 0; r < kBlockRows; ++r) old[r] = r < count ? y[r * a.ldy] : 0.0f;
  GPU_UNROLL
  for (int r = 0; r < kBlockRows; ++r) {
    if (r < count) y[r * a.ldy] = old[r] + sums[r];
  }
}

// Of one row kOuterRanks numbers of u; those from `ranks` on are zero.
template <bool kWhole>
__device__ __forceinline__ void load_ranks(const float* u, int64_t ranks, float (&out)[kOuterRanks]) {
  if constexpr (kWhole) {
    const float4 low = reinterpret_cast<const float4*>(u)[0], high = reinterpret_cast<const float4*>(u)[1];
    const float all[kOuterRanks] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    memcpy(out, all, sizeof all);
  } else {
    for (int r = 0; r < kOuterRanks; ++r) out[r] = r < ranks ? u[r] : 0.0f;
  }
}

// Each warp's share of the rows: every kOuterWarps-th.
template <bool kWhole>
__device__ __forceinline__ void sum_outer(const LoraOuter& a, int64_t column, int64_t first_rank, float (&sums)[kOuterRanks]) {
  const bool inside = column < a.columns;
  GPU_UNROLL_8
  for (int64_t row = threadIdx.x / kWarp; row < a.rows; row += kOuterWarps) {
    const float x = inside ? to_float(a.x[row * a.ldx + column]) : 0.0f;
    float u[kOuterRanks];
    load_ranks<kWhole>(a.u + row * a.ldu + first_rank, a.ranks - first_rank, u);
    GPU_UNROLL
    for (int r = 0; r < kOuterRanks; ++r) sums[r] = fmaf(u[r], x, sums[r]);
  }
}

// Block (tile of columns, group of ranks): a lane per column, a warp per share of the rows; then the warps' sums in order.
__global__ void __launch_bounds__(kOuterWarps* kWarp) outer_kernel(LoraOuter a, bool whole) {
  __shared__ float parts[kOuterWarps][kOuterRanks][kWarp];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t first = int64_t(blockIdx.x) * kWarp, first_rank = int64_t(blockIdx.y) * kOuterRanks;
  float sums[kOuterRanks] = {};
  if (whole && first_rank + kOuterRanks <= a.ranks) sum_outer<true>(a, first + lane, first_rank, sums);
  else sum_outer<false>(a, first + lane, first_rank, sums);
  for (int r = 0; r < kOuterRanks; ++r) parts[warp][r][lane] = sums[r];
  __syncthreads();
  const int64_t rank = first_rank + warp, column = first + lane;
  if (warp >= kOuterRanks || rank >= a.ranks || column >= a.columns) return;
  float sum = 0;
  for (int w = 0; w < kOuterWarps; ++w) sum += parts[w][warp][lane];
  a.gradient[rank * a.columns + column] += sum;
}

}  // namespace

void lora_shrink(const Lora& a, cudaStream_t stream) {
  check(a, "lora_shrink");
  if (nothing_to_do(a)) return;
  const bool many = a.rows >= kManyRows;
  const dim3 tiles(unsigned(ceil_div(a.rows, kShrinkWarps * kWarpRows)), unsigned(ceil_div(a.most_rank, kWarpRanks)));
  const dim3 grid(unsigned(a.rows), unsigned(ceil_div(a.most_rank, kWarps)));
  if (many) GPU_LAUNCH_EARLY(shrink_rows_kernel, tiles, dim3(kShrinkWarps * kWarp), 0, stream, a);
  else GPU_LAUNCH_EARLY(shrink_kernel, grid, dim3(kThreads), 0, stream, a);
  check_launch("lora_shrink");
}

void lora_expand(const Lora& a, cudaStream_t stream) {
  check(a, "lora_expand");
  if (nothing_to_do(a)) return;
  const bool many = a.rows >= kManyRows;
  const int64_t outputs = ceil_div(a.out, kThreads);
  const dim3 tiles(unsigned(ceil_div(a.rows, kBlockRows)), unsigned(outputs)), grid(unsigned(a.rows), unsigned(outputs));
  if (many) GPU_LAUNCH_EARLY(expand_rows_kernel, tiles, dim3(kThreads), 0, stream, a);
  else GPU_LAUNCH_EARLY(expand_kernel, grid, dim3(kThreads), 0, stream, a);
  check_launch("lora_expand");
}

void lora_add(const Lora& a, cudaStream_t stream) {
  lora_shrink(a, stream);
  lora_expand(a, stream);
}

void lora_outer(const LoraOuter& a, cudaStream_t stream) {
  const char* name = "lora_outer";
  check_argument(a.rows >= 0 && a.rows < 1 << 30, name, "rows");
  check_argument(a.ranks >= 1 && a.ranks <= a.ldu && a.ranks <= 1024, name, "ranks");
  check_argument(a.columns >= 1 && a.columns <= a.ldx && a.columns < 1 << 26, name, "columns");
  if (a.rows == 0) return;
  const dim3 grid(unsigned(ceil_div(a.columns, kWarp)), unsigned(ceil_div(a.ranks, kOuterRanks)));
  const bool whole = a.ldu % 4 == 0 && reinterpret_cast<uintptr_t>(a.u) % 16 == 0;
  GPU_LAUNCH(outer_kernel, grid, dim3(kOuterWarps * kWarp), 0, stream, a, whole);
  check_launch(name);
}

}  // namespace tandem::cuda
