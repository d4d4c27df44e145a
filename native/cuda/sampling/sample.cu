#include "cuda/sampling/sample.h"

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/sampling/candidates.h"

namespace tandem::cuda {
namespace {

constexpr int64_t kManyRows = 8;  // that fill a device with a block for several slices of each
constexpr int kMostTiles = kMostSlices * kSliceWarps;

// Ids of the slice that may not be sampled become -infinity.
__device__ void mask_slice(const SampleBatch& a, const SampleRow& p, int slice, float (&v)[kSliceValues]) {
  const uint32_t* mask = mask_of(a, p);
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; i += 4) {
    const int first = slice_id(slice, i);
    const uint32_t bits = !mask ? ~0u : first / 32 < a.mask_words ? mask[first / 32] >> (first % 32) : 0u;
    GPU_UNROLL
    for (int e = 0; e < 4; ++e) {
      if (first + e >= a.samplable || (bits >> e & 1u) == 0) v[i + e] = -INFINITY;
    }
  }
}

__device__ void edit_slice(const SampleBatch& a, const SampleRow& p, int slice, float (&v)[kSliceValues]) {
  GPU_SHARED(values, float[kSliceIds]);
  const int begin = slice * kSliceIds;
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) values[slice_id(slice, i) - begin] = v[i];
  __syncthreads();
  GPU_UNROLL_4
  for (int64_t i = threadIdx.x; i < p.edit_count; i += kSliceThreads) {
    const int64_t at = int64_t(p.first_edit) + i;
    if (p.first_edit < 0 || at >= a.edit_total) break;
    const int32_t id = a.edits[at].id;
    if (id < begin || id >= begin + kSliceIds || id >= a.samplable) continue;
    const LogitEdit e = a.edits[at];
    float l = values[id - begin] + e.bias;
    l = l > 0 ? l / e.repetition : l * e.repetition;
    values[id - begin] = l - e.penalty;
  }
  __syncthreads();
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) v[i] = values[slice_id(slice, i) - begin];
}

// Of this thread's values; +infinity where one is NaN: so the slice's largest shows it where its sum is not asked for.
__device__ float largest_or_spoiled(const float (&v)[kSliceValues]) {
  bool spoiled = false;
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) spoiled = spoiled || isnan(v[i]);
  return spoiled ? INFINITY : largest_of(v);
}

__device__ RawSlice measure_raw(const SampleRow& p, const float (&v)[kSliceValues], float largest) {
  const bool scores = p.given >= 0 || p.logprob_of == LogprobOf::kRaw || p.logprob_of == LogprobOf::kScaled;
  return {largest, scores ? block_sum(slice_sum(v, largest, raw_scale(p))) : 1.0f};
}

__device__ int count_above(const float (&v)[kSliceValues], float value) {
  int greater = 0;
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) greater += v[i] > value;
  return greater;
}

__device__ int first_with(int slice, const float (&v)[kSliceValues], float largest) {
  GPU_SHARED(firsts, int[kSliceWarps]);
  int first = INT32_MAX;
  GPU_UNROLL
  for (int i = kSliceValues - 1; i >= 0; --i) first = v[i] == largest ? slice_id(slice, i) : first;
  first = warp_least(first);
  if (threadIdx.x % kWarp == 0) firsts[threadIdx.x / kWarp] = first;
  __syncthreads();
  for (int w = 0; w < kSliceWarps; ++w) first = min(first, firsts[w]);
  return first;
}

// Only what the row's draw needs. One with nothing but -infinity, or with +infinity, has no mass.
__device__ DrawSlice measure_draw(const SampleRow& p, int slice, const float (&v)[kSliceValues], float largest) {
  DrawSlice draw{0, largest, 0};
  if (p.scale <= 0) draw.first = first_with(slice, v, largest);
  if ((p.scale <= 0 && !describes_draw(p)) || !isfinite(largest)) return draw;
  Mass mass = 0;
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) mass += mass_of(v[i], largest, draw_scale(p));
  draw.mass = block_total(mass);
  return draw;
}

