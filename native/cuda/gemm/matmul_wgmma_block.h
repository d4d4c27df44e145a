// The work of a block of a product on Hopper: a warp brings boxes of weights and of tokens by TMA through a ring of stages, groups of four
// warps multiply them by wgmma, 64 outputs each (matmul_wgmma.cu).
#pragma once
#include <algorithm>
#include <type_traits>

#include "cuda/common/arrivals.h"
#include "cuda/elementwise/swiglu.h"
#include "cuda/gemm/wgmma_bring.h"

namespace tandem::cuda {

constexpr int kGroupBytes = kGroupRows * kDepth * int(sizeof(bf16));

// What becomes of a block's sums: written as they are, the whole product or one part of it; several parts added up first; or, half of
// them being gates, the activation.
enum Kind { kPlain, kSummed, kGated };

// Of a multiprocessor's shared memory, and of a block's what lies in front of its stages.
constexpr int kRoom = 224 << 10, kBarrierBytes = 1 << 10;

// How many tokens and groups of outputs a block has.
template <int kTokens, int kGroups, Kind kKind, int kPerMultiprocessor, int kTiles>
struct Shape {
  static constexpr int kOutputs = kGroups * kGroupRows;
  // Rows of weights that lie beside each other: of gated ones the gates, and as many others.
  static constexpr int kBoxRows = kKind == kGated ? kOutputs / 2 : kOutputs;
  // Three groups of 256 tokens need more registers than their share: a fourth, of which one warp brings stages, gives them its own.
  static constexpr bool kTradesRegisters = kGroups == 3 && kTokens == 256;
  static constexpr int kMultiplying = kGroups * kGroupThreads, kThreads = kMultiplying + (kTradesRegisters ? kGroupThreads : kWarp);
  // Of few tokens, whose product waits for memory, weights have barriers of their own, so that it is known which have come.
  static constexpr bool kApart = kTokens <= 64;
  static constexpr int kWeightBytes = kGroups * kGroupBytes;
  static constexpr int kTokenBytes = kTokens * kDepth * int(sizeof(bf16));
  // So many tiles come by one copy of weights and one of tokens.
  static constexpr int kStageTiles = kTiles, kStageBytes = kStageTiles * (kWeightBytes + kTokenBytes);
  // So many blocks share a multiprocessor's room.
  static constexpr int kBlocks = kPerMultiprocessor;
  // By the room for barriers, which have 16 bytes in the emulation.
  static constexpr int kMostStages = kApart ? 21 : 24;
  static constexpr int kFit = (kRoom / kBlocks - (2 << 10)) / kStageBytes;
  static constexpr int kStages = kFit < kMostStages ? kFit : kMostStages;
  static_assert(kStages >= 2, "a stage is given back when the next one is multiplied");
  static_assert((kApart ? 3 : 2) * kStages * int(sizeof(Barrier)) <= kBarrierBytes);
  // Sums that leave by shared memory, so many tokens at a time; few are written as they are. Rows lie so that a warp's sums meet all banks.
  static constexpr bool kStaged = kKind == kGated || kTokens >= 64;
  static constexpr int kSumTokens = kTokens < 128 ? kTokens : 128, kSumRow = kOutputs + 4;
  static constexpr int kSumBytes = kStaged ? kSumTokens * kSumRow * int(sizeof(float)) : 0;
  static_assert(kSumBytes <= kStages * kStageBytes);

