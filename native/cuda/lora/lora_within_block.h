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
  int32_t tiles[LoraWithin::kMostRows][LoraWithin::kTileRows];    // rows, -1 = no more
  uint32_t leads[2];                                              // of each row a bit: whether it is the first of its tile
  int32_t tile_count;
  float scale;  // of the adapter that is added
};
static_assert(sizeof(WithinShared) % 16 == 0);

// The rows of each adapter, kTileRows at a time, in the order of their first ones.
__device__ __forceinline__ void find_tiles(const LoraPart& a, WithinShared& shared) {
  constexpr int kTileRows = LoraWithin::kTileRows, kLeadWarps = LoraWithin::kMostRows / kWarp;
  static_assert(kLeadWarps == 2);
  const int row = int(threadIdx.x), rows = int(a.rows);
  if (row < LoraWithin::kMostRows) {
    int32_t adapter = row < rows ? __ldcg(a.row_adapters + row) : -1;
    if (adapter >= a.adapter_count || adapter < 0) adapter = -1;
    shared.adapters[row] = adapter;
    GPU_UNROLL
    for (int i = 0; i < kTileRows; ++i) shared.tiles[row][i] = -1;
  }
  __syncthreads();  // all rows' adapters are there
  int before = 0, first = row;
  if (row < rows) {
    const uint32_t own = uint32_t(shared.adapters[row]);
    GPU_UNROLL_1
    for (int others = 0; others < row; others += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(shared.adapters + others);
      const uint32_t each[4] = {four.x, four.y, four.z, four.w};
      GPU_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (each[i] != own || others + i >= row) continue;
        if (before % kTileRows == 0) first = others + i;
        ++before;
      }
    }
    if (before % kTileRows == 0) first = row;
  }
  if (row < LoraWithin::kMostRows) {
    const unsigned leads = __ballot_sync(kAllLanes, row < rows && first == row);
    if (row % kWarp == 0) shared.leads[row / kWarp] = leads;
  }
  __syncthreads();  // all know who leads
  const unsigned low = shared.leads[0], high = shared.leads[1];
  if (row < rows) {
    const unsigned below = (1u << first % kWarp) - 1;
    const int tile = first < kWarp ? __popc(low & below) : __popc(low) + __popc(high & below);
    shared.tiles[tile][before % kTileRows] = row;
    if (row == 0) shared.tile_count = __popc(low) + __popc(high);
  }
  __syncthreads();  // the tiles are there
}

// Outputs [begin, end) of a projection for a tile of at most kTileRows rows.
//
// Every thread copies to shared memory what it needs itself, and nothing of another's: of each step of A the kEach inputs of its lane, of kRanks
// ranks and of x; then of each pass over its outputs kEach columns of B. As many of these units are under way at a time as there is room for.
//
// A block's instructions come from the L2 cache too, and it runs most of them a few times: all units of a tile go through one loop, whatever
// they are and however many rows there are, and only what multiplies by A is there for each number of rows.
template <int kRoom>
class TileWithin {
 public:
  __device__ __forceinline__ TileWithin(const LoraWithin& within, int which, const LoraWeights& w, int tile, int begin,
                                        WithinShared& shared)
      : within_(within), a_(within.part), projection_(a_.projections[which]), w_(w), begin_(begin), rows_(shared.tiles[tile]),
        shared_(shared) {
    count_ = 1;
    GPU_UNROLL
    for (int r = 1; r < kTileRows; ++r) count_ += rows_[r] >= 0;
  }

  __device__ __forceinline__ void run() {
    if (whole()) fetch_factors();
    if (threadIdx.x == 0) shared_.scale = w_.scale;
    // All units but one are brought, first their factors and then their inputs. From then on another one comes each time, in place of the one
    // before, which has been used; behind the last there is nothing to bring. `now` counts them up to its first rank.
    const int units = count_ == 1 ? kUnits<1> : kUnits<kTileRows>;
    Place next{0, -within_.steps}, now{2 - 2 * units, -within_.steps};  // to bring, to multiply
    int unit = 0;
    float sums[kSums];
    GPU_UNROLL_1
    for (;;) {
      if (now.rank == 1 - units) {
        wait_for_inputs();
        next = {0, -within_.steps};
        unit = 0;
      }
      if (now.rank < 1 - units || now.rank >= 0) bring_factors(next, unit);
      if (now.rank >= 1 - units) {
        bring_inputs(next, unit);
        cp_async_commit();
      }
      advance(next);
      unit = unit == units - 1 ? 0 : unit + 1;
      if (now.rank < 0) {
        ++now.rank;
      } else {
        if (count_ == 1) cp_async_wait<kUnits<1> - 1>();
        else cp_async_wait<kUnits<kTileRows> - 1>();
        if (now.at < 0) multiply(unit, now, sums);
        else add_ranks(unit, now.rank, sums);
        const bool more = now.at < 0 ? now.at < -1 && inputs_to(now.at + 1) != within_.segment : now.rank + kRanks < w_.rank;
        if (!more && now.at < 0) {
          end_segment(unit, now, sums);
        } else if (!more) {
          store(unit, output_of(now.at), sums);
          if (begin_ + (now.at + 1) * kPass >= end()) return;
        }
        advance(now);
        if (more) continue;
      }
      GPU_UNROLL
      for (int i = 0; i < kSums; ++i) sums[i] = 0;
    }
  }

