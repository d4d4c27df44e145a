// A product on Hopper: a warp brings boxes of weights and of tokens by TMA through a ring of stages, groups of four warps multiply them by
// wgmma, 64 outputs each. Weights are on the side of 64 rows and tokens on the other, so that few tokens cost few columns.
#include "cuda/common/launch.h"
#include "cuda/common/tensor_map.h"
#include "cuda/gemm/variants.h"
#include "cuda/gemm/wgmma_ring.h"

namespace tandem::cuda {
namespace {

constexpr int kGroupBytes = kGroupRows * kDepth * int(sizeof(bf16));

// How many tokens and groups of outputs a block has, and whether it adds up several parts.
template <int kTokens, int kGroups, bool kSums>
struct Shape {
  static constexpr int kOutputs = kGroups * kGroupRows;
  static constexpr int kThreads = kGroups * kGroupThreads + kWarp;
  static constexpr int kWeightBytes = kGroups * kGroupBytes;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kDepth * int(sizeof(bf16));
  // Two blocks of few tokens, or one of many, have room on a multiprocessor.
  static constexpr int kStages = kTokens <= 16 ? 8 : kTokens <= 64 ? 6 : 4;
  static constexpr int kSharedBytes = kStages * kStageBytes + 2 * kStages * int(sizeof(Barrier));
};

#if TANDEM_HOPPER_CODE

// Fills the stages of tiles [begin, end) one after the other.
template <class S>
__device__ void bring_tiles(unsigned char* stages, const Ring& ring, const TensorMap* weights, const TensorMap* tokens, int first_output,
                            int first_token, int begin, int end) {
  for (int i = 0; i < end - begin; ++i) {
    const int stage = i % S::kStages, round = i / S::kStages, column = (begin + i) * kDepth;
    barrier_wait(&ring.empty[stage], (round & 1) ^ 1);
    barrier_expect(&ring.full[stage], S::kStageBytes);
    unsigned char* to = stages + stage * S::kStageBytes;
    bulk_load(to, weights, &ring.full[stage], column, first_output);
    bulk_load(to + S::kWeightBytes, tokens, &ring.full[stage], column, first_token);
  }
}

// Tile number i of the block, brought by now: its products are under way when this returns.
template <int kTokens, class S>
__device__ __forceinline__ void multiply_tile(float (&part)[kTokens / 2], const unsigned char* stages, const Ring& ring, int i) {
  const int stage = i % S::kStages;
  const unsigned char *tile = stages + stage * S::kStageBytes, *own = tile + threadIdx.x / kGroupThreads * kGroupBytes;
  barrier_wait(&ring.full[stage], i / S::kStages & 1);
  wgmma_fence();
  GPU_UNROLL
  for (int step = 0; step < kDepth / kStep; ++step) {
    wgmma<kTokens>(part, tile_descriptor(own, step), tile_descriptor(tile + S::kWeightBytes, step));
  }
  wgmma_commit();
}

template <int kTokens, bool kSums, class S>
__device__ __forceinline__ void multiply_tiles(float (&part)[kTokens / 2], float (&total)[kTokens / 2], const unsigned char* stages,
                                               const Ring& ring, int tiles, int tiles_per_part) {
  int done = 0;
  for (int first = 0; first < tiles; first += tiles_per_part) {
    const int end = min(first + tiles_per_part, tiles);
    for (int i = first; i < end; ++i) {
      multiply_tile<kTokens, S>(part, stages, ring, i);
      // The tile before has been multiplied; this one goes on while the next is waited for.
      wgmma_wait<1>(part);
      give_back<S>(ring, done, i);
    }
    wgmma_wait<0>(part);
    if constexpr (kSums) {
      GPU_UNROLL
      for (int e = 0; e < kTokens / 2; ++e) {
        total[e] = first == 0 ? part[e] : total[e] + part[e];
        part[e] = 0;
      }
    }
  }
}

#endif

// Block (tile of tokens within tile of outputs, part). With `parts_in_grid` each block computes one part into the workspace [part][m][n];
// otherwise it computes all of k, in parts that are added in order where there are several (kSums).
template <int kTokens, int kGroups, bool kSums>
__global__ void __launch_bounds__(Shape<kTokens, kGroups, kSums>::kThreads)
    matmul_wgmma_kernel(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap tokens, MatMul a, int tiles_per_part,
                        bool parts_in_grid) {
#if TANDEM_HOPPER_CODE
  using S = Shape<kTokens, kGroups, kSums>;
  GPU_SHARED_BYTES(shared);
  const Ring ring = open_ring(shared + S::kStages * S::kStageBytes, S::kStages, kGroups);
  const int token_tiles = int((a.m + kTokens - 1) / kTokens), all_tiles = int((a.k + kDepth - 1) / kDepth);
  const int first_token = int(blockIdx.x) % token_tiles * kTokens, first_output = int(blockIdx.x) / token_tiles * S::kOutputs;
  const int begin = parts_in_grid ? int(blockIdx.y) * tiles_per_part : 0;
  const int end = parts_in_grid ? min(begin + tiles_per_part, all_tiles) : all_tiles;
  const int warp = own_warp(), lane = int(threadIdx.x) % kWarp;
  if (warp == kGroups * kGroupThreads / kWarp) {
    if (lane == 0) bring_tiles<S>(shared, ring, &weights, &tokens, first_output, first_token, begin, end);
    return;
  }
  float part[kTokens / 2] = {}, total[kTokens / 2] = {};
  multiply_tiles<kTokens, kSums, S>(part, total, shared, ring, end - begin, tiles_per_part);
  const float* onto = a.onto != nullptr ? a.onto : a.y;
  GPU_UNROLL
  for (int e = 0; e < kTokens / 2; ++e) {
    // Accumulator D of wgmma.m64nNk16: rows lane / 4 and that + 8 of the warp's 16, columns two by two.
    const int64_t token = first_token + e / 4 * 8 + lane % 4 * 2 + e % 2, output = first_output + warp * 16 + lane / 4 + e / 2 % 2 * 8;
    if (token >= a.m || output >= a.n) continue;
    const float sum = kSums ? total[e] : part[e];
    if (parts_in_grid) {
      a.workspace[(int64_t(blockIdx.y) * a.m + token) * a.n + output] = sum;
    } else {
      const int64_t at = token * a.ldy + output;
      a.y[at] = a.accumulate ? onto[at] + sum : sum;
    }
  }
#endif
}

template <int kTokens, int kGroups, bool kSums>
void launch(const MatMul& a, const Split& split, cudaStream_t stream) {
  using S = Shape<kTokens, kGroups, kSums>;
  const auto kernel = &matmul_wgmma_kernel<kTokens, kGroups, kSums>;
  allow_shared_bytes(kernel, S::kSharedBytes, "matmul_wgmma");
  const TensorMap weights = tensor_map(a.w, a.n, a.k, a.k, S::kOutputs), tokens = tensor_map(a.x, a.m, a.k, a.ldx, kTokens);
  const dim3 grid(unsigned(ceil_div(a.m, kTokens) * ceil_div(a.n, S::kOutputs)), split.in_grid ? unsigned(split.parts) : 1);
  GPU_LAUNCH(kernel, grid, dim3(S::kThreads), S::kSharedBytes, stream, weights, tokens, a, split.tiles, split.in_grid);
  check_launch("matmul_wgmma");
  if (split.in_grid) add_parts(a, split, stream);
}

}  // namespace

// However many tokens share a block, an element is one chain of wgmmas of 16 k, ascending, per part.
void matmul_wgmma(const MatMul& a, const Split& split, cudaStream_t stream) {
  const bool sums = split.parts > 1 && !split.in_grid;
  if (sums) return launch<128, 2, true>(a, split, stream);
  if (a.m <= 8) return launch<8, 1, false>(a, split, stream);
  if (a.m <= 16) return launch<16, 1, false>(a, split, stream);
  if (a.m <= 32) return launch<32, 1, false>(a, split, stream);
  if (a.m <= 64) return launch<64, 1, false>(a, split, stream);
  if (a.m <= 128) return launch<128, 2, false>(a, split, stream);
  launch<256, 2, false>(a, split, stream);
}

}  // namespace tandem::cuda
