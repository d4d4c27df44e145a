// The work of a warp that multiplies nothing in a product's launch (lora_along.h). The order of the sums is that of lora_sums.h.
#pragma once
#include "cuda/common/grid_wait.h"
#include "cuda/common/tensor_core.h"
#include "cuda/lora/lora_along.h"
#include "cuda/lora/lora_factors.h"

namespace tandem::cuda::lora {

// What the lanes of a warp share.
struct AlongShared {
  float u[LoraAlong::kMostRank][LoraAlong::kTileRows];        // of a tile
  int32_t tiles[LoraAlong::kMostRows][LoraAlong::kTileRows];  // rows, -1 = no more
  int32_t adapters[LoraAlong::kMostRows];                     // of each row, -1 = none
  int32_t places[LoraAlong::kMostRows];                       // of each row: the first of its tile, times kTileRows, and its number there
  int32_t before[LoraAlong::kMostRows + 1];                   // pieces before each tile
  int32_t unused[3];
};
static_assert(sizeof(AlongShared) % 16 == 0);

// A block of the product: its first outputs, of an activation the gates' and the others'; and whether it has outputs of the last part, or all.
struct AlongBlock {
  int number, first_output, other_output;
  bool adds;
  float* added;  // of an activation: in shared memory, what is added to each row's gates and others, one behind the other
  int added_row;
};

// Of a launch's warps one that makes pieces and adds. kOutputs are those of a block, of an activation the gates; kWarps those of a block that
// do so, of which this is number `own`. kAtOnce ranks of A are under way together, as registers allow.
template <int kOutputs, int kWarps, int kAtOnce, bool kGated>
class AlongWarp {
 public:
  __device__ __forceinline__ AlongWarp(const LoraAlong& along, const AlongBlock& block, int own, AlongShared& shared)
      : along_(along), a_(along.part), block_(block), own_(own), shared_(shared), groups_((int(a_.most_rank) + kRanks - 1) / kRanks) {}

  // Its pieces of A x.
  __device__ __forceinline__ void make() {
    const int maker = block_.number * kWarps + own_;
    find_tiles();
    count_pieces();
    const int count = maker < along_.makers ? shared_.before[tile_count_] : 0;
    Piece piece = maker < count ? find(maker) : Piece{};
    if (maker < count) fetch_factors(piece);
    wait_for_inputs();
    GPU_UNROLL_1
    for (int number = maker; number < count;) {
      make(piece);
      number += along_.makers;
      if (number < count) piece = find(number);
    }
    if (maker < along_.makers) fetch_next(a_, maker * kWarp + lane(), along_.makers * kWarp);
  }

  // B u of its tiles.
  __device__ __forceinline__ void add() {
    if (!block_.adds) return;
    GPU_UNROLL_1
    for (int tile = own_; tile < tile_count_; tile += kWarps) {
      GPU_UNROLL_1
      for (int half = 0; half < (kGated ? 2 : 1); ++half) add(tile, half);
    }
  }

  // Who is the last to have added makes the counters zero for the next launch. By then all has been counted: a tile's pieces are of ranks that
  // somebody adds, who has waited for the pieces of all tiles.
  __device__ __forceinline__ void leave() const {
    if (!block_.adds) return;
    const int32_t before = count_up(a_.arrived + kMostRows);
    if (lane() != 0 || before != along_.adders - 1) return;
    GPU_NO_UNROLL
    for (int i = 0; i <= kMostRows; ++i) a_.arrived[i] = 0;
  }

 private:
  static constexpr int kTileRows = LoraAlong::kTileRows, kEachLane = kOutputs / kWarp, kMostRows = LoraAlong::kMostRows;
  static constexpr int kPieceRows = 2;  // of the tile's: more would not fit in a thread's registers

  __device__ static int lane() { return int(threadIdx.x) % kWarp; }

  // The rows of each adapter, kTileRows at a time, in the order of the first ones: the same for all warps.
  __device__ __forceinline__ void find_tiles() {
    const int rows = int(a_.rows);
    GPU_NO_UNROLL
    for (int i = lane(); i < rows * kTileRows; i += kWarp) shared_.tiles[i / kTileRows][i % kTileRows] = -1;
    GPU_NO_UNROLL
    for (int row = lane(); row < rows; row += kWarp) {
      const int32_t adapter = __ldcg(a_.row_adapters + row);
      shared_.adapters[row] = adapter >= 0 && adapter < a_.adapter_count ? adapter : -1;
    }
    __syncwarp();  // all rows' adapters are there
    GPU_NO_UNROLL
    for (int row = lane(); row < rows; row += kWarp) shared_.places[row] = place_of(row);
    __syncwarp();  // all know who is first
    GPU_NO_UNROLL
    for (int row = lane(); row < rows; row += kWarp) {
      const int place = shared_.places[row];
      shared_.tiles[tiles_before(place / kTileRows)][place % kTileRows] = row;
    }
    tile_count_ = tiles_before(rows);
    __syncwarp();  // the tiles are there
  }

