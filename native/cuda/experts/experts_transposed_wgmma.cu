// The way back of pairs through the weights of their experts on Hopper: the blocks of matmul_transposed_wgmma.cu, each with a tile of pairs, whose
// rows of x lie beside each other. Beyond an expert's inputs of the sum x is zero, whatever weights come with it.
#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/experts/experts_wgmma.h"
#include "cuda/gemm/matmul_transposed_wgmma_block.h"

namespace tandem::cuda {
namespace {

using namespace across;

#if TANDEM_HOPPER_CODE

// The thread's sums, as own_pair() has them, to the rows of their pairs.
template <int kOutputs>
__device__ __forceinline__ void store_pairs(const ExpertsMatMul& e, const ExpertTile& tile, int first_output,
                                            const float (&sums)[kOutputs / 2]) {
  const int lane = int(threadIdx.x) % kWarp, row = int(threadIdx.x) / kWarp * 16 + lane / 4;
  GPU_UNROLL
  for (int half = 0; half < 2; ++half) {
    if (row + half * 8 >= tile.count) continue;
    float* y = e.y + int64_t(e.order[tile.first + row + half * 8]) * e.ldy;
    GPU_UNROLL
    for (int i = half * 2; i < kOutputs / 2; i += 4) {
      const int output = first_output + i / 4 * 8 + lane % 4 * 2;
      if (output < e.k) *reinterpret_cast<float2*>(y + output) = float2{sums[i], sums[i + 1]};
    }
  }
}

#endif

// Block (tile of pairs, tile of outputs).
template <int kOutputs>
__global__ void __launch_bounds__(kThreads)
    experts_transposed_wgmma_kernel(const __grid_constant__ TensorMap tokens, const __grid_constant__ TensorMap weights, ExpertsMatMul e) {
#if TANDEM_HOPPER_CODE
  using S = Shape<kOutputs>;
  GPU_SHARED_BYTES(shared);
  const ExpertTile tile = e.tiles[blockIdx.x];
  if (tile.count == 0) return;
  const Ring ring = open_ring(shared + S::kStages * S::kStageBytes, S::kStages, kGroups);
  const int first_output = int(blockIdx.y) * kOutputs, tiles = int((e.n + kDepth - 1) / kDepth);
  if (own_warp() == kGroups * kGroupThreads / kWarp) {
    if (threadIdx.x % kWarp != 0) return;
    bring_tiles<S>(shared, ring, &tokens, &weights, tile.first, first_output, 0, tiles, int(tile.expert * e.n));
    return;
  }
  float sums[kOutputs / 2] = {};
  multiply_tiles<kOutputs>(sums, shared, ring, tiles);
  store_pairs<kOutputs>(e, tile, first_output, sums);
#endif
}

}  // namespace

void experts_transposed_wgmma(const ExpertsMatMul& e, cudaStream_t stream) {
  constexpr int kOutputs = 128;
  const auto kernel = &experts_transposed_wgmma_kernel<kOutputs>;
  constexpr int kBytes = Shape<kOutputs>::kSharedBytes;
  allow_shared_bytes(kernel, kBytes, "experts_transposed_wgmma");
  const TensorMap tokens = tensor_map(e.x, e.pairs, e.n, e.ldx, kTokens), weights = tensor_map(e.w, e.experts * e.n, e.k, e.k, kDepth);
  const dim3 grid(unsigned(expert_tiles(e.pairs, e.experts)), unsigned(ceil_div(e.k, kOutputs)));
  GPU_LAUNCH(kernel, grid, dim3(kThreads), kBytes, stream, tokens, weights, e);
  check_launch("experts_transposed_wgmma");
}

}  // namespace tandem::cuda
