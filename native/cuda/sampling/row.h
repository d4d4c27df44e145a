// A row between the sampler's kernels: what they leave for each other, and what of it may be drawn.
#pragma once
#include "cuda/loss/slices.h"
#include "cuda/sampling/masses.h"
#include "cuda/sampling/sample.h"

namespace tandem::cuda {

constexpr int kFinishThreads = 512;  // of the block that ends a row
constexpr int kMostSlices = 64;      // of 2^18 ids
constexpr int kListed = 8192;        // candidates of a draw; where there are more, the whole row is gone through
constexpr int kListedBest = 2048;    // candidates of the alternatives

// Of the ids of one slice.
struct RawSlice {
  float largest, sum;  // of exponentials; 1 where no log-probabilities are asked for
};
struct DrawSlice {
  Mass mass;  // relative to the slice's largest
  float largest;
  int32_t first;  // id with the largest; of a row with a given id how many are above that
};

struct Candidate {
  int32_t id;
  float value;
};

struct CandidateList {
  Candidate* at;
  int room;
};

// Written to by blocks of several slices.
struct RowState {
  Mass mass;  // of all ids that min_p leaves, relative to the row's largest
  uint32_t listed, listed_best;
  int32_t ranks;  // 1: ids above `rank_value` are still to be counted
  float rank_value;
  float best_cutoff;  // all ids that are not below it are listed
};

// A row's logits, and its part of the workspace.
struct RowSpace {
  const float* logits;
  RawSlice* raw;              // slices
  DrawSlice* draws;           // slices
  float *tiles, *best_tiles;  // the largest of each warp of each slice: of the draw's values, of those of the alternatives
  RowState* state;
  Candidate *list, *best_list;
  float* processed;  // whole slices