  __device__ __forceinline__ int tiles_before(int row) const {
    int tiles = 0;
    for (int other = 0; other < row; ++other) tiles += shared_.places[other] == other * kTileRows;
    return tiles;
  }

  __device__ __forceinline__ int place_of(int row) const {
    int before = 0, first = row;
    for (int other = 0; other < row; ++other) {
      if (shared_.adapters[other] != shared_.adapters[row]) continue;
      if (before % kTileRows == 0) first = other;
      ++before;
    }
    return (before % kTileRows == 0 ? row : first) * kTileRows + before % kTileRows;
  }

  __device__ __forceinline__ int adapter_of(int tile) const { return shared_.adapters[shared_.tiles[tile][0]]; }

  __device__ __forceinline__ LoraWeights weights_of(int tile, int which) const {
    const int adapter = adapter_of(tile);
    LoraWeights w{};
    if (adapter >= 0) w = load_fresh(a_.projections[which].adapters + adapter);
    w.rank = min(w.rank, int32_t(a_.most_rank));
    return w;
  }

  // Of a tile's rows those of one piece after the other.
  __device__ __forceinline__ int pairs_of(int tile) const { return shared_.tiles[tile][kPieceRows] < 0 ? 1 : 2; }
  __device__ __forceinline__ int pieces_of(int tile, const LoraWeights& w) const {
    return (w.rank + kRanks - 1) / kRanks * pairs_of(tile) * kSegments;
  }

  __device__ __forceinline__ void count_pieces() {
    GPU_NO_UNROLL
    for (int tile = lane(); tile < tile_count_; tile += kWarp) {
      int pieces = 0;
      GPU_NO_UNROLL
      for (int which = 0; which < int(a_.count); ++which) pieces += pieces_of(tile, weights_of(tile, which));
      shared_.before[tile + 1] = pieces;
    }
    __syncwarp();  // each tile's are there
    if (lane() == 0) {
      int before = 0;
      GPU_NO_UNROLL
      for (int tile = 0; tile <= tile_count_; ++tile) {
        before += tile == 0 ? 0 : shared_.before[tile];
        shared_.before[tile] = before;
      }
    }
    __syncwarp();  // and those before it
  }

  __device__ __forceinline__ float* piece_at(int tile, int which, int group, int segment) const {
    const int64_t number = ((int64_t(tile) * a_.count + which) * groups_ + group) * kSegments + segment;
    return a_.u + number * LoraAlong::kPieceFloats;
  }

  // Of A x: a segment of the inputs, eight ranks, two rows of a tile from `first_row` on.
  struct Piece {
    int tile, which, group, segment, first_row;
    LoraWeights w;
  };
  __device__ __forceinline__ Piece find(int piece) const {
    int tile = 0;
    GPU_NO_UNROLL
    for (int first = 0; first < tile_count_; first += kWarp) {
      const int own = first + lane();
      tile += __popc(__ballot_sync(kAllLanes, own < tile_count_ && shared_.before[own + 1] <= piece));
    }
    int which = 0, left = piece - shared_.before[tile];
    LoraWeights w = weights_of(tile, which);
    GPU_NO_UNROLL
    while (left >= pieces_of(tile, w)) {
      left -= pieces_of(tile, w);
      w = weights_of(tile, ++which);
    }
    const int pairs = pairs_of(tile), segment = left % kSegments, group = left / kSegments / pairs;
    return {tile, which, group, segment, left / kSegments % pairs * kPieceRows, w};
  }

  // To the L2 cache what the piece needs of A.
  __device__ __forceinline__ void fetch_factors(const Piece& p) const {
    const int begin = p.segment * segment_inputs(), count = min(segment_inputs(), int(a_.in) - begin), rank = p.group * kRanks + lane();
    if (lane() < kRanks && rank < p.w.rank && count > 0 && whole_a(p.w)) fetch(p.w.a + rank * a_.in + begin, count);
  }

