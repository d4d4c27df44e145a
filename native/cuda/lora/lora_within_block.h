// The work of a block that makes what adapters add within a product's launch (lora_within.h).
//
// A block makes some outputs of one projection for a tile of rows that have one adapter. It makes all of their A x itself, so it waits for no
// other block; the order of the sums is that of lora_sums.h. Factors are not written by kernels ahead: they come before the inputs are there.
#pragma once
#include "cuda/common/arrivals.h"
#include "cuda/common/early_launch.h"
#include "cuda/lora/lora_factors.h"
#include "cuda/lora/lora_outputs.h"
#include "cuda/lora/lora_within.h"

namespace tandem::cuda::lora {

// What the threads of a block share, in front of what each has for itself.
struct WithinShared {
  static constexpr int kRankStride = LoraWithin::kMostRank + 8;  // so that a warp's u meet no bank twice

  float segments[kSegments * kSegmentSums];
  float u[LoraWithin::kTileRows * kRankStride];
  LoraTile tile;
};
static_assert(sizeof(WithinShared) % 16 == 0 && LoraWithin::kTileRows == kRows);

// Outputs [begin, end) of a projection for a tile of rows, kMost at most.
//
// Every thread copies to shared memory what it needs itself, and nothing of another's: of each step of A its inputs of two ranks and, where the
// row of its group is there, of x; then of each pass over the outputs its kEach columns of four ranks of B. kUnits of these are under way at a
// time. Where they lie depends on kMost.
template <int kMost, int kUnits>
class TileWithin {
 public:
  static constexpr int kThreads = LoraWithin::kThreads, kWarps = kThreads / kWarp, kPerWarp = kSegments / kWarps;
  static_assert(kPerWarp == 2);
  static constexpr int kRuns = kStep / kRun, kHalves = 2;  // of a unit: runs of A, or tiles of a warp's outputs
  static constexpr int kSlots = kHalves * kRuns, kRowSlots = kRuns * kMost * kQuad;
  static_assert(kHalves * kQuad <= kSlots);
  static constexpr int kPass = kWarps * kHalves * kWarpOutputs, kUnitBytes = (kSlots * kThreads + kWarps * kRowSlots) * 16;

  __device__ __forceinline__ TileWithin(const LoraPart& a, int which, const LoraWeights& w, const int32_t* rows, int begin, int end,
                                        WithinShared& shared)
      : a_(a), projection_(a.projections[which]), w_(w), rows_(rows), begin_(begin), end_(end), shared_(shared), next_{0, 0, false} {
    const int group = int(threadIdx.x) % kWarp / kQuad;
    row_ = group < kMost ? rows[group] : -1;
    x_ = a.x + max(row_, 0) * a.ldx;
    segment_ = segment_of(int(a.in));
    first_input_ = kPerWarp * segment_ * (int(threadIdx.x) / kWarp);
    // A warp's segments follow each other, and of the last one of all a step may be cut.
    steps_ = (max(0, min(kPerWarp * segment_, int(a.in) - first_input_)) + kStep - 1) / kStep;
    whole_a_ = whole_vectors(w.a, a.in, a.in);
    whole_b_ = whole_vectors(w.b, projection_.out, projection_.out);
    if (steps_ == 0) next_.expands = true;
  }

  // Calls asked() when factors are on their way.
  template <class Asked>
  __device__ __forceinline__ void run(const Asked& asked) {
    fetch_factors();
    Place ahead = next_;
    GPU_UNROLL_1
    for (int i = 0; i < kUnits; ++i, advance(ahead)) bring_factors(ahead, i);
    asked();
    wait_for_inputs();
    GPU_UNROLL_1
    for (int i = 0; i < kUnits; ++i, advance(next_)) {
      bring_inputs(next_, i);
      cp_async_commit();
    }
    shrink();
    expand();
  }

 private:
  // A unit: of A this step of the warp's segments, or this pass over the outputs; of kRanks ranks from `rank` on.
  struct Place {
    int rank, at;
    bool expands;
  };

  __device__ __forceinline__ bool ended(const Place& p) const { return p.expands && begin_ + p.at * kPass >= end_; }

  __device__ __forceinline__ void advance(Place& p) const {
    const auto more_ranks = [&] {
      p.rank += kRanks;
      if (p.rank < w_.rank) return true;
      p.rank = 0;
      return false;
    };
    if (p.expands) {
      if (!more_ranks()) ++p.at;
    } else if (++p.at == steps_) {
      p.at = 0;
      p.expands = !more_ranks();
    }
  }

