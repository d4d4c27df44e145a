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

// Outputs [begin, end) of a projection for a tile of rows.
//
// Every thread copies to shared memory what it needs itself, and nothing of another's, a unit at a time: of each step of A its inputs of two ranks
// and, where the row of its group is there, of x; then of each pass over the outputs its kEach columns of eight ranks of B. Where units lie, and
// how many, depends on the tile's rows.
//
// Few instructions matter here as much as what is brought: a multiprocessor's schedulers have one warp each, and most of its instructions are run
// once or twice in a launch, so they come from the L2 cache. Hence one code for tiles of one row and of several, one loop for all units, and
// next to nothing unrolled: 16 KB of code, where unrolled loops for either kind of tile and of unit had 58.
template <int kBytes>
class TileWithin {
 public:
  static constexpr int kThreads = LoraWithin::kThreads, kWarps = kThreads / kWarp, kPerWarp = kSegments / kWarps;
  static_assert(kPerWarp == 2 && kThreads == kSegmentSums);
  static constexpr int kRuns = kStep / kRun, kTimes = 2;  // of a unit: runs of A, or times that it has kRanks ranks of B
  static constexpr int kSlots = 8;
  static_assert(2 * kRuns == kSlots && kTimes * kQuad == kSlots);
  static constexpr int kPass = kWarps * kWarpOutputs, kMostUnits = 12;
  // Of tiles with so many rows at most.
  __host__ __device__ static constexpr int unit_bytes(int rows) { return (kSlots * kThreads + kWarps * kRuns * rows * kQuad) * 16; }
  static constexpr int units_of(int rows) {
    const int fit = (kBytes - int(sizeof(WithinShared))) / unit_bytes(rows);
    return fit < kMostUnits ? fit : kMostUnits;
  }
  static constexpr int kOfOne = units_of(1), kOfMany = units_of(kRows);
  static_assert(kOfMany >= 2, "one is used while others come");

  __device__ __forceinline__ TileWithin(const LoraPart& a, int which, const LoraWeights& w, int begin, int end, WithinShared& shared)
      : a_(a), projection_(a.projections[which]), w_(w), begin_(begin), end_(end), shared_(shared), in_(int(a.in)) {
    const bool one = shared.tile.rows[1] < 0;
    units_ = one ? kOfOne : kOfMany;
    run_slots_ = (one ? 1 : kRows) * kQuad;
    unit_bytes_ = unit_bytes(one ? 1 : kRows);
    const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp, group = lane / kQuad;
    row_ = lane < run_slots_ ? shared.tile.rows[group] : -1;
    x_ = a.x + max(row_, 0) * a.ldx;
    segment_ = segment_of(in_);
    input_ = kPerWarp * segment_ * warp + lane % kQuad * kEach;
    output_ = begin + warp * kWarpOutputs + group * kEach;
    // A warp's segments follow each other, and of the last one of all a step may be cut. One without inputs has a step of zeros.
    steps_ = max(1, (min(kPerWarp * segment_, in_ - kPerWarp * segment_ * warp) + kStep - 1) / kStep);
  }

  // Calls asked() when factors are on their way.
  template <class Asked>
  __device__ __forceinline__ void run(const Asked& asked) {
    fetch_factors();
    Place next{}, filled{}, used{};  // to be brought, but for x; to be brought whole; to be used
    int next_unit = 0, filled_unit = 0, used_unit = 0;
    OutputSums sums{};
    GPU_UNROLL_1
    for (int brought = 1; !ended(used); ++brought) {
      if (!ended(next)) bring_factors(next, next_unit);
      advance(next, next_unit);
      if (brought < units_) continue;
      // Only now, as nothing else waits for them.
      if (brought == units_) {
        asked();
        wait_for_inputs();
      }
      GPU_UNROLL_1
      for (int more = brought == units_ ? units_ : 1; more > 0; --more) {
        bring_inputs(filled, filled_unit);
        cp_async_commit();
        advance(filled, filled_unit);
      }
      if (units_ == kOfOne) cp_async_wait<kOfOne - 1>();
      else cp_async_wait<kOfMany - 1>();
      if (used.expands) expand(used, used_unit, sums);
      else shrink(used, used_unit, sums);
      advance(used, used_unit);
    }
  }

 private:
  // A unit: this step of the warp's segments, of kRanks ranks of A from `rank` on, or this pass over the outputs, of kTimes as many of B.
  struct Place {
    int rank, at;
    bool expands;
  };

  __device__ __forceinline__ bool ended(const Place& p) const { return p.expands && begin_ + p.at * kPass >= end_; }