// A block per slice and row.
__global__ void __launch_bounds__(kSliceThreads, 6) sample_slices_kernel(SampleBatch a) {
  wait_for_inputs();
  const int slice = int(blockIdx.x), tile = slice * kSliceWarps + int(threadIdx.x) / kWarp;
  const int64_t row = blockIdx.y;
  const bool leads = threadIdx.x % kWarp == 0;
  const float* logits = a.logits + row * a.ld;
  float v[kSliceValues];
  load_slice(logits, int(a.vocab), slice, v);
  const SampleRow p = a.params[row];
  const RowSpace space(a, row);
  if (slice == 0 && threadIdx.x == 0) *space.state = RowState{};
  float warp_largest = warp_max(largest_or_spoiled(v)), largest = block_max(warp_largest);
  const RawSlice raw = measure_raw(p, v, largest);
  if (threadIdx.x == 0) space.raw[slice] = raw;
  if (leads && !describes_draw(p)) space.best_tiles[tile] = warp_largest;
  if (p.given >= 0) {
    const int greater = block_total(p.given < a.vocab ? count_above(v, logits[p.given]) : 0);
    if (threadIdx.x == 0) space.draws[slice] = {0, largest, greater};
    return;
  }
  if (changed(p) || (slice + 1) * kSliceIds > a.samplable) {
    mask_slice(a, p, slice, v);
    if (p.edit_count > 0) edit_slice(a, p, slice, v);
    warp_largest = warp_max(largest_of(v));
    largest = block_max(warp_largest);
  }
  if (leads) space.tiles[tile] = warp_largest;
  if (leads && describes_draw(p)) space.best_tiles[tile] = warp_largest;
  const DrawSlice draw = measure_draw(p, slice, v, largest);
  if (threadIdx.x == 0) space.draws[slice] = draw;
  if (!keeps_values(a, p)) return;
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; i += 4) {
    *reinterpret_cast<float4*>(space.processed + slice_id(slice, i)) = float4{v[i], v[i + 1], v[i + 2], v[i + 3]};
  }
}

// Each warp by itself.
__device__ float draw_largest(const RowSpace& space, int slices) {
  float largest = -INFINITY;
  for (int s = int(threadIdx.x) % kWarp; s < slices; s += kWarp) largest = fmaxf(largest, space.draws[s].largest);
  return warp_max(largest);
}

// A value below which there is none of the k largest of all; -infinity where there are fewer than k tiles. One warp.
__device__ float bound_of(const float* tiles, int count, int k) {
  if (k > count) return -INFINITY;
  constexpr int kEach = kMostTiles / kWarp;
  uint32_t keys[kEach];
  GPU_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int tile = i * kWarp + int(threadIdx.x) % kWarp;
    keys[i] = tile < count ? order_key(tiles[tile]) : 0;
  }
  // The k-th largest but for its last bits.
  uint32_t bound = 0;
  for (int bit = 31; bit >= 12; --bit) {
    const uint32_t trial = bound | 1u << bit;
    int there = 0;
    GPU_UNROLL
    for (int i = 0; i < kEach; ++i) there += __popc(__ballot_sync(kAllLanes, keys[i] >= trial));
    if (there >= k) bound = trial;
  }
  return bound <= order_key(-INFINITY) ? -INFINITY : value_of_key(bound);
}

// Sums of slices, relative to the row's largest.
__device__ Mass scaled_mass(const DrawSlice& draw, float largest, float scale) {
  return Mass(double(draw.mass) * double(expf((draw.largest - largest) * scale)));
}