  __device__ __forceinline__ int segment_inputs() const { return (int(a_.in) + kSegments * kStep - 1) / (kSegments * kStep) * kStep; }
  __device__ __forceinline__ bool whole_a(const LoraWeights& w) const { return whole_vectors(w.a, a_.in, a_.in); }

  __device__ __forceinline__ void make(const Piece& p) const {
    float* to = piece_at(p.tile, p.which, p.group, p.segment) + p.first_row;
    const int32_t* rows = shared_.tiles[p.tile] + p.first_row;
    if (rows[1] < 0) sum_piece<1>(p.w, rows, p.group, p.segment, to);
    else sum_piece<kPieceRows>(p.w, rows, p.group, p.segment, to);
    count_up(a_.arrived + p.tile);
  }

  template <int kRows>
  __device__ __forceinline__ void sum_piece(const LoraWeights& w, const int32_t* rows, int group, int segment, float* to) const {
    const int in = int(a_.in), length = segment_inputs();
    const int begin = segment * length, end = min(begin + length, in), last_rank = w.rank - 1 - group * kRanks;
    const bool whole = whole_a(w);
    const bf16* factors = w.a + int64_t(group) * kRanks * in;
    const bf16* x[kRows];
    GPU_UNROLL
    for (int r = 0; r < kRows; ++r) x[r] = a_.x + rows[r] * a_.ldx;
    float sums[kRanks * kRows] = {};
    GPU_UNROLL_1
    for (int step = begin; step < end; step += kStep) {
      const int at = step + lane() * kEach;
      if (!whole) {
        sum_each<kRows>(rows, factors, last_rank, at, sums);
        continue;
      }
      StepInputs<kRows> inputs{};
      GPU_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (at < in) inputs.rows[r] = *reinterpret_cast<const uint4*>(x[r] + at);
      }
      sum_whole(inputs, factors, last_rank, at, sums);
    }
    constexpr int kCount = kRanks * kRows, kCopies = kWarp / kCount;
    const float mine = sum_of_lane(sums);
    const int sum = lane() / kCopies;
    if (lane() % kCopies == 0) to[sum / kRows * kTileRows + sum % kRows] = mine;
  }

  // As lora_sums.h has it, one input after the other.
  template <int kRows>
  __device__ __forceinline__ void sum_each(const int32_t* rows, const bf16* factors, int last_rank, int at,
                                           float (&sums)[kRanks * kRows]) const {
    const int in = int(a_.in), end = min(at + kEach, in);
    GPU_NO_UNROLL
    for (; at < end; ++at) {
      GPU_UNROLL
      for (int i = 0; i < kRanks; ++i) {
        const float factor = to_float(factors[min(i, last_rank) * in + at]);
        GPU_UNROLL
        for (int r = 0; r < kRows; ++r) sums[i * kRows + r] = fmaf(to_float(a_.x[rows[r] * a_.ldx + at]), factor, sums[i * kRows + r]);
      }
    }
  }

  __device__ __forceinline__ int first_of(int half) const { return half == 0 ? block_.first_output : block_.other_output; }

  // As sum_step(), with all loads of kAtOnce ranks before the first product.
  template <int kRows>
  __device__ __forceinline__ void sum_whole(const StepInputs<kRows>& inputs, const bf16* factors, int last_rank, int at,
                                            float (&sums)[kRanks * kRows]) const {
    const int in = int(a_.in), from = min(at, in - kEach);
    uint4 packed[kAtOnce];
    multiply_step<kRows>(inputs, sums, [&](int i, float(&out)[kEach]) {
      if (i % kAtOnce == 0) {
        GPU_UNROLL
        for (int j = 0; j < kAtOnce; ++j) packed[j] = *reinterpret_cast<const uint4*>(factors + min(i + j, last_rank) * in + from);
      }
      unpack(at < in ? packed[i % kAtOnce] : uint4{0, 0, 0, 0}, out);
    });
  }

  // Of a projection's outputs those of the block.
  struct Range {
    int begin, end;
  };
  __device__ __forceinline__ Range range_of(const LoraPart::Projection& p, int half) const {
    const int first = first_of(half) - int(p.first);
    return {max(first, 0), min(first + kOutputs, int(p.out))};
  }

