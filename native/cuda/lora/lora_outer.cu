#include <algorithm>

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/common/tensor_core.h"
#include "cuda/lora/lora_back.h"
#include "cuda/lora/lora_sums.h"

namespace tandem::cuda {
namespace {

using lora::kRanks;

constexpr int kOuterWarps = 16;
// A warp takes 16 rows of 32 columns at a time, a lane 4 of either. Rows are the products' inputs and columns their outputs, and which of
// them an instruction takes together is free: a lane's own go to the places that an instruction reads from this lane.
constexpr int kLaneRows = 4, kLaneColumns = 4;
constexpr int kRowLanes = 4, kColumnLanes = kWarp / kRowLanes;
constexpr int kTileRows = kRowLanes * kLaneRows, kTileColumns = kColumnLanes * kLaneColumns;

struct Outers {
  LoraOuter each[LoraOuter::kMost];
  bool vectors[LoraOuter::kMost];
};

// A lane's rows of x, two columns to a word, and u of its rank; zeros where there is nothing.
struct LaneRows {
  uint32_t x[kLaneRows][kLaneColumns / 2];
  float u[kLaneRows];
};

template <bool kVector>
__device__ __forceinline__ void load_columns(const bf16* row, int64_t count, uint32_t (&out)[kLaneColumns / 2]) {
  if constexpr (kVector) {
    if (count <= 0) return;
    const float2 all = *reinterpret_cast<const float2*>(row);
    memcpy(out, &all, sizeof all);
  } else {
    GPU_UNROLL
    for (int j = 0; j < kLaneColumns; ++j) {
      if (j < count) out[j / 2] |= uint32_t(row[j].bits) << (j % 2 * 16);
    }
  }
}

template <bool kVector>
__device__ __forceinline__ LaneRows load_rows(const LoraOuter& a, int64_t row, int64_t column, int64_t rank) {
  LaneRows rows{};
  GPU_UNROLL
  for (int i = 0; i < kLaneRows; ++i) {
    if (row + i >= a.rows) continue;
    load_columns<kVector>(a.x + (row + i) * a.ldx + column, a.columns - column, rows.x[i]);
    if (rank < a.ranks) rows.u[i] = a.u[(row + i) * a.ldu + rank];
  }
  return rows;
}

// Two numbers as the sums of two bf16 each: the upper ones and what they leave.
__device__ __forceinline__ void split(float first, float second, uint32_t& upper, uint32_t& rest) {
  upper = pack_rounded(first, second);
  rest = pack_rounded(first - to_float(bf16{uint16_t(upper)}), second - to_float(bf16{uint16_t(upper >> 16)}));
}

// sums[j] gets the lane's rows, for its column j: of an instruction's 16 outputs 8 are ranks and 8 the rest of the same ranks.
__device__ __forceinline__ void add_rows(const LaneRows& rows, float (&sums)[kLaneColumns][4]) {
  uint32_t u[4];
  split(rows.u[0], rows.u[1], u[0], u[1]);
  split(rows.u[2], rows.u[3], u[2], u[3]);
  GPU_UNROLL
  for (int j = 0; j < kLaneColumns; ++j) {
    const uint32_t half = j % 2 == 0 ? 0x5410 : 0x7632;
    const uint32_t x[2] = {pick_bytes(rows.x[0][j / 2], rows.x[1][j / 2], half), pick_bytes(rows.x[2][j / 2], rows.x[3][j / 2], half)};
    mma_m16n8k16(sums[j], u, x);
  }
}

// A warp's share of the rows: every kOuterWarps-th tile of them.
template <bool kVector>
__device__ __forceinline__ void sum_rows(const LoraOuter& a, int64_t first_column, int64_t first_rank, float (&sums)[kLaneColumns][4]) {
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const int64_t column = first_column + lane / kRowLanes * kLaneColumns, rank = first_rank + lane / kRowLanes;
  GPU_UNROLL_4
  for (int64_t row = warp * kTileRows; row < a.rows; row += kOuterWarps * kTileRows) {
    add_rows(load_rows<kVector>(a, row + lane % kRowLanes * kLaneRows, column, rank), sums);
  }
}

// Block (tile of columns, group of ranks, which outer product): each warp sums its share of the rows, then come the warps' sums in order.
__global__ void __launch_bounds__(kOuterWarps* kWarp, 2) outer_kernel(Outers all) {
  GPU_SHARED(parts, float[kOuterWarps][kRanks][kTileColumns]);
  wait_for_inputs();
  const LoraOuter& a = all.each[blockIdx.z];
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const int64_t first_column = int64_t(blockIdx.x) * kTileColumns, first_rank = int64_t(blockIdx.y) * kRanks;
  if (first_column >= a.columns || first_rank >= a.ranks) return;
  float sums[kLaneColumns][4] = {};
  if (all.vectors[blockIdx.z]) sum_rows<true>(a, first_column, first_rank, sums);
  else sum_rows<false>(a, first_column, first_rank, sums);
  GPU_UNROLL
  for (int side = 0; side < 2; ++side) {
    float columns[kLaneColumns];
    GPU_UNROLL
    for (int j = 0; j < kLaneColumns; ++j) columns[j] = sums[j][side] + sums[j][side + 2];
    lora::store_4(&parts[warp][lane / kRowLanes][(lane % kRowLanes * 2 + side) * kLaneColumns], columns);
  }
  __syncthreads();
  const int64_t rank = first_rank + warp, column = first_column + lane;
  if (warp >= kRanks || rank >= a.ranks || column >= a.columns) return;
  float sum = 0;
  GPU_UNROLL
  for (int w = 0; w < kOuterWarps; ++w) sum += parts[w][warp][lane];
  a.gradient[rank * a.columns + column] += sum;
}

bool whole_columns(const LoraOuter& a) {
  return reinterpret_cast<uintptr_t>(a.x) % 8 == 0 && a.ldx % kLaneColumns == 0 && a.columns % kLaneColumns == 0;
}

}  // namespace

void lora_outer(const LoraOuter* all, int64_t count, cudaStream_t stream) {
  const char* name = "lora_outer";
  check_argument(count >= 0 && count <= LoraOuter::kMost, name, "count");
  Outers outers{};
  int64_t most_columns = 0, most_ranks = 0;
  for (int64_t i = 0; i < count; ++i) {
    const LoraOuter& a = outers.each[i] = all[i];
    check_argument(a.rows >= 0 && a.rows < 1 << 30, name, "rows");
    check_argument(a.ranks >= 1 && a.ranks <= a.ldu && a.ranks <= 1024, name, "ranks");
    check_argument(a.columns >= 1 && a.columns <= a.ldx && a.columns < 1 << 26, name, "columns");
    outers.vectors[i] = whole_columns(a);
    most_columns = std::max(most_columns, a.columns);
    most_ranks = std::max(most_ranks, a.ranks);
  }
  if (count == 0) return;
  const dim3 grid(unsigned(ceil_div(most_columns, kTileColumns)), unsigned(ceil_div(most_ranks, kRanks)), unsigned(count));
  GPU_LAUNCH_EARLY(outer_kernel, grid, dim3(kOuterWarps * kWarp), 0, stream, outers);
  check_launch(name);
}

}  // namespace tandem::cuda