// All ids that filters may leave, apart from top_p after top_k, are not below it. One warp.
__device__ float filter_cutoff(const SampleBatch& a, const SampleRow& p, const RowSpace& space, int slices, float largest) {
  float cutoff = p.min_p > 0 ? largest + logf(p.min_p) / p.scale : -INFINITY;
  if (limits_count(a, p)) return fmaxf(cutoff, bound_of(space.tiles, slices * kSliceWarps, p.top_k));
  if (p.top_p >= 1) return cutoff;
  Mass total = 0;
  for (int s = int(threadIdx.x) % kWarp; s < slices; s += kWarp) total += scaled_mass(space.draws[s], largest, p.scale);
  for (int mask = 16; mask > 0; mask >>= 1) total += __shfl_xor_sync(kAllLanes, total, mask);
  // Ids of less than that have, all together, less than what top_p leaves out. A hundredth is for rounding.
  const float least = 0.99f * float(1 - p.top_p) * float(total) / kMassUnit / float(a.samplable);
  return fmaxf(cutoff, largest + logf(least) / p.scale);
}

// The block's ids whose values are not below the cutoff; `count` goes on where there is no more room.
__device__ void collect(const CandidateList& list, uint32_t* count, int slice, const float (&v)[kSliceValues], float cutoff) {
  GPU_SHARED(taken, uint32_t);
  GPU_SHARED(base, uint32_t);
  __syncthreads();
  if (threadIdx.x == 0) taken = 0;
  __syncthreads();
  uint32_t mine = 0;
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) mine += v[i] >= cutoff && v[i] != -INFINITY;
  uint32_t at = mine > 0 ? atomicAdd(&taken, mine) : 0;
  __syncthreads();
  if (taken == 0) return;
  if (threadIdx.x == 0) base = atomicAdd(count, taken);
  __syncthreads();
  at += base;
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) {
    if (!(v[i] >= cutoff && v[i] != -INFINITY)) continue;
    if (at < uint32_t(list.room)) list.at[at] = {slice_id(slice, i), v[i]};
    ++at;
  }
}

// What min_p leaves of the slice: what top_p is a share of where there is no top_k.
__device__ void add_mass(Row row, const SampleRow& p, int slice, const float (&v)[kSliceValues], Mass* total) {
  row.filter_min_p(p.min_p);
  Mass mass = 0;
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) mass += row.keeps(slice_id(slice, i), v[i]) ? row.mass(v[i]) : Mass(0);
  mass = block_total(mass);
  if (threadIdx.x == 0 && mass > 0) atomicAdd(total, mass);
}

// What a row's block lists of a slice.
struct Listing {
  bool draws, best;
  float cutoff, best_cutoff;
};

// Nothing is read for a warp that has nothing of the slice to list.
__device__ void load_listed(bool here, const float* values, int count, int slice, float (&v)[kSliceValues]) {
  if (here) return load_slice(values, count, slice, v);
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) v[i] = -INFINITY;
}

__device__ void list_slice(const SampleBatch& a, const SampleRow& p, const RowSpace& space, const Row& row, const float* logits, int slice,
                           const Listing& wanted) {
  const bool processed = describes_draw(p);
  const bool mass = wanted.draws && p.top_p < 1 && !limits_count(a, p);  // of all ids
  const float largest = space.draws[slice].largest;
  const bool draws = wanted.draws && (mass || largest >= wanted.cutoff);
  const bool best = wanted.best && (processed ? largest : space.raw[slice].largest) >= wanted.best_cutoff;
  const int tile = slice * kSliceWarps + int(threadIdx.x) / kWarp;
  const bool draws_here = draws && (mass || space.tiles[tile] >= wanted.cutoff);
  const bool best_here = best && space.best_tiles[tile] >= wanted.best_cutoff;
  float v[kSliceValues], w[kSliceValues];
  if (draws || (best && processed)) load_listed(draws_here || (best_here && processed), row.logits, row.samplable, slice, v);
  if (best && !processed) load_listed(best_here, logits, int(a.vocab), slice, w);
  if (draws) collect(list_of(a, p, space), &space.state->listed, slice, v, wanted.cutoff);
  if (mass) add_mass(row, p, slice, v, &space.state->mass);
  const CandidateList list{space.best_list, kListedBest};
  uint32_t* count = &space.state->listed_best;
  if (best && !processed) collect(list, count, slice, w, wanted.best_cutoff);
  if (best && processed) collect(list, count, slice, v, wanted.best_cutoff);
}

