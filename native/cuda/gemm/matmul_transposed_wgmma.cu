// The product of the way back on Hopper.
#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/gemm/matmul_transposed_wgmma_block.h"
#include "cuda/gemm/variants.h"

namespace tandem::cuda {
namespace {

using namespace across;

#if TANDEM_HOPPER_CODE

template <int kOutputs>
__device__ __forceinline__ void write_sums(const MatMul& a, int first_token, int first_output, const float (&sums)[kOutputs / 2]) {
  constexpr int kPairs = 8;  // are read before they are written: no load waits for a store to what may be the same place
  const bool parts = gridDim.y > 1;
  float* y = parts ? a.workspace + int64_t(blockIdx.y) * a.m * a.k : a.y;
  const int64_t ld = parts ? a.k : a.ldy;
  const float* onto = parts || !a.accumulate ? nullptr : a.onto != nullptr ? a.onto : a.y;
  int64_t place;
  GPU_UNROLL
  for (int first = 0; first < kOutputs / 2; first += 2 * kPairs) {
    float2 old[kPairs] = {};
    GPU_UNROLL
    for (int i = 0; i < kPairs; ++i) {
      const bool own = own_pair(a, first_token, first_output, ld, first + 2 * i, place);
      if (onto != nullptr && own) old[i] = *reinterpret_cast<const float2*>(onto + place);
    }
    GPU_UNROLL
    for (int i = 0; i < kPairs; ++i) {
      const int e = first + 2 * i;
      const float2 pair = onto != nullptr ? float2{old[i].x + sums[e], old[i].y + sums[e + 1]} : float2{sums[e], sums[e + 1]};
      if (own_pair(a, first_token, first_output, ld, e, place)) *reinterpret_cast<float2*>(y + place) = pair;
    }
  }
}

#endif

// Block (tile of tokens within tile of outputs, part). Where there are several parts, each goes to the workspace [part][m][k].
template <int kOutputs>
__global__ void __launch_bounds__(kThreads)
    transposed_wgmma_kernel(const __grid_constant__ TensorMap tokens, const __grid_constant__ TensorMap weights, MatMul a,
                            int tiles_per_part) {
#if TANDEM_HOPPER_CODE
  using S = Shape<kOutputs>;
  GPU_SHARED_BYTES(shared);
  const Ring ring = open_ring(shared + S::kStages * S::kStageBytes, S::kStages, kGroups);
  const int token_tiles = int((a.m + kTokens - 1) / kTokens), all_tiles = int((a.n + kDepth - 1) / kDepth);
  const int first_token = int(blockIdx.x) % token_tiles * kTokens, first_output = int(blockIdx.x) / token_tiles * kOutputs;
  const int begin = int(blockIdx.y) * tiles_per_part, end = min(begin + tiles_per_part, all_tiles);
  if (own_warp() == kGroups * kGroupThreads / kWarp) {
    if (threadIdx.x % kWarp == 0) bring_tiles<S>(shared, ring, &tokens, &weights, first_token, first_output, begin, end);
    return;
  }
  float sums[kOutputs / 2] = {};
  multiply_tiles<kOutputs>(sums, shared, ring, end - begin);
  write_sums<kOutputs>(a, first_token, first_output, sums);
#endif
}

template <int kOutputs>
void launch(const MatMul& a, const Split& split, cudaStream_t stream) {
  const auto kernel = &transposed_wgmma_kernel<kOutputs>;
  constexpr int kBytes = Shape<kOutputs>::kSharedBytes;
  allow_shared_bytes(kernel, kBytes, "matmul_transposed_wgmma");
  const TensorMap tokens = tensor_map(a.x, a.m, a.n, a.ldx, kTokens), weights = tensor_map(a.w, a.n, a.k, a.k, kDepth);
  const int64_t token_tiles = ceil_div(a.m, kTokens);
  const dim3 grid(unsigned(token_tiles * ceil_div(a.k, kOutputs)), unsigned(split.parts));
  GPU_LAUNCH(kernel, grid, dim3(kThreads), kBytes, stream, tokens, weights, a, split.tiles);
  check_launch("matmul_transposed_wgmma");
  if (split.parts > 1) add_parts(a, Parts{a.workspace, split.parts, a.m, a.k}, stream);
}

constexpr int64_t kWantedBlocks = 128;  // so many fill a large device
// Tiles of a part. Only the vocabulary is longer than one: there the sums are long, and rows and outputs so few that a device would idle.
constexpr int kPartTiles = 640;

}  // namespace

Split split_transposed_wgmma(int64_t n, int64_t) {
  const int64_t tiles = ceil_div(n, kDepth), parts = ceil_div(tiles, kPartTiles);
  return {int(ceil_div(tiles, parts)), int(parts), parts > 1};
}

// However wide a block is, an element is one chain of wgmmas of 16 n, ascending, per part.
void matmul_transposed_wgmma(const MatMul& a, const Split& split, cudaStream_t stream) {
  const bool enough = ceil_div(a.m, kTokens) * ceil_div(a.k, 256) * split.parts >= kWantedBlocks;
  if (enough) return launch<256>(a, split, stream);
  launch<128>(a, split, stream);
}

}  // namespace tandem::cuda