  __device__ __forceinline__ unsigned char* unit_of(int unit) const {
    return reinterpret_cast<unsigned char*>(&shared_ + 1) + unit * kUnitBytes;
  }
  __device__ __forceinline__ Eight* slot(int unit, int i) const {
    return reinterpret_cast<Eight*>(unit_of(unit)) + i * kThreads + int(threadIdx.x);
  }
  // Of x.
  __device__ __forceinline__ Eight* row_slot(int unit, int run) const {
    const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
    return reinterpret_cast<Eight*>(unit_of(unit)) + kSlots * kThreads + warp * kRowSlots + run * kMost * kQuad + lane;
  }

  __device__ __forceinline__ int input_of(const Place& p) const { return first_input_ + p.at * kStep + int(threadIdx.x) % kQuad * kEach; }
  __device__ __forceinline__ int output_of(int pass) const {
    const int warp = int(threadIdx.x) / kWarp, group = int(threadIdx.x) % kWarp / kQuad;
    return begin_ + pass * kPass + warp * kHalves * kWarpOutputs + group * kEach;
  }

  // Zeros where there is no such rank, input or output.
  __device__ __forceinline__ void bring_factors(const Place& p, int unit) const {
    if (ended(p)) return;
    if (!(p.expands ? whole_b_ : whole_a_)) return bring_each(p, unit);
    Eight* to = slot(unit, 0);
    if (p.expands) {
      const int output = output_of(p.at), rank = p.rank + lane_rank(0);
      const bf16* from = w_.b + rank * projection_.out + output;
      GPU_UNROLL
      for (int i = 0; i < kQuad; ++i) {
        const int own = i / 2 * (kRanks / 2) + i % 2;
        GPU_UNROLL
        for (int half = 0; half < kHalves; ++half) {
          const bool there = rank + own < w_.rank && output + half * kWarpOutputs < end_;
          cp_async_16(to + (half * kQuad + i) * kThreads, from + own * projection_.out + half * kWarpOutputs, there ? 16 : 0);
        }
      }
    } else {
      const int input = input_of(p), rank = p.rank + int(threadIdx.x) % kWarp / kQuad;
      const bf16 *upper = w_.a + rank * a_.in + input, *lower = upper + kRanks / 2 * a_.in;
      GPU_UNROLL
      for (int run = 0; run < kRuns; ++run) {
        const bool there = input + run * kRun < int(a_.in);
        cp_async_16(to + 2 * run * kThreads, upper + run * kRun, there && rank < w_.rank ? 16 : 0);
        cp_async_16(to + (2 * run + 1) * kThreads, lower + run * kRun, there && rank + kRanks / 2 < w_.rank ? 16 : 0);
      }
    }
  }

  // The same, one element at a time.
  __device__ __forceinline__ void bring_each(const Place& p, int unit) const {
    const int64_t apart = p.expands ? projection_.out : a_.in;
    const bf16* factors = p.expands ? w_.b : w_.a;
    const int first = p.expands ? output_of(p.at) : input_of(p), last = p.expands ? end_ : int(a_.in);
    GPU_NO_UNROLL
    for (int i = 0; i < kSlots * kEach; ++i) {
      const int which = i / kEach;
      const int rank = p.rank + (p.expands ? lane_rank(which % kQuad) : int(threadIdx.x) % kWarp / kQuad + which % 2 * (kRanks / 2));
      const int at = first + (p.expands ? which / kQuad * kWarpOutputs : which / 2 * kRun) + i % kEach;
      const bool there = rank < w_.rank && at < last;
      const auto* from = reinterpret_cast<const uint16_t*>(factors) + rank * apart + at;
      reinterpret_cast<uint16_t*>(slot(unit, which))[i % kEach] = there ? __ldcg(from) : uint16_t(0);
    }
  }

  __device__ __forceinline__ void bring_inputs(const Place& p, int unit) const {
    if (p.expands || row_ < 0) return;
    const int at = input_of(p);
    Eight* to = row_slot(unit, 0);
    GPU_UNROLL
    for (int run = 0; run < kRuns; ++run) {
      cp_async_16(to + run * kMost * kQuad, x_ + at + run * kRun, at + run * kRun < int(a_.in) ? 16 : 0);
    }
  }

