// The work of a block of a product on Hopper: a warp brings boxes of weights and of tokens by TMA through a ring of stages, groups of four
// warps multiply them by wgmma, 64 outputs each (matmul_wgmma.cu).
#pragma once
#include <algorithm>

#include "cuda/common/early_launch.h"
#include "cuda/common/tensor_map.h"
#include "cuda/elementwise/swiglu.h"
#include "cuda/gemm/matmul.h"
#include "cuda/gemm/wgmma_ring.h"
#include "cuda/lora/lora_along_warp.h"

namespace tandem::cuda {

constexpr int kGroupBytes = kGroupRows * kDepth * int(sizeof(bf16));

// What becomes of a block's sums: written as they are, the whole product or one part of it; several parts added up first; or, half of
// them being gates, the activation.
enum Kind { kPlain, kSummed, kGated };

// Of a multiprocessor's shared memory, and of a block's what lies in front of its stages.
constexpr int kRoom = 224 << 10, kBarrierBytes = 1 << 10;

// How many tokens and groups of outputs a block has, and warps beside those that bring stages and multiply.
template <int kTokens, int kGroups, Kind kKind, int kPerMultiprocessor, int kTiles, int kOthers = 0>
struct Shape {
  static constexpr int kOutputs = kGroups * kGroupRows;
  // Rows of weights that lie beside each other: of gated ones the gates, and as many others.
  static constexpr int kBoxRows = kKind == kGated ? kOutputs / 2 : kOutputs;
  // Three groups of 256 tokens need more registers than their share: a fourth, of which one warp brings stages, gives them its own.
  static constexpr bool kTradesRegisters = kGroups == 3 && kTokens == 256;
  static constexpr int kMultiplying = kGroups * kGroupThreads, kProducts = kMultiplying + (kTradesRegisters ? kGroupThreads : kWarp);
  static constexpr int kThreads = kProducts + kOthers * kWarp;
  // Of an activation with adapters, what they add to each token's sums. Rows lie so that a warp's sums meet all banks.
  static constexpr int kAddedRow = kOutputs + 4, kAddedBytes = kKind == kGated ? kTokens * kAddedRow * int(sizeof(float)) : 0;
  static constexpr int kOtherBytes = kOthers * int(sizeof(lora::AlongShared)) + (kOthers > 0 ? kAddedBytes : 0);
  static constexpr int kWeightBytes = kGroups * kGroupBytes;
  static constexpr int kTokenBytes = kTokens * kDepth * int(sizeof(bf16));
  static constexpr int kOtherWarps = kOthers;
  // So many tiles come by one copy of weights and one of tokens.
  static constexpr int kStageTiles = kTiles, kStageBytes = kStageTiles * (kWeightBytes + kTokenBytes);
  // So many blocks share a multiprocessor's room.
  static constexpr int kBlocks = kPerMultiprocessor, kMostStages = 24;
  static constexpr int kFit = (kRoom / kBlocks - (2 << 10) - kOtherBytes) / kStageBytes;
  static constexpr int kStages = kFit < kMostStages ? kFit : kMostStages;
  static_assert(kStages >= 2, "a stage is given back when the next one is multiplied");
  static_assert(2 * kStages * int(sizeof(Barrier)) <= kBarrierBytes);
  // What write_gated() needs.
  static constexpr int kTradedBytes = kKind == kGated ? kTokens / 2 * (kMultiplying / 2) * int(sizeof(float)) : 0;
  static constexpr int kGatedBytes = kKind == kGated ? kTradedBytes + kTokens * (kBoxRows + 8) * int(sizeof(bf16)) : 0;
  static_assert(kGatedBytes <= kStages * kStageBytes);