  __device__ __forceinline__ void add(int tile, int half) {
    GPU_UNROLL_1
    for (int which = 0; which < int(a_.count); ++which) {
      const Range range = range_of(a_.projections[which], half);
      if (range.begin >= range.end) continue;
      const LoraWeights w = weights_of(tile, which);
      float sums[kTileRows][kEachLane] = {};
      if (w.rank > 0) sum_ranks(tile, which, w, range, sums);
      store(tile, half, int(a_.projections[which].first) + range.begin, range.end - range.begin, w.rank > 0, sums);
    }
  }

  static constexpr int kOfB = kEachLane > 2 ? 4 : 8;  // ranks that are on their way together
  using Factors = bf16[kOfB][kEachLane];

  // B of ranks from `first` on: of those that there are not, and of outputs that are not the block's, anything.
  __device__ __forceinline__ void load_factors(const LoraWeights& w, int64_t out, const Range& range, int first, Factors& to) const {
    GPU_UNROLL
    for (int i = 0; i < kOfB; ++i) {
      const bf16* from = w.b + min(first + i, w.rank - 1) * out;
      GPU_UNROLL
      for (int j = 0; j < kEachLane; ++j) to[i][j] = from[min(range.begin + j * kWarp + lane(), range.end - 1)];
    }
  }

  __device__ __forceinline__ void sum_ranks(int tile, int which, const LoraWeights& w, const Range& range,
                                            float (&sums)[kTileRows][kEachLane]) {
    const int64_t out = a_.projections[which].out;
    Factors factors;
    load_factors(w, out, range, 0, factors);
    wait_for_pieces();
    make_u(tile, which, w);
    GPU_UNROLL_1
    for (int first = 0; first < w.rank; first += kOfB) {
      if (first > 0) load_factors(w, out, range, first, factors);
      GPU_UNROLL
      for (int i = 0; i < kOfB; ++i) {
        if (first + i >= w.rank) break;
        const float4 u = *reinterpret_cast<const float4*>(shared_.u[first + i]);
        const float each[kTileRows] = {u.x, u.y, u.z, u.w};
        GPU_UNROLL
        for (int r = 0; r < kTileRows; ++r) {
          GPU_UNROLL
          for (int j = 0; j < kEachLane; ++j) sums[r][j] = fmaf(to_float(factors[i][j]), each[r], sums[r][j]);
        }
      }
    }
  }

  // Of all tiles at once: to ask for one after the other would take longer than to add.
  __device__ __forceinline__ void wait_for_pieces() {
    if (pieces_there_) return;
    GPU_NO_UNROLL
    for (int tile = lane(); tile < tile_count_; tile += kWarp) {
      wait_for_count(a_.arrived + tile, shared_.before[tile + 1] - shared_.before[tile]);
    }
    __syncwarp();  // all are there for all lanes
    pieces_there_ = true;
  }

  // u of a tile whose pieces are there: a lane has a rank and a row of each eight.
  __device__ __forceinline__ void make_u(int tile, int which, const LoraWeights& w) {
    static_assert(LoraAlong::kPieceFloats == kWarp);
    __syncwarp();  // all are done with what was there before
    GPU_UNROLL_2
    for (int group = 0; group * kRanks < w.rank; ++group) {
      const float* from = piece_at(tile, which, group, 0) + lane();
      float segments[kSegments][1];
      GPU_UNROLL
      for (int s = 0; s < kSegments; ++s) segments[s][0] = __ldcg(from + s * LoraAlong::kPieceFloats);
      shared_.u[group * kRanks + lane() / kTileRows][lane() % kTileRows] = w.scale * sum_of_segments(segments, 0);
    }
    __syncwarp();  // u is there
  }

  // `count` of the product's outputs from `first` on. Of rows without an adapter -0, which leaves every number as it is, -0 too.
  __device__ __forceinline__ void store(int tile, int half, int first, int count, bool adapted,
                                        const float (&sums)[kTileRows][kEachLane]) const {
    GPU_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      const int row = shared_.tiles[tile][r];
      if (row < 0) return;
      float* to =
          kGated ? block_.added + row * block_.added_row + half * kOutputs + first - first_of(half) : a_.part + row * a_.columns + first;
      GPU_UNROLL
      for (int j = 0; j < kEachLane; ++j) {
        const int output = j * kWarp + lane();
        if (output < count) to[output] = adapted ? sums[r][j] : -0.0f;
      }
    }
  }

  const LoraAlong& along_;
  const LoraPart& a_;
  const AlongBlock block_;
  const int own_;
  AlongShared& shared_;
  const int groups_;  // of ranks, at most
  int tile_count_ = 0;
  bool pieces_there_ = false;
};

}  // namespace tandem::cuda::lora