 private:
  static constexpr int kThreads = LoraWithin::kThreads, kTileRows = LoraWithin::kTileRows;
  static constexpr int kWarps = kThreads / kWarp, kPass = kThreads * kEach;
  static_assert(kSegments == 2 * kWarps);
  // Of a rank of A and a row each; of a row and an output.
  static constexpr int kSums = kRanks * kTileRows;
  static_assert(kRanks == kEach && kSums == kWarp);
  // Units of a tile of so many rows that there is room for.
  static constexpr int kMost = 12;
  template <int kRows>
  static constexpr int kFit = kRoom / ((kRanks + kRows) * kThreads * int(sizeof(uint4)));
  template <int kRows>
  static constexpr int kUnits = kFit<kRows> < kMost ? kFit<kRows> : kMost;
  static_assert(kUnits<kTileRows> >= 2, "one is used while others come");

  // A unit, of ranks from `rank` on: of A the step of the warp's two segments that is -at-th from their end; else pass number `at` over the outputs.
  struct Place {
    int rank, at;
  };

  __device__ __forceinline__ int end() const { return min(begin_ + int(within_.slice), int(projection_.out)); }
  __device__ __forceinline__ bool whole() const {
    return (reinterpret_cast<uintptr_t>(w_.a) | reinterpret_cast<uintptr_t>(w_.b)) % 16 == 0 && projection_.out % kEach == 0;
  }

  __device__ __forceinline__ static int warp() { return int(threadIdx.x / kWarp); }
  __device__ __forceinline__ static int lane() { return int(threadIdx.x % kWarp); }

  __device__ __forceinline__ void advance(Place& p) const {
    const bool shrinks = p.at < 0;
    if (shrinks && ++p.at < 0) return;
    p.rank += kRanks;
    const bool more = p.rank < w_.rank;
    if (!more) p.rank = 0;
    if (shrinks && more) p.at = -within_.steps;
    if (!shrinks && !more) ++p.at;
  }
  __device__ __forceinline__ uint4* slot(int unit, int i) const {
    const int slots = kRanks + (count_ == 1 ? 1 : kTileRows);
    return reinterpret_cast<uint4*>(&shared_ + 1) + (unit * slots + i) * kThreads + int(threadIdx.x);
  }

  // Of the warp's segments, before step number `at`.
  __device__ __forceinline__ int inputs_to(int at) const { return (at + within_.steps) * kStep; }
  // The warp's first input of a step.
  __device__ __forceinline__ int step_of(const Place& p) const {
    const int inputs = inputs_to(p.at);
    return warp() * within_.segment + inputs + (inputs < within_.segment ? 0 : (kWarps - 1) * within_.segment);
  }
  __device__ __forceinline__ int output_of(int pass) const { return begin_ + pass * kPass + int(threadIdx.x) * kEach; }

  // Of ranks that there are not, zeros; behind the last pass nothing, so that no copy is under way when all have been used.
  __device__ __forceinline__ void bring_factors(const Place& p, int unit) const {
    if (begin_ + p.at * kPass >= end()) return;
    const bool shrinks = p.at < 0;
    const int in = int(a_.in), apart = shrinks ? in : int(projection_.out), at = shrinks ? step_of(p) + lane() * kEach : output_of(p.at);
    const int left = (shrinks ? apart : end()) - at, ranks = left > 0 ? w_.rank - p.rank : 0;
    const bf16* from = (shrinks ? w_.a : w_.b) + p.rank * apart + at;
    if (whole()) {
      GPU_UNROLL
      for (int i = 0; i < kRanks; ++i) cp_async_16(slot(unit, i), from + i * apart, i < ranks ? 16 : 0);
    } else {
      GPU_NO_UNROLL
      for (int i = 0; i < kRanks * kEach; ++i) {
        const int rank = i / kEach, j = i % kEach;
        const bool there = rank < ranks && j < left;
        reinterpret_cast<uint16_t*>(slot(unit, rank))[j] =
            there ? __ldcg(reinterpret_cast<const uint16_t*>(from + rank * apart + j)) : uint16_t(0);
      }
    }
  }

