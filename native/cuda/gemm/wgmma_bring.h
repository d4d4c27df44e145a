// How the stages of a product's block come (matmul_wgmma_block.h): boxes of weights and of tokens by TMA, as places in the ring are given back.
// S is the block's Shape.
#pragma once
#include "cuda/common/early_launch.h"
#include "cuda/common/tensor_map.h"
#include "cuda/gemm/matmul.h"
#include "cuda/gemm/wgmma_ring.h"

namespace tandem::cuda {

#if TANDEM_HOPPER_CODE

// Larger tiles of tokens may be one of several that read the same weights.
template <class S>
constexpr bool kOneTileOfTokens = S::kTokenBytes <= 64 * kDepth* int(sizeof(bf16));

__device__ __forceinline__ void wait(const MatMul& a) { a.beside ? wait_for_inputs_first() : wait_for_inputs(); }

struct OutputPlace {
  int token, output;  // first ones of a block
};

template <class S>
__device__ __forceinline__ void load_weights(unsigned char* to, const TensorMap* weights, Barrier* full, const MatMul& a, OutputPlace at,
                                             int tile) {
  if constexpr (S::kStageTiles > 1) return bulk_load_panels_once(to, weights, full, tile, at.output);
  const auto load = [&](unsigned char* box, int row) {
    if constexpr (kOneTileOfTokens<S>) bulk_load_once(box, weights, full, tile * kDepth, row);
    else bulk_load(box, weights, full, tile * kDepth, row);
  };
  load(to, at.output);
  if constexpr (S::kBoxRows < S::kOutputs) load(to + S::kWeightBytes / 2, int(a.n / 2) + at.output);
}

template <class S>
__device__ __forceinline__ void prefetch_weights(const TensorMap* weights, const MatMul& a, OutputPlace at, int tile) {
  if constexpr (S::kStageTiles > 1) return bulk_prefetch_panels(weights, tile, at.output);
  bulk_prefetch(weights, tile * kDepth, at.output);
  if constexpr (S::kBoxRows < S::kOutputs) bulk_prefetch(weights, tile * kDepth, int(a.n / 2) + at.output);
}

// A block's stages, whose tiles begin at that number.
struct Stages {
  unsigned char* memory;
  int begin, count;
};

template <class S>
__device__ __forceinline__ void bring_tokens(const Stages& stages, const Ring& ring, const TensorMap* tokens, int first, int i, int stage) {
  unsigned char* to = stages.memory + stage * S::kStageBytes + S::kStageTiles * S::kWeightBytes;
  const int tile = stages.begin + i * S::kStageTiles;
  if constexpr (S::kApart) barrier_expect(&ring.full[stage], S::kStageTiles * S::kTokenBytes);
  if constexpr (S::kStageTiles > 1) bulk_load_panels(to, tokens, &ring.full[stage], tile, first);
  else bulk_load(to, tokens, &ring.full[stage], tile * kDepth, first);
}

// The tokens of the first stages, when the block's inputs are there.
template <class S>
__device__ __forceinline__ void bring_first_tokens(const Stages& stages, const Ring& ring, const TensorMap* tokens, int first) {
  GPU_NO_UNROLL
  for (int i = 0; i < min(stages.count, S::kStages); ++i) bring_tokens<S>(stages, ring, tokens, first, i, i);
}

// The same by the warps that multiply, where weights are apart: the thread that brings weights may be waiting for these.
template <class S>
__device__ __forceinline__ void bring_first_tokens_apart(const Stages& stages, const Ring& ring, const TensorMap* tokens, int first) {
  if constexpr (S::kApart) {
    if (threadIdx.x == 0) bring_first_tokens<S>(stages, ring, tokens, first);
    __syncwarp();  // it multiplies as one
  }
}

// Has at most `most` stages of weights under way, of those whose barriers say when they have come. Who reads anything else meanwhile waits behind
// all that has been asked for: 30 MB by a large device's shared memory, 7 microseconds.
template <class S>
class UnderWay {
 public:
  __device__ __forceinline__ UnderWay(const Ring& ring, int most) : ring_(ring), most_(most) {}
  // Before weights of stage number i are asked for.
  __device__ __forceinline__ void wait(int i) {
    if (!S::kApart || i < most_) return;
    barrier_wait(&ring_.weights[came_.stage], came_.parity);
    came_ = came_.next();
  }
  __device__ __forceinline__ bool bounded() const { return most_ < S::kStages; }

 private:
  const Ring& ring_;
  const int most_;
  RingTurn<S::kStages> came_;
};

template <class S>
__device__ __forceinline__ void bring_weights(const Stages& stages, const Ring& ring, const TensorMap* weights, const MatMul& a,
                                              OutputPlace at, int i, int stage) {
  barrier_expect(&ring.weights[stage], S::kStageTiles * S::kWeightBytes + (S::kApart ? 0 : S::kStageTiles * S::kTokenBytes));
  load_weights<S>(stages.memory + stage * S::kStageBytes, weights, &ring.weights[stage], a, at, stages.begin + i * S::kStageTiles);
}

// The weights of the first stages, which no kernel writes, so they come before the kernels ahead have ended.
template <class S>
__device__ __forceinline__ void bring_first_weights(const Stages& stages, const Ring& ring, const TensorMap* weights, const MatMul& a,
                                                    OutputPlace at, int number, UnderWay<S>& under_way) {
  // Of few tokens, whose product waits for memory: tiles to the cache, by the blocks that begin at once on a large device.
  constexpr int kAhead = S::kApart ? 8 / S::kStageTiles : 0, kAtOnce = 132 * S::kBlocks;
  const int early = min(stages.count, S::kStages);
  GPU_NO_UNROLL
  for (int i = 0; i < early; ++i) {
    under_way.wait(i);
    bring_weights<S>(stages, ring, weights, a, at, i, i);
  }
  const int ahead = number < kAtOnce && !under_way.bounded() ? kAhead : 0;
  GPU_NO_UNROLL
  for (int i = early; i < min(stages.count, early + ahead); ++i) {
    prefetch_weights<S>(weights, a, at, stages.begin + i * S::kStageTiles);
  }
}

// The stages behind the first ones, as places are given back; `also(i, stage)` brings what stage number i has besides weights.
template <class S, class Also>
__device__ __forceinline__ void bring_later_stages(const Stages& stages, const Ring& ring, const TensorMap* weights, const MatMul& a,
                                                   OutputPlace at, UnderWay<S>& under_way, const Also& also) {
  RingTurn<S::kStages> turn;
  GPU_NO_UNROLL
  for (int i = S::kStages; i < stages.count; ++i, turn = turn.next()) {
    under_way.wait(i);
    barrier_wait(&ring.empty[turn.stage], turn.parity);
    bring_weights<S>(stages, ring, weights, a, at, i, turn.stage);
    also(i, turn.stage);
  }
}

// Fills the block's stages one after the other.
template <class S>
__device__ __forceinline__ void bring_stages(const Stages& stages, const Ring& ring, const TensorMap* weights, const TensorMap* tokens,
                                             const MatMul& a, OutputPlace at, int number, int most_under_way) {
  UnderWay<S> under_way(ring, most_under_way);
  bring_first_weights<S>(stages, ring, weights, a, at, number, under_way);
  prefetch_map(tokens);
  wait(a);
  if constexpr (!S::kApart) bring_first_tokens<S>(stages, ring, tokens, at.token);
  bring_later_stages<S>(stages, ring, weights, a, at, under_way,
                        [&](int i, int stage) { bring_tokens<S>(stages, ring, tokens, at.token, i, stage); });
}

#endif

}  // namespace tandem::cuda
