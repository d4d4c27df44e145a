// Pairs times the weights of their experts on Hopper: the blocks of matmul_wgmma.cu, each with a tile of pairs, whose rows of x lie beside each
// other. What a copy brings beyond the tile are other pairs, and beyond the expert's outputs another's weights: their sums are not stored.
#include <algorithm>

#include "cuda/common/launch.h"
#include "cuda/experts/experts_wgmma.h"
#include "cuda/gemm/matmul_wgmma_block.h"

namespace tandem::cuda {
namespace {

#if TANDEM_HOPPER_CODE

constexpr int kPiece = 16;  // outputs that a thread stores at a time

__device__ __forceinline__ uint4 round_eight(const float (&v)[8]) {
  return {pack_rounded(v[0], v[1]), pack_rounded(v[2], v[3]), pack_rounded(v[4], v[5]), pack_rounded(v[6], v[7])};
}

// Some outputs of a pair, the number `place` of all sorted ones.
__device__ __forceinline__ void store_piece(const ExpertsMatMul& e, int64_t place, int output, const float (&sums)[kPiece]) {
  const int64_t pair = e.order[place];
  if (e.gated == nullptr) {
    float* y = e.y + pair * e.ldy + output;
    GPU_UNROLL
    for (int i = 0; i < kPiece; i += 4) {
      if (output + i < e.n) *reinterpret_cast<float4*>(y + i) = float4{sums[i], sums[i + 1], sums[i + 2], sums[i + 3]};
    }
    return;
  }
  float active[kPiece / 2];
  GPU_UNROLL
  for (int i = 0; i < kPiece / 2; ++i) active[i] = swiglu(sums[2 * i], sums[2 * i + 1]);
  *reinterpret_cast<uint4*>(e.gated + (place * e.n + output) / 2) = round_eight(active);
  if (e.kept == nullptr) return;
  GPU_UNROLL
  for (int half = 0; half < 2; ++half) {
    float some[8];
    GPU_UNROLL
    for (int i = 0; i < 8; ++i) some[i] = sums[half * 8 + i];
    *reinterpret_cast<uint4*>(e.kept + pair * e.n + output + half * 8) = round_eight(some);
  }
}

// By all threads that multiply, when they are done with the stages, in which sums become whole rows. The warp that brings stages comes to the
// barriers too.
template <int kTokens, class S>
__device__ __forceinline__ void store_pairs(const ExpertsMatMul& e, const ExpertTile& tile, int first_output,
                                            const float (&sums)[kTokens / 2], unsigned char* stages) {
  constexpr int kRow = S::kOutputs + 4, kPieces = S::kOutputs / kPiece;  // rows lie so that a warp's sums meet all banks
  float* rows = reinterpret_cast<float*>(stages);
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  __syncthreads();  // all are done with the stages
  GPU_UNROLL
  for (int i = 0; i < kTokens / 2; ++i) {
    rows[(i / 4 * 8 + lane % 4 * 2 + i % 2) * kRow + warp * 16 + lane / 4 + i / 2 % 2 * 8] = sums[i];
  }
  __syncthreads();  // the rows are there
  for (int i = int(threadIdx.x); i < tile.count * kPieces; i += S::kMultiplying) {
    const int token = i / kPieces, column = i % kPieces * kPiece;
    if (first_output + column >= e.n) continue;
    float piece[kPiece];
    GPU_UNROLL
    for (int j = 0; j < kPiece; j += 4) {
      const float4 four = *reinterpret_cast<const float4*>(rows + token * kRow + column + j);
      piece[j] = four.x, piece[j + 1] = four.y, piece[j + 2] = four.z, piece[j + 3] = four.w;
    }
    store_piece(e, tile.first + token, first_output + column, piece);
  }
}

// Of the tokens that a stage has, so many are multiplied.
template <int kTokens, class S>
__device__ __forceinline__ void multiply_tile(const ExpertsMatMul& e, const ExpertTile& tile, int first_output, const Ring& ring,
                                              unsigned char* stages, int count) {
  float sums[kTokens / 2] = {}, unused[kTokens / 2];
  multiply_stages<kTokens, kPlain, S>(sums, unused, stages, ring, count, count);
  store_pairs<kTokens, S>(e, tile, first_output, sums, stages);
}

#endif

template <int kTokens, int kGroups, int kBlocks, int kTiles>
using PairShape = Shape<kTokens, kGroups, kPlain, kBlocks, kTiles>;

// Stages, or the rows of a block's sums.
template <class S, int kTokens>
constexpr int kSharedBytes = kBarrierBytes + std::max(S::kStages* S::kStageBytes, kTokens*(S::kOutputs + 4) * int(sizeof(float)));

// Block (tile of pairs, tile of outputs).
template <int kTokens, int kGroups, int kBlocks, int kTiles>
__global__ void __launch_bounds__(PairShape<kTokens, kGroups, kBlocks, kTiles>::kThreads, kBlocks)
    experts_wgmma_kernel(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap tokens, ExpertsMatMul e) {
#if TANDEM_HOPPER_CODE
  using S = PairShape<kTokens, kGroups, kBlocks, kTiles>;
  GPU_SHARED_BYTES(shared);
  wait_for_inputs();
  const ExpertTile tile = e.tiles[blockIdx.x];
  if (tile.count == 0) return;
  const Ring ring = open_ring(shared, S::kStages, kGroups, S::kApart);
  unsigned char* stages = shared + kBarrierBytes;
  const int first_output = int(blockIdx.y) * S::kOutputs;
  const int count = (int((e.k + kDepth - 1) / kDepth) + kTiles - 1) / kTiles;
  if (own_warp() == S::kMultiplying / kWarp) {
    MatMul a{};
    a.n = e.n;
    const OutputPlace at{tile.first, int(tile.expert * e.n) + first_output};
    const int number = int(gridDim.x * blockIdx.y + blockIdx.x);
    if (threadIdx.x % kWarp == 0) bring_stages<S>({stages, 0, count}, ring, &weights, &tokens, a, at, number, S::kStages);
    __syncwarp();                                 // it comes to the barriers as one
    for (int i = 0; i < 2; ++i) __syncthreads();  // those of store_pairs()
    return;
  }
  bring_first_tokens_apart<S>({stages, 0, count}, ring, &tokens, tile.first);
  // Of many pairs most tiles are not full.
  if constexpr (kTokens > 64) {
    if (tile.count <= 64) return multiply_tile<64, S>(e, tile, first_output, ring, stages, count);
  }
  multiply_tile<kTokens, S>(e, tile, first_output, ring, stages, count);
#endif
}

template <int kTokens, int kGroups, int kBlocks, int kTiles>
void launch_tiles(const ExpertsMatMul& e, cudaStream_t stream) {
  using S = PairShape<kTokens, kGroups, kBlocks, kTiles>;
  constexpr int kBytes = kSharedBytes<S, kTokens>;
  const auto kernel = &experts_wgmma_kernel<kTokens, kGroups, kBlocks, kTiles>;
  allow_shared_bytes(kernel, kBytes, "experts_wgmma");
  const int64_t rows = e.experts * e.n;
  const TensorMap weights =
      kTiles > 1 ? panels_map(e.w, rows, e.k, e.k, S::kBoxRows, 1, kTiles) : tensor_map(e.w, rows, e.k, e.k, S::kBoxRows);
  const TensorMap tokens =
      kTiles > 1 ? panels_map(e.x, e.pairs, e.k, e.ldx, kTokens, 1, kTiles) : tensor_map(e.x, e.pairs, e.k, e.ldx, kTokens);
  const dim3 grid(unsigned(expert_tiles(e.pairs, e.experts)), unsigned(ceil_div(e.n, S::kOutputs)));
  GPU_LAUNCH_EARLY(kernel, grid, dim3(S::kThreads), kBytes, stream, weights, tokens, e);
  check_launch("experts_wgmma");
}

// Few tokens have several tiles per copy, as in matmul_wgmma.cu.
template <int kTokens, int kGroups, int kBlocks>
void launch(const ExpertsMatMul& e, cudaStream_t stream) {
  constexpr int kTiles = kTokens > 32 ? 1 : 2;
  if (e.k % (kTiles * kDepth) == 0) launch_tiles<kTokens, kGroups, kBlocks, kTiles>(e, stream);
  else launch_tiles<kTokens, kGroups, kBlocks, 1>(e, stream);
}

}  // namespace

void experts_wgmma(const ExpertsMatMul& e, cudaStream_t stream) {
  const int64_t tile_pairs = expert_tile_pairs(e.pairs, e.experts);
  if (tile_pairs <= 8) return launch<8, 1, 3>(e, stream);
  if (tile_pairs <= 16) return launch<16, 1, 3>(e, stream);
  if (tile_pairs <= 32) return launch<32, 1, 3>(e, stream);
  if (tile_pairs <= 64) return launch<64, 1, 3>(e, stream);
  launch<128, 2, 2>(e, stream);
}

}  // namespace tandem::cuda
