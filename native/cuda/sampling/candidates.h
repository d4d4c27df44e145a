// Filters, draws and alternatives of a row from its listed candidates, which come in any order. A few are sorted in shared memory; of more the
// places that matter are looked for by bins.
#pragma once
#include "cuda/sampling/thresholds.h"

namespace tandem::cuda {

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

// By ascending id; `places` is sorted by ids then. The mass of all goes to `total`, of which target(total) is drawn.
template <class Target>
__device__ int draw_at(const Row& row, uint64_t (&places)[kSorted], int count, const Target& target, Mass& total) {
  // The same bits, the other way round.
  for (int i = int(threadIdx.x); i < count; i += kFinishThreads) places[i] = places[i] << 32 | places[i] >> 32;
  sort_places(places, count);
  for (int i = int(threadIdx.x); i < count; i += kFinishThreads) places[i] = places[i] << 32 | places[i] >> 32;
  __syncthreads();
  Mass masses[kEachSorted];
  masses_of(row, places, count, masses);
  total = sum_of(masses);
  const Found found = block_find(masses, target(total));
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

__device__ inline bool draw_few(Row& row, const Candidate* list, int count, int top_k, const SampleRow& p, Mass total, int& token,
                                Mass& kept) {
  uint64_t(&places)[kSorted] = shared_places();
  count = gather(
      count, places, [&](int i) { return list[i]; }, [&](const Candidate& c) { return row.keeps(c.id, c.value); });
  sort_places(places, count);
  count = filtered_count(row, places, count, top_k, p.top_p, total);
  if (count == 0) return false;
  row.end_at(key_of(places[count - 1]), id_of(places[count - 1]));
  __syncthreads();  // before the order changes
  token = draw_at(
      row, places, count, [&](Mass all) { return target_of(p.uniform, all); }, kept);
  return true;
}

template <class Amount>
__device__ Mass listed_amount(const Candidate* list, int count, const Amount& amount) {
  Mass mine = 0;
  GPU_UNROLL_4
  for (int i = int(threadIdx.x); i < count; i += kFinishThreads) mine += amount(list[i]);
  return block_total(mine);
}

constexpr int kIdsOfBin = kMostSlices * kSliceIds / kBins;
static_assert(kIdsOfBin <= kFewPlaces, "ids of a bin are sorted by comparing each with each");

// By ascending id: bins of neighbours first. The mass of all goes to `total`.
__device__ inline int draw_by_ids(const Row& row, const Candidate* list, int count, double uniform, Mass& total) {
  MassCounters<kBins>& bins = shared_counters<kBins>();
  bins.clear();
  GPU_UNROLL_4
  for (int i = int(threadIdx.x); i < count; i += kFinishThreads) {
    const Mass add = row.kept_mass(list[i]);
    if (add != 0) bins.add(list[i].id / kIdsOfBin, add);
  }
  __syncthreads();
  const int first = 2 * int(threadIdx.x);
  const Mass mine[2] = {bins[first], bins[first + 1]};
  total = block_total(mine[0] + mine[1]);
  const Mass target = target_of(uniform, total);
  const Found bin = block_find(mine, target);
  uint64_t(&places)[kSorted] = shared_places();
  const int there = gather(
      count, places, [&](int i) { return list[i]; },
      [&](const Candidate& c) { return c.id / kIdsOfBin == bin.index && row.kept_mass(c) != 0; });
  Mass inside;
  return draw_at(
      row, places, there, [&](Mass) { return target - bin.before; }, inside);
}

// By bins, in a list that is too long to be sorted.
__device__ GPU_CALLED bool draw_many(Row& row, const Candidate* list, int count, int top_k, double top_p, double uniform, Mass total,
                                     int& token, Mass& kept) {
  auto at = [&](int i) { return list[i]; };
  auto one = [&](const Candidate& c) { return Mass(row.keeps(c.id, c.value)); };
  auto mass = [&](const Candidate& c) { return row.kept_mass(c); };
  Threshold t;
  if (top_k > 0) {
    const Found bin = find_bin(count, Mass(top_k), row.largest, at, one);
    if (bin.index >= 0 && !find_sorted(count, Mass(top_k), row.largest, bin, at, one, t)) return false;
    if (bin.index >= 0) row.least_key = max(row.least_key, t.key);
  }
  if (top_p < 1) {
    if (top_k > 0) total = listed_amount(list, count, mass);
    const Mass wanted = share_of(total, top_p);
    const Found bin = find_bin(count, wanted, row.largest, at, mass);
    if (bin.index < 0 || !find_sorted(count, wanted, row.largest, bin, at, mass, t)) return false;
    row.end_at(t.key, t.id);
  }
  token = draw_by_ids(row, list, count, uniform, kept);
  return true;
}

// top_k (0: off), top_p and the draw from the list, and in `row` what they leave and in `kept` its mass. False: it takes the whole row.
__device__ inline bool draw_listed(Row& row, const Candidate* list, int count, int top_k, const SampleRow& p, Mass total, int& token,
                                   Mass& kept) {
  if (count <= kFewPlaces) return draw_few(row, list, count, top_k, p, total, token, kept);
  // What is called by reference has an address, and so its place in the device's memory: copies are there on this way alone.
  Row called = row;
  int drawn = 0;
  Mass mass = 0;
  if (!draw_many(called, list, count, top_k, p.top_p, p.uniform, total, drawn, mass)) return false;
  row = called, token = drawn, kept = mass;
  return true;
}

}  // namespace tandem::cuda