// Blocks that share a row's slices; of the rows that need it.
__global__ void __launch_bounds__(kSliceThreads, 3) sample_list_kernel(SampleBatch a) {
  wait_for_inputs();
  GPU_SHARED(cutoffs, float[2]);
  const int slices = slices_of(a.vocab), warp = int(threadIdx.x) / kWarp;
  const int64_t row = blockIdx.y;
  const SampleRow p = a.params[row];
  const bool best = wants_best(a, p);
  if (!best && !filters(a, p)) return;
  const RowSpace space(a, row);
  const float largest = draw_largest(space, slices);
  const bool draws = filters(a, p) && isfinite(largest);
  float cutoff = 0;
  if (draws && warp == 0) cutoff = filter_cutoff(a, p, space, slices, largest);
  if (best && warp == 1) cutoff = bound_of(space.best_tiles, slices * kSliceWarps, p.best);
  if (warp < 2 && threadIdx.x % kWarp == 0) cutoffs[warp] = cutoff;
  __syncthreads();
  const Listing wanted{draws, best, cutoffs[0], cutoffs[1]};
  const Row drawn = row_of(a, p, draw_values(a, p, space, row), largest);
  for (int slice = int(blockIdx.x); slice < slices; slice += int(gridDim.x)) {
    list_slice(a, p, space, drawn, a.logits + row * a.ld, slice, wanted);
  }
  if (best && blockIdx.x == 0 && threadIdx.x == 0) space.state->best_cutoff = cutoffs[1];
}

// What a row's token was drawn from.
struct Drawn {
  int32_t token;
  Row row;
  Mass mass;  // of what the row keeps; of greedy rows where it is asked for
};

__device__ int32_t draw_greedy(const RowSpace& space, int slices, float largest) {
  int first = INT32_MAX;
  for (int s = int(threadIdx.x) % kWarp; s < slices; s += kWarp) {
    if (space.draws[s].largest == largest) first = min(first, space.draws[s].first);
  }
  return warp_least(first);
}

// First the slice, then the id in it. The mass of all goes to `mass`.
__device__ int32_t draw_unfiltered(const SampleBatch& a, const SampleRow& p, const RowSpace& space, int slices, const Row& row,
                                   Mass& mass) {
  const bool there = int(threadIdx.x) < slices;
  const Mass mine[1] = {there ? scaled_mass(space.draws[threadIdx.x], row.largest, row.scale) : 0};
  mass = block_total(mine[0]);
  const Mass target = target_of(p.uniform, mass);
  const Found found = block_find(mine, target);
  const DrawSlice slice = space.draws[found.index];
  const double factor = double(expf((slice.largest - row.largest) * row.scale));
  const Mass inside = min(Mass(double(target - found.before) / factor), slice.mass - 1);
  // Of kept values the mask takes nothing more.
  return find_in_slice(found.index, row.samplable, inside,
                       [&](int id) { return may_be(a, p, id) ? mass_of(row.logits[id], slice.largest, row.scale) : Mass(0); });
}

__device__ int32_t draw_filtered(const SampleBatch& a, const SampleRow& p, const RowSpace& space, Row& row, Mass& mass) {
  row.filter_min_p(p.min_p);
  const int top_k = limits_count(a, p) ? p.top_k : 0;
  const uint32_t listed = space.state->listed;
  int32_t token = -1;
  const CandidateList list = list_of(a, p, space);
  const bool complete = a.lists && listed > 0 && listed <= uint32_t(list.room);
  if (complete && draw_listed(row, list.at, int(listed), top_k, p, space.state->mass, token, mass)) return token;
  if (top_k > 0) filter_top_k(row, top_k);
  if (p.top_p < 1) filter_top_p(row, share_of(a.lists && top_k == 0 ? space.state->mass : kept_mass(row), p.top_p));
  return draw_kept(row, p.uniform, mass);
}

