// The work of a block of a product of the way back on Hopper (matmul_transposed_wgmma.cu): 64 tokens of a group on the side of rows, weights as they
// lie on the other one: a row of them is an input of the sum, so wgmma takes them across. Boxes of both come by TMA through a ring of stages.
#pragma once
#include "cuda/common/tensor_map.h"
#include "cuda/gemm/matmul.h"
#include "cuda/gemm/wgmma_ring.h"

namespace tandem::cuda::across {

constexpr int kGroups = 2;
constexpr int kTokens = kGroups * kGroupRows;
constexpr int kThreads = kGroups * kGroupThreads + kWarp;
constexpr int kPanel = 64;  // outputs of a box
constexpr int kPanelBytes = kDepth * kPanel * int(sizeof(bf16));
constexpr int kTokenBytes = kTokens * kDepth * int(sizeof(bf16));

template <int kOutputs>
struct Shape {
  static constexpr int kPanels = kOutputs / kPanel;
  static constexpr int kStageBytes = kTokenBytes + kPanels * kPanelBytes;
  static constexpr int kStages = kOutputs > 128 ? 4 : 6;
  static constexpr int kSharedBytes = kStages * kStageBytes + 2 * kStages * int(sizeof(Barrier));
};

#if TANDEM_HOPPER_CODE

// Fills the stages of tiles [begin, end) one after the other, of weights from `first_row` on.
template <class S>
__device__ void bring_tiles(unsigned char* stages, const Ring& ring, const TensorMap* tokens, const TensorMap* weights, int first_token,
                            int first_output, int begin, int end, int first_row = 0) {
  for (int i = 0; i < end - begin; ++i) {
    const int stage = i % S::kStages, round = i / S::kStages, input = (begin + i) * kDepth;
    barrier_wait(&ring.empty[stage], (round & 1) ^ 1);
    barrier_expect(&ring.full[stage], S::kStageBytes);
    unsigned char* to = stages + stage * S::kStageBytes;
    bulk_load(to, tokens, &ring.full[stage], input, first_token);
    for (int panel = 0; panel < S::kPanels; ++panel) {
      bulk_load(to + kTokenBytes + panel * kPanelBytes, weights, &ring.full[stage], first_output + panel * kPanel, first_row + input);
    }
  }
}

// The sums of this group's tokens over all tiles.
template <int kOutputs>
__device__ __forceinline__ void multiply_tiles(float (&sums)[kOutputs / 2], const unsigned char* stages, const Ring& ring, int tiles) {
  using S = Shape<kOutputs>;
  const int own = int(threadIdx.x) / kGroupThreads * (kTokenBytes / kGroups);
  int done = 0;
  for (int i = 0; i < tiles; ++i) {
    const unsigned char* tile = stages + i % S::kStages * S::kStageBytes;
    barrier_wait(&ring.full[i % S::kStages], i / S::kStages & 1);
    wgmma_fence();
    GPU_UNROLL
    for (int step = 0; step < kDepth / kStep; ++step) {
      wgmma_across<kOutputs>(sums, tile_descriptor(tile + own, step), across_descriptor(tile + kTokenBytes, step, kPanelBytes));
    }
    wgmma_commit();
    // The tile before has been multiplied; this one goes on while the next is waited for.
    wgmma_wait<1>(sums);
    give_back<S>(ring, done, i);
  }
  wgmma_wait<0>(sums);
}

// Whether the thread's sums e and e + 1 belong to the product, and where they are in rows of `ld`: accumulator D of wgmma.m64nNk16, rows
// lane / 4 and that + 8 of the warp's 16, columns two by two.
__device__ __forceinline__ bool own_pair(const MatMul& a, int first_token, int first_output, int64_t ld, int e, int64_t& place) {
  const int lane = int(threadIdx.x) % kWarp;
  const int token = first_token + int(threadIdx.x) / kWarp * 16 + lane / 4 + e / 2 % 2 * 8;
  const int output = first_output + e / 4 * 8 + lane % 4 * 2;
  place = token * ld + output;
  return token < a.m && output < a.k;
}

#endif

}  // namespace tandem::cuda::across