  __host__ __device__ static int64_t bytes(int64_t vocab) {
    const int64_t slice = sizeof(RawSlice) + sizeof(DrawSlice) + 2 * kSliceWarps * sizeof(float) + kSliceIds * sizeof(float);
    return (slices_of(vocab) * slice + int64_t(sizeof(RowState) + (kListed + kListedBest) * sizeof(Candidate)) + 15) / 16 * 16;
  }
  __device__ RowSpace(const SampleBatch& a, int64_t row) {
    const int slices = slices_of(a.vocab);
    logits = a.logits + row * a.ld;
    unsigned char* at = reinterpret_cast<unsigned char*>(a.work) + row * bytes(a.vocab);
    processed = reinterpret_cast<float*>(at);
    draws = reinterpret_cast<DrawSlice*>(processed + int64_t(slices) * kSliceIds);
    state = reinterpret_cast<RowState*>(draws + slices);
    raw = reinterpret_cast<RawSlice*>(state + 1);
    list = reinterpret_cast<Candidate*>(raw + slices);
    best_list = list + kListed;
    tiles = reinterpret_cast<float*>(best_list + kListedBest);
    best_tiles = tiles + slices * kSliceWarps;
  }
};

// Of the log-probabilities of untouched logits.
__device__ __forceinline__ float raw_scale(const SampleRow& p) {
  return p.logprob_of == LogprobOf::kScaled && p.scale > 0 ? p.scale : 1.0f;
}
__device__ __forceinline__ float draw_scale(const SampleRow& p) { return p.scale > 0 ? p.scale : 1.0f; }
__device__ __forceinline__ bool changed(const SampleRow& p) { return p.mask >= 0 || p.edit_count > 0; }
__device__ __forceinline__ bool describes_draw(const SampleRow& p) { return p.given < 0 && p.logprob_of == LogprobOf::kProcessed; }
__device__ __forceinline__ bool limits_count(const SampleBatch& a, const SampleRow& p) { return p.top_k > 0 && p.top_k < a.samplable; }
__device__ __forceinline__ bool filters(const SampleBatch& a, const SampleRow& p) {
  return p.given < 0 && p.scale > 0 && (p.min_p > 0 || p.top_p < 1 || limits_count(a, p));
}
__device__ __forceinline__ bool wants_best(const SampleBatch& a, const SampleRow& p) {
  return p.best > 0 && p.first_best >= 0 && int64_t(p.first_best) + p.best <= a.best_total &&
         (p.given >= 0 || p.logprob_of != LogprobOf::kNone);
}

// Where the candidates of a draw go: a row that is not changed has more room.
__device__ __forceinline__ CandidateList list_of(const SampleBatch& a, const SampleRow& p, const RowSpace& space) {
  const int room = slices_of(a.vocab) * (kSliceIds / 2);
  if (changed(p) || room <= kListed) return {space.list, kListed};
  return {reinterpret_cast<Candidate*>(space.processed), room};
}

// Whether the values that a row is drawn from are kept, all of them: where ranks are asked for among them. Otherwise those that are read again
// are found again (processed.h): to keep all of 64 rows would write as much as all logits are.
__device__ __forceinline__ bool keeps_values(const SampleRow& p) { return changed(p) && describes_draw(p); }

// What is drawn from: `samplable` values, of which those of a changed row are not there yet where they are not kept.
__device__ __forceinline__ const float* draw_values(const SampleRow& p, const RowSpace& space) {
  return changed(p) ? space.processed : space.logits;
}

// Of what top_p is a share: of what min_p leaves of all ids, whose mass is added up by itself; or, without min_p, of the slices' sums.
__device__ __forceinline__ bool shares_what_min_p_leaves(const SampleBatch& a, const SampleRow& p) {
  return p.top_p < 1 && p.min_p > 0 && !limits_count(a, p);
}

// Whether sums over slices are asked for: of all that the row is drawn from, or of what top_p is a share of.
__device__ __forceinline__ bool needs_masses(const SampleBatch& a, const SampleRow& p) {
  // Of what is listed no more than top_p may leave out is missing; only the slices' sums tell how much that is.
  if (filters(a, p)) return p.top_p < 1 && !limits_count(a, p);
  return p.scale > 0 || describes_draw(p);
}

__device__ __forceinline__ const uint32_t* mask_of(const SampleBatch& a, const SampleRow& p) {
  return p.mask >= 0 && p.mask < a.mask_rows ? a.masks + int64_t(p.mask) * a.mask_words : nullptr;
}
// exp((l - largest) / T) >= min_p
__device__ __forceinline__ float min_p_value(const SampleRow& p, float largest) {
  return p.min_p > 0 ? largest + logf(p.min_p) / draw_scale(p) : -INFINITY;
}

// Each warp by itself.
__device__ __forceinline__ float draw_largest(const RowSpace& space, int slices) {
  float largest = -INFINITY;
  for (int s = int(threadIdx.x) % kWarp; s < slices; s += kWarp) largest = fmaxf(largest, space.draws[s].largest);
  return warp_max(largest);
}

// Sums of slices, relative to the row's largest.
__device__ __forceinline__ Mass scaled_mass(const DrawSlice& draw, float largest, float scale) {
  return Mass(double(draw.mass) * double(expf((draw.largest - largest) * scale)));
}

// The processed logits of a row and which of them may still be drawn.
struct Row {
  const float* logits;
  int samplable;
  float largest, scale;
  uint32_t least_key;  // ids with smaller keys are out
  uint32_t tie_key;    // of the ids with exactly this key only those below tie_end are in
  int tie_end;

  __device__ Mass mass(float logit) const { return mass_of(logit, largest, scale); }
  __device__ bool keeps(int id, float logit) const {
    const uint32_t key = order_key(logit);
    return key >= least_key && !(key == tie_key && id >= tie_end) && logit != -INFINITY;
  }
  __device__ bool kept(int id) const { return keeps(id, logits[id]); }
  __device__ Mass kept_mass(const Candidate& c) const { return keeps(c.id, c.value) ? mass(c.value) : Mass(0); }
  // What is behind this place is out.
  __device__ void end_at(uint32_t key, int id) {
    least_key = max(least_key, key);
    tie_key = key;
    tie_end = id + 1;
  }
  __device__ void filter_min_p(const SampleRow& p) {
    if (p.min_p > 0) least_key = max(least_key, order_key(min_p_value(p, largest)));
  }
};

__device__ __forceinline__ Row row_of(const SampleBatch& a, const SampleRow& p, const float* values, float largest) {
  return {values, int(a.samplable), largest, draw_scale(p), 0, 0, INT32_MAX};
}

}  // namespace tandem::cuda