__device__ Drawn choose(const SampleBatch& a, const SampleRow& p, const RowSpace& space, const float* values) {
  const int slices = slices_of(a.vocab);
  const float largest = draw_largest(space, slices);
  Drawn drawn{kForbidden, row_of(a, p, values, largest), 0};
  if (largest == -INFINITY) return drawn;
  // A penalty may carry a logit past the largest float.
  if (!isfinite(largest)) {
    drawn.token = kNotFinite;
  } else if (filters(a, p)) {
    drawn.token = draw_filtered(a, p, space, drawn.row, drawn.mass);
  } else if (p.scale > 0 || describes_draw(p)) {
    drawn.token = draw_unfiltered(a, p, space, slices, drawn.row, drawn.mass);
  }
  if (isfinite(largest) && p.scale <= 0) drawn.token = draw_greedy(space, slices, largest);
  return drawn;
}

// 1 + ids of the source above the value, or 1, and they are counted later.
__device__ int32_t rank_in(const SampleBatch& a, const SampleRow& p, const RowSpace& space, const Row& source, float value) {
  if (value == source.largest) return 1;
  const RowState& state = *space.state;
  int greater = 0;
  if (a.lists && wants_best(a, p) && state.listed_best <= uint32_t(kListedBest) && value >= state.best_cutoff) {
    for (int i = int(threadIdx.x); i < int(state.listed_best); i += kFinishThreads) greater += space.best_list[i].value > value;
  } else if (a.ranks) {
    if (threadIdx.x == 0) space.state->ranks = 1, space.state->rank_value = value;
  } else {
    GPU_UNROLL_8
    for (int i = int(threadIdx.x); i < source.samplable; i += kFinishThreads) greater += source.logits[i] > value;
  }
  return 1 + block_total(greater);
}

// Log-probability and alternatives among the ids that the source keeps, and the rank among them where it is not known.
__device__ Sampled describe(const SampleBatch& a, const SampleRow& p, const RowSpace& space, int32_t token, int32_t rank, const Row& source,
                            const Normaliser& n) {
  Sampled result{token, NAN, 0, 0};
  if (token >= 0) {
    const float value = source.logits[token];
    result.logprob = n(value);
    result.rank = rank > 0 ? rank : rank_in(a, p, space, source, value);
  }
  if (!wants_best(a, p)) return result;
  const uint32_t listed = space.state->listed_best;
  BestEntry* out = a.best + p.first_best;
  result.best_count = a.lists && listed <= uint32_t(kListedBest) ? list_best(source, space.best_list, int(listed), p.best, n, out)
                                                                 : find_best(source, p.best, n, out);
  return result;
}

__device__ Sampled finish(const SampleBatch& a, const SampleRow& p, const RowSpace& space, int64_t row) {
  const int slices = slices_of(a.vocab);
  const float* logits = a.logits + row * a.ld;
  const Normaliser raw = combine(space.raw, slices, raw_scale(p));
  if (!raw.finite()) return {kNotFinite, NAN, 0, 0};
  const Row all{logits, int(a.vocab), raw.largest, 1.0f, 0, 0, INT32_MAX};
  if (p.given >= 0) {
    const int greater = block_total(int(threadIdx.x) < slices ? int(space.draws[threadIdx.x].first) : 0);
    return describe(a, p, space, p.given < a.vocab ? p.given : kForbidden, 1 + greater, all, raw);
  }
  const Drawn drawn = choose(a, p, space, draw_values(a, p, space, row));
  if (p.logprob_of == LogprobOf::kNone) return {drawn.token, 0, 0, 0};
  if (p.logprob_of != LogprobOf::kProcessed) return describe(a, p, space, drawn.token, 0, all, raw);
  if (drawn.token < 0) return {drawn.token, NAN, 0, 0};
  const Normaliser kept{drawn.row.largest, drawn.row.scale, float(log(double(drawn.mass) / double(kMassUnit)))};
  return describe(a, p, space, drawn.token, 0, drawn.row, kept);
}

