// A few ids of a row in the order of their values, in shared memory.
#pragma once
#include "cuda/sampling/row.h"

namespace tandem::cuda {

constexpr int kSorted = 2048;
constexpr int kEachSorted = kSorted / kFinishThreads;
constexpr int kFewPlaces = 256;  // beyond them comparing each with each takes longer than exchanging
static_assert(kFewPlaces <= kFinishThreads && 2 * kFewPlaces <= kSorted);

__device__ inline uint64_t (&shared_places())[kSorted] {
  GPU_SHARED(places, uint64_t[kSorted]);
  return places;
}

// Ascending: larger values come first, of equal ones smaller ids.
__device__ __forceinline__ uint64_t place_of(const Candidate& c) { return uint64_t(~order_key(c.value)) << 32 | uint32_t(c.id); }
__device__ __forceinline__ uint32_t key_of(uint64_t place) { return ~uint32_t(place >> 32); }
__device__ __forceinline__ int id_of(uint64_t place) { return int(uint32_t(place)); }
__device__ __forceinline__ float value_of(uint64_t place) { return value_of_key(key_of(place)); }

// Each goes behind those that are smaller: two barriers instead of one per exchange of a sort. No two are equal.
__device__ inline void sort_few_places(uint64_t (&places)[kSorted], int count) {
  __syncthreads();
  const int own = int(threadIdx.x);
  const uint64_t place = own < count ? places[own] : 0;
  int before = 0;
  if (own < count) {
    GPU_UNROLL_8
    for (int i = 0; i < count; ++i) before += places[i] < place;
  }
  __syncthreads();
  if (own < count) places[before] = place;
  __syncthreads();
}

// Sorts the first `count`, of which no two are equal, ascending; what follows is overwritten up to the next power of two. Barriers at both ends.
__device__ GPU_CALLED void sort_places(uint64_t (&places)[kSorted], int count) {
  if (count <= kFewPlaces) return sort_few_places(places, count);
  int size = 2;
  while (size < count) size *= 2;
  for (int i = count + int(threadIdx.x); i < size; i += kFinishThreads) places[i] = ~uint64_t(0);
  __syncthreads();
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      for (int i = int(threadIdx.x); i < size / 2; i += kFinishThreads) {
        const int low = 2 * i - (i & (step - 1)), high = low + step;
        const uint64_t a = places[low], b = places[high];
        if ((a > b) == ((low & run) == 0)) places[low] = b, places[high] = a;
      }
      __syncthreads();
    }
  }
}

// Of at most kFewPlaces candidates, one per thread, those that the row keeps, sorted; how many there are.
__device__ __forceinline__ int sort_few(const Candidate* list, int count, const Row& row, uint64_t (&places)[kSorted]) {
  uint64_t* listed = places + kFewPlaces;
  const int own = int(threadIdx.x);
  uint64_t place = ~uint64_t(0);
  if (own < count) {
    const Candidate c = list[own];
    if (row.keeps(c.id, c.value)) place = place_of(c);
    listed[own] = place;
  }
  const bool kept = place != ~uint64_t(0);
  const int there = __syncthreads_count(kept);
  if (kept) {
    int before = 0;
    GPU_UNROLL_8
    for (int i = 0; i < count; ++i) before += listed[i] < place;
    places[before] = place;
  }
  __syncthreads();
  return there;
}

// Those of at(0), ..., at(count - 1) for which in(candidate), unsorted; how many there are: the first that fit are in `places`.
template <class At, class In>
__device__ int gather(int count, uint64_t (&places)[kSorted], const At& at, const In& in) {
  GPU_SHARED(taken, int);
  __syncthreads();
  if (threadIdx.x == 0) taken = 0;
  __syncthreads();
  GPU_UNROLL_4
  for (int i = int(threadIdx.x); i < count; i += kFinishThreads) {
    const Candidate c = at(i);
    const int place = in(c) ? atomicAdd(&taken, 1) : kSorted;
    if (place < kSorted) places[place] = place_of(c);
  }
  __syncthreads();
  return taken;
}

}  // namespace tandem::cuda
