// The sums of low-rank adapters, in the one order that all kernels keep: these are A x, and lora_outputs.h has B u.
//
// A x: the inputs are cut in kSegments segments of whole kStep inputs, by their number alone. A segment's sums are two chains of
// mma_m16n8k16, ranks by rows, that take its inputs by turns (add_run); zeros stand for what is behind the last input. Then come the two
// chains' sum, the segments in order, and the scale.
#pragma once
#include "cuda/common/tensor_core.h"
#include "cuda/lora/lora.h"

namespace tandem::cuda::lora {

constexpr int kSegments = 8;  // a block has a warp for each
constexpr int kThreads = kSegments * kWarp;
constexpr int kEach = 8;                               // elements of a 16-byte load
constexpr int kQuad = 4, kGroups = kWarp / kQuad;      // lanes that share a row of an instruction's operands, and such groups of lanes
constexpr int kRun = kQuad * kEach, kStep = 4 * kRun;  // inputs of a row that a group has by one load, and by those of a step
constexpr int kRanks = 16, kRows = 8;                  // of an instruction
constexpr int kSegmentSums = kRanks * kRows;

__device__ __forceinline__ LoraWeights weights_of(const LoraWeights* adapters, int64_t count, int64_t most_rank, int32_t index) {
  if (index < 0 || index >= count) return {nullptr, nullptr, 0, 0};
  LoraWeights w = adapters[index];
  w.rank = min(w.rank, int32_t(most_rank));
  return w;
}

// Whether rows of so many elements, ld apart, may be read 16 bytes at a time.
__host__ __device__ __forceinline__ bool whole_vectors(const void* p, int64_t count, int64_t ld) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && count % kEach == 0 && ld % kEach == 0;
}

// Elements two to a word.
struct Eight {
  uint32_t words[kEach / 2];
};

__device__ __forceinline__ Eight load_eight(const bf16* from) {
  const uint4 all = *reinterpret_cast<const uint4*>(from);
  return {{all.x, all.y, all.z, all.w}};
}

// Elements [at, at + 8) of a row that has `count`; zero from there on. kVector: whole vectors are.
template <bool kVector>
__device__ __forceinline__ Eight load_eight(const bf16* row, int64_t at, int64_t count) {
  Eight out{};
  if constexpr (kVector) {
    if (at < count) out = load_eight(row + at);
  } else {
    GPU_UNROLL
    for (int i = 0; i < kEach; ++i) {
      if (at + i < count) out.words[i / 2] |= uint32_t(row[at + i].bits) << (i % 2 * 16);
    }
  }
  return out;
}

// 16 bytes by one instruction, which the compiler does not make of four numbers in registers here.
__device__ __forceinline__ void store_4(float* to, const float* values) {
#ifdef TANDEM_GPU_EMULATION
  memcpy(to, values, 4 * sizeof(float));
#else
  asm volatile("st.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]) : "memory");
#endif
}

// So many elements, whole vectors of 16 bytes, to the L2 cache.
#ifdef TANDEM_GPU_EMULATION
inline void fetch(const bf16*, int64_t) {}
#else
__device__ __forceinline__ void fetch(const bf16* from, int64_t count) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const uint32_t bytes = uint32_t(count) * uint32_t(sizeof(bf16));
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}
#endif

__host__ __device__ __forceinline__ int segment_of(int in) { return (in + kSegments * kStep - 1) / (kSegments * kStep) * kStep; }

// A lane's part of the sums of a segment: ranks g and g + kRanks / 2 of rows 2 t and 2 t + 1, of lane t of group g.
struct RankSums {
  float even[4], odd[4];
};

// kRun inputs more. Which of them an instruction multiplies together is free, so each lane's are those that it has read: of ranks g and
// g + kRanks / 2 and of row g.
__device__ __forceinline__ void add_run(const Eight& upper, const Eight& lower, const Eight& x, float (&even)[4], float (&odd)[4]) {
  GPU_UNROLL
  for (int i = 0; i < 2; ++i) {
    const uint32_t ranks[4] = {upper.words[2 * i], lower.words[2 * i], upper.words[2 * i + 1], lower.words[2 * i + 1]};
    const uint32_t inputs[2] = {x.words[2 * i], x.words[2 * i + 1]};
    mma_m16n8k16(i == 0 ? even : odd, ranks, inputs);
  }
}
__device__ __forceinline__ void add_run(const Eight& upper, const Eight& lower, const Eight& x, RankSums& sums) {
  add_run(upper, lower, x, sums.even, sums.odd);
}

// The lane's i-th sum of a segment, and whose it is: of this rank, and of row i % 2 of the lane's two.
__device__ __forceinline__ float sum_of(const RankSums& sums, int i) { return sums.even[i] + sums.odd[i]; }
__device__ __forceinline__ int rank_of_sum(int i) { return int(threadIdx.x) % kWarp / kQuad + i / 2 * (kRanks / 2); }