// A block per row.
__global__ void __launch_bounds__(kFinishThreads, 2) sample_finish_kernel(SampleBatch a) {
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const SampleRow p = a.params[row];
  const Sampled result = finish(a, p, RowSpace(a, row), row);
  if (threadIdx.x != 0) return;
  a.out[row] = result;
  if (p.place >= 0 && p.place < a.last_count) a.last[p.place] = result.token;
}

// A block per slice and row; of the rows whose rank is not known.
__global__ void __launch_bounds__(kSliceThreads, 4) sample_rank_kernel(SampleBatch a) {
  wait_for_inputs();
  const int64_t row = blockIdx.y;
  const RowSpace space(a, row);
  if (space.state->ranks == 0) return;
  const float value = space.state->rank_value;
  const int slice = int(blockIdx.x), tile = slice * kSliceWarps + int(threadIdx.x) / kWarp;
  int greater = 0;
  if (space.best_tiles[tile] > value) {
    const SampleRow p = a.params[row];
    const bool processed = describes_draw(p);
    float v[kSliceValues];
    load_slice(processed ? draw_values(a, p, space, row) : a.logits + row * a.ld, int(processed ? a.samplable : a.vocab), slice, v);
    greater = count_above(v, value);
  }
  greater = block_total(greater);
  if (threadIdx.x == 0 && greater > 0) atomicAdd(&a.out[row].rank, greater);
}

void check(const SampleBatch& a, const char* name) {
  check_argument(a.rows >= 0 && a.rows < 1 << 16, name, "rows");
  check_argument(a.vocab >= 1 && a.vocab <= int64_t(kMostSlices) * kSliceIds && a.vocab <= a.ld, name, "vocab");
  check_argument(a.samplable >= 1 && a.samplable <= a.vocab, name, "samplable");
  check_argument(a.work_floats >= sample_workspace_floats(a.rows, a.vocab), name, "work_floats");
  check_argument(reinterpret_cast<uintptr_t>(a.work) % 16 == 0, name, "work");
  check_argument(a.edit_total >= 0, name, "edit_total");
  check_argument(a.last_count >= 0, name, "last_count");
  check_argument(a.best_total >= 0 && a.best_total < int64_t(1) << 31, name, "best_total");
  check_argument(a.mask_rows >= 0 && (a.mask_rows == 0 || a.mask_words * 32 >= a.samplable), name, "mask_words");
}

}  // namespace

int64_t sample_workspace_floats(int64_t rows, int64_t vocab) { return rows * RowSpace::bytes(vocab) / int64_t(sizeof(float)); }

void choose_kernels(SampleBatch& batch, const std::vector<SampleRow>& rows) {
  batch.lists = batch.ranks = false;
  for (const SampleRow& p : rows) {
    const bool filtered = p.scale > 0 && (p.min_p > 0 || p.top_p < 1 || (p.top_k > 0 && p.top_k < batch.samplable));
    batch.lists = batch.lists || p.best > 0 || (p.given < 0 && filtered);
    batch.ranks = batch.ranks || (p.given < 0 && p.logprob_of != LogprobOf::kNone);
  }
}

void sample(const SampleBatch& a, cudaStream_t stream) {
  const char* name = "sample";
  check(a, name);
  if (a.rows == 0) return;
  const dim3 slices(unsigned(slices_of(a.vocab)), unsigned(a.rows)), threads(kSliceThreads);
  GPU_LAUNCH_EARLY(sample_slices_kernel, slices, threads, 0, stream, a);
  check_launch(name);
  // Finding the cutoffs costs a block as much as a few slices.
  const dim3 shared(a.rows < kManyRows ? slices.x : (slices.x + 3) / 4, slices.y);
  if (a.lists) GPU_LAUNCH_EARLY(sample_list_kernel, shared, threads, 0, stream, a);
  check_launch(name);
  GPU_LAUNCH_EARLY(sample_finish_kernel, dim3(unsigned(a.rows)), dim3(kFinishThreads), 0, stream, a);
  check_launch(name);
  if (a.ranks) GPU_LAUNCH_EARLY(sample_rank_kernel, slices, threads, 0, stream, a);
  check_launch(name);
}

}  // namespace tandem::cuda