  // Of rows that there are not, zeros.
  __device__ __forceinline__ void bring_inputs(const Place& p, int unit) const {
    if (p.at >= 0) return;
    const int at = step_of(p) + lane() * kEach, rows = at < int(a_.in) ? count_ : 0;
    GPU_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      if (r == 1 && count_ == 1) break;
      cp_async_16(slot(unit, kRanks + r), a_.x + (max(rows_[r], 0) * int(a_.ldx) + at), r < rows ? 16 : 0);
    }
  }

  // What no unit holds yet, to the cache.
  __device__ __forceinline__ void fetch_factors() const {
    GPU_UNROLL_1
    for (int rank = int(threadIdx.x); rank < w_.rank; rank += kThreads) {
      fetch(w_.a + rank * int(a_.in), a_.in);
      fetch(w_.b + (rank * int(projection_.out) + begin_), end() - begin_);
    }
  }

  // Of rows that there are not, anything.
  __device__ __forceinline__ void multiply(int unit, const Place& p, float (&sums)[kSums]) const {
    if (step_of(p) >= int(a_.in)) return;
    if (count_ == 1) multiply_rows<1>(unit, sums);
    else if (count_ == 2) multiply_rows<2>(unit, sums);
    else multiply_rows<kTileRows>(unit, sums);
  }
  template <int kRows>
  __device__ __forceinline__ void multiply_rows(int unit, float (&sums)[kSums]) const {
    const uint4* from = slot(unit, 0);
    StepInputs<kRows> inputs;
    GPU_UNROLL
    for (int r = 0; r < kRows; ++r) inputs.rows[r] = from[(kRanks + r) * kThreads];
    multiply_step<kRows, kTileRows>(inputs, sums, [&](int i, float(&factors)[kEach]) { unpack(from[i * kThreads], factors); });
  }

  // The warp's sums of a segment; behind a warp's last one all segments', of which u is made: for all threads when the last ranks' returns.
  __device__ __forceinline__ void end_segment(int unit, const Place& p, const float (&sums)[kSums]) {
    auto& segments = reinterpret_cast<float(&)[kSegments][kSums]>(shared_.segments[unsigned(p.rank) / kRanks % 2]);
    const bool first = inputs_to(p.at + 1) == within_.segment;
    segments[warp() + (first ? 0 : kWarps)][lane()] = sum_by_lane(reinterpret_cast<float*>(slot(unit, 0) - lane()), sums);
    if (p.at < -1) return;
    if (first) segments[warp() + kWarps][lane()] = 0;
    __syncthreads();  // all segments are there
    if (threadIdx.x < kSums) {
      const int rank = p.rank + int(threadIdx.x / kTileRows);
      const float sum = sum_of_segments(segments, lane());
      if (rank < w_.rank) shared_.u[rank * kTileRows + threadIdx.x % kTileRows] = shared_.scale * sum;
    }
    if (p.rank + kRanks >= w_.rank) __syncthreads();  // u is there
  }

  // The trees of sum_of_lane(), in `memory` that the warp has used: lane l is left with sum number l. Lanes begin at different places, so that
  // they meet no bank together; a tree whose leaves change places with those a mask away adds the same pairs.
  __device__ __forceinline__ float sum_by_lane(float* memory, const float (&sums)[kSums]) const {
    const auto row_of = [&](unsigned sum) { return memory + sum / 4 * (kThreads * 4) + sum % 4 * kWarp; };
    __syncwarp();  // all have used it
    GPU_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      if (r >= count_) break;
      GPU_UNROLL
      for (int i = 0; i < kRanks; ++i) row_of(unsigned(i * kTileRows + r))[lane()] = sums[i * kTileRows + r];
    }
    __syncwarp();  // all lanes' sums are there
    float all[kWarp];
    GPU_UNROLL
    for (int i = 0; i < kWarp / 4; ++i) {
      const float4 four = reinterpret_cast<const float4*>(row_of(threadIdx.x % kWarp))[unsigned(i) ^ threadIdx.x % 8];
      all[i * 4] = four.x, all[i * 4 + 1] = four.y, all[i * 4 + 2] = four.z, all[i * 4 + 3] = four.w;
    }
    __syncwarp();  // all have read it
    GPU_UNROLL
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      GPU_UNROLL
      for (int i = 0; i < kWarp / 2; ++i) {
        if (i < mask) all[i] += all[i + mask];
      }
    }
    return all[0];
  }

  __device__ __forceinline__ void add_ranks(int unit, int first_rank, float (&sums)[kSums]) const {
    const uint4* from = slot(unit, 0);
    const auto* u = reinterpret_cast<const float4*>(shared_.u) + first_rank;
    const auto* const end = reinterpret_cast<const float4*>(shared_.u) + min(first_rank + kRanks, w_.rank);
    uint4 packed = *from;
    float4 four = *u;
    GPU_UNROLL_1
    while (u != end) {
      const float each[kTileRows] = {four.x, four.y, four.z, four.w};
      float factors[kEach];
      unpack(packed, factors);
      packed = *(from += kThreads);  // behind the last one there is memory too
      four = *++u;
      GPU_UNROLL
      for (int r = 0; r < kTileRows; ++r) {
        if (r == 1 && count_ == 1) break;
        GPU_UNROLL
        for (int j = 0; j < kEach; ++j) sums[r * kEach + j] = fmaf(factors[j], each[r], sums[r * kEach + j]);
      }
    }
  }

  __device__ __forceinline__ void store(int unit, int output, const float (&sums)[kSums]) const {
    // By way of memory, for registers have no numbers.
    GPU_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      if (r >= count_) break;
      memcpy(slot(unit, 2 * r), sums + r * kEach, sizeof(uint4));
      memcpy(slot(unit, 2 * r + 1), sums + r * kEach + 4, sizeof(uint4));
    }
    const int column = int(projection_.first) + output;
    const bool fours =
        output + kEach <= end() && (reinterpret_cast<uintptr_t>(a_.part) / sizeof(float) + column) % 4 == 0 && a_.columns % 4 == 0;
    GPU_UNROLL_1
    for (int r = 0; r < count_; ++r) {
      float* to = a_.part + rows_[r] * int(a_.columns) + column;
      const auto* from = reinterpret_cast<const float*>(slot(unit, 2 * r));
      if (fours) {
        *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
        *reinterpret_cast<float4*>(to + 4) = *reinterpret_cast<const float4*>(from + 4 * kThreads);
        continue;
      }
      GPU_NO_UNROLL
      for (int j = 0; j < kEach && output + j < end(); ++j) to[j] = from[j / 4 * 4 * kThreads + j % 4];
    }
  }

  const LoraWithin& within_;
  const LoraPart& a_;
  const LoraPart::Projection& projection_;
  const LoraWeights& w_;
  const int begin_;
  const int32_t* rows_;
  WithinShared& shared_;
  int count_;  // of rows
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