  // The unit that is next is there; another one comes in place of the one before, which has been used. So when the last one has been taken,
  // no copy is under way.
  __device__ __forceinline__ int take() {
    cp_async_wait<kUnits - 2>();
    const int unit = unit_, used = unit == 0 ? kUnits - 1 : unit - 1;
    unit_ = unit == kUnits - 1 ? 0 : unit + 1;
    if (took_) {
      bring_factors(next_, used);
      bring_inputs(next_, used);
      advance(next_);
      cp_async_commit();
    }
    took_ = true;
    return unit;
  }

  // What no unit holds yet, to the cache.
  __device__ __forceinline__ void fetch_factors() const {
    GPU_UNROLL_1
    for (int rank = int(threadIdx.x); rank < w_.rank; rank += kThreads) {
      if (whole_a_) fetch(w_.a + rank * a_.in, a_.in);
      if (whole_b_) fetch(w_.b + rank * projection_.out + begin_, end_ - begin_);
    }
  }

  // u of the tile, for all threads when this returns.
  __device__ __forceinline__ void shrink() {
    GPU_UNROLL_1
    for (int first_rank = 0; first_rank < w_.rank; first_rank += kRanks) {
      const int of_segment = segment_ / kStep;
      GPU_UNROLL_1
      for (int i = 0; i < kPerWarp; ++i) {
        float* to = shared_.segments + (int(threadIdx.x) / kWarp * kPerWarp + i) * kSegmentSums;
        put_sums(sum_steps(i == 0 ? min(of_segment, steps_) : max(0, steps_ - of_segment)), to);
      }
      __syncthreads();  // all segments are there
      const int rank = first_rank + int(threadIdx.x) / kRows, row = int(threadIdx.x) % kRows;
      if (rank < w_.rank)
        shared_.u[row * WithinShared::kRankStride + rank] = w_.scale * sum_of_segments(shared_.segments, int(threadIdx.x));
      __syncthreads();  // u is there, and the segments may be others'
    }
  }
  static_assert(kThreads == kSegmentSums);

  __device__ __forceinline__ RankSums sum_steps(int steps) {
    RankSums sums{};
    GPU_UNROLL_1
    for (int step = 0; step < steps; ++step) {
      const int unit = take();
      GPU_UNROLL
      for (int run = 0; run < kRuns; ++run) {
        Eight x{};
        if (row_ >= 0) x = *row_slot(unit, run);
        add_run(*slot(unit, 2 * run), *slot(unit, 2 * run + 1), x, sums);
      }
    }
    return sums;
  }

  __device__ __forceinline__ void expand() {
    const float* u = row_ < 0 ? nullptr : shared_.u + int(threadIdx.x) % kWarp / kQuad * WithinShared::kRankStride;
    GPU_UNROLL_1
    for (int pass = 0; begin_ + pass * kPass < end_; ++pass) {
      OutputSums sums[kHalves] = {};
      GPU_UNROLL_1
      for (int rank = 0; rank < w_.rank; rank += kRanks) {
        const int unit = take();
        const RankPairs pairs = rank_pairs(u, rank, w_.rank);
        GPU_UNROLL
        for (int half = 0; half < kHalves; ++half) {
          OutputFactors factors;
          GPU_UNROLL
          for (int i = 0; i < kQuad; ++i) factors.of_rank[i] = *slot(unit, half * kQuad + i);
          add_outputs(factors, pairs, sums[half]);
        }
      }
      GPU_UNROLL
      for (int half = 0; half < kHalves; ++half) store(output_of(pass) + half * kWarpOutputs, sums[half]);
    }
  }

  __device__ __forceinline__ void store(int output, const OutputSums& sums) const {
    const int64_t column = projection_.first + output;
    const bool fours = (reinterpret_cast<uintptr_t>(a_.part) / sizeof(float) + column) % 4 == 0 && a_.columns % 4 == 0;
    GPU_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int i = int(threadIdx.x) % kQuad * 2 + r, row = i < kMost ? rows_[i] : -1;
      if (row < 0) continue;
      float* to = a_.part + row * a_.columns + column;
      if (fours && output + kEach <= end_) store_outputs<true>(to, kEach, r, sums);
      else store_outputs<false>(to, end_ - output, r, sums);
    }
  }

