// The work of a block that makes what adapters add within a product's launch (lora_within.h).
//
// A block makes some outputs of one projection for a tile of rows that have one adapter. It makes all of their A x itself, so it waits for no
// other block; the order of the sums is that of lora_sums.h. Factors are not written by kernels ahead: they come before the inputs are there.
#pragma once
#include "cuda/common/early_launch.h"
#include "cuda/common/tensor_core.h"
#include "cuda/lora/lora_factors.h"
#include "cuda/lora/lora_within.h"

namespace tandem::cuda::lora {

// What the threads of a block share, in front of what each has for itself.
struct WithinShared {
  float segments[2][kSegments * kRanks * LoraWithin::kTileRows];  // of this group of ranks and of the one before
  float u[LoraWithin::kMostRank * LoraWithin::kTileRows];         // [rank][row]
  int32_t adapters[LoraWithin::kMostRows];                        // of each row, -1 = none
  int32_t leads[LoraWithin::kMostRows];                           // whether the row is the first of its tile
  int32_t tiles[LoraWithin::kMostRows][LoraWithin::kTileRows];    // rows, -1 = no more
  int32_t tile_count;
  int32_t unused[3];
};
static_assert(sizeof(WithinShared) % 16 == 0);

// The rows of each adapter, kTileRows at a time.
__device__ __forceinline__ void find_tiles(const LoraPart& a, WithinShared& shared) {
  constexpr int kTileRows = LoraWithin::kTileRows;
  const int row = int(threadIdx.x), rows = int(a.rows);
  GPU_NO_UNROLL
  for (int i = row; i < rows * kTileRows; i += LoraWithin::kThreads) shared.tiles[i / kTileRows][i % kTileRows] = -1;
  if (row < rows) {
    const int32_t adapter = __ldcg(a.row_adapters + row);
    shared.adapters[row] = adapter >= 0 && adapter < a.adapter_count ? adapter : -1;
  }
  __syncthreads();  // all rows' adapters are there
  int before = 0, first = row;
  if (row < rows) {
    for (int other = 0; other < row; ++other) {
      if (shared.adapters[other] != shared.adapters[row]) continue;
      if (before % kTileRows == 0) first = other;
      ++before;
    }
    if (before % kTileRows == 0) first = row;
    shared.leads[row] = first == row;
  }
  __syncthreads();  // all know who leads
  if (row < rows) {
    int tile = 0, count = 0;
    for (int other = 0; other < rows; ++other) {
      tile += other < first ? shared.leads[other] : 0;
      count += shared.leads[other];
    }
    shared.tiles[tile][before % kTileRows] = row;
    if (row == 0) shared.tile_count = count;
  }
  __syncthreads();  // the tiles are there
}

// Outputs [begin, end) of a projection for a tile of kRows rows, some of which may be none.
//
// Every thread copies to shared memory what it needs itself, and nothing of another's: of each step of A the kEach inputs of its lane, of kRanks
// ranks and of x; then of each pass over its outputs kEach columns of B. kUnits of these units are under way at a time.
template <int kRows, int kUnits>
class TileWithin {
 public:
  __device__ __forceinline__ TileWithin(const LoraPart& a, int which, const LoraWeights& w, const int32_t* rows, int begin, int end,
                                        WithinShared& shared)
      : a_(a), projection_(a.projections[which]), w_(w), begin_(begin), end_(end), shared_(shared), next_{0, 0, false} {
    GPU_UNROLL
    for (int r = 0; r < kRows; ++r) rows_[r] = rows[rows[r] < 0 ? 0 : r];
    count_ = 1;
    GPU_UNROLL
    for (int r = 1; r < kRows; ++r) count_ += rows[r] >= 0;
    const int in = int(a.in);
    segment_ = (in + kSegments * kStep - 1) / (kSegments * kStep) * kStep;
    GPU_UNROLL
    for (int i = 0; i < kPerWarp; ++i) steps_[i] = max(0, min(segment_, in - begin_of(i)) + kStep - 1) / kStep;
    whole_a_ = whole_vectors(w.a, a.in, a.in);
    whole_b_ = whole_vectors(w.b, projection_.out, projection_.out);
    if (steps_[0] + steps_[1] == 0) next_.expands = true;
  }