  __device__ __forceinline__ void advance(Place& p, int& unit) const {
    unit = unit + 1 == units_ ? 0 : unit + 1;
    const bool of_a = !p.expands;
    if (of_a && ++p.at < steps_) return;
    p.rank += of_a ? kRanks : kTimes * kRanks;
    const bool more = p.rank < w_.rank;
    if (!more) p.rank = 0;
    if (of_a) p.at = 0, p.expands = !more;
    else if (!more) ++p.at;
  }

  // The thread's, of which one unit has several beside each other.
  __device__ __forceinline__ Eight* slots(int unit) const {
    return reinterpret_cast<Eight*>(reinterpret_cast<unsigned char*>(&shared_ + 1) + unit * unit_bytes_) + int(threadIdx.x);
  }
  // Of x: the runs of a warp lie run_slots_ apart.
  __device__ __forceinline__ Eight* row_slots(int unit) const {
    return slots(unit) + (kSlots * kThreads + int(threadIdx.x) / kWarp * (kRuns * run_slots_ - kWarp));
  }

  // Zeros where there is no such rank, input or output.
  __device__ __forceinline__ void bring_factors(const Place& p, int unit) const {
    if (p.expands) bring_b(p, unit);
    else bring_a(p, unit);
  }
  __device__ __forceinline__ void bring_a(const Place& p, int unit) const {
    const int input = input_ + p.at * kStep, rank = p.rank + int(threadIdx.x) % kWarp / kQuad, left = in_ - input;
    const bool upper = rank < w_.rank, lower = rank + kRanks / 2 < w_.rank;
    const bf16 *from = w_.a + (rank * in_ + input), *from_lower = from + kRanks / 2 * in_;
    Eight* to = slots(unit);
    GPU_UNROLL
    for (int run = 0; run < kRuns; ++run) {
      const bool there = run * kRun < left;
      cp_async_16(to + 2 * run * kThreads, from + run * kRun, there && upper ? 16 : 0);
      cp_async_16(to + (2 * run + 1) * kThreads, from_lower + run * kRun, there && lower ? 16 : 0);
    }
  }
  __device__ __forceinline__ void bring_b(const Place& p, int unit) const {
    const int out = int(projection_.out), output = output_ + p.at * kPass;
    int rank = p.rank + lane_rank(0);
    const bf16* from = w_.b + (rank * out + output);
    Eight* to = slots(unit);
    GPU_UNROLL_1
    for (int times = 0; times < kTimes; ++times, rank += kRanks, from += kRanks * out, to += kQuad * kThreads) {
      GPU_UNROLL
      for (int i = 0; i < kQuad; ++i) {
        const int own = i / 2 * (kRanks / 2) + i % 2;
        cp_async_16(to + i * kThreads, from + own * out, rank + own < w_.rank && output < end_ ? 16 : 0);
      }
    }
  }
  __device__ __forceinline__ void bring_inputs(const Place& p, int unit) const {
    if (p.expands || row_ < 0) return;
    const int input = input_ + p.at * kStep, left = in_ - input;
    Eight* to = row_slots(unit);
    GPU_UNROLL
    for (int run = 0; run < kRuns; ++run) cp_async_16(to + run * run_slots_, x_ + input + run * kRun, run * kRun < left ? 16 : 0);
  }

  // What no unit holds yet, to the cache.
  __device__ __forceinline__ void fetch_factors() const {
    const int out = int(projection_.out);
    GPU_UNROLL_1
    for (int rank = int(threadIdx.x); rank < w_.rank; rank += kThreads) {
      fetch(w_.a + rank * in_, in_);
      fetch(w_.b + (rank * out + begin_), end_ - begin_);
    }
  }

  // A step of A. Behind the last one of kRanks ranks there is u of them, for all threads.
  __device__ __forceinline__ void shrink(const Place& p, int unit, OutputSums& sums) const {
    const Eight *factors = slots(unit), *inputs = row_slots(unit);
    // The registers of what comes behind u.
    float(&even)[4] = sums.at[0], (&odd)[4] = sums.at[1];
    GPU_UNROLL
    for (int run = 0; run < kRuns; ++run) {
      Eight x{};
      if (row_ >= 0) x = inputs[run * run_slots_];
      add_run(factors[2 * run * kThreads], factors[(2 * run + 1) * kThreads], x, even, odd);
    }
    const int of_segment = segment_ / kStep;
    const bool last = p.at + 1 == steps_;
    if (!last && p.at + 1 != of_segment) return;
    float* to = shared_.segments + (int(threadIdx.x) / kWarp * kPerWarp + (p.at >= of_segment)) * kSegmentSums;
    put_sums(even, odd, to);
    sums = OutputSums{};
    if (!last) return;
    // The second segment may have no step.
    if (p.at < of_segment) put_sums(even, odd, to + kSegmentSums);
    __syncthreads();  // all segments are there
    const int rank = p.rank + int(threadIdx.x) / kRows, row = int(threadIdx.x) % kRows;
    const float u = w_.scale * sum_of_segments(shared_.segments, int(threadIdx.x));
    shared_.u[row * WithinShared::kRankStride + rank] = rank < w_.rank ? u : 0.0f;
    __syncthreads();  // u is there, and the segments may be others'
  }

