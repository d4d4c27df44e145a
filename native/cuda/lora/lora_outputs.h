// B u of low-rank adapters, in the one order that all kernels keep: chains of mma_m16n8k16, outputs by rows, over kRanks ranks at a time,
// ascending; each time u's upper 8 bits and then what these leave, 16 bits of u in all. Zeros stand for what is behind the last rank. It is
// added to the product's sum once.
#pragma once
#include "cuda/lora/lora_sums.h"

namespace tandem::cuda::lora {

constexpr int kWarpOutputs = kGroups * kEach;  // of a warp, for kRows rows

// Two numbers as the sums of two bf16 each: the upper ones and what they leave.
__device__ __forceinline__ void split(float first, float second, uint32_t& upper, uint32_t& rest) {
  upper = pack_rounded(first, second);
  rest = pack_rounded(first - to_float(bf16{uint16_t(upper)}), second - to_float(bf16{uint16_t(upper >> 16)}));
}

// A lane's u of kRanks ranks: of lane t those of 2 t, 2 t + 1, and of kRanks / 2 behind.
struct RankPairs {
  uint32_t upper[2], rest[2];
};

// Of the row of the lane's group, ranks from `first` on, of which there are `rank`. Null: of no row.
__device__ __forceinline__ RankPairs rank_pairs(const float* u, int first, int rank) {
  RankPairs pairs;
  GPU_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int at = first + i * (kRanks / 2) + int(threadIdx.x) % kQuad * 2;
    const float even = u != nullptr && at < rank ? u[at] : 0.0f, odd = u != nullptr && at + 1 < rank ? u[at + 1] : 0.0f;
    split(even, odd, pairs.upper[i], pairs.rest[i]);
  }
  return pairs;
}

// Of the row, kRanks ranks from `u` on, zeros where there are none.
__device__ __forceinline__ RankPairs rank_pairs(const float* u) {
  RankPairs pairs;
  GPU_UNROLL
  for (int i = 0; i < 2; ++i) {
    const float* two = u + i * (kRanks / 2) + int(threadIdx.x) % kQuad * 2;
    split(two[0], two[1], pairs.upper[i], pairs.rest[i]);
  }
  return pairs;
}

// Which of kRanks ranks is the i-th of the lane's kQuad.
__device__ __forceinline__ int lane_rank(int i) { return i / 2 * (kRanks / 2) + int(threadIdx.x) % kQuad * 2 + i % 2; }

// Of a lane of group g: the factors of its four ranks for eight outputs, which are those of g.
struct OutputFactors {
  Eight of_rank[kQuad];
};

// The sums of these outputs for rows 2 t and 2 t + 1.
struct OutputSums {
  float at[kEach / 2][4];
  __device__ __forceinline__ float of(int row, int i) const { return at[i / 2][i % 2 * 2 + row]; }
};

// A lane's outputs of one of its rows that lie beside each other, of which `left` are there. kVector: 16 bytes by one instruction.
template <bool kVector>
__device__ __forceinline__ void store_outputs(float* to, int64_t left, int row, const OutputSums& sums) {
  GPU_UNROLL
  for (int half = 0; half < 2; ++half) {
    float four[4];
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) four[i] = sums.of(row, 4 * half + i);
    if constexpr (kVector) {
      if (left > 0) store_4(to + 4 * half, four);
    } else {
      GPU_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (4 * half + i < left) to[4 * half + i] = four[i];
      }
    }
  }
}

__device__ __forceinline__ void add_outputs(const OutputFactors& factors, const RankPairs& u, OutputSums& sums) {
  const Eight(&f)[kQuad] = factors.of_rank;
  GPU_UNROLL
  for (int j = 0; j < kEach / 2; ++j) {
    // Each word has two outputs of a rank; an instruction wants two ranks of an output.
    const uint32_t outputs[4] = {pick_bytes(f[0].words[j], f[1].words[j], 0x5410), pick_bytes(f[0].words[j], f[1].words[j], 0x7632),
                                 pick_bytes(f[2].words[j], f[3].words[j], 0x5410), pick_bytes(f[2].words[j], f[3].words[j], 0x7632)};
    mma_m16n8k16(sums.at[j], outputs, u.upper);
    mma_m16n8k16(sums.at[j], outputs, u.rest);
  }
}

// Kernels of rows: a lane's outputs are four and, half a warp's behind, four more, so that its group's neighbours have what lies beside them.
__device__ __forceinline__ int lane_output(int half) { return half * (kWarpOutputs / 2) + int(threadIdx.x) % kWarp / kQuad * 4; }

// Four elements, two to a word; zero from `left` on. kWhole: all are there, or none.
template <bool kWhole>
__device__ __forceinline__ void load_pairs(const bf16* from, int left, uint32_t* words) {
  if constexpr (kWhole) {
    if (left <= 0) return;
    const uint2 all = *reinterpret_cast<const uint2*>(from);
    words[0] = all.x, words[1] = all.y;
  } else {
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i < left) words[i / 2] |= uint32_t(from[i].bits) << (i % 2 * 16);
    }
  }
}

// Factors of one projection for rows that share them.
struct RankFactors {
  const bf16* factors;  // [rank][width]
  int rank, width;
};

// The sums go on by the ranks, for the warp's outputs from `first` on. `u` is that of the row of the lane's group, or null. All lanes of the
// warp call. kWhole: factors are read four at a time.
template <bool kWhole>
__device__ __forceinline__ void sum_ranks(const RankFactors& f, const float* u, int first, OutputSums& sums) {
  GPU_UNROLL_1
  for (int rank = 0; rank < f.rank; rank += kRanks) {
    OutputFactors factors{};
    GPU_UNROLL
    for (int i = 0; i < kQuad; ++i) {
      const int own = rank + lane_rank(i);
      if (own >= f.rank) continue;
      GPU_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int output = first + lane_output(half);
        load_pairs<kWhole>(f.factors + int64_t(own) * f.width + output, f.width - output, factors.of_rank[i].words + 2 * half);
      }
    }
    add_outputs(factors, rank_pairs(u, rank, f.rank), sums);
  }
}

}  // namespace tandem::cuda::lora