  __device__ __forceinline__ void run() {
    fetch_factors();
    Place ahead = next_;
    GPU_UNROLL_1
    for (int i = 0; i < kUnits; ++i, advance(ahead)) bring_factors(ahead, i);
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
  static constexpr int kThreads = LoraWithin::kThreads, kWarps = kThreads / kWarp, kPerWarp = kSegments / kWarps;
  static_assert(kPerWarp == 2);
  static constexpr int kSlots = kRanks + kRows, kCount = kRanks * kRows, kPass = kThreads * kEach;

  // A unit: of A this step of the warp's segments, or this pass over the outputs; of ranks from `rank` on.
  struct Place {
    int rank, at;
    bool expands;
  };

  __device__ __forceinline__ int begin_of(int i) const { return (int(threadIdx.x) / kWarp + i * kWarps) * segment_; }
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
    } else if (++p.at == steps_[0] + steps_[1]) {
      p.at = 0;
      p.expands = !more_ranks();
    }
  }

  __device__ __forceinline__ uint4* slot(int unit, int i) const {
    return reinterpret_cast<uint4*>(&shared_ + 1) + (unit * kSlots + i) * kThreads + int(threadIdx.x);
  }

  // Of a unit of A.
  __device__ __forceinline__ int input_of(const Place& p) const {
    const int first = p.at < steps_[0] ? begin_of(0) + p.at * kStep : begin_of(1) + (p.at - steps_[0]) * kStep;
    return first + int(threadIdx.x) % kWarp * kEach;
  }
  __device__ __forceinline__ int output_of(int pass) const { return begin_ + pass * kPass + int(threadIdx.x) * kEach; }

  // kEach elements, of which `left` are there.
  __device__ __forceinline__ static void bring(uint4* to, const bf16* from, int left) { cp_async_16(to, from, left > 0 ? 16 : 0); }
  __device__ __forceinline__ static void bring_each(uint4* to, const bf16* from, int left) {
    auto* elements = reinterpret_cast<uint16_t*>(to);
    GPU_NO_UNROLL
    for (int i = 0; i < kEach; ++i) elements[i] = i < left ? __ldcg(reinterpret_cast<const uint16_t*>(from) + i) : uint16_t(0);
  }

  // Of ranks that there are not the last again.
  __device__ __forceinline__ void bring_factors(const Place& p, int unit) const {
    if (ended(p)) return;
    const int64_t apart = p.expands ? projection_.out : a_.in;
    const int at = p.expands ? output_of(p.at) : input_of(p), left = (p.expands ? end_ : int(a_.in)) - at;
    const bf16* from = (p.expands ? w_.b : w_.a) + p.rank * apart + (left > 0 ? at : 0);
    if (p.expands ? whole_b_ : whole_a_) {
      GPU_UNROLL
      for (int i = 0; i < kRanks; ++i, from += p.rank + i < w_.rank ? apart : 0) bring(slot(unit, i), from, left);
    } else {
      GPU_NO_UNROLL
      for (int i = 0; i < kRanks; ++i, from += p.rank + i < w_.rank ? apart : 0) bring_each(slot(unit, i), from, left);
    }
  }

  __device__ __forceinline__ void bring_inputs(const Place& p, int unit) const {
    if (p.expands) return;
    const int at = input_of(p), left = int(a_.in) - at;
    GPU_UNROLL
    for (int r = 0; r < kRows; ++r) bring(slot(unit, kRanks + r), a_.x + rows_[r] * a_.ldx + (left > 0 ? at : 0), left);
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
    for (int first_rank = 0, group = 0; first_rank < w_.rank; first_rank += kRanks, ++group) {
      auto& segments = reinterpret_cast<float(&)[kSegments][kCount]>(shared_.segments[group % 2]);
      GPU_UNROLL_1
      for (int i = 0; i < kPerWarp; ++i) sum_segment(i == 0 ? steps_[0] : steps_[1], segments[int(threadIdx.x) / kWarp + i * kWarps]);
      __syncthreads();  // all segments are there
      if (threadIdx.x >= kCount) continue;
      const int rank = first_rank + int(threadIdx.x) / kRows;
      const float sum = sum_of_segments(segments, int(threadIdx.x));
      if (rank < w_.rank) shared_.u[rank * kRows + int(threadIdx.x) % kRows] = w_.scale * sum;
    }
    __syncthreads();  // u is there
  }

  __device__ __forceinline__ void sum_segment(int steps, float (&out)[kCount]) {
    float sums[kCount] = {};
    GPU_UNROLL_1
    for (int step = 0; step < steps; ++step) {
      const int unit = take();
      StepInputs<kRows> inputs;
      GPU_UNROLL
      for (int r = 0; r < kRows; ++r) inputs.rows[r] = *slot(unit, kRanks + r);
      multiply_step<kRows>(inputs, sums, [&](int i, float(&factors)[kEach]) { load_slot(unit, i, factors); });
    }
    constexpr int kCopies = kWarp / kCount;
    const float mine = sum_of_lane(sums);
    const int lane = int(threadIdx.x) % kWarp;
    if (lane % kCopies == 0) out[lane / kCopies] = mine;
  }

