// What turns logits into log-probabilities: one arithmetic for sampled tokens and for those that are trained on. A row is cut in slices of
// which each has a block; where they lie is a matter of the vocabulary alone. Sums are made within a slice and then over the slices, in one
// order each.
#pragma once
#include "cuda/common/reduce.h"

namespace tandem::cuda {

constexpr int kSliceThreads = 256, kSliceWarps = kSliceThreads / kWarp;
constexpr int kSliceValues = 16;  // of a thread: four times four neighbours
constexpr int kSliceIds = kSliceThreads * kSliceValues;

__host__ __device__ inline int slices_of(int64_t vocab) { return int((vocab + kSliceIds - 1) / kSliceIds); }

// The id of a thread's value.
__device__ __forceinline__ int slice_id(int slice, int thread, int i) {
  return slice * kSliceIds + i / 4 * (4 * kSliceThreads) + thread * 4 + i % 4;
}
__device__ __forceinline__ int slice_id(int slice, int i) { return slice_id(slice, int(threadIdx.x), i); }

// A thread's ids of a slice of `row`, which has `count`; -infinity after them.
__device__ __forceinline__ void load_slice(const float* __restrict__ row, int count, int slice, int thread, float (&v)[kSliceValues]) {
  const bool whole = (slice + 1) * kSliceIds <= count && reinterpret_cast<uintptr_t>(row) % 16 == 0;
  if (whole) {
    GPU_UNROLL
    for (int i = 0; i < kSliceValues; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(row + slice_id(slice, thread, i));
      v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
    }
    return;
  }
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) {
    const int id = slice_id(slice, thread, i);
    v[i] = id < count ? row[id] : -INFINITY;
  }
}
__device__ __forceinline__ void load_slice(const float* __restrict__ row, int count, int slice, float (&v)[kSliceValues]) {
  load_slice(row, count, slice, int(threadIdx.x), v);
}

__device__ __forceinline__ float largest_of(const float (&v)[kSliceValues]) {
  float largest = v[0];
  GPU_UNROLL
  for (int i = 1; i < kSliceValues; ++i) largest = fmaxf(largest, v[i]);
  return largest;
}

__device__ __forceinline__ int count_above(const float (&v)[kSliceValues], float value) {
  int greater = 0;
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) greater += v[i] > value;
  return greater;
}

// What a slice's exponentials are relative to: a slice may hold nothing but -infinity, whose exponentials are 0.
__device__ __forceinline__ float slice_reference(float largest) { return largest == -INFINITY ? 0.0f : largest; }

// This thread's part of a slice's sum. NaN where a value is NaN or +infinity.
__device__ __forceinline__ float slice_sum(const float (&v)[kSliceValues], float largest, float scale) {
  const float reference = slice_reference(largest);
  float sum = 0;
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) sum += expf((v[i] - reference) * scale);
  return sum;
}

// The log-probability of a value v is (v - largest) * scale - log_sum.
struct Normaliser {
  float largest, scale, log_sum;
  __device__ float operator()(float v) const { return (v - largest) * scale - log_sum; }
  // False: there is a NaN or +infinity, or nothing but -infinity.
  __device__ bool finite() const { return isfinite(log_sum); }
};

// Of slices with their `largest` and their `sum`; each warp by itself.
template <class Slice>
__device__ Normaliser combine(const Slice* slices, int count, float scale) {
  const int lane = int(threadIdx.x) % kWarp;
  float largest = -INFINITY, sum = 0;
  for (int s = lane; s < count; s += kWarp) largest = fmaxf(largest, slices[s].largest);
  largest = warp_max(largest);
  for (int s = lane; s < count; s += kWarp) sum += slices[s].sum * expf((slices[s].largest - largest) * scale);
  return {largest, scale, logf(warp_sum(sum))};
}

}  // namespace tandem::cuda