  const LoraPart& a_;
  const LoraPart::Projection& projection_;
  const LoraWeights& w_;
  const int32_t* rows_;
  const int begin_, end_;
  WithinShared& shared_;
  const bf16* x_;
  int row_;  // of the lane's group, -1 = none
  int segment_, first_input_, steps_;
  bool whole_a_, whole_b_;
  Place next_;  // to come
  int unit_ = 0;
  bool took_ = false;
};

// Rows without an adapter: -0 is what leaves every number as it is, -0 too.
__device__ __forceinline__ void clear_within(const LoraPart& a, int which, const int32_t* rows, int begin, int end) {
  wait_for_inputs();  // who reads what an earlier product left here
  GPU_UNROLL_1
  for (int r = 0; r < LoraWithin::kTileRows && rows[r] >= 0; ++r) {
    float* to = a.part + rows[r] * a.columns + a.projections[which].first;
    GPU_NO_UNROLL
    for (int output = begin + int(threadIdx.x); output < end; output += LoraWithin::kThreads) to[output] = -0.0f;
  }
}

template <int kMost, int kBytes, class Asked>
__device__ __forceinline__ void add_within(const LoraPart& a, int which, const LoraWeights& w, const int32_t* rows, int begin, int end,
                                           WithinShared& shared, const Asked& asked) {
  constexpr int kUnitBytes = TileWithin<kMost, 2>::kUnitBytes, kFit = (kBytes - int(sizeof(WithinShared))) / kUnitBytes;
  static_assert(kFit >= 2, "one is used while others come");
  constexpr int kMostUnits = 12;
  TileWithin < kMost, kFit<kMostUnits ? kFit : kMostUnits>(a, which, w, rows, begin, end, shared).run(asked);
}

// By the threads of block number `block` of the launch's first ones, which have kBytes of shared memory. `awaited`: others wait for them, until
// each has come to `arrived`.
template <int kBytes>
__device__ __forceinline__ void run_within(const LoraWithin& within, bool awaited, int block, unsigned char* memory) {
  let_next_begin();
  if (threadIdx.x >= LoraWithin::kThreads) return;
  const LoraPart& a = within.part;
  WithinShared& shared = *reinterpret_cast<WithinShared*>(memory);
  const int slice = int(within.slice);
  int per_tile = 0;
  GPU_NO_UNROLL
  for (int i = 0; i < int(a.count); ++i) per_tile += (int(a.projections[i].out) + slice - 1) / slice;
  GPU_UNROLL_1
  for (int item = block; item < int(a.tile_count) * per_tile; item += within.blocks) {
    if (item > block) __syncthreads();  // all are done with the tile before, whose units may have been elsewhere
    constexpr int kWords = int(sizeof(LoraTile) / sizeof(int32_t));
    const LoraTile& tile = a.tiles[item / per_tile];
    if (threadIdx.x < kWords)
      reinterpret_cast<int32_t*>(&shared.tile)[threadIdx.x] = __ldcg(reinterpret_cast<const int32_t*>(&tile) + threadIdx.x);
    __syncthreads();  // the tile is there
    if (shared.tile.count == 0) continue;
    int which = 0, begin = item % per_tile * slice;
    GPU_NO_UNROLL
    for (; begin >= int(a.projections[which].out); ++which) {
      begin -= (int(a.projections[which].out) + slice - 1) / slice * slice;
    }
    const int end = min(begin + slice, int(a.projections[which].out));
    const int32_t *rows = shared.tile.rows, adapter = shared.tile.adapter;
    LoraWeights w{};
    if (adapter >= 0) w = load_fresh(a.projections[which].adapters + adapter);
    w.rank = min(w.rank, int32_t(a.most_rank));
    // The block's own come first, as its product waits for them.
    const auto fetch_others = [&] {
      if (item == block) fetch_next(a, block * LoraWithin::kThreads + int(threadIdx.x), within.blocks * LoraWithin::kThreads);
    };
    if (w.rank == 0) clear_within(a, which, rows, begin, end);
    else if (rows[1] < 0) add_within<1, kBytes>(a, which, w, rows, begin, end, shared, fetch_others);
    else add_within<LoraWithin::kTileRows, kBytes>(a, which, w, rows, begin, end, shared, fetch_others);
  }
  if (!awaited) return;
  wait_for_inputs();  // who used the counter before; a block without a tile has not waited
  __syncthreads();    // all of the block's outputs are written
  if (threadIdx.x == 0) count_arrival(a.arrived);
}

}  // namespace tandem::cuda::lora