  // Ranks of a pass over the outputs.
  __device__ __forceinline__ void expand(const Place& p, int unit, OutputSums& sums) const {
    const float* u = shared_.u + int(threadIdx.x) % kWarp / kQuad * WithinShared::kRankStride;
    const Eight* from = slots(unit);
    const int end = min(p.rank + kTimes * kRanks, w_.rank);
    GPU_UNROLL_1
    for (int rank = p.rank; rank < end; rank += kRanks, from += kQuad * kThreads) {
      OutputFactors factors;
      GPU_UNROLL
      for (int i = 0; i < kQuad; ++i) factors.of_rank[i] = from[i * kThreads];
      add_outputs(factors, rank_pairs(u + rank), sums);
    }
    if (end < w_.rank) return;
    store(output_ + p.at * kPass, sums);
    sums = OutputSums{};
  }

  __device__ __forceinline__ void store(int output, const OutputSums& sums) const {
    if (output >= end_) return;
    GPU_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = shared_.tile.rows[int(threadIdx.x) % kQuad * 2 + r];
      if (row >= 0) store_outputs<true>(a_.part + row * a_.columns + projection_.first + output, kEach, r, sums);
    }
  }

  const LoraPart& a_;
  const LoraPart::Projection& projection_;
  const LoraWeights& w_;
  const int begin_, end_;
  WithinShared& shared_;
  const int in_;
  int units_, run_slots_, unit_bytes_;
  int row_;  // of the lane's group, -1 = none
  const bf16* x_;
  int segment_, steps_;
  int input_, output_;  // the lane's first
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

// By the threads of block number `block` of the launch's first ones, which have kBytes of shared memory. `awaited`: others wait for them, until
// each has come to `arrived`.
template <int kBytes>
__device__ __forceinline__ void run_within(const LoraWithin& within, bool awaited, int block, unsigned char* memory) {
  let_next_begin();
  if (threadIdx.x >= LoraWithin::kThreads) return;
  const LoraPart& a = within.part;
  WithinShared& shared = *reinterpret_cast<WithinShared*>(memory);
  GPU_UNROLL_1
  for (int item = block; item < int(a.tile_count) * within.per_tile; item += within.blocks) {
    if (item > block) __syncthreads();  // all are done with the tile before, whose units may have been elsewhere
    constexpr int kWords = int(sizeof(LoraTile) / sizeof(int32_t));
    const int number = int(unsigned(item) / unsigned(within.per_tile)), slice = item - number * within.per_tile;
    if (threadIdx.x < kWords)
      reinterpret_cast<int32_t*>(&shared.tile)[threadIdx.x] = __ldcg(reinterpret_cast<const int32_t*>(a.tiles + number) + threadIdx.x);
    __syncthreads();  // the tile is there
    if (shared.tile.count == 0) continue;
    int which = 0;
    GPU_UNROLL_1
    while (slice >= within.slices_to[which]) ++which;
    const int begin = (slice - (which == 0 ? 0 : within.slices_to[which - 1])) * within.slice;
    const int end = min(begin + within.slice, int(a.projections[which].out));
    const int32_t adapter = shared.tile.adapter;
    LoraWeights w{};
    if (adapter >= 0) w = load_fresh(a.projections[which].adapters + adapter);
    w.rank = min(w.rank, int32_t(a.most_rank));
    // The block's own come first, as its product waits for them.
    const auto fetch_others = [&] {
      if (item == block) fetch_next(a, block * LoraWithin::kThreads + int(threadIdx.x), within.blocks * LoraWithin::kThreads);
    };
    if (w.rank == 0) clear_within(a, which, shared.tile.rows, begin, end);
    else TileWithin<kBytes>(a, which, w, begin, end, shared).run(fetch_others);
  }
  if (!awaited) return;
  wait_for_inputs();  // who used the counter before; a block without a tile has not waited
  __syncthreads();    // all of the block's outputs are written
  if (threadIdx.x == 0) count_arrival(a.arrived);
}

}  // namespace tandem::cuda::lora
