#include "cuda/lora/lora_back.h"

#include <algorithm>

#include "cuda/common/early_launch.h"
#include "cuda/common/fours.h"
#include "cuda/common/launch.h"
#include "cuda/lora/lora_sums.h"

namespace tandem::cuda {
namespace {

using lora::kEach;
using lora::kExpandRows;
using lora::kOutputs;
using lora::kRanks;
using Projection = LoraBack::Projection;

constexpr int kBackWarps = 16, kBackRows = 16;
// Of a row that a warp takes at a time: four lanes share a row, each of 8 columns twice.
constexpr int kQuad = 4, kHalf = kQuad * kEach, kStrip = 2 * kHalf;
constexpr int kExpandThreads = 256;
constexpr int64_t kExpandOutputs = int64_t(kExpandThreads) * kOutputs;

struct Eight {
  uint32_t words[kEach / 2];
};

// Elements [at, at + 8) of a row that has `count`, two to a word; zero from there on.
template <bool kVector>
__device__ __forceinline__ Eight load_eight(const bf16* row, int64_t at, int64_t count) {
  Eight out{};
  if constexpr (kVector) {
    if (at >= count) return out;
    const uint4 all = *reinterpret_cast<const uint4*>(row + at);
    return {{all.x, all.y, all.z, all.w}};
  } else {
    GPU_UNROLL
    for (int i = 0; i < kEach; ++i) {
      if (at + i < count) out.words[i / 2] |= uint32_t(row[at + i].bits) << (i % 2 * 16);
    }
    return out;
  }
}

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
  GPU_SHARED(parts, float[kBackWarps][kBackRows][kRanks]);
  wait_for_inputs();
  const Projection& p = a.projections[blockIdx.z];
  const int64_t first = int64_t(blockIdx.x) * kBackRows, first_rank = int64_t(blockIdx.y) * kRanks;
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
  const int row = int(threadIdx.x) / kRanks, rank = int(threadIdx.x) % kRanks;
  if (row >= kBackRows || first + row >= a.rows || first_rank + rank >= p.rank) return;
  float sum = parts[0][row][rank];
  GPU_UNROLL
  for (int w = 1; w < kBackWarps; ++w) sum += parts[w][row][rank];
  p.u[(first + row) * p.rank + first_rank + rank] = p.scale * sum;
}

// A tile of rows and a thread's outputs of dx, which all projections are added to before it goes back.
template <bool kVector>
__device__ __forceinline__ void expand_back(const LoraBack& a, int64_t first, int count, int64_t output) {
  const int64_t left = a.in - output;
  float* dx = a.dx + first * a.lddx + output;
  float total[kExpandRows][kOutputs] = {};
  if (left > 0) {
    GPU_UNROLL
    for (int r = 0; r < kExpandRows; ++r) lora::load_outputs<kVector>(dx + min(r, count - 1) * a.lddx, left, total[r]);
  }
  GPU_UNROLL_1
  for (int64_t i = 0; i < a.count; ++i) {
    float sums[kExpandRows][kOutputs] = {};
    const Projection& p = a.projections[i];
    lora::sum_ranks<kVector>({p.a, p.rank, a.in, p.u + first * p.rank, p.rank, count}, output, sums);
    GPU_UNROLL
    for (int r = 0; r < kExpandRows; ++r) {
      GPU_UNROLL
      for (int j = 0; j < kOutputs; ++j) total[r][j] += sums[r][j];
    }
  }
  if (left <= 0) return;
  GPU_UNROLL
  for (int r = 0; r < kExpandRows; ++r) {
    if (r >= count) continue;
    if (a.rounded == nullptr) {
      lora::store_outputs<kVector>(dx + r * a.lddx, left, total[r]);
    } else {
      const Four v{{total[r][0], total[r][1], total[r][2], total[r][3]}};
      store_four<kVector>(a.rounded + (first + r) * a.in + output, int(left), v);
    }
  }
}

// Block (tile of rows, tile of outputs).
template <bool kVector>
__global__ void __launch_bounds__(kExpandThreads, 2) back_expand_kernel(LoraBack a) {
  wait_for_inputs();
  const int64_t first = int64_t(blockIdx.x) * kExpandRows;
  const int64_t output = int64_t(blockIdx.y) * kExpandOutputs + int64_t(threadIdx.x) * kOutputs;
  expand_back<kVector>(a, first, int(min(int64_t(kExpandRows), a.rows - first)), output);
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
  return factors && in_fours(a.dx, a.lddx) && in_fours(a.rounded) && a.in % kOutputs == 0;
}

}  // namespace

void lora_back_shrink(const LoraBack& a, cudaStream_t stream) {
  check(a, "lora_back_shrink");
  if (a.rows == 0 || a.count == 0) return;
  int64_t most = 0;
  for (int64_t i = 0; i < a.count; ++i) most = std::max(most, a.projections[i].rank);
  const dim3 grid(unsigned(ceil_div(a.rows, kBackRows)), unsigned(ceil_div(most, kRanks)), unsigned(a.count));
  GPU_LAUNCH_EARLY(back_shrink_kernel, grid, dim3(kBackWarps * kWarp), 0, stream, a);
  check_launch("lora_back_shrink");
}

void lora_back_expand(const LoraBack& a, cudaStream_t stream) {
  check(a, "lora_back_expand");
  check_argument(a.in >= 1 && a.in <= a.lddx && a.in < 1 << 23, "lora_back_expand", "in");
  if (a.rows == 0 || (a.count == 0 && a.rounded == nullptr)) return;
  const dim3 grid(unsigned(ceil_div(a.rows, kExpandRows)), unsigned(ceil_div(a.in, kExpandOutputs)));
  if (whole_outputs(a)) GPU_LAUNCH_EARLY(back_expand_kernel<true>, grid, dim3(kExpandThreads), 0, stream, a);
  else GPU_LAUNCH_EARLY(back_expand_kernel<false>, grid, dim3(kExpandThreads), 0, stream, a);
  check_launch("lora_back_expand");
}

}  // namespace tandem::cuda
