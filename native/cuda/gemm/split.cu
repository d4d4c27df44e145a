#include "cuda/gemm/split.h"

#include <algorithm>

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/gemm/sum_parts.h"

namespace tandem::cuda {
namespace {

constexpr int kAddThreads = 128;
// Blocks of 64 outputs that keep a large device's memory busy; a constant, so that the sums are the same on every device.
constexpr int64_t kWantedParts = 128, kPartOutputs = 64;
// Three quarters of them do where a part would be short.
constexpr int64_t kEnoughBlocks = 96, kLeastSplitDepth = 256, kLongSplitDepth = 2048;
// Beyond so many tokens one block adds up all parts itself, unless there would be so few blocks, of so many tokens and outputs, that a quarter
// of a large device idles. Which of both it is changes no bit.
constexpr int64_t kMostSplitTokens = 64;
constexpr int64_t kFewBlocks = 96, kBlockTokens = 128, kManyOutputs = 128;

int64_t most_split_tokens(int64_t n) { return std::max(kMostSplitTokens, kFewBlocks / ceil_div(n, kManyOutputs) * kBlockTokens); }

// y = the parts, or `onto`, where that is not null, and the parts.
template <bool kWhole>
__global__ void __launch_bounds__(kAddThreads) add_parts_kernel(Parts parts, const float* onto, float* y, int64_t ldy, unsigned runs) {
  wait_for_inputs();
  const ColumnPlace place = place_of(runs, 4 * kAddThreads);
  const int column[1] = {place.column}, left[1] = {int(parts.columns) - place.column};
  const int64_t at = place.row * ldy + place.column;
  Four old{}, total[1] = {};
  if (onto != nullptr) old = load_four<kWhole>(onto + at, left[0]);
  sum_parts<kWhole, 16>(parts, place.row, column, left, total);
  if (onto != nullptr) {
    GPU_UNROLL
    for (int c = 0; c < 4; ++c) total[0].at[c] = old.at[c] + total[0].at[c];
  }
  store_four<kWhole>(y + at, left[0], total[0]);
}

void launch_add(const Parts& parts, const float* onto, float* y, int64_t ldy, cudaStream_t stream) {
  if (parts.count == 0 || parts.rows == 0) return;
  const unsigned runs = unsigned(ceil_div(parts.columns, 4 * kAddThreads));
  const dim3 grid(unsigned(parts.rows) * runs), block(kAddThreads);
  const bool whole = in_fours(parts) && in_fours(y, ldy) && in_fours(onto, ldy);
  if (whole) GPU_LAUNCH_EARLY(add_parts_kernel<true>, grid, block, 0, stream, parts, onto, y, ldy, runs);
  else GPU_LAUNCH_EARLY(add_parts_kernel<false>, grid, block, 0, stream, parts, onto, y, ldy, runs);
  check_launch("matmul: adding parts");
}

}  // namespace

Split split_of(int64_t m, int64_t n, int64_t k) {
  const int64_t tiles = ceil_div(k, kSplitDepth), blocks = ceil_div(n, kPartOutputs);
  const int64_t least = blocks < kEnoughBlocks ? kLeastSplitDepth : kLongSplitDepth;
  const int64_t wanted = std::min(ceil_div(kWantedParts, blocks), std::max<int64_t>(1, k / least));
  const int64_t each = ceil_div(ceil_div(tiles, wanted), kSplitTiles) * kSplitTiles, parts = ceil_div(tiles, each);
  return {int(each), int(parts), parts > 1 && m <= most_split_tokens(n)};
}

int64_t matmul_splits(int64_t n, int64_t k) { return split_of(1, n, k).parts; }

int64_t matmul_workspace_floats(int64_t m, int64_t n, int64_t k) {
  const Split split = split_of(m, n, k);
  return split.in_grid ? split.parts * m * n : 0;
}

int64_t matmul_most_workspace_floats(int64_t most_m, int64_t n, int64_t k) {
  return matmul_workspace_floats(std::min(most_m, most_split_tokens(n)), n, k);
}

Parts matmul_parts(const MatMul& a) {
  const Split split = split_of(a.m, a.n, a.k);
  return split.in_grid && a.leave_parts ? Parts{a.workspace, split.parts, a.m, a.n} : Parts{};
}

void add_parts(const Parts& parts, float* y, int64_t ldy, bool accumulate, cudaStream_t stream) {
  launch_add(parts, accumulate ? y : nullptr, y, ldy, stream);
}

void add_parts(const MatMul& a, const Parts& parts, cudaStream_t stream) {
  launch_add(parts, !a.accumulate ? nullptr : a.onto != nullptr ? a.onto : a.y, a.y, a.ldy, stream);
}

void add_parts(const MatMul& a, const Split& split, cudaStream_t stream) {
  if (!a.leave_parts) add_parts(a, Parts{a.workspace, split.parts, a.m, a.n}, stream);
}

}  // namespace tandem::cuda