// To a segment's sums: [rank][row].
__device__ __forceinline__ void put_sums(const float (&even)[4], const float (&odd)[4], float* segment) {
  const int row = int(threadIdx.x) % kQuad * 2;
  GPU_UNROLL
  for (int i = 0; i < 4; ++i) segment[rank_of_sum(i) * kRows + row + i % 2] = even[i] + odd[i];
}
__device__ __forceinline__ void put_sums(const RankSums& sums, float* segment) { put_sums(sums.even, sums.odd, segment); }

// Of one rank and row.
__device__ __forceinline__ float sum_in_order(const float (&segments)[kSegments]) {
  float sum = segments[0];
  GPU_UNROLL
  for (int s = 1; s < kSegments; ++s) sum += segments[s];
  return sum;
}

// A sum of all segments, in order.
__device__ __forceinline__ float sum_of_segments(const float* segments, int at) {
  float all[kSegments];
  GPU_UNROLL
  for (int s = 0; s < kSegments; ++s) all[s] = segments[s * kSegmentSums + at];
  return sum_in_order(all);
}

// Ranks that lie `in` elements apart.
struct ShrinkFactors {
  const bf16* a;
  int ranks, in;
  bool vectors;  // they, and the rows x, are read 16 bytes at a time
};

// A segment of kTiles times kRows rows, x_of(i) each, by a warp. Of rows and ranks that there are not the last again.
template <bool kVector, int kTiles, class Rows>
__device__ __forceinline__ void sum_segment(const Rows& x_of, int count, int number, const ShrinkFactors& f, RankSums (&sums)[kTiles]) {
  const int lane = int(threadIdx.x) % kWarp, group = lane / kQuad, segment = segment_of(f.in);
  const int begin = number * segment, end = max(begin, min(begin + segment, f.in));
  const bf16 *upper = f.a + int64_t(min(group, f.ranks - 1)) * f.in, *lower = f.a + int64_t(min(group + kRanks / 2, f.ranks - 1)) * f.in;
  const bf16* rows[kTiles];
  GPU_UNROLL
  for (int i = 0; i < kTiles; ++i) rows[i] = x_of(min(i * kRows + group, count - 1));
  constexpr int kRuns = !kVector ? 1 : kTiles == 1 ? 2 * kStep / kRun : kStep / kRun;  // whose loads are under way together
  const int whole = begin + (end - begin + kStep - 1) / kStep * kStep;
  GPU_UNROLL_1
  for (int step = begin; step < whole; step += kRuns * kRun) {
    Eight ranks[kRuns][2], inputs[kRuns][kTiles];
    GPU_UNROLL
    for (int run = 0; run < kRuns; ++run) {
      const int at = step + run * kRun + lane % kQuad * kEach;
      ranks[run][0] = load_eight<kVector>(upper, at, f.in);
      ranks[run][1] = load_eight<kVector>(lower, at, f.in);
      GPU_UNROLL
      for (int i = 0; i < kTiles; ++i) inputs[run][i] = load_eight<kVector>(rows[i], at, f.in);
    }
    GPU_UNROLL
    for (int run = 0; run < kRuns; ++run) {
      if (step + run * kRun >= whole) break;
      GPU_UNROLL
      for (int i = 0; i < kTiles; ++i) add_run(ranks[run][0], ranks[run][1], inputs[run][i], sums[i]);
    }
  }
}

// A x without the scale, of at most kRanks ranks and `count` rows, kTiles times kRows at most: put(rank, row, sum) gets each, by one of the
// threads. All threads of the block call; before they call again, they meet.
template <int kTiles, class Rows, class Put>
__device__ __forceinline__ void shrink(const Rows& x_of, int count, const ShrinkFactors& f, const Put& put) {
  constexpr int kTile = kSegments * kSegmentSums;
  GPU_SHARED(segments, float[kTiles * kTile]);
  RankSums sums[kTiles] = {};
  const int segment = int(threadIdx.x) / kWarp;
  if (f.vectors) sum_segment<true>(x_of, count, segment, f, sums);
  else sum_segment<false>(x_of, count, segment, f, sums);
  GPU_UNROLL
  for (int i = 0; i < kTiles; ++i) put_sums(sums[i], segments + i * kTile + int(threadIdx.x) / kWarp * kSegmentSums);
  __syncthreads();  // all segments are there
  GPU_UNROLL
  for (int at = int(threadIdx.x); at < kTiles * kSegmentSums; at += kThreads) {
    const int tile = at / kSegmentSums, rank = at % kSegmentSums / kRows, row = tile * kRows + at % kRows;
    if (rank < f.ranks && row < count) put(rank, row, sum_of_segments(segments + tile * kTile, at % kSegmentSums));
  }
}

}  // namespace tandem::cuda::lora
