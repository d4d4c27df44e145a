// Filters, draws and alternatives of a row from its listed candidates, which come in any order: they are sorted in shared memory.
#pragma once
#include "cuda/sampling/thresholds.h"

namespace tandem::cuda {

// How many of the list are in bins up to that of the place from which `wanted` is reached, and the bin; for a list that is too long to sort.
struct Narrowed {
  int bin, count;
};
__device__ inline Narrowed narrow(const Row& row, const Candidate* list, int count, Mass wanted) {
  auto value = [&](int i) { return list[i].value; };
  auto amount = [&](int i) { return row.keeps(list[i].id, list[i].value) ? row.mass(list[i].value) : Mass(0); };
  const Found found = find_bin(count, wanted, row.largest, value, amount);
  const int bin = found.index < 0 ? kBins : found.index;
  int mine = 0;
  for (int i = int(threadIdx.x); i < count; i += kFinishThreads) mine += bin_of(row.largest, list[i].value) <= bin;
  return {bin, block_total(mine)};
}

// The first of the sorted places whose key is below that of the place `at`.
__device__ inline int end_of_ties(const uint64_t (&places)[kSorted], int count, int at) {
  GPU_SHARED(end, int);
  if (threadIdx.x == 0) end = count;
  __syncthreads();
  const uint32_t key = key_of(places[at]);
  for (int i = at + 1 + int(threadIdx.x); i < count; i += kFinishThreads) {
    if (key_of(places[i]) != key) {
      atomicMin(&end, i);
      break;
    }
  }
  __syncthreads();
  const int found = end;
  __syncthreads();
  return found;
}

// The masses of this thread's sorted places.
__device__ __forceinline__ void masses_of(const Row& row, const uint64_t (&places)[kSorted], int count, Mass (&masses)[kEachSorted]) {
  GPU_UNROLL
  for (int i = 0; i < kEachSorted; ++i) {
    const int at = int(threadIdx.x) * kEachSorted + i;
    masses[i] = at < count ? row.mass(value_of(places[at])) : 0;
  }
}

__device__ __forceinline__ Mass sum_of(const Mass (&masses)[kEachSorted]) {
  Mass sum = 0;
  GPU_UNROLL
  for (int i = 0; i < kEachSorted; ++i) sum += masses[i];
  return block_total(sum);
}

// How many of the sorted places top_k and top_p leave; 0 where the list ends before top_p is reached. `total`: the mass that top_p is a share
// of, where top_k does not cut it.
__device__ inline int filtered_count(const Row& row, const uint64_t (&places)[kSorted], int count, int top_k, double top_p, Mass total) {
  if (top_k > 0 && top_k < count) count = end_of_ties(places, count, top_k - 1);
  if (top_p >= 1) return count;
  Mass masses[kEachSorted];
  masses_of(row, places, count, masses);
  if (top_k > 0) total = sum_of(masses);
  const Found found = block_find(masses, share_of(total, top_p) - 1);
  return found.index + 1;
}

// By ascending id; `places` is sorted by ids then. The mass of all goes to `total`.
__device__ inline int draw_sorted(const Row& row, uint64_t (&places)[kSorted], int count, double uniform, Mass& total) {
  // The same bits, the other way round.
  for (int i = int(threadIdx.x); i < count; i += kFinishThreads) places[i] = places[i] << 32 | places[i] >> 32;
  sort_places(places, count);
  for (int i = int(threadIdx.x); i < count; i += kFinishThreads) places[i] = places[i] << 32 | places[i] >> 32;
  __syncthreads();
  Mass masses[kEachSorted];
  masses_of(row, places, count, masses);
  total = sum_of(masses);
  const Found found = block_find(masses, target_of(uniform, total));
  return found.index < 0 ? -1 : id_of(places[found.index]);
}

// As find_best, from a list that holds them.
__device__ inline int list_best(const Row& source, const Candidate* list, int count, int wanted, const Normaliser& n, BestEntry* out) {
  uint64_t(&places)[kSorted] = shared_places();
  const int there = gather(
      count, places, [&](int i) { return list[i]; }, [&](const Candidate& c) { return source.keeps(c.id, c.value); });
  sort_places(places, there);
  const int taken = min(wanted, there);
  // Each finds its place among the ids by itself: there are few.
  for (int i = int(threadIdx.x); i < taken; i += kFinishThreads) {
    int at = 0;
    for (int j = 0; j < taken; ++j) at += id_of(places[j]) < id_of(places[i]);
    const float value = value_of(places[i]);
    out[at] = {id_of(places[i]), value, n(value)};
  }
  __syncthreads();
  return taken;
}

// top_k (0: off), top_p and the draw from the list, and in `row` what they leave and in `kept` its mass. False: it takes the whole row.
__device__ inline bool draw_listed(Row& row, const Candidate* list, int count, int top_k, const SampleRow& p, Mass total, int& token,
                                   Mass& kept) {
  uint64_t(&places)[kSorted] = shared_places();
  int bin = kBins;
  if (count > kSorted) {
    if (top_k > 0 || p.top_p >= 1) return false;
    const Narrowed narrowed = narrow(row, list, count, share_of(total, p.top_p));
    if (narrowed.count > kSorted) return false;
    bin = narrowed.bin;
  }
  count = gather(
      count, places, [&](int i) { return list[i]; },
      [&](const Candidate& c) { return row.keeps(c.id, c.value) && bin_of(row.largest, c.value) <= bin; });
  sort_places(places, count);
  count = filtered_count(row, places, count, top_k, p.top_p, total);
  if (count == 0) return false;
  row.least_key = row.tie_key = key_of(places[count - 1]);
  row.tie_end = id_of(places[count - 1]) + 1;
  __syncthreads();  // before the order changes
  token = draw_sorted(row, places, count, p.uniform, kept);
  return true;
}

}  // namespace tandem::cuda
