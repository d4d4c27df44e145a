#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/lora/lora.h"
#include "cuda/lora/lora_sums.h"

namespace tandem::cuda {
namespace {

using lora::kEach;
using lora::kRanks;

constexpr int kOuterWarps = 16;
// A warp reads 8 rows of 32 columns at a time: a lane has 8 columns of one.
constexpr int kTileColumns = 32, kColumnLanes = kTileColumns / kEach, kRowLanes = kWarp / kColumnLanes;
constexpr int kTileRows = kOuterWarps * kRowLanes;
constexpr int kSums = kRanks * kEach;

// Of one row kRanks numbers of u; those from `ranks` on are zero.
template <bool kVector>
__device__ __forceinline__ void load_ranks(const float* u, int64_t ranks, float (&out)[kRanks]) {
  if constexpr (kVector) {
    const float4 low = reinterpret_cast<const float4*>(u)[0], high = reinterpret_cast<const float4*>(u)[1];
    const float all[kRanks] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    GPU_UNROLL
    for (int r = 0; r < kRanks; ++r) out[r] = all[r];
  } else {
    GPU_UNROLL
    for (int r = 0; r < kRanks; ++r) out[r] = r < ranks ? u[r] : 0.0f;
  }
}

// A lane's share of the rows: every kTileRows-th. sums[r * kEach + j] is that of rank r and the lane's column j.
template <bool kVectorU>
__device__ __forceinline__ void sum_rows(const LoraOuter& a, int64_t column, int64_t first_rank, float (&sums)[kSums]) {
  GPU_UNROLL_4
  for (int64_t row = int(threadIdx.x) / kColumnLanes; row < a.rows; row += kTileRows) {
    float x[kEach], u[kRanks];
    lora::load(a.x + row * a.ldx, column, a.columns, x);
    load_ranks<kVectorU>(a.u + row * a.ldu + first_rank, a.ranks - first_rank, u);
    GPU_UNROLL
    for (int r = 0; r < kRanks; ++r) {
      GPU_UNROLL
      for (int j = 0; j < kEach; ++j) sums[r * kEach + j] = fmaf(u[r], x[j], sums[r * kEach + j]);
    }
  }
}

// The same, where rows cannot be read 16 bytes at a time.
__device__ __forceinline__ void sum_each_row(const LoraOuter& a, int64_t column, int64_t first_rank, float (&sums)[kSums]) {
  GPU_UNROLL_1
  for (int64_t row = int(threadIdx.x) / kColumnLanes; row < a.rows; row += kTileRows) {
    float x[kEach];
    lora::load_each(a.x + row * a.ldx, column, a.columns, x);
    GPU_UNROLL
    for (int r = 0; r < kRanks; ++r) {
      const float u = first_rank + r < a.ranks ? a.u[row * a.ldu + first_rank + r] : 0.0f;
      GPU_UNROLL
      for (int j = 0; j < kEach; ++j) sums[r * kEach + j] = fmaf(u, x[j], sums[r * kEach + j]);
    }
  }
}

// Adds up the lanes that have the same columns: row lane l is left with sums[l * kEach + j], column j of rank l.
__device__ __forceinline__ void sum_lanes(float (&sums)[kSums]) {
  static_assert(kRowLanes == kRanks);
  const int lane = int(threadIdx.x) % kWarp;
  GPU_UNROLL
  for (int mask = kWarp / 2, left = kSums / 2; mask >= kColumnLanes; mask /= 2, left /= 2) {
    const bool upper = (lane & mask) != 0;
    GPU_UNROLL
    for (int i = 0; i < kSums / 2; ++i) {
      if (i >= left) continue;
      const float low = sums[i], high = sums[i + left];
      sums[i] = (upper ? high : low) + __shfl_xor_sync(kAllLanes, upper ? low : high, mask);
    }
  }
}

// Block (tile of columns, group of ranks): each warp sums its share of the rows, then come the warps' sums in order.
__global__ void __launch_bounds__(kOuterWarps* kWarp) outer_kernel(LoraOuter a, bool vectors, bool vectors_u) {
  __shared__ float parts[kOuterWarps][kRanks][kTileColumns];
  wait_for_inputs();
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const int64_t first_column = int64_t(blockIdx.x) * kTileColumns, first_rank = int64_t(blockIdx.y) * kRanks;
  const int64_t lane_column = first_column + lane % kColumnLanes * kEach;
  vectors_u = vectors_u && first_rank + kRanks <= a.ranks;
  float sums[kSums] = {};
  if (vectors && vectors_u) sum_rows<true>(a, lane_column, first_rank, sums);
  else if (vectors) sum_rows<false>(a, lane_column, first_rank, sums);
  else sum_each_row(a, lane_column, first_rank, sums);
  sum_lanes(sums);
  GPU_UNROLL
  for (int j = 0; j < kEach; ++j) parts[warp][lane / kColumnLanes][lane % kColumnLanes * kEach + j] = sums[j];
  __syncthreads();
  const int64_t rank = first_rank + warp, column = first_column + lane;
  if (warp >= kRanks || rank >= a.ranks || column >= a.columns) return;
  float sum = 0;
  GPU_UNROLL
  for (int w = 0; w < kOuterWarps; ++w) sum += parts[w][warp][lane];
  a.gradient[rank * a.columns + column] += sum;
}

}  // namespace

void lora_outer(const LoraOuter& a, cudaStream_t stream) {
  const char* name = "lora_outer";
  check_argument(a.rows >= 0 && a.rows < 1 << 30, name, "rows");
  check_argument(a.ranks >= 1 && a.ranks <= a.ldu && a.ranks <= 1024, name, "ranks");
  check_argument(a.columns >= 1 && a.columns <= a.ldx && a.columns < 1 << 26, name, "columns");
  if (a.rows == 0) return;
  const dim3 grid(unsigned(ceil_div(a.columns, kTileColumns)), unsigned(ceil_div(a.ranks, kRanks)));
  const bool vectors = reinterpret_cast<uintptr_t>(a.x) % 16 == 0 && a.ldx % kEach == 0 && a.columns % kEach == 0;
  const bool vectors_u = a.ldu % 4 == 0 && reinterpret_cast<uintptr_t>(a.u) % 16 == 0;
  GPU_LAUNCH_EARLY(outer_kernel, grid, dim3(kOuterWarps * kWarp), 0, stream, a, vectors, vectors_u);
  check_launch(name);
}

}  // namespace tandem::cuda
