#include "cuda/lora/lora.h"

#include <algorithm>

#include "cuda/common/early_launch.h"
#include "cuda/common/fours.h"
#include "cuda/lora/lora_launch.h"
#include "cuda/lora/lora_outputs.h"

namespace tandem::cuda {
namespace {

using namespace lora;

constexpr int64_t kBlockOutputs = int64_t(kThreads) / kWarp * kWarpOutputs;

// Whether a row's outputs are taken four at a time, one instruction each.
__device__ __forceinline__ bool whole_outputs(const Lora& a, const LoraWeights& w) {
  const uintptr_t rows = reinterpret_cast<uintptr_t>(a.y) | reinterpret_cast<uintptr_t>(a.onto) | reinterpret_cast<uintptr_t>(a.whole);
  return rows % 16 == 0 && a.ldy % 4 == 0 && a.out % 4 == 0 && reinterpret_cast<uintptr_t>(w.b) % 8 == 0;
}

// Rows [begin, end) of the tile that begins with row `first`, all of one adapter, and the warp's outputs from `output` on.
template <bool kWhole>
__device__ __forceinline__ void expand_rows(const Lora& a, const LoraWeights& w, int64_t first, int begin, int end, int output) {
  if (w.rank == 0 && a.onto == nullptr) return;
  const int lane = int(threadIdx.x) % kWarp, of_group = lane / kQuad;
  Four old[2][2] = {};
  // Calls use(row of the lane's two, half of its outputs, where these lie, how many are left) for what is there.
  const auto each = [&](const auto& use) {
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = lane % kQuad * 2 + i / 2, column = output + lane_output(i % 2);
      if (row >= begin && row < end) use(i / 2, i % 2, (first + row) * a.ldy + column, int(a.out) - column);
    }
  };
  each([&](int row, int half, int64_t at, int left) { old[row][half] = load_four<kWhole>(a.y + at, left); });
  if (w.rank > 0) {
    OutputSums sums{};
    const float* u = of_group >= begin && of_group < end ? a.u + (first + of_group) * a.most_rank : nullptr;
    sum_ranks<kWhole>({w.b, w.rank, int(a.out)}, u, output, sums);
    each([&](int row, int half, int64_t, int) {
      GPU_UNROLL
      for (int i = 0; i < 4; ++i) old[row][half].at[i] += sums.of(row, 4 * half + i);
    });
  }
  if (a.onto != nullptr) {
    // All are read before one is written: `whole` may be where they are.
    Four onto[2][2] = {};
    each([&](int row, int half, int64_t at, int left) { onto[row][half] = load_four<kWhole>(a.onto + at, left); });
    each([&](int row, int half, int64_t, int) {
      GPU_UNROLL
      for (int i = 0; i < 4; ++i) old[row][half].at[i] = onto[row][half].at[i] + old[row][half].at[i];
    });
  }
  float* to = a.onto != nullptr ? a.whole : a.y;
  each([&](int row, int half, int64_t at, int left) { store_four<kWhole>(to + at, left, old[row][half]); });
}

// Block (tile of rows, tile of outputs): the tile's rows of one adapter that follow each other go together.
__global__ void __launch_bounds__(kThreads, 3) expand_kernel(const __grid_constant__ Loras all) {
  wait_for_inputs();
  const Lora& a = all.each[blockIdx.z];
  const int output = int(blockIdx.y) * int(kBlockOutputs) + int(threadIdx.x) / kWarp * kWarpOutputs;
  if (output >= a.out) return;
  const int64_t first = int64_t(blockIdx.x) * kRows;
  const TileAdapters adapters(a.row_adapters + first, int(min(int64_t(kRows), a.rows - first)));
  GPU_UNROLL_1
  for (int begin = 0; begin < adapters.rows;) {
    const int end = adapters.end_of(begin);
    const LoraWeights w = weights_of(a.adapters, a.adapter_count, a.most_rank, adapters.at(begin));
    if (whole_outputs(a, w)) expand_rows<true>(a, w, first, begin, end, output);
    else expand_rows<false>(a, w, first, begin, end, output);
    begin = end;
  }
}

}  // namespace

void lora_expand(const Lora* all, int64_t count, cudaStream_t stream) {
  const Loras loras = checked(all, count, "lora_expand");
  const Lora& a = loras.each[0];
  if (a.rows == 0 || (no_rank(a) && a.onto == nullptr)) return;
  int64_t most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, all[i].out);
  const dim3 grid(unsigned(ceil_div(a.rows, kRows)), unsigned(ceil_div(most, kBlockOutputs)), unsigned(count));
  GPU_LAUNCH_EARLY(expand_kernel, grid, dim3(kThreads), 0, stream, loras);
  check_launch("lora_expand");
}

void lora_add(const Lora* all, int64_t count, cudaStream_t stream) {
  lora_shrink(all, count, stream);
  lora_expand(all, count, stream);
}

}  // namespace tandem::cuda
