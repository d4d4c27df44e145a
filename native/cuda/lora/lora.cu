#include "cuda/lora/lora.h"

#include <algorithm>

#include "cuda/common/early_launch.h"
#include "cuda/lora/lora_launch.h"

namespace tandem::cuda {
namespace {

using lora::checked;
using lora::kExpandRows;
using lora::kManyRows;
using lora::kOutputs;
using lora::kThreads;
using lora::load_factors;
using lora::load_outputs;
using lora::Loras;
using lora::no_rank;
using lora::store_outputs;
using lora::weights_of;

constexpr int64_t kTileOutputs = int64_t(kThreads) * kOutputs;

// Whether rows [first, first + kCount) that there are have one adapter.
template <int kCount>
__device__ __forceinline__ bool one_adapter(const Lora& a, int64_t first) {
  int32_t adapters[kCount];
  GPU_UNROLL
  for (int i = 0; i < kCount; ++i) adapters[i] = a.row_adapters[min(first + i, a.rows - 1)];
  bool one = true;
  GPU_UNROLL
  for (int i = 1; i < kCount; ++i) one = one && adapters[i] == adapters[0];
  return one;
}

// Whether a row's outputs are taken kOutputs at a time, one instruction each.
__device__ __forceinline__ bool whole_outputs(const Lora& a, const LoraWeights& w) {
  const uintptr_t rows = reinterpret_cast<uintptr_t>(a.y) | reinterpret_cast<uintptr_t>(a.onto) | reinterpret_cast<uintptr_t>(a.whole);
  return rows % 16 == 0 && a.ldy % kOutputs == 0 && a.out % kOutputs == 0 && reinterpret_cast<uintptr_t>(w.b) % 8 == 0;
}

__device__ __forceinline__ float* target_of(const Lora& a) { return a.onto != nullptr ? a.whole : a.y; }

// Outputs [output, output + kOutputs) of a row.
template <bool kVector>
__device__ __forceinline__ void expand_row(const Lora& a, const LoraWeights& w, int64_t row, int64_t output) {
  if (output >= a.out || (w.rank == 0 && a.onto == nullptr)) return;
  const int64_t at = row * a.ldy + output, count = a.out - output;
  const float* u = a.u + row * a.most_rank;
  float total[kOutputs], onto[kOutputs] = {}, sums[kOutputs] = {};
  load_outputs<kVector>(a.y + at, count, total);
  if (a.onto != nullptr) load_outputs<kVector>(a.onto + at, count, onto);
  GPU_UNROLL_4
  for (int r = 0; r < w.rank; ++r) {
    float factors[kOutputs];
    load_factors<kVector>(w.b + r * a.out, output, a.out, factors);
    GPU_UNROLL
    for (int i = 0; i < kOutputs; ++i) sums[i] = fmaf(factors[i], u[r], sums[i]);
  }
  GPU_UNROLL
  for (int i = 0; i < kOutputs; ++i) {
    if (w.rank > 0) total[i] += sums[i];
    if (a.onto != nullptr) total[i] = onto[i] + total[i];
  }
  store_outputs<kVector>(target_of(a) + at, count, total);
}

__device__ __forceinline__ void expand_row(const Lora& a, int64_t row, int64_t output) {
  const LoraWeights w = weights_of(a, row);
  if (whole_outputs(a, w)) expand_row<true>(a, w, row, output);
  else expand_row<false>(a, w, row, output);
}

// Block (row, tile of outputs).
__global__ void __launch_bounds__(kThreads) expand_kernel(Loras all) {
  wait_for_inputs();
  const Lora& a = all.each[blockIdx.z];
  expand_row(a, blockIdx.x, int64_t(blockIdx.y) * kTileOutputs + int64_t(threadIdx.x) * kOutputs);
}

// A tile's outputs of rows from `from` on; of rows that there are not the last again.
__device__ __forceinline__ void load_rows(const float* from, int64_t ld, int count, int64_t left, float (&out)[kExpandRows][kOutputs]) {
  GPU_UNROLL
  for (int r = 0; r < kExpandRows; ++r) load_outputs<true>(from + min(r, count - 1) * ld, left, out[r]);
}

// Rows [first, first + count) of one adapter with a rank. All threads of the block call.
__device__ __forceinline__ void expand_tile(const Lora& a, const LoraWeights& w, int64_t first, int count, int64_t output) {
  const int64_t at = first * a.ldy + output, left = a.out - output;
  float old[kExpandRows][kOutputs], sums[kExpandRows][kOutputs] = {};
  if (left > 0) load_rows(a.y + at, a.ldy, count, left, old);
  lora::sum_ranks<true>({w.b, w.rank, a.out, a.u + first * a.most_rank, a.most_rank, count}, output, sums);
  if (left <= 0) return;
  float onto[kExpandRows][kOutputs] = {};
  if (a.onto != nullptr) load_rows(a.onto + at, a.ldy, count, left, onto);
  GPU_UNROLL
  for (int r = 0; r < kExpandRows; ++r) {
    GPU_UNROLL
    for (int i = 0; i < kOutputs; ++i) {
      sums[r][i] = old[r][i] + sums[r][i];
      if (a.onto != nullptr) sums[r][i] = onto[r][i] + sums[r][i];
    }
  }
  GPU_UNROLL
  for (int r = 0; r < kExpandRows; ++r) {
    if (r < count) lora::store_4(target_of(a) + at + r * a.ldy, sums[r]);
  }
}

// Block (tile of kExpandRows rows, tile of outputs).
__global__ void __launch_bounds__(kThreads, 2) expand_rows_kernel(Loras all) {
  wait_for_inputs();
  const Lora& a = all.each[blockIdx.z];
  if (int64_t(blockIdx.y) * kTileOutputs >= a.out) return;
  const int64_t first = int64_t(blockIdx.x) * kExpandRows;
  const int64_t output = int64_t(blockIdx.y) * kTileOutputs + int64_t(threadIdx.x) * kOutputs;
  const int count = int(min(int64_t(kExpandRows), a.rows - first));
  const LoraWeights w = weights_of(a, first);
  if (!one_adapter<kExpandRows>(a, first) || w.rank == 0 || !whole_outputs(a, w)) {
    GPU_UNROLL_1
    for (int64_t row = first; row < first + count; ++row) expand_row(a, row, output);
    return;
  }
  expand_tile(a, w, first, count, output);
}

}  // namespace

void lora_expand(const Lora* all, int64_t count, cudaStream_t stream) {
  const Loras loras = checked(all, count, "lora_expand");
  const Lora& a = loras.each[0];
  if (a.rows == 0 || (no_rank(a) && a.onto == nullptr)) return;
  int64_t most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, all[i].out);
  const unsigned outputs = unsigned(ceil_div(most, kTileOutputs));
  const dim3 tiles(unsigned(ceil_div(a.rows, kExpandRows)), outputs, unsigned(count)), rows(unsigned(a.rows), outputs, unsigned(count));
  if (a.rows >= kManyRows) GPU_LAUNCH_EARLY(expand_rows_kernel, tiles, dim3(kThreads), 0, stream, loras);
  else GPU_LAUNCH_EARLY(expand_kernel, rows, dim3(kThreads), 0, stream, loras);
  check_launch("lora_expand");
}

void lora_add(const Lora* all, int64_t count, cudaStream_t stream) {
  lora_shrink(all, count, stream);
  lora_expand(all, count, stream);
}

}  // namespace tandem::cuda
