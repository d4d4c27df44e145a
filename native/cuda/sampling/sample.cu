#include "cuda/sampling/sample.h"

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/sampling/candidates.h"
#include "cuda/sampling/listing.h"
#include "cuda/sampling/processed.h"

namespace tandem::cuda {
namespace {

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
__device__ DrawSlice measure_draw(const SampleBatch& a, const SampleRow& p, int slice, const float (&v)[kSliceValues], float largest) {
  DrawSlice draw{0, largest, 0};
  if (p.scale <= 0) draw.first = first_with(slice, v, largest);
  if (!needs_masses(a, p) || !isfinite(largest)) return draw;
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
  const RowSpace space(a, row);
  float v[kSliceValues];
  load_slice(space.logits, int(a.vocab), slice, v);
  const SampleRow p = a.params[row];
  if (slice == 0 && threadIdx.x == 0) *space.state = RowState{};
  float warp_largest = warp_max(largest_or_spoiled(v)), largest = block_max(warp_largest);
  const RawSlice raw = measure_raw(p, v, largest);
  if (threadIdx.x == 0) space.raw[slice] = raw;
  if (leads && !describes_draw(p)) space.best_tiles[tile] = warp_largest;
  if (p.given >= 0) {
    const int greater = block_total(p.given < a.vocab ? count_above(v, space.logits[p.given]) : 0);
    if (threadIdx.x == 0) space.draws[slice] = {0, largest, greater};
    return;
  }
  if (changed(p) || (slice + 1) * kSliceIds > a.samplable) {
    mask_values(a, p, slice, int(threadIdx.x), v);
    if (p.edit_count > 0) edit_slice(a, p, slice, v);
    warp_largest = warp_max(largest_of(v));
    largest = block_max(warp_largest);
  }
  if (leads) space.tiles[tile] = warp_largest;
  if (leads && describes_draw(p)) space.best_tiles[tile] = warp_largest;
  const DrawSlice draw = measure_draw(a, p, slice, v, largest);
  if (threadIdx.x == 0) space.draws[slice] = draw;
  if (!keeps_values(p)) return;
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; i += 4) {
    *reinterpret_cast<float4*>(space.processed + slice_id(slice, i)) = float4{v[i], v[i + 1], v[i + 2], v[i + 3]};
  }
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

// Thread s gets the sum of slice s, relative to the row's largest.
__device__ Mass own_slice_mass(const RowSpace& space, int slices, const Row& row) {
  return int(threadIdx.x) < slices ? scaled_mass(space.draws[threadIdx.x], row.largest, row.scale) : Mass(0);
}

// First the slice, then the id in it. The mass of all goes to `mass`.
__device__ int32_t draw_unfiltered(const SampleBatch& a, const SampleRow& p, const RowSpace& space, int slices, const Row& row,
                                   Mass& mass) {
  const Mass mine[1] = {own_slice_mass(space, slices, row)};
  mass = block_total(mine[0]);
  const Mass target = target_of(p.uniform, mass);
  const Found found = block_find(mine, target);
  const DrawSlice slice = space.draws[found.index];
  const double factor = double(expf((slice.largest - row.largest) * row.scale));
  const Mass inside = min(Mass(double(target - found.before) / factor), slice.mass - 1);
  find_again(a, p, space, found.index * kSliceIds, (found.index + 1) * kSliceIds);
  return find_in_slice(found.index, row.samplable, inside, [&](int id) { return mass_of(row.logits[id], slice.largest, row.scale); });
}

__device__ int32_t draw_filtered(const SampleBatch& a, const SampleRow& p, const RowSpace& space, int slices, Row& row, Mass& mass) {
  row.filter_min_p(p);
  const int top_k = limits_count(a, p) ? p.top_k : 0;
  const uint32_t listed = space.state->listed;
  const CandidateList list = list_of(a, p, space);
  const bool complete = a.lists && listed > 0 && listed <= uint32_t(list.room);
  if (!complete) find_again(a, p, space, 0, row.samplable);
  Mass total = 0;
  if (shares_what_min_p_leaves(a, p)) total = a.lists ? space.state->mass : kept_mass(Row(row));
  else if (p.top_p < 1 && top_k == 0) total = block_total(own_slice_mass(space, slices, row));
  int32_t token = -1;
  if (complete) {
    if (draw_listed(row, list.at, int(listed), top_k, p, total, token, mass)) return token;
    find_again(a, p, space, 0, row.samplable);
  }
  Row called = row;  // as in draw_listed()
  Mass all = 0;
  if (top_k > 0) filter_top_k(called, top_k);
  if (p.top_p < 1) filter_top_p(called, share_of(top_k == 0 ? total : kept_mass(called), p.top_p));
  token = draw_kept(called, p.uniform, all);
  row = called, mass = all;
  return token;
}

__device__ Drawn choose(const SampleBatch& a, const SampleRow& p, const RowSpace& space) {
  const int slices = slices_of(a.vocab);
  const float largest = draw_largest(space, slices);
  Drawn drawn{kForbidden, row_of(a, p, draw_values(p, space), largest), 0};
  if (largest == -INFINITY) return drawn;
  // A penalty may carry a logit past the largest float.
  if (!isfinite(largest)) {
    drawn.token = kNotFinite;
  } else if (filters(a, p)) {
    drawn.token = draw_filtered(a, p, space, slices, drawn.row, drawn.mass);
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
__device__ __forceinline__ Sampled describe(const SampleBatch& a, const SampleRow& p, const RowSpace& space, int32_t token, int32_t rank,
                                            const Row& source, const Normaliser& n) {
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
                                                                 : find_best(Row(source), p.best, Normaliser(n), out);
  return result;
}

__device__ __forceinline__ Sampled finish(const SampleBatch& a, const SampleRow& p, const RowSpace& space) {
  const int slices = slices_of(a.vocab);
  const Normaliser raw = combine(space.raw, slices, raw_scale(p));
  if (!raw.finite()) return {kNotFinite, NAN, 0, 0};
  Row source{space.logits, int(a.vocab), raw.largest, 1.0f, 0, 0, INT32_MAX};
  Normaliser n = raw;
  int32_t token = kForbidden, rank = 0;
  if (p.given >= 0) {
    rank = 1 + block_total(int(threadIdx.x) < slices ? int(space.draws[threadIdx.x].first) : 0);
    if (p.given < a.vocab) token = p.given;
  } else {
    const Drawn drawn = choose(a, p, space);
    token = drawn.token;
    if (p.logprob_of == LogprobOf::kNone) return {token, 0, 0, 0};
    if (p.logprob_of == LogprobOf::kProcessed) {
      if (token < 0) return {token, NAN, 0, 0};
      source = drawn.row;
      n = {drawn.row.largest, drawn.row.scale, float(log(double(drawn.mass) / double(kMassUnit)))};
    }
  }
  return describe(a, p, space, token, rank, source, n);
}

// A block per row.
__global__ void __launch_bounds__(kFinishThreads, 2) sample_finish_kernel(const __grid_constant__ SampleBatch a) {
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const SampleRow p = a.params[row];
  const Sampled result = finish(a, p, RowSpace(a, row));
  if (threadIdx.x != 0) return;
  a.out[row] = result;
  if (p.place >= 0 && p.place < a.last_count) a.last[p.place] = result.token;
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
  if (a.lists) list_candidates(a, stream);
  GPU_LAUNCH_EARLY(sample_finish_kernel, dim3(unsigned(a.rows)), dim3(kFinishThreads), 0, stream, a);
  check_launch(name);
  if (a.ranks) count_ranks(a, stream);
}

}  // namespace tandem::cuda