  // Of a block that multiplies so many stages: not more than they take, and the barriers in front.
  static constexpr int shared_bytes(int stages) {
    return kBarrierBytes + std::max((stages < kStages ? stages : kStages) * kStageBytes, kSumBytes);
  }
};

// Of a block where some make what adapters add, which have use for all that there is.
template <class S>
constexpr int kAdapterBytes = std::max(kRoom / S::kBlocks - (2 << 10), S::shared_bytes(S::kStages));

// What a multiprocessor may have asked for, in stages of weights of a block: one at least.
template <class S>
int stages_under_way(const MatMul& a) {
  if (a.under_way == 0) return S::kStages;
  return std::clamp(a.under_way / (S::kBlocks * S::kStageTiles * S::kWeightBytes), 1, S::kStages);
}

// A block's place in the product: the tile of tokens within tile of outputs, the part of k; and its number.
struct BlockPlace {
  int tile, part, number;
};

// How a block goes through k: in tiles of each part; with `parts_in_grid` it computes one part into the workspace [part][m][n], otherwise all
// of k, in parts that are added in order where there are several (kSummed). Of few tokens, so many stages of weights have been asked for and
// have not come, at most.
struct Course {
  int tiles_per_part;
  bool parts_in_grid;
  int under_way;
};

// What is added to a product before the activation, by the first blocks of its launch, which other blocks wait for. null: nothing.
struct AddedPart {
  const float* part = nullptr;  // [m][n]
  int32_t* arrived = nullptr;   // of these blocks, and of those that have waited: zeros, as they are again when the last one has
  int blocks = 0, waiting = 0;
};

#if TANDEM_HOPPER_CODE

// Where warps trade registers: of the group that brings stages, and of those that multiply.
constexpr int kBringingRegisters = 32, kMultiplyingRegisters = 160;

template <class S, int kTokens>
__device__ __forceinline__ OutputPlace own_place(const MatMul& a, const BlockPlace& block) {
  if constexpr (kTokens <= 64) return {0, block.tile * S::kBoxRows};  // there are no more
  const int token_tiles = int((a.m + kTokens - 1) / kTokens), output_tiles = int((a.n + S::kOutputs - 1) / S::kOutputs);
  // Of many tokens: blocks that run at the same time share them, so that the cache holds what they read.
  constexpr int kShared = 2048 / kTokens;
  const int group = block.tile / (kShared * output_tiles), first = group * kShared;
  const int width = min(kShared, token_tiles - first), own = block.tile - first * output_tiles;
  return {(first + own % width) * kTokens, own / width * S::kBoxRows};
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
  if constexpr (S::kApart) barrier_wait(&ring.weights[i % S::kStages], i / S::kStages & 1);
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
                                                const Ring& ring, int stages, int stages_per_part) {
  int done = 0;
  for (int first = 0; first < stages; first += stages_per_part) {
    const int end = min(first + stages_per_part, stages);
    for (int i = first; i < end; ++i) {
      multiply_stage<kTokens, S>(part, memory, ring, i);
      // The stage before has been multiplied; this one goes on while the next is waited for.
      wgmma_wait<1>(part);
      give_back<S>(ring, done, i);
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

// Where a block's sums go, in rows of `ld`, and what they are added to, null or in rows of as many.
struct SumsTo {
  float* y;
  const float* onto;
  int64_t ld;
};

__device__ __forceinline__ SumsTo sums_to(const MatMul& a, int part, bool parts_in_grid) {
  if (parts_in_grid) return {a.workspace + int64_t(part) * a.m * a.n, nullptr, a.n};
  return {a.y, !a.accumulate ? nullptr : a.onto != nullptr ? a.onto : a.y, a.ldy};
}

// A thread's sum number e is of this token and this output of the block's: accumulator D of wgmma.m64nNk16, rows lane / 4 and that + 8 of the
// warp's 16, columns two by two.
__device__ __forceinline__ int token_of_sum(int e) { return e / 4 * 8 + int(threadIdx.x) % 4 * 2 + e % 2; }
__device__ __forceinline__ int output_of_sum(int e) { return int(threadIdx.x) / kWarp * 16 + int(threadIdx.x) % kWarp / 4 + e / 2 % 2 * 8; }

// Of few tokens.
template <int kTokens>
__device__ __forceinline__ void write_sums(const MatMul& a, OutputPlace at, const SumsTo& to, const float (&sums)[kTokens / 2]) {
  constexpr int kSums = kTokens / 2;
  // All are read before one is written: no load waits for a store to what may be the same place.
  float old[kSums] = {};
  const auto each = [&](const auto& body) {
    GPU_UNROLL
    for (int e = 0; e < kSums; ++e) {
      const int token = at.token + token_of_sum(e), output = at.output + output_of_sum(e);
      if (token < a.m && output < a.n) body(e, token * to.ld + output);
    }
  };
  if (to.onto != nullptr) each([&](int e, int64_t place) { old[e] = to.onto[place]; });
  each([&](int e, int64_t place) { to.y[place] = to.onto != nullptr ? old[e] + sums[e] : sums[e]; });
}

// The tokens [first, first + kSumTokens) of the thread's sums, to rows in shared memory.
template <int kTokens, class S>
__device__ __forceinline__ void put_sums(float* rows, int first, const float (&sums)[kTokens / 2]) {
  float* own = rows + token_of_sum(0) * S::kSumRow + output_of_sum(0);
  GPU_UNROLL
  for (int i = 0; i < S::kSumTokens / 2; ++i) own[(i / 4 * 8 + i % 2) * S::kSumRow + i / 2 % 2 * 8] = sums[first / 2 + i];
}

// Such rows to where they go, four outputs of a token at a time. What a block runs once comes from the L2 cache while all of it waits, so it is
// a short loop: what wrote each sum by itself had 45 KB of code, and products of parts were a fifth slower.
template <class S>
__device__ __forceinline__ void write_rows(const MatMul& a, OutputPlace at, const SumsTo& to, const float* rows) {
  constexpr int kEach = 4, kPerRow = S::kOutputs / kEach, kStep = S::kMultiplying / kPerRow, kAtOnce = 4;
  static_assert(S::kMultiplying % kPerRow == 0 && S::kSumTokens % (kStep * kAtOnce) == 0);
  const int column = int(threadIdx.x) % kPerRow * kEach, output = at.output + column, left = int(a.n) - output;
  if (left <= 0) return;
  const auto whole = [&](const float* p) { return reinterpret_cast<uintptr_t>(p + output) % sizeof(float4) == 0; };
  const bool fours = left >= kEach && to.ld % kEach == 0 && whole(to.y) && (to.onto == nullptr || whole(to.onto));
  const int end = min(S::kSumTokens, int(a.m) - at.token);
  GPU_NO_UNROLL
  for (int first = int(threadIdx.x) / kPerRow; first < end; first += kStep * kAtOnce) {
    float4 old[kAtOnce] = {};
    if (fours && to.onto != nullptr) {
      GPU_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int token = first + i * kStep;
        if (token < end) old[i] = *reinterpret_cast<const float4*>(to.onto + (at.token + token) * to.ld + output);
      }
    }
    GPU_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const int token = first + i * kStep;
      if (token >= end) break;
      const int64_t place = (at.token + token) * to.ld + output;
      const float4 v = *reinterpret_cast<const float4*>(rows + token * S::kSumRow + column);
      if (fours) {
        *reinterpret_cast<float4*>(to.y + place) =
            to.onto == nullptr ? v : float4{old[i].x + v.x, old[i].y + v.y, old[i].z + v.z, old[i].w + v.w};
        continue;
      }
      GPU_NO_UNROLL
      for (int j = 0; j < min(left, kEach); ++j) {
        const float sum = rows[token * S::kSumRow + column + j];
        to.y[place + j] = to.onto == nullptr ? sum : to.onto[place + j] + sum;
      }
    }
  }
}

// By one thread of each block that waits, whose threads meet before they read what is added.
__device__ __forceinline__ void wait_for(const AddedPart& added) {
  wait_for_count(added.arrived, added.blocks);
  if (count_arrival(added.arrived + 1) == added.waiting - 1) added.arrived[0] = added.arrived[1] = 0;
}

// The activation of such rows, in which gates come before the others of the same outputs: what a thread has of them.
template <int kTokens, class S>
struct ActiveRows {
  static constexpr int kEach = kTokens > 8 ? 4 : 2, kPerRow = S::kBoxRows / kEach, kStep = S::kMultiplying / kPerRow;
  static constexpr int kTurns = (S::kSumTokens + kStep - 1) / kStep;
  static_assert(S::kMultiplying % kPerRow == 0);

  __device__ __forceinline__ ActiveRows(const MatMul& a, OutputPlace at)
      : first(int(threadIdx.x) / kPerRow), column(int(threadIdx.x) % kPerRow * kEach), end(min(S::kSumTokens, int(a.m) - at.token)) {}

  int first, column, end;  // tokens from `first` on, every kStep-th, and kEach columns of gates and of the others
};

// All that the thread adds is under way at once; it adds to what it alone reads.
template <int kTokens, class S>
__device__ __forceinline__ void add_part(const MatMul& a, OutputPlace at, float* rows, const AddedPart& added) {
  using Own = ActiveRows<kTokens, S>;
  using Piece = std::conditional_t<Own::kEach == 4, float4, float2>;
  const Own own(a, at);
  const float* from = added.part + at.token * a.n + at.output + own.column;
  Piece pieces[Own::kTurns][2] = {};
  GPU_UNROLL
  for (int turn = 0; turn < Own::kTurns; ++turn) {
    const int token = own.first + turn * Own::kStep;
    if (token >= own.end) continue;
    GPU_UNROLL
    for (int half = 0; half < 2; ++half) pieces[turn][half] = __ldcg(reinterpret_cast<const Piece*>(from + token * a.n + half * (a.n / 2)));
  }
  GPU_UNROLL
  for (int turn = 0; turn < Own::kTurns; ++turn) {
    const int token = own.first + turn * Own::kStep;
    if (token >= own.end) continue;
    GPU_UNROLL
    for (int half = 0; half < 2; ++half) {
      Piece& to = *reinterpret_cast<Piece*>(rows + token * S::kSumRow + half * S::kBoxRows + own.column);
      Piece sums = to;
      const Piece& piece = pieces[turn][half];
      sums.x += piece.x, sums.y += piece.y;
      if constexpr (Own::kEach == 4) sums.z += piece.z, sums.w += piece.w;
      to = sums;
    }
  }
}

template <int kTokens, class S>
__device__ __forceinline__ void write_active(const MatMul& a, OutputPlace at, const float* rows) {
  using Own = ActiveRows<kTokens, S>;
  constexpr int kEach = Own::kEach;
  const Own own(a, at);
  const int64_t ld = a.n / 2;
  bf16* to = a.gated + at.token * ld + at.output + own.column;
  GPU_NO_UNROLL
  for (int token = own.first; token < own.end; token += Own::kStep) {
    const float* gates = rows + token * S::kSumRow + own.column;
    uint32_t active[kEach / 2];
    GPU_UNROLL
    for (int i = 0; i < kEach / 2; ++i) {
      const float2 gate = *reinterpret_cast<const float2*>(gates + 2 * i);
      const float2 up = *reinterpret_cast<const float2*>(gates + S::kBoxRows + 2 * i);
      active[i] = pack(to_bf16(swiglu(gate.x, up.x)), to_bf16(swiglu(gate.y, up.y)));
    }
    if constexpr (kEach == 4) *reinterpret_cast<uint2*>(to + token * ld) = uint2{active[0], active[1]};
    else *reinterpret_cast<uint32_t*>(to + token * ld) = active[0];
  }
}

// How often all threads of the block meet when they have multiplied.
template <int kTokens, class S>
constexpr int kMeetings = S::kStaged ? 2 * (kTokens / S::kSumTokens) : 0;

// By all threads that multiply, when they are done with the stages, in which rows come to lie. The others come to the meetings.
template <int kTokens, Kind kKind, class S>
__device__ __forceinline__ void leave_sums(const MatMul& a, OutputPlace at, const SumsTo& to, const float (&sums)[kTokens / 2],
                                           unsigned char* stages, const AddedPart& added) {
  if constexpr (S::kStaged) {
    float* rows = reinterpret_cast<float*>(stages);
    GPU_UNROLL
    for (int first = 0; first < kTokens; first += S::kSumTokens) {
      const OutputPlace place{at.token + first, at.output};
      __syncthreads();  // all are done with the stages, or with the rows before
      put_sums<kTokens, S>(rows, first, sums);
      __syncthreads();  // the rows are there, and what is added to them
      if constexpr (kKind == kGated && kTokens <= 64) {
        if (added.part != nullptr) add_part<kTokens, S>(a, place, rows, added);
      }
      if constexpr (kKind == kGated) write_active<kTokens, S>(a, place, rows);
      else write_rows<S>(a, place, to, rows);
    }
  } else {
    write_sums<kTokens>(a, at, to, sums);
  }
}

template <int kTokens, int kGroups, Kind kKind, class S>
__device__ __forceinline__ void multiply_block(const TensorMap* weights, const TensorMap* tokens, const MatMul& a, const Course& course,
                                               const BlockPlace& block, unsigned char* memory, const AddedPart& added = {}) {
  const Ring ring = open_ring(memory, S::kStages, kGroups, S::kApart);
  unsigned char* shared = memory + kBarrierBytes;
  const int tiles_per_part = course.tiles_per_part;
  const int all_tiles = int((a.k + kDepth - 1) / kDepth), begin = course.parts_in_grid ? block.part * tiles_per_part : 0;
  const int end = course.parts_in_grid ? min(begin + tiles_per_part, all_tiles) : all_tiles;
  const int stages = (end - begin + S::kStageTiles - 1) / S::kStageTiles;
  const OutputPlace at = own_place<S, kTokens>(a, block);
  if (own_warp() >= S::kMultiplying / kWarp) {
    if constexpr (S::kTradesRegisters) {
      give_registers<kBringingRegisters>();
      if (own_warp() > S::kMultiplying / kWarp) return;
    }
    if (threadIdx.x % kWarp == 0) {
      bring_stages<S>({shared, begin, stages}, ring, weights, tokens, a, at, block.number, course.under_way);
      if (kKind == kGated && added.part != nullptr) wait_for(added);  // while the others multiply
    }
    __syncwarp();  // it comes to the barriers as one
    // Those of the others, which would not wait for a warp that has ended either.
    GPU_NO_UNROLL
    for (int i = 0; i < kMeetings<kTokens, S>; ++i) __syncthreads();
    return;
  }
  if constexpr (S::kTradesRegisters) take_registers<kMultiplyingRegisters>();
  wait(a);
  bring_first_tokens_apart<S>({shared, begin, stages}, ring, tokens, at.token);
  float part[kTokens / 2] = {}, total[kTokens / 2] = {};
  multiply_stages<kTokens, kKind, S>(part, total, shared, ring, stages, kKind == kSummed ? tiles_per_part : stages);
  leave_sums<kTokens, kKind, S>(a, at, sums_to(a, block.part, course.parts_in_grid), kKind == kSummed ? total : part, shared, added);
}

#endif

}  // namespace tandem::cuda
