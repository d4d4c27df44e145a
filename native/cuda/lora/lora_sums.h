// The sums of low-rank adapters, in the one order that all kernels keep.
//
// A x: the inputs are cut in kSegments segments of whole kStep inputs, by their number alone. Of a segment every lane of a warp has a chain
// over its kEach inputs of each step, ascending; then comes the tree of warp_sum(), then the segments in order, then the scale.
// B u: one chain over the ranks, ascending, which is added to the product's sum.
#pragma once
#include "cuda/lora/lora.h"

namespace tandem::cuda::lora {

constexpr int kSegments = 8;  // a block has a warp for each
constexpr int kThreads = kSegments * kWarp;
constexpr int kEach = 8;  // elements of a 16-byte load
constexpr int kStep = kWarp * kEach;
constexpr int kRanks = 8;                     // that a block takes at a time
constexpr int kExpandRows = 8, kOutputs = 4;  // of a block and of a thread that expand

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

// Eight elements, two to a word.
__device__ __forceinline__ void unpack(const uint4& packed, float (&out)[kEach]) {
  const uint32_t words[kEach / 2] = {packed.x, packed.y, packed.z, packed.w};
  GPU_UNROLL
  for (int i = 0; i < kEach; ++i) out[i] = to_float(bf16{uint16_t(words[i / 2] >> (i % 2 * 16))});
}

// Elements [at, at + kCount) of a row that has `count`; zero from there on.
template <int kCount>
__device__ __forceinline__ void load(const bf16* row, int64_t at, int64_t count, float (&out)[kCount]) {
  static_assert(kCount == 4 || kCount == 8);
  uint32_t words[kCount / 2] = {};
  if (at < count) {
    if constexpr (kCount == 8) {
      const uint4 all = *reinterpret_cast<const uint4*>(row + at);
      words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
    } else {
      const float2 all = *reinterpret_cast<const float2*>(row + at);
      memcpy(words, &all, sizeof all);
    }
  }
  GPU_UNROLL
  for (int i = 0; i < kCount; ++i) out[i] = to_float(bf16{uint16_t(words[i / 2] >> (i % 2 * 16))});
}

// The same, where they cannot be read at once.
template <int kCount>
__device__ __forceinline__ void load_each(const bf16* row, int64_t at, int64_t count, float (&out)[kCount]) {
  GPU_UNROLL
  for (int i = 0; i < kCount; ++i) out[i] = at + i < count ? to_float(row[at + i]) : 0.0f;
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

// A lane's inputs of one step, two to a word, of rows that lie ldx elements apart; of rows that there are not the last again.
template <int kRows>
struct StepInputs {
  uint4 rows[kRows];
};
template <int kRows>
__device__ __forceinline__ StepInputs<kRows> load_inputs(const bf16* x, int64_t ldx, int last_row, int in, int k) {
  StepInputs<kRows> inputs{};
  GPU_UNROLL
  for (int r = 0; r < kRows; ++r, x += r <= last_row ? ldx : 0) {
    if (k < in) inputs.rows[r] = *reinterpret_cast<const uint4*>(x + k);
  }
  return inputs;
}

// A lane's chains go on by its inputs of one step: sums[i * kRows + r] of rank i and row r. factors_of(i, out) gives those of rank i, ranks in
// order.
template <int kRows, class Factors>
__device__ __forceinline__ void multiply_step(const StepInputs<kRows>& step, float (&sums)[kRanks * kRows], const Factors& factors_of) {
  float inputs[kRows][kEach];
  GPU_UNROLL
  for (int r = 0; r < kRows; ++r) unpack(step.rows[r], inputs[r]);
  GPU_UNROLL
  for (int i = 0; i < kRanks; ++i) {
    float factors[kEach];
    factors_of(i, factors);
    GPU_UNROLL
    for (int r = 0; r < kRows; ++r) {
      GPU_UNROLL
      for (int j = 0; j < kEach; ++j) sums[i * kRows + r] = fmaf(inputs[r][j], factors[j], sums[i * kRows + r]);
    }
  }
}

// The same by factors in memory, [k, k + kEach) of rows of `a`; of ranks that there are not the last again.
template <int kRows>
__device__ __forceinline__ void sum_step(const StepInputs<kRows>& step, const bf16* a, int in, int last_rank, int k,
                                         float (&sums)[kRanks * kRows]) {
  multiply_step<kRows>(step, sums, [&](int i, float(&factors)[kEach]) {
    if (i > 0) a += i <= last_rank ? in : 0;
    load(a, k, in, factors);
  });
}

// The same, one input after the other.
template <int kRows>
__device__ __forceinline__ void sum_each(const bf16* x, int64_t ldx, int last_row, const bf16* a, int in, int last_rank, int k,
                                         float (&sums)[kRanks * kRows]) {
  GPU_UNROLL_1
  for (int at = k; at < min(k + kEach, in); ++at) {
    float inputs[kRows];
    GPU_UNROLL
    for (int r = 0; r < kRows; ++r) inputs[r] = to_float(x[min(r, last_row) * ldx + at]);
    const bf16* factors = a + at;
    GPU_UNROLL
    for (int i = 0; i < kRanks; ++i, factors += i <= last_rank ? in : 0) {
      const float factor = to_float(*factors);
      GPU_UNROLL
      for (int r = 0; r < kRows; ++r) sums[i * kRows + r] = fmaf(inputs[r], factor, sums[i * kRows + r]);
    }
  }
}

// This lane's chains over its warp's segment.
template <int kRows>
__device__ __forceinline__ void sum_segment(const bf16* x, int64_t ldx, int rows, bool vectors, const bf16* a, int in, int ranks,
                                            float (&sums)[kRanks * kRows]) {
  const int segment = (in + kSegments * kStep - 1) / (kSegments * kStep) * kStep;
  const int begin = int(threadIdx.x) / kWarp * segment, end = min(begin + segment, in);
  const int lane_input = int(threadIdx.x) % kWarp * kEach;
  if (vectors) {
    GPU_UNROLL_1
    for (int step = begin; step < end; step += kStep) {
      sum_step<kRows>(load_inputs<kRows>(x, ldx, rows - 1, in, step + lane_input), a, in, ranks - 1, step + lane_input, sums);
    }
  } else {
    GPU_UNROLL_1
    for (int step = begin; step < end; step += kStep) sum_each<kRows>(x, ldx, rows - 1, a, in, ranks - 1, step + lane_input, sums);
  }
}

// The trees of kCount sums, as warp_sum() has them, in fewer steps: lane l is left with sums[l / (kWarp / kCount)].
template <int kCount>
__device__ __forceinline__ float sum_of_lane(float (&sums)[kCount]) {
  static_assert(kCount >= 1 && kCount <= kWarp && (kCount & (kCount - 1)) == 0);
  const int lane = int(threadIdx.x) % kWarp;
  GPU_UNROLL
  for (int mask = kWarp / 2, left = kCount; mask > 0; mask /= 2, left = max(left / 2, 1)) {
    if (left == 1) {
      sums[0] += __shfl_xor_sync(kAllLanes, sums[0], mask);
      continue;
    }
    const bool upper = (lane & mask) != 0;
    GPU_UNROLL
    for (int i = 0; i < kCount / 2; ++i) {
      if (i >= left / 2) continue;
      const float low = sums[i], high = sums[i + left / 2];
      sums[i] = (upper ? high : low) + __shfl_xor_sync(kAllLanes, upper ? low : high, mask);
    }
  }
  return sums[0];
}

// A sum of all segments, in order.
template <int kCount>
__device__ __forceinline__ float sum_of_segments(const float (&segments)[kSegments][kCount], int at) {
  float sum = segments[0][at];
  GPU_UNROLL
  for (int s = 1; s < kSegments; ++s) sum += segments[s][at];
  return sum;
}

// A x without the scale, of `rows` rows from `x` on and `ranks` ranks from `a` on: thread i * kRows + r has that of rank i and row r. All
// threads of the block call; before they call again, they meet.
template <int kRows>
__device__ __forceinline__ float shrink(const bf16* x, int64_t ldx, int rows, bool vectors, const bf16* a, int in, int ranks) {
  constexpr int kCount = kRanks * kRows, kCopies = kWarp / kCount;
  GPU_SHARED(segments, float[kSegments][kCount]);
  float sums[kCount] = {};
  sum_segment<kRows>(x, ldx, rows, vectors, a, in, ranks, sums);
  const float mine = sum_of_lane(sums);
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  if (lane % kCopies == 0) segments[warp][lane / kCopies] = mine;
  __syncthreads();  // all segments are there
  return threadIdx.x < kCount ? sum_of_segments(segments, int(threadIdx.x)) : 0;
}

// Outputs of one row, of which `count` are left: kOutputs at a time, one instruction each where kVector.
template <bool kVector>
__device__ __forceinline__ void load_outputs(const float* from, int64_t count, float (&out)[kOutputs]) {
  if constexpr (kVector) {
    const float4 all = *reinterpret_cast<const float4*>(from);
    out[0] = all.x, out[1] = all.y, out[2] = all.z, out[3] = all.w;
  } else {
    for (int i = 0; i < kOutputs; ++i) out[i] = i < count ? from[i] : 0.0f;
  }
}

template <bool kVector>
__device__ __forceinline__ void load_factors(const bf16* row, int64_t output, int64_t count, float (&out)[kOutputs]) {
  if constexpr (kVector) load(row, output, count, out);
  else load_each(row, output, count, out);
}

template <bool kVector>
__device__ __forceinline__ void store_outputs(float* to, int64_t count, const float (&values)[kOutputs]) {
  if constexpr (kVector) {
    store_4(to, values);
  } else {
    for (int i = 0; i < kOutputs && i < count; ++i) to[i] = values[i];
  }
}

// A tile of kExpandRows rows under the same factors, of which `count` are there.
struct ExpandTile {
  const bf16* factors;  // [rank][width]
  int64_t rank, width;
  const float* u;  // rows, ldu floats apart
  int64_t ldu;
  int count;
};

// u of a tile, from rank `first_rank` on: u[i][r / 4] has rank i of rows r .. r + 3.
__device__ __forceinline__ void load_u(const ExpandTile& t, int64_t first_rank, float4 (&u)[kRanks][kExpandRows / 4]) {
  if (threadIdx.x >= kRanks * kExpandRows) return;
  const int i = int(threadIdx.x) % kRanks, row = int(threadIdx.x) / kRanks;
  const int64_t rank = first_rank + i;
  reinterpret_cast<float*>(u[i])[row] = rank < t.rank && row < t.count ? t.u[row * t.ldu + rank] : 0.0f;
}

// sums[r][j] go on by the ranks, of a tile's rows and the thread's outputs. All threads of the block call.
template <bool kVector>
__device__ __forceinline__ void sum_ranks(const ExpandTile& t, int64_t output, float (&sums)[kExpandRows][kOutputs]) {
  GPU_SHARED(u, float4[kRanks][kExpandRows / 4]);
  for (int64_t first_rank = 0; first_rank < t.rank; first_rank += kRanks) {
    const int ranks = int(min(int64_t(kRanks), t.rank - first_rank));
    float factors[kRanks][kOutputs];
    GPU_UNROLL
    for (int i = 0; i < kRanks; ++i) {
      load_factors<kVector>(t.factors + (first_rank + min(i, ranks - 1)) * t.width, output, t.width, factors[i]);
    }
    __syncthreads();  // all are done with what was there before
    load_u(t, first_rank, u);
    __syncthreads();  // u is there for all
    GPU_UNROLL
    for (int i = 0; i < kRanks; ++i) {
      if (i >= ranks) continue;
      GPU_UNROLL
      for (int r = 0; r < kExpandRows; ++r) {
        const float4 four = u[i][r / 4];
        const float each = r % 4 == 0 ? four.x : r % 4 == 1 ? four.y : r % 4 == 2 ? four.z : four.w;
        GPU_UNROLL
        for (int j = 0; j < kOutputs; ++j) sums[r][j] = fmaf(factors[i][j], each, sums[r][j]);
      }
    }
  }
}

}  // namespace tandem::cuda::lora
