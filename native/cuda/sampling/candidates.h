// Filters, draws and alternatives of a row from its listed candidates, which come in any order. A few are sorted in shared memory; of more the
// places that matter are looked for by bins.
#pragma once
#include "cuda/sampling/thresholds.h"

namespace tandem::cuda {

// Masses of at most kFewPlaces places, of which each thread has one. Threads that each add up all that is before their own meet a few times; a running
// sum of all threads would let them meet more often, by more instructions.
struct FewMasses {
  Mass of[kFewPlaces];
  int drawn;
};
__device__ inline FewMasses& shared_few() {
  GPU_SHARED(few, FewMasses);
  return few;
}

// This thread's own, when all are there.
__device__ __forceinline__ Mass put_masses(const Row& row, const uint64_t (&places)[kSorted], int count, FewMasses& few) {
  const int own = int(threadIdx.x);
  const Mass mine = own < count ? row.mass(value_of(places[own])) : 0;
  if (own < count) few.of[own] = mine;
  if (own == 0) few.drawn = -1;
  __syncthreads();
  return mine;
}

// The masses of all places, and of those that come before, of which first(i) is true.
struct Sums {
  Mass all = 0, before = 0;
};
template <class First>
__device__ __forceinline__ Sums sums_of(const FewMasses& few, int count, const First& first) {
  Sums sums;
  GPU_UNROLL_4
  for (int i = 0; i < count; ++i) {
    const Mass mass = few.of[i];
    sums.all += mass;
    sums.before += first(i) ? mass : 0;
  }
  return sums;
}

// How many of the sorted places top_k and top_p leave; 0 where the list ends before top_p is reached. `total`: the mass that top_p is a share
// of, where top_k does not cut it.
__device__ __forceinline__ int filtered_count(const uint64_t (&places)[kSorted], const FewMasses& few, Mass mine, int count, int top_k,
                                              double top_p, Mass total) {
  const int own = int(threadIdx.x);
  if (top_k > 0 && top_k < count) {
    const uint32_t least = key_of(places[top_k - 1]);
    count = __syncthreads_count(own < count && key_of(places[own]) >= least);
  }
  if (top_p >= 1) return count;
  const Sums sums = sums_of(few, count, [&](int i) { return i < own; });
  const Mass wanted = share_of(top_k > 0 ? sums.all : total, top_p);
  const int less = __syncthreads_count(own < count && sums.before + mine < wanted);
  return less < count ? less + 1 : 0;
}

// By ascending id: the one with which the running mass exceeds target(that of all), which goes to `total`; -1 where none does.
template <class Target>
__device__ __forceinline__ int draw_few_by_ids(const uint64_t (&places)[kSorted], FewMasses& few, Mass mine, int count,
                                               const Target& target, Mass& total) {
  const int own = int(threadIdx.x), id = own < count ? id_of(places[own]) : 0;
  const Sums sums = sums_of(few, count, [&](int i) { return id_of(places[i]) < id; });
  total = sums.all;
  const Mass wanted = target(total);
  if (own < count && sums.before <= wanted && sums.before + mine > wanted) few.drawn = id;
  __syncthreads();
  return few.drawn;
}

// As find_best, from a list that holds them.
__device__ inline int list_best(const Row& source, const Candidate* list, int count, int wanted, const Normaliser& n, BestEntry* out) {
  uint64_t(&places)[kSorted] = shared_places();
  int there = 0;
  if (count <= kFewPlaces) {
    there = sort_few(list, count, source, places);
  } else {
    there = gather(
        count, places, [&](int i) { return list[i]; }, [&](const Candidate& c) { return source.keeps(c.id, c.value); });
    sort_places(places, there);
  }
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
  FewMasses& few = shared_few();
  count = sort_few(list, count, row, places);
  const Mass mine = put_masses(row, places, count, few);
  count = filtered_count(places, few, mine, count, top_k, p.top_p, total);
  if (count == 0) return false;
  row.end_at(key_of(places[count - 1]), id_of(places[count - 1]));
  token = draw_few_by_ids(
      places, few, mine, count, [&](Mass all) { return target_of(p.uniform, all); }, kept);
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
static_assert(kIdsOfBin <= kFewPlaces);

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
  FewMasses& few = shared_few();
  const Mass own = put_masses(row, places, there, few);
  Mass inside;
  return draw_few_by_ids(
      places, few, own, there, [&](Mass) { return target - bin.before; }, inside);
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