  // Of a block that multiplies so many stages: not more than they take, and the barriers in front.
  static constexpr int shared_bytes(int stages) {
    return kBarrierBytes + std::max((stages < kStages ? stages : kStages) * kStageBytes, kGatedBytes);
  }
};

// Whether two blocks may bring tokens to each other: with 64 and fewer weights are most of what is read.
template <int kTokens>
constexpr bool kPairs = kTokens > 64;

// Of a block where some make what adapters add, which have use for all that there is.
template <class S>
constexpr int kAdapterBytes = std::max(kRoom / S::kBlocks - (2 << 10), S::shared_bytes(S::kStages));

// A block's place in the product: the tile of tokens within tile of outputs, the part of k; and its number.
struct BlockPlace {
  int tile, part, number;
  int rank = -1;  // in a pair; -1: none
};

#if TANDEM_HOPPER_CODE

// Where warps trade registers: of the group that brings stages, and of those that multiply.
constexpr int kBringingRegisters = 32, kMultiplyingRegisters = 160;

// Larger tiles of tokens may be one of several that read the same weights.
template <class S>
constexpr bool kOneTileOfTokens = S::kTokenBytes <= 64 * kDepth* int(sizeof(bf16));

__device__ __forceinline__ void wait(const MatMul& a) { a.beside ? wait_for_inputs_first() : wait_for_inputs(); }

struct Place {
  int token, output;  // first ones of a block
};

template <class S, int kTokens>
__device__ __forceinline__ Place own_place(const MatMul& a, const BlockPlace& block) {
  // Of a pair both have the same tokens, and outputs beside each other.
  const bool paired = block.rank >= 0;
  const int wide = paired ? 2 : 1, tile = block.tile / wide, outputs = wide * S::kOutputs;
  const int token_tiles = int((a.m + kTokens - 1) / kTokens), output_tiles = int((a.n + outputs - 1) / outputs);
  // Of many tokens: blocks that run at the same time share them, so that the cache holds what they read.
  constexpr int kShared = 2048 / kTokens;
  const int group = tile / (kShared * output_tiles), first = group * kShared;
  const int width = min(kShared, token_tiles - first), own = tile - first * output_tiles;
  return {(first + own % width) * kTokens, (own / width * wide + (paired ? block.rank : 0)) * S::kBoxRows};
}

template <class S>
__device__ __forceinline__ void load_weights(unsigned char* to, const TensorMap* weights, Barrier* full, const MatMul& a, Place at,
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
__device__ __forceinline__ void prefetch_weights(const TensorMap* weights, const MatMul& a, Place at, int tile) {
  if constexpr (S::kStageTiles > 1) return bulk_prefetch_panels(weights, tile, at.output);
  bulk_prefetch(weights, tile * kDepth, at.output);
  if constexpr (S::kBoxRows < S::kOutputs) bulk_prefetch(weights, tile * kDepth, int(a.n / 2) + at.output);
}

// Fills the block's stages, whose tiles begin at number `begin`, one after the other. Weights, which no kernel writes, come before the kernels
// ahead have ended.
template <class S, int kTokens>
__device__ void bring_stages(unsigned char* memory, const Ring& ring, const TensorMap* weights, const TensorMap* tokens, const MatMul& a,
                             Place at, const BlockPlace& block, int begin, int stages) {
  // Of few tokens, whose product waits for memory: tiles of weights to the cache, by the blocks that begin at once on a large device.
  constexpr int kAhead = kTokens <= 64 ? 8 / S::kStageTiles : 0, kAtOnce = 132 * S::kBlocks;
  const int early = min(stages, S::kStages);
  const auto bring_weights = [&](int i) {
    Barrier* full = &ring.full[i % S::kStages];
    unsigned char* to = memory + i % S::kStages * S::kStageBytes;
    barrier_expect(full, S::kStageBytes);
    load_weights<S>(to, weights, full, a, at, begin + i * S::kStageTiles);
  };
  const auto bring_tokens = [&](int i) {
    unsigned char* to = memory + i % S::kStages * S::kStageBytes + S::kStageTiles * S::kWeightBytes;
    const int tile = begin + i * S::kStageTiles;
    Barrier* full = &ring.full[i % S::kStages];
    if (block.rank >= 0) {
      constexpr int kHalf = kTokens / 2, kHalfBytes = S::kTokenBytes / 2;
      return bulk_load_all(to + block.rank * kHalfBytes, tokens, full, tile * kDepth, at.token + block.rank * kHalf);
    }
    if constexpr (S::kStageTiles > 1) bulk_load_panels(to, tokens, full, tile, at.token);
    else bulk_load(to, tokens, full, tile * kDepth, at.token);
  };
  for (int i = 0; i < early; ++i) bring_weights(i);
  const int ahead = block.number < kAtOnce ? kAhead : 0;
  for (int i = early; i < min(stages, early + ahead); ++i) prefetch_weights<S>(weights, a, at, begin + i * S::kStageTiles);
  wait(a);
  for (int i = 0; i < early; ++i) bring_tokens(i);
  for (int i = early; i < stages; ++i) {
    barrier_wait(&ring.empty[i % S::kStages], (i / S::kStages & 1) ^ 1);
    bring_weights(i);
    bring_tokens(i);
  }
}

// One wgmma; or of registers that are traded two, for an instruction cannot name more than a thread began with.
template <int kTokens, class S>
__device__ __forceinline__ void multiply_step(float (&part)[kTokens / 2], const unsigned char* weights, const unsigned char* tokens,
                                              int step) {
  if constexpr (S::kTradesRegisters) {
    constexpr int kHalf = kTokens / 2, kSums = kHalf / 2;
    GPU_UNROLL
    for (int half = 0; half < 2; ++half) {
      wgmma<kHalf>(reinterpret_cast<float(&)[kSums]>(part[half * kSums]), tile_descriptor(weights, step),
                   tile_descriptor(tokens + half * S::kTokenBytes / 2, step));
    }
  } else {
    wgmma<kTokens>(part, tile_descriptor(weights, step), tile_descriptor(tokens, step));
  }
}

// Stage number i of the block, brought by now: its products are under way when this returns.
template <int kTokens, class S>
__device__ __forceinline__ void multiply_stage(float (&part)[kTokens / 2], const unsigned char* memory, const Ring& ring, int i) {
  const unsigned char* stage = memory + i % S::kStages * S::kStageBytes;
  const unsigned char *own = stage + threadIdx.x / kGroupThreads * kGroupBytes, *tokens = stage + S::kStageTiles * S::kWeightBytes;
  barrier_wait(&ring.full[i % S::kStages], i / S::kStages & 1);
  wgmma_fence();
  GPU_UNROLL
  for (int tile = 0; tile < S::kStageTiles; ++tile) {
    GPU_UNROLL
    for (int step = 0; step < kDepth / kStep; ++step) {
      multiply_step<kTokens, S>(part, own + tile * S::kWeightBytes, tokens + tile * S::kTokenBytes, step);
    }
  }
  wgmma_commit();
}

template <int kTokens, Kind kKind, class S>
__device__ __forceinline__ void multiply_stages(float (&part)[kTokens / 2], float (&total)[kTokens / 2], const unsigned char* memory,
                                                const Ring& ring, int stages, int stages_per_part, int peer) {
  int done = 0;
  for (int first = 0; first < stages; first += stages_per_part) {
    const int end = min(first + stages_per_part, stages);
    for (int i = first; i < end; ++i) {
      multiply_stage<kTokens, S>(part, memory, ring, i);
      // The stage before has been multiplied; this one goes on while the next is waited for.
      wgmma_wait<1>(part);
      give_back<S>(ring, done, i, peer);
    }
    wgmma_wait<0>(part);
    if constexpr (kKind == kSummed) {
      GPU_UNROLL
      for (int e = 0; e < kTokens / 2; ++e) {
        total[e] = first == 0 ? part[e] : total[e] + part[e];
        part[e] = 0;
      }
    }
  }
}

// Whether the thread's sum number e belongs to the product, and where it is in rows of `ld`: accumulator D of wgmma.m64nNk16, rows lane / 4
// and that + 8 of the warp's 16, columns two by two.
__device__ __forceinline__ bool own_sum(const MatMul& a, Place at, int64_t ld, int e, int64_t& place) {
  const int lane = int(threadIdx.x) % kWarp;
  const int token = at.token + e / 4 * 8 + lane % 4 * 2 + e % 2,
            output = at.output + int(threadIdx.x) / kWarp * 16 + lane / 4 + e / 2 % 2 * 8;
  place = token * ld + output;
  return token < a.m && output < a.n;
}

template <int kTokens, class S>
__device__ __forceinline__ void write_sums(const MatMul& a, Place at, int part, bool parts_in_grid, const float (&sums)[kTokens / 2]) {
  // So many are read before they are written, as registers allow: no load waits for a store to what may be the same place.
  constexpr int kMost = S::kBlocks == 1 ? 16 : 8, kSome = kTokens / 2 < kMost ? kTokens / 2 : kMost;
  float* y = parts_in_grid ? a.workspace + int64_t(part) * a.m * a.n : a.y;
  const float* onto = parts_in_grid || !a.accumulate ? nullptr : a.onto != nullptr ? a.onto : a.y;
  const int64_t ld = parts_in_grid ? a.n : a.ldy;
  int64_t place;
  GPU_UNROLL
  for (int first = 0; first < kTokens / 2; first += kSome) {
    float old[kSome] = {};
    GPU_UNROLL
    for (int i = 0; i < kSome; ++i) {
      if (onto != nullptr && own_sum(a, at, ld, first + i, place)) old[i] = onto[place];
    }
    GPU_UNROLL
    for (int i = 0; i < kSome; ++i) {
      if (own_sum(a, at, ld, first + i, place)) y[place] = onto != nullptr ? old[i] + sums[first + i] : sums[first + i];
    }
  }
}

// To each of the thread's sums, what adapters add to it.
template <int kTokens, class S>
__device__ __forceinline__ void add_to_sums(const float* added, float (&sums)[kTokens / 2]) {
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  GPU_UNROLL
  for (int e = 0; e < kTokens / 2; ++e) {
    const int token = e / 4 * 8 + lane % 4 * 2 + e % 2, output = warp * 16 + lane / 4 + e / 2 % 2 * 8;
    sums[e] += added[token * S::kAddedRow + output];
  }
}

// Pairs of threads have the gates and the others of the same outputs and tokens: each gives the other half of its sums and computes the
// activation of the rest, which leaves in whole rows. By all threads of the block, when they are done with the stages.
template <int kTokens, class S>
__device__ __forceinline__ void write_gated(const MatMul& a, Place at, const float (&sums)[kTokens / 2], unsigned char* stages) {
  constexpr int kHalf = kTokens / 4, kPairs = S::kMultiplying / 2, kRow = S::kBoxRows + 8, kChunk = 8;
  float* traded = reinterpret_cast<float*>(stages);
  bf16* rows = reinterpret_cast<bf16*>(traded + 2 * kHalf * kPairs);
  const bool is_gate = threadIdx.x < kPairs;
  const int pair = int(threadIdx.x) % kPairs, lane = pair % kWarp;
  GPU_UNROLL
  for (int i = 0; i < kHalf; ++i) traded[(is_gate ? kHalf + i : i) * kPairs + pair] = is_gate ? sums[kHalf + i] : sums[i];
  __syncthreads();  // what pairs gave each other is there
  GPU_UNROLL
  for (int i = 0; i < kHalf; ++i) {
    const int e = is_gate ? i : kHalf + i;
    const float own = is_gate ? sums[i] : sums[kHalf + i], other = traded[e * kPairs + pair];
    const int token = e / 4 * 8 + lane % 4 * 2 + e % 2, output = pair / kWarp * 16 + lane / 4 + e / 2 % 2 * 8;
    rows[token * kRow + output] = to_bf16(is_gate ? swiglu(own, other) : swiglu(other, own));
  }
  __syncthreads();  // the activation is there
  const int64_t ld = a.n / 2;
  for (int i = int(threadIdx.x); i < kTokens * (S::kBoxRows / kChunk); i += S::kMultiplying) {
    const int token = i / (S::kBoxRows / kChunk), first = i % (S::kBoxRows / kChunk) * kChunk;
    if (at.token + token >= a.m) continue;
    *reinterpret_cast<uint4*>(a.gated + (at.token + token) * ld + at.output + first) =
        *reinterpret_cast<const uint4*>(rows + token * kRow + first);
  }
}

// With `parts_in_grid` a block computes one part into the workspace [part][m][n]; otherwise it computes all of k, in parts that are added in
// order where there are several (kSummed). `added`: in shared memory, by other warps of the block (kGated).
template <int kTokens, int kGroups, Kind kKind, class S>
__device__ __forceinline__ void multiply_block(const TensorMap* weights, const TensorMap* tokens, const MatMul& a, int tiles_per_part,
                                               bool parts_in_grid, const BlockPlace& block, unsigned char* memory,
                                               const float* added = nullptr) {
  const bool paired = block.rank >= 0;
  const Ring ring = open_ring(memory, S::kStages, kGroups, paired ? 2 : 1);
  if (paired) cluster_meet();  // the barriers of both are there
  unsigned char* shared = memory + kBarrierBytes;
  const int all_tiles = int((a.k + kDepth - 1) / kDepth), begin = parts_in_grid ? block.part * tiles_per_part : 0;
  const int end = parts_in_grid ? min(begin + tiles_per_part, all_tiles) : all_tiles;
  const int stages = (end - begin + S::kStageTiles - 1) / S::kStageTiles;
  const Place at = own_place<S, kTokens>(a, block);
  if (own_warp() >= S::kMultiplying / kWarp) {
    if constexpr (S::kTradesRegisters) {
      give_registers<kBringingRegisters>();
      if (own_warp() > S::kMultiplying / kWarp) return;
    }
    if (threadIdx.x % kWarp == 0) bring_stages<S, kTokens>(shared, ring, weights, tokens, a, at, block, begin, stages);
    __syncwarp();  // it comes to the barriers as one
    if constexpr (kKind == kGated) {
      for (int i = 0; i < 3; ++i) __syncthreads();  // those of the others, which would not wait for a warp that has ended either
    }
    if (paired) cluster_meet();
    return;
  }
  if constexpr (S::kTradesRegisters) take_registers<kMultiplyingRegisters>();
  wait(a);
  float part[kTokens / 2] = {}, total[kTokens / 2] = {};
  const int peer = paired ? block.rank ^ 1 : -1;
  multiply_stages<kTokens, kKind, S>(part, total, shared, ring, stages, kKind == kSummed ? tiles_per_part : stages, peer);
  if constexpr (kKind == kGated) {
    __syncthreads();  // all are done with the stages, and what adapters add is there
    if constexpr (S::kOtherWarps > 0) add_to_sums<kTokens, S>(added, part);
    write_gated<kTokens, S>(a, at, part, shared);
  } else {
    write_sums<kTokens, S>(a, at, block.part, parts_in_grid, kKind == kSummed ? total : part);
  }
  if (paired) cluster_meet();  // neither ends before the other has told it of its last stages
}

#endif

}  // namespace tandem::cuda
