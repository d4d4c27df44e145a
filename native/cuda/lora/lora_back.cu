#include "cuda/lora/lora_back.h"

#include <algorithm>

#include "cuda/common/early_launch.h"
#include "cuda/common/fours.h"
#include "cuda/common/launch.h"
#include "cuda/lora/lora_outputs.h"

namespace tandem::cuda {
namespace {

using lora::Eight;
using lora::kEach;
using lora::kQuad;
using lora::kWarpOutputs;
using lora::load_eight;
using Projection = LoraBack::Projection;

constexpr int kBackWarps = 16, kBackRows = 16, kBackRanks = 8;
// Of a row that a warp takes at a time: four lanes share a row, each of 8 columns twice.
constexpr int kHalf = kQuad * kEach, kStrip = 2 * kHalf;
// A warp expands kWarpOutputs columns of kExpandRows rows.
constexpr int kExpandThreads = 256, kExpandRows = lora::kRows, kExpandColumns = kExpandThreads / kWarp * kWarpOutputs;

// 16 rows by 8 ranks get 32 columns: which columns an instruction multiplies together is free, so each lane's are those that it has read.
__device__ __forceinline__ void add_columns(const Eight& upper, const Eight& lower, const Eight& b, float (&sums)[4]) {
  GPU_UNROLL
  for (int i = 0; i < kEach / 2; i += 2) {
    const uint32_t rows[4] = {upper.words[i], lower.words[i], upper.words[i + 1], lower.words[i + 1]};
    const uint32_t factors[2] = {b.words[i], b.words[i + 1]};
    mma_m16n8k16(sums, rows, factors);
  }
}

// A warp's share of the columns: every kBackWarps-th strip. Of rows and ranks that there are not the last again.
template <bool kVector>
__device__ __forceinline__ void sum_strips(const LoraBack& a, const Projection& p, int64_t first, int64_t first_rank, float (&sums)[4]) {
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp, in_quad = lane % kQuad * kEach;
  const int64_t upper = min(first + lane / kQuad, a.rows - 1), lower = min(first + lane / kQuad + kBackRows / 2, a.rows - 1);
  const bf16 *upper_row = a.d + upper * a.ldd + p.first, *lower_row = a.d + lower * a.ldd + p.first;
  const bf16* b = p.b + min(first_rank + lane / kQuad, p.rank - 1) * p.out;
  GPU_UNROLL_2
  for (int64_t strip = warp * kStrip; strip < p.out; strip += kBackWarps * kStrip) {
    Eight rows[2][2], factors[2];
    GPU_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int64_t at = strip + i * kHalf + in_quad;
      rows[i][0] = load_eight<kVector>(upper_row, at, p.out);
      rows[i][1] = load_eight<kVector>(lower_row, at, p.out);
      factors[i] = load_eight<kVector>(b, at, p.out);
    }
    GPU_UNROLL
    for (int i = 0; i < 2; ++i) add_columns(rows[i][0], rows[i][1], factors[i], sums);
  }
}

// Block (tile of rows, group of ranks, projection): each warp sums its share of the columns, then come the warps' sums in order.
__global__ void __launch_bounds__(kBackWarps* kWarp, 1) back_shrink_kernel(LoraBack a) {
  GPU_SHARED(parts, float[kBackWarps][kBackRows][kBackRanks]);
  wait_for_inputs();
  const Projection& p = a.projections[blockIdx.z];
  const int64_t first = int64_t(blockIdx.x) * kBackRows, first_rank = int64_t(blockIdx.y) * kBackRanks;
  if (first_rank >= p.rank) return;
  float sums[4] = {};
  if (lora::whole_vectors(a.d + p.first, p.out, a.ldd) && lora::whole_vectors(p.b, p.out, p.out)) {
    sum_strips<true>(a, p, first, first_rank, sums);
  } else {
    sum_strips<false>(a, p, first, first_rank, sums);
  }
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  GPU_UNROLL
  for (int i = 0; i < 4; ++i) parts[warp][lane / kQuad + i / 2 * (kBackRows / 2)][lane % kQuad * 2 + i % 2] = sums[i];
  __syncthreads();
  const int row = int(threadIdx.x) / kBackRanks, rank = int(threadIdx.x) % kBackRanks;
  if (row >= kBackRows || first + row >= a.rows || first_rank + rank >= p.rank) return;
  float sum = parts[0][row][rank];
  GPU_UNROLL
  for (int w = 1; w < kBackWarps; ++w) sum += parts[w][row][rank];
  p.u[(first + row) * p.rank + first_rank + rank] = p.scale * sum;
}

// A tile of rows and the warp's columns of dx, which all projections are added to before it goes back.
template <bool kWhole>
__device__ __forceinline__ void expand_back(const LoraBack& a, int64_t first, int count, int column) {
  const int lane = int(threadIdx.x) % kWarp, of_group = lane / kQuad;
  Four total[2][2] = {};
  // Calls use(row of the lane's two, half of its columns, row of dx, column, how many are left) for what is there.
  const auto each = [&](const auto& use) {
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = lane % kQuad * 2 + i / 2, at = column + lora::lane_output(i % 2);
      if (row < count) use(i / 2, i % 2, first + row, at, int(a.in) - at);
    }
  };
  each([&](int row, int half, int64_t of_dx, int at, int left) { total[row][half] = load_four<kWhole>(a.dx + of_dx * a.lddx + at, left); });
  GPU_UNROLL_1
  for (int64_t i = 0; i < a.count; ++i) {
    const Projection& p = a.projections[i];
    lora::OutputSums sums{};
    const float* u = of_group < count ? p.u + (first + of_group) * p.rank : nullptr;
    lora::sum_ranks<kWhole>({p.a, int(p.rank), int(a.in)}, u, column, sums);
    each([&](int row, int half, int64_t, int, int) {
      GPU_UNROLL
      for (int j = 0; j < 4; ++j) total[row][half].at[j] += sums.of(row, 4 * half + j);
    });
  }
  each([&](int row, int half, int64_t of_dx, int at, int left) {
    if (a.rounded == nullptr) store_four<kWhole>(a.dx + of_dx * a.lddx + at, left, total[row][half]);
    else store_four<kWhole>(a.rounded + of_dx * a.in + at, left, total[row][half]);
  });
}