// By the threads of block number `block` of the launch's first ones, which have kBytes of shared memory.
template <int kBytes>
__device__ __forceinline__ void run_within(const LoraWithin& within, int block, unsigned char* memory) {
  let_next_begin();
  if (threadIdx.x >= LoraWithin::kThreads) return;
  const LoraPart& a = within.part;
  WithinShared& shared = *reinterpret_cast<WithinShared*>(memory);
  fetch_next(a, block * LoraWithin::kThreads + int(threadIdx.x), within.blocks * LoraWithin::kThreads);
  find_tiles(a, shared);
  int tile = 0;
  GPU_UNROLL_1
  for (int item = block;; item += within.blocks) {
    GPU_NO_UNROLL
    for (; item >= within.per_tile; item -= within.per_tile) ++tile;
    if (tile >= shared.tile_count) return;
    int which = 0, slice = item;
    GPU_NO_UNROLL
    for (; slice >= within.slices[which]; ++which) slice -= within.slices[which];
    const int begin = slice * int(within.slice), end = min(begin + int(within.slice), int(a.projections[which].out));
    const int32_t* rows = shared.tiles[tile];
    const int32_t adapter = shared.adapters[rows[0]];
    LoraWeights w{};
    if (adapter >= 0) w = load_fresh(a.projections[which].adapters + adapter);
    w.rank = min(w.rank, int32_t(a.most_rank));
    if (w.rank == 0) clear_within(a, which, rows, begin, end);
    else TileWithin<kBytes - int(sizeof(WithinShared))>(within, which, w, tile, begin, shared).run();
  }
}

}  // namespace tandem::cuda::lora