  __device__ __forceinline__ void load_slot(int unit, int i, float (&out)[kEach]) const {
    load(reinterpret_cast<const bf16*>(slot(unit, i)), 0, kEach, out);
  }

  __device__ __forceinline__ void expand() {
    GPU_UNROLL_1
    for (int pass = 0; begin_ + pass * kPass < end_; ++pass) {
      float sums[kRows][kEach] = {};
      GPU_UNROLL_1
      for (int rank = 0; rank < w_.rank; rank += kRanks) add_ranks(take(), rank, sums);
      store(output_of(pass), sums);
    }
  }

  __device__ __forceinline__ void add_ranks(int unit, int first_rank, float (&sums)[kRows][kEach]) const {
    GPU_UNROLL
    for (int i = 0; i < kRanks; ++i) {
      if (first_rank + i >= w_.rank) break;
      const float* u = shared_.u + (first_rank + i) * kRows;
      float factors[kEach];
      load_slot(unit, i, factors);
      GPU_UNROLL
      for (int r = 0; r < kRows; ++r) {
        GPU_UNROLL
        for (int j = 0; j < kEach; ++j) sums[r][j] = fmaf(factors[j], u[r], sums[r][j]);
      }
    }
  }

  __device__ __forceinline__ void store(int output, const float (&sums)[kRows][kEach]) const {
    const int64_t column = projection_.first + output;
    const bool fours =
        output + kEach <= end_ && (reinterpret_cast<uintptr_t>(a_.part) / sizeof(float) + column) % 4 == 0 && a_.columns % 4 == 0;
    GPU_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (r >= count_) break;
      float* to = a_.part + rows_[r] * a_.columns + column;
      if (fours) {
        store_4(to, sums[r]);
        store_4(to + 4, sums[r] + 4);
        continue;
      }
      GPU_UNROLL
      for (int j = 0; j < kEach; ++j) {
        if (output + j < end_) to[j] = sums[r][j];
      }
    }
  }

  const LoraPart& a_;
  const LoraPart::Projection& projection_;
  const LoraWeights& w_;
  const int begin_, end_;
  WithinShared& shared_;
  int rows_[kRows], count_, segment_, steps_[kPerWarp];
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

template <int kRows, int kBytes>
__device__ __forceinline__ void add_within(const LoraPart& a, int which, const LoraWeights& w, const int32_t* rows, int begin, int end,
                                           WithinShared& shared) {
  constexpr int kUnit = (kRanks + kRows) * 16 * LoraWithin::kThreads, kFit = (kBytes - int(sizeof(WithinShared))) / kUnit;
  constexpr int kMost = 12;
  static_assert(kFit >= 2, "one is used while others come");
  TileWithin < kRows, kFit<kMost ? kFit : kMost>(a, which, w, rows, begin, end, shared).run();
}

// By the threads of block number `block` of the launch's first ones, which have kBytes of shared memory.
template <int kBytes>
__device__ __forceinline__ void run_within(const LoraWithin& within, int block, unsigned char* memory) {
  let_next_begin();
  if (threadIdx.x >= LoraWithin::kThreads) return;
  const LoraPart& a = within.part;
  WithinShared& shared = *reinterpret_cast<WithinShared*>(memory);
  fetch_next(a, block * LoraWithin::kThreads + int(threadIdx.x), within.blocks * LoraWithin::kThreads);
  find_tiles(a, shared);
  const int slice = int(within.slice);
  int per_tile = 0;
  GPU_NO_UNROLL
  for (int i = 0; i < int(a.count); ++i) per_tile += (int(a.projections[i].out) + slice - 1) / slice;
  GPU_UNROLL_1
  for (int item = block; item < shared.tile_count * per_tile; item += within.blocks) {
    int which = 0, begin = item % per_tile * slice;
    GPU_NO_UNROLL
    for (; begin >= int(a.projections[which].out); ++which) {
      begin -= (int(a.projections[which].out) + slice - 1) / slice * slice;
    }
    const int end = min(begin + slice, int(a.projections[which].out));
    const int32_t* rows = shared.tiles[item / per_tile];
    const int32_t adapter = shared.adapters[rows[0]];
    LoraWeights w{};
    if (adapter >= 0) w = load_fresh(a.projections[which].adapters + adapter);
    w.rank = min(w.rank, int32_t(a.most_rank));
    if (w.rank == 0) clear_within(a, which, rows, begin, end);
    else if (rows[1] < 0) add_within<1, kBytes>(a, which, w, rows, begin, end, shared);
    else if (rows[2] < 0) add_within<2, kBytes>(a, which, w, rows, begin, end, shared);
    else add_within<4, kBytes>(a, which, w, rows, begin, end, shared);
  }
}

}  // namespace tandem::cuda::lora