// Block (tile of rows, tile of columns).
template <bool kWhole>
__global__ void __launch_bounds__(kExpandThreads) back_expand_kernel(LoraBack a) {
  wait_for_inputs();
  const int64_t first = int64_t(blockIdx.x) * kExpandRows;
  const int column = int(blockIdx.y) * kExpandColumns + int(threadIdx.x) / kWarp * kWarpOutputs;
  if (column < a.in) expand_back<kWhole>(a, first, int(min(int64_t(kExpandRows), a.rows - first)), column);
}

void check(const LoraBack& a, const char* name) {
  check_argument(a.count >= 0 && a.count <= LoraBack::kMost, name, "count");
  check_argument(a.rows >= 0 && a.rows < 1 << 30, name, "rows");
  for (int64_t i = 0; i < a.count; ++i) {
    const Projection& p = a.projections[i];
    check_argument(p.rank >= 1 && p.rank <= 1024, name, "rank");
    check_argument(p.out >= 1 && p.out < 1 << 23 && p.first >= 0 && p.first + p.out <= a.ldd, name, "out");
  }
}

bool whole_outputs(const LoraBack& a) {
  bool factors = true;
  for (int64_t i = 0; i < a.count; ++i) factors = factors && reinterpret_cast<uintptr_t>(a.projections[i].a) % 8 == 0;
  return factors && in_fours(a.dx, a.lddx) && in_fours(a.rounded) && a.in % 4 == 0;
}

}  // namespace

void lora_back_shrink(const LoraBack& a, cudaStream_t stream) {
  check(a, "lora_back_shrink");
  if (a.rows == 0 || a.count == 0) return;
  int64_t most = 0;
  for (int64_t i = 0; i < a.count; ++i) most = std::max(most, a.projections[i].rank);
  const dim3 grid(unsigned(ceil_div(a.rows, kBackRows)), unsigned(ceil_div(most, kBackRanks)), unsigned(a.count));
  GPU_LAUNCH_EARLY(back_shrink_kernel, grid, dim3(kBackWarps * kWarp), 0, stream, a);
  check_launch("lora_back_shrink");
}

void lora_back_expand(const LoraBack& a, cudaStream_t stream) {
  check(a, "lora_back_expand");
  check_argument(a.in >= 1 && a.in <= a.lddx && a.in < 1 << 23, "lora_back_expand", "in");
  if (a.rows == 0 || (a.count == 0 && a.rounded == nullptr)) return;
  const dim3 grid(unsigned(ceil_div(a.rows, kExpandRows)), unsigned(ceil_div(a.in, kExpandColumns)));
  if (whole_outputs(a)) GPU_LAUNCH_EARLY(back_expand_kernel<true>, grid, dim3(kExpandThreads), 0, stream, a);
  else GPU_LAUNCH_EARLY(back_expand_kernel<false>, grid, dim3(kExpandThreads), 0, stream, a);
  check_launch("lora_back_expand");
}

}  // namespace tandem::cuda
