// A product on Hopper: a warp brings boxes of weights and of tokens by TMA through a ring of stages, groups of four warps multiply them by
// wgmma, 64 outputs each. Weights are on the side of 64 rows and tokens on the other, so that few tokens cost few columns.
//
// Measured on an H200 and left: pairs of blocks of a cluster that bring half of the tokens each, to both (TMA multicast), were 0.44 to 0.86
// times as fast, though the L2 cache is read a quarter to a third less.
#include <algorithm>

#include "cuda/common/launch.h"
#include "cuda/gemm/matmul_wgmma_block.h"
#include "cuda/gemm/variants.h"
#include "cuda/lora/lora_within_block.h"

namespace tandem::cuda {
namespace {

// Block (tile of tokens within tile of outputs, part).
template <int kTokens, int kGroups, Kind kKind, int kBlocks, int kTiles>
__global__ void __launch_bounds__(Shape<kTokens, kGroups, kKind, kBlocks, kTiles>::kThreads, kBlocks)
    matmul_wgmma_kernel(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap tokens, MatMul a, Course course) {
#if TANDEM_HOPPER_CODE
  using S = Shape<kTokens, kGroups, kKind, kBlocks, kTiles>;
  GPU_SHARED_BYTES(shared);
  const BlockPlace block{int(blockIdx.x), int(blockIdx.y), int(blockIdx.y * gridDim.x + blockIdx.x)};
  multiply_block<kTokens, kGroups, kKind, S>(&weights, &tokens, a, course, block, shared);
#endif
}

// The same behind blocks that make what adapters add, which are placed first; `tiles` blocks of each part. Registers of few tokens are counted
// as for four blocks, so that what follows has room beside them; with 64 tokens that would spill more than it gains (both seen on an H200).
template <int kTokens, int kGroups, Kind kKind, int kBlocks, int kTiles>
__global__ void __launch_bounds__(Shape<kTokens, kGroups, kKind, kBlocks, kTiles>::kThreads, kTokens < 64 ? 4 : kBlocks)
    matmul_wgmma_adapters_kernel(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap tokens, MatMul a,
                                 Course course, int tiles, const __grid_constant__ LoraWithin adapters) {
#if TANDEM_HOPPER_CODE
  using S = Shape<kTokens, kGroups, kKind, kBlocks, kTiles>;
  GPU_SHARED_BYTES(shared);
  const int number = int(blockIdx.x), own = number - adapters.blocks;
  if (own < 0) return lora::run_within<kAdapterBytes<S>>(adapters, kKind == kGated, number, shared);
  const BlockPlace block{own % tiles, own / tiles, number};
  AddedPart added;
  if (kKind == kGated) added = {adapters.part.part, adapters.part.arrived, adapters.blocks, tiles};
  multiply_block<kTokens, kGroups, kKind, S>(&weights, &tokens, a, course, block, shared, added);
#endif
}

constexpr int64_t kMultiprocessors = 132;  // of a large device

// How many more blocks begin together with the last ones of `blocks`.
int64_t free_places(int64_t blocks, int64_t per_multiprocessor) {
  const int64_t places = kMultiprocessors * per_multiprocessor;
  return ceil_div(blocks, places) * places - blocks;
}

void end_launch(const MatMul& a, const Split& split, cudaStream_t stream) {
  check_launch("matmul_wgmma");
  if (split.in_grid) add_parts(a, split, stream);
}

template <int kTokens, int kGroups, Kind kKind, int kBlocks, int kTiles>
void launch_tiles(const MatMul& a, const Split& split, cudaStream_t stream) {
  using S = Shape<kTokens, kGroups, kKind, kBlocks, kTiles>;
  const auto kernel = &matmul_wgmma_kernel<kTokens, kGroups, kKind, kBlocks, kTiles>;
  constexpr int kHalves = kKind == kGated ? 2 : 1;
  const TensorMap weights =
      kTiles > 1 ? panels_map(a.w, a.n, a.k, a.k, S::kBoxRows, kHalves, kTiles) : tensor_map(a.w, a.n, a.k, a.k, S::kBoxRows);
  const TensorMap tokens = kTiles > 1 ? panels_map(a.x, a.m, a.k, a.ldx, kTokens, 1, kTiles) : tensor_map(a.x, a.m, a.k, a.ldx, kTokens);
  const dim3 grid(unsigned(ceil_div(a.m, kTokens) * ceil_div(a.n, S::kOutputs)), split.in_grid ? unsigned(split.parts) : 1);
  const Course course{split.tiles, split.in_grid, stages_under_way<S>(a)};
  // Whole tiles have the kernels.
  if constexpr (kKind != kSummed && kGroups < 3 && kTokens <= LoraWithin::kMostRows && (kTiles > 1 || kTokens > 32)) {
    if (a.adapters != nullptr) {
      const int64_t blocks = int64_t(grid.x) * grid.y;
      const LoraWithin adapters = lora_within(*a.adapters, free_places(blocks, kBlocks));
      const auto with_adapters = &matmul_wgmma_adapters_kernel<kTokens, kGroups, kKind, kBlocks, kTiles>;
      allow_shared_bytes(with_adapters, kAdapterBytes<S>, "matmul_wgmma");
      GPU_LAUNCH_EARLY_FIRST(kKind == kGated ? adapters.blocks : 0, with_adapters, dim3(unsigned(adapters.blocks + blocks)),
                             dim3(S::kThreads), kAdapterBytes<S>, stream, weights, tokens, a, course, int(grid.x), adapters);
      return end_launch(a, split, stream);
    }
  }
  allow_shared_bytes(kernel, S::shared_bytes(S::kStages), "matmul_wgmma");
  const int64_t tiles = split.in_grid ? split.tiles : ceil_div(a.k, kDepth);
  const int bytes = S::shared_bytes(int(std::min<int64_t>(ceil_div(tiles, kTiles), S::kStages)));
  GPU_LAUNCH_EARLY(kernel, grid, dim3(S::kThreads), bytes, stream, weights, tokens, a, course);
  end_launch(a, split, stream);
}

// Few tokens have several tiles per copy, for one thread issues all copies of a block; a part is whole such groups of tiles, and behind the
// last one there is zero.
template <int kTokens, int kGroups, Kind kKind, int kBlocks>
void launch_shape(const MatMul& a, const Split& split, cudaStream_t stream) {
  constexpr int kTiles = kTokens > 32 ? 1 : kBlocks == 1 ? 4 : 2;
  static_assert(kSplitTiles % kTiles == 0);
  if (a.k % kDepth == 0) launch_tiles<kTokens, kGroups, kKind, kBlocks, kTiles>(a, split, stream);
  else launch_tiles<kTokens, kGroups, kKind, kBlocks, 1>(a, split, stream);
}

// As many blocks share a multiprocessor as there are for one, up to kMost: fewer have more under way each. Those for adapters count too.
template <int kTokens, int kGroups, Kind kKind, int kMost>
void launch(const MatMul& a, const Split& split, cudaStream_t stream) {
  const int64_t multiplying = ceil_div(a.m, kTokens) * ceil_div(a.n, kGroups * kGroupRows) * (split.in_grid ? split.parts : 1);
  const int64_t blocks = multiplying + (a.adapters != nullptr ? lora_least_within(*a.adapters) : 0);
  if (kMost == 1 || blocks <= kMultiprocessors) return launch_shape<kTokens, kGroups, kKind, 1>(a, split, stream);
  if (kMost == 2 || blocks <= 2 * kMultiprocessors) return launch_shape < kTokens, kGroups, kKind, kMost < 2 ? 1 : 2 > (a, split, stream);
  launch_shape<kTokens, kGroups, kKind, kMost>(a, split, stream);
}

// Whether blocks of three groups fill a large device nearly, all at once, and blocks of two do not.
bool fits_three_groups(const MatMul& a, const Split& split, int64_t tokens) {
  constexpr int64_t kOutputs = 3 * kGroupRows, kNearly = kMultiprocessors * 9 / 10;
  const int64_t blocks = ceil_div(a.m, tokens) * a.n / kOutputs * (split.in_grid ? split.parts : 1);
  return a.n % kOutputs == 0 && blocks >= kNearly && blocks <= kMultiprocessors;
}

// Blocks by the number of tokens: tiles wide enough that the cache can feed them, where enough of them are left to fill a large device.
template <Kind kKind>
void launch_by_tokens(const MatMul& a, const Split& split, cudaStream_t stream) {
  const int64_t wide_outputs = ceil_div(a.n, 128) * split.parts;
  if (a.m <= 8) return launch<8, 1, kKind, 3>(a, split, stream);
  if (a.m <= 16) return launch<16, 1, kKind, 3>(a, split, stream);
  if (a.m <= 32) return launch<32, 1, kKind, 3>(a, split, stream);
  if (a.m <= 64 && a.adapters == nullptr && fits_three_groups(a, split, 64)) return launch<64, 3, kKind, 1>(a, split, stream);
  if (a.m <= 64 && wide_outputs < kMultiprocessors) return launch<64, 1, kKind, 3>(a, split, stream);
  if (a.m <= 64) return launch<64, 2, kKind, 2>(a, split, stream);
  if (a.m > 128 && a.m <= 256 && fits_three_groups(a, split, 256)) return launch<256, 3, kKind, 1>(a, split, stream);
  if (a.m <= 256 && fits_three_groups(a, split, 128)) return launch<128, 3, kKind, 1>(a, split, stream);
  if (a.m <= 128 && wide_outputs < kMultiprocessors / 2) return launch<128, 1, kKind, 3>(a, split, stream);
  if (ceil_div(a.m, 256) * wide_outputs < 2 * kMultiprocessors) return launch<128, 2, kKind, 2>(a, split, stream);
  launch<256, 2, kKind, 1>(a, split, stream);
}

}  // namespace

// However many tokens share a block, an element is one chain of wgmmas of 16 k, ascending, per part.
void matmul_wgmma(const MatMul& a, const Split& split, cudaStream_t stream) {
  if (a.gated != nullptr) return launch_by_tokens<kGated>(a, split, stream);
  if (split.parts > 1 && !split.in_grid) return launch<128, 2, kSummed, 1>(a, split, stream);
  launch_by_tokens<kPlain>(a, split, stream);
}

}  // namespace tandem::cuda
