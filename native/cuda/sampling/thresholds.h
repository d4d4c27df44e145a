// Filters, draws and alternatives of a row by passes through all of it, one block alone: for rows with more candidates than are listed.
#pragma once
#include "cuda/sampling/places.h"

namespace tandem::cuda {

constexpr int kBins = 2 * kFinishThreads;
constexpr int kDigits = 256;
constexpr int kPartBits = 14;

// Counters of masses. Sums of 2^18 parts of 14 bits fit into 32, whose additions shared memory does by itself.
template <int Count>
struct MassCounters {
  uint32_t parts[3][Count];

  __device__ void clear() {
    for (int i = int(threadIdx.x); i < 3 * Count; i += kFinishThreads) parts[i / Count][i % Count] = 0;
    __syncthreads();
  }
  __device__ void add(int at, Mass mass) {
    constexpr Mass kPart = (1u << kPartBits) - 1;
    const uint32_t split[3] = {uint32_t(mass & kPart), uint32_t(mass >> kPartBits & kPart), uint32_t(mass >> 2 * kPartBits)};
    for (int i = 0; i < 3; ++i) {
      if (split[i] != 0) atomicAdd(&parts[i][at], split[i]);
    }
  }
  __device__ Mass operator[](int at) const {
    return Mass(parts[0][at]) + (Mass(parts[1][at]) << kPartBits) + (Mass(parts[2][at]) << 2 * kPartBits);
  }
};

// One for all that use them by turns.
template <int Count>
__device__ MassCounters<Count>& shared_counters() {
  GPU_SHARED(counters, MassCounters<Count>);
  return counters;
}

// Values by how far they are below the largest, 64 bins for every doubling of the distance: larger values are never in later bins.
__device__ __forceinline__ int bin_of(float largest, float value) {
  const float distance = fmaf(largest - value, 16.0f, 1.0f);
  uint32_t bits;
  memcpy(&bits, &distance, 4);
  return int(min((bits - 0x3f800000u) >> 17, uint32_t(kBins - 1)));
}

// The first bin with which the bins up to it amount to at least `wanted`, and what lies before it; -1 where all amount to less. Of at(0), ...,
// at(count - 1); amount(candidate) is 0 for what is out.
template <class At, class Amount>
__device__ Found find_bin(int count, Mass wanted, float largest, const At& at, const Amount& amount) {
  MassCounters<kBins>& bins = shared_counters<kBins>();
  bins.clear();
  GPU_UNROLL_4
  for (int i = int(threadIdx.x); i < count; i += kFinishThreads) {
    const Candidate c = at(i);
    const Mass add = amount(c);
    if (add != 0) bins.add(bin_of(largest, c.value), add);
  }
  __syncthreads();
  const int first = 2 * int(threadIdx.x);
  const Mass mine[2] = {bins[first], bins[first + 1]};
  return block_find(mine, wanted - 1);  // which ends with a barrier
}

// The first id of a slice, ascending, at which the running amount exceeds `target`; -1 where it never does.
template <class Amount>
__device__ int find_in_slice(int slice, int count, Mass target, const Amount& amount) {
  constexpr int kEach = kSliceIds / kFinishThreads;
  const int first = slice * kSliceIds + int(threadIdx.x) * kEach;
  Mass mine[kEach];
  GPU_UNROLL
  for (int i = 0; i < kEach; ++i) mine[i] = first + i < count ? amount(first + i) : 0;
  const Found found = block_find(mine, target);
  return found.index < 0 ? -1 : slice * kSliceIds + found.index;
}

// Thread s gets the sum of slice s; each warp adds up every so many of them.
template <class Amount>
__device__ Mass slice_amount(int count, const Amount& amount) {
  GPU_SHARED(totals, Mass[kMostSlices]);
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp, slices = slices_of(count);
  for (int slice = warp; slice < slices; slice += kFinishThreads / kWarp) {
    const int end = min(count, (slice + 1) * kSliceIds);
    Mass mine = 0;
    GPU_UNROLL_8
    for (int i = slice * kSliceIds + lane; i < end; i += kWarp) mine += amount(i);
    for (int mask = 16; mask > 0; mask >>= 1) mine += __shfl_xor_sync(kAllLanes, mine, mask);
    if (lane == 0) totals[slice] = mine;
  }
  __syncthreads();
  return int(threadIdx.x) < slices ? totals[threadIdx.x] : 0;
}

// As find_in_slice, of all slices with these sums.
template <class Amount>
__device__ int find_running(int count, Mass target, Mass slice_sum, const Amount& amount) {
  const Mass mine[1] = {slice_sum};
  const Found found = block_find(mine, target);
  return found.index < 0 ? -1 : find_in_slice(found.index, count, target - found.before, amount);
}

// A place in the order of values and ids: all up to it amount to what was wanted.
struct Threshold {
  uint32_t key;
  int id;
};

// Among the candidates of the bin in which it lies; false where they are more than are sorted.
template <class At, class Amount>
__device__ bool find_sorted(int count, Mass wanted, float largest, const Found& bin, const At& at, const Amount& amount, Threshold& out) {
  uint64_t(&places)[kSorted] = shared_places();
  auto inside = [&](const Candidate& c) { return c.value != -INFINITY && bin_of(largest, c.value) == bin.index && amount(c) != 0; };
  const int there = gather(count, places, at, inside);
  if (there > kSorted) return false;
  sort_places(places, there);
  Mass mine[kEachSorted];
  GPU_UNROLL
  for (int i = 0; i < kEachSorted; ++i) {
    const int own = int(threadIdx.x) * kEachSorted + i;
    mine[i] = own < there ? amount(Candidate{id_of(places[own]), value_of(places[own])}) : 0;
  }
  const Found found = block_find(mine, wanted - bin.before - 1);
  const uint64_t place = places[max(found.index, 0)];
  __syncthreads();  // before the places are used again
  out = {key_of(place), id_of(place)};
  return true;
}

// The same of a row's values by digits, for a bin of too many ids.
template <class Amount>
__device__ Threshold find_crowded(const float* values, int count, Mass wanted, float largest, const Found& bin, const Amount& amount) {
  MassCounters<kDigits>& digits = shared_counters<kDigits>();
  uint32_t prefix = 0;
  Mass above = bin.before;
  for (int shift = 24; shift >= 0; shift -= 8) {
    digits.clear();
    GPU_UNROLL_4
    for (int i = int(threadIdx.x); i < count; i += kFinishThreads) {
      const Candidate c{i, values[i]};
      const uint32_t key = order_key(c.value);
      const bool inside = shift == 24 || key >> (shift + 8) == prefix >> (shift + 8);
      const Mass add = inside && c.value != -INFINITY && bin_of(largest, c.value) == bin.index ? amount(c) : 0;
      if (add != 0) digits.add(int(key >> shift & 255u), add);
    }
    __syncthreads();
    // From the largest digit down.
    const int digit = kDigits - 1 - int(threadIdx.x);
    const Mass mine[1] = {digit >= 0 ? digits[digit] : 0};
    const Found found = block_find(mine, wanted - above - 1);
    prefix |= uint32_t(kDigits - 1 - found.index) << shift;
    above += found.before;
  }
  auto tied = [&](int id) { return order_key(values[id]) == prefix ? amount(Candidate{id, values[id]}) : Mass(0); };
  return {prefix, find_running(count, wanted - above - 1, slice_amount(count, tied), tied)};
}

// Of a row's values the first place, from the largest down and of equal ones from the smallest id up, with which the places up to it amount to
// at least `wanted`; false where all amount to less.
template <class Amount>
__device__ bool find_threshold(const float* values, int count, Mass wanted, float largest, const Amount& amount, Threshold& out) {
  auto at = [&](int i) { return Candidate{i, values[i]}; };
  const Found bin = find_bin(count, wanted, largest, at, amount);
  if (bin.index < 0) return false;
  if (!find_sorted(count, wanted, largest, bin, at, amount, out)) out = find_crowded(values, count, wanted, largest, bin, amount);
  return true;
}

__device__ GPU_CALLED Mass kept_mass(const Row& row) {
  Mass mine = 0;
  GPU_UNROLL_8
  for (int i = int(threadIdx.x); i < row.samplable; i += kFinishThreads) mine += row.kept_mass({i, row.logits[i]});
  return block_total(mine);
}

// What is above -infinity.
__device__ __forceinline__ Mass one_each(const Candidate& c) { return Mass(c.value != -INFINITY); }

// Ids with equal values at the k-th place stay.
__device__ GPU_CALLED void filter_top_k(Row& row, int top_k) {
  Threshold t;
  if (find_threshold(row.logits, row.samplable, Mass(top_k), row.largest, one_each, t)) row.least_key = max(row.least_key, t.key);
}

__device__ __forceinline__ Mass share_of(Mass total, double top_p) { return max(Mass(1), min(total, Mass(ceil(top_p * double(total))))); }

// The smallest set of most probable ids that holds the wanted mass; of equal ones the smaller ids. All, where they have less.
__device__ GPU_CALLED void filter_top_p(Row& row, Mass wanted) {
  Threshold t;
  auto mass = [&](const Candidate& c) { return row.kept_mass(c); };
  if (find_threshold(row.logits, row.samplable, wanted, row.largest, mass, t)) row.end_at(t.key, t.id);
}

__device__ __forceinline__ Mass target_of(double uniform, Mass total) { return min(Mass(uniform * double(total)), total - 1); }

// From what the row keeps, whose mass goes to `total`.
__device__ GPU_CALLED int draw_kept(const Row& row, double uniform, Mass& total) {
  auto amount = [&](int id) { return row.kept_mass({id, row.logits[id]}); };
  const Mass mine = slice_amount(row.samplable, amount);
  total = block_total(mine);
  return find_running(row.samplable, target_of(uniform, total), mine, amount);
}

// Ids [0, count) for which picks(id), by ascending id, to write(0...). Each warp owns a run of ids.
template <class Picks, class Write>
__device__ void compact(int count, const Picks& picks, const Write& write) {
  constexpr int kFinishWarps = kFinishThreads / kWarp;
  GPU_SHARED(totals, int[kFinishWarps]);
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const int run = (count + kFinishWarps - 1) / kFinishWarps, begin = warp * run, end = min(count, begin + run);
  int mine = 0;
  GPU_UNROLL_8
  for (int i = begin + lane; i < end; i += kWarp) mine += picks(i);
  for (int mask = 16; mask > 0; mask >>= 1) mine += __shfl_xor_sync(kAllLanes, mine, mask);
  if (lane == 0) totals[warp] = mine;
  __syncthreads();
  int at = 0;
  for (int w = 0; w < warp; ++w) at += totals[w];
  GPU_UNROLL_4
  for (int first = begin; first < end; first += kWarp) {
    const int id = first + lane;
    const bool own = id < end && picks(id);
    const unsigned all = __ballot_sync(kAllLanes, own);
    if (own) write(at + __popc(all & ((1u << lane) - 1)), id);
    at += __popc(all);
  }
  __syncthreads();  // totals may be written again
}

// The `wanted` largest of the ids that `source` keeps, of equal ones the smaller ids; how many there were.
__device__ GPU_CALLED int find_best(const Row& source, int wanted, const Normaliser& n, BestEntry* out) {
  const float* values = source.logits;
  int mine = 0;
  GPU_UNROLL_8
  for (int i = int(threadIdx.x); i < source.samplable; i += kFinishThreads) mine += source.kept(i);
  const int taken = min(wanted, block_total(mine));
  if (taken <= 0) return 0;
  Threshold t{};
  auto one = [&](const Candidate& c) { return Mass(source.keeps(c.id, c.value)); };
  find_threshold(values, source.samplable, Mass(taken), source.largest, one, t);
  auto picks = [&](int id) {
    const uint32_t key = order_key(values[id]);
    return source.kept(id) && (key > t.key || (key == t.key && id <= t.id));
  };
  compact(source.samplable, picks, [&](int at, int id) { out[at] = {id, value_of_key(order_key(values[id])), n(values[id])}; });
  return taken;
}

}  // namespace tandem::cuda
