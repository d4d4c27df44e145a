// The gradient of attention on Hopper: a block has two groups of four warps, each with the 64 rows of a tile of queries, or of keys, and one
// more warp that walks over tiles of the other side and brings them by TMA for both. While one group makes gradients of its scores, the other's
// products are computed; and of each group a tile's sums and the next tile's scores are computed one right after the other. Scores and their
// gradients go from registers into the products that are summed up, whose other side is a tile taken across.
#pragma once
#include "cuda/attention/attention_variants.h"
#include "cuda/attention/backward_mask.h"
#include "cuda/common/hopper.h"
#include "cuda/common/launch.h"
#include "cuda/common/tensor_map.h"

namespace tandem::cuda {

void attention_backward_keys_wgmma(const AttentionBackward& a, int64_t first_tile, int64_t tile_count, cudaStream_t stream);

namespace gradient {

constexpr int kGroups = 2;
constexpr int kGroupThreads = 4 * kWarp;
constexpr int kThreads = (kGroups + 1) * kGroupThreads;
constexpr int kStages = 4;
constexpr int kColumns = 64;  // of a box
constexpr int kPanelBytes = kBackwardTile * kColumns * int(sizeof(bf16));

// What goes with a tile that is walked over; its numbers are read two at a time.
struct alignas(16) Marks {
  PackedToken tokens[kBackwardTile];  // of keys only positions, where there is a window
  float log_sums[kBackwardTile];      // of queries, to base 2
  float deltas[kBackwardTile];
  int row;             // its first; -1 after the last tile
  int seen[kGroups];   // by the group's queries, or the group's keys by them
  int clear[kGroups];  // the tile's queries see all of the group's keys
};

// Two matrices of 64 rows of a head, each in panels of 64 columns. Where heads are narrower than panels the columns behind them are those of
// the next head, and nothing reads them. A block of queries has them in registers.
template <int kDim, bool kKeys>
struct Layout {
  static constexpr int kPanels = (kDim + kColumns - 1) / kColumns;
  static constexpr int kMatrixBytes = kPanels * kPanelBytes;
  static constexpr int kPairBytes = 2 * kMatrixBytes;
  static constexpr int kOwnBytes = kKeys ? kPairBytes : kMatrixBytes;  // of a group
  static constexpr int kStageBegin = kGroups * kOwnBytes;
  static constexpr int kMarks = kStageBegin + kStages * kPairBytes;
  static constexpr int kTokens = kMarks + kStages * int(sizeof(Marks));
  static constexpr int kBarriers = kTokens + kGroups * kBackwardTile * int(sizeof(PackedToken));
  static constexpr int kSharedBytes = kBarriers + (1 + 2 * kStages) * int(sizeof(Barrier));
  static_assert(kTokens % 16 == 0 && kMarks % 16 == 0);
};

// The matrices of one side: queries and d_out, or keys and values.
struct Side {
  TensorMap first, second;
};

#if TANDEM_HOPPER_CODE

constexpr int kScores = kBackwardTile / 2;  // of a thread, of 64 rows and 64 columns
constexpr float kLog2E = 1.4426950408889634f;
// The block begins with 168 for each thread, as many as three warp groups have room for.
constexpr int kGroupRegisters = 240, kBringerRegisters = 24;

// `own_ready` when the block's own tiles have come; `full` and `empty` of each stage, when its tile has come with its marks, and when
// every warp of the groups is done with it.
struct Memory {
  unsigned char *own, *stages;
  Marks* marks;
  PackedToken* own_tokens;  // of the block's queries; of keys only positions
  Barrier *own_ready, *full, *empty;
};

// The tiles of a block: rows from `first` on, and how many of its groups have one.
struct Tiles {
  int first, count;

  __device__ __forceinline__ int of_group(int group) const { return first + group * kBackwardTile; }
};

// Where tile by tile is: rounds of the stages have parities by turns.
struct Turn {
  int stage = 0, parity = 0;

  __device__ __forceinline__ Turn next() const { return stage + 1 == kStages ? Turn{0, parity ^ 1} : Turn{stage + 1, parity}; }
};

template <int kDim, bool kKeys>
__device__ __forceinline__ Memory open_memory(const AttentionBackward& a, const Tiles& tiles) {
  using L = Layout<kDim, kKeys>;
  GPU_SHARED_BYTES(shared);
  Barrier* barriers = reinterpret_cast<Barrier*>(shared + L::kBarriers);
  const Memory memory{shared,
                      shared + L::kStageBegin,
                      reinterpret_cast<Marks*>(shared + L::kMarks),
                      reinterpret_cast<PackedToken*>(shared + L::kTokens),
                      barriers,
                      barriers + 1,
                      barriers + 1 + kStages};
  const int at = int(threadIdx.x), row = tiles.first + at;
  if (at < kGroups * kBackwardTile) memory.own_tokens[at] = row < a.rows ? a.tokens[row] : PackedToken{0, 1 << 30, 0, 0};
  if (at == 0) {
    barrier_init(memory.own_ready, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(&memory.full[stage], kWarp);
      barrier_init(&memory.empty[stage], kGroups * kGroupThreads / kWarp);
    }
    barrier_init_fence();
  }
  __syncthreads();  // the barriers and tokens are there for all
  return memory;
}

// By one thread, which has announced the bytes.
template <int kDim>
__device__ __forceinline__ void bring_matrix(unsigned char* to, const TensorMap* map, Barrier* barrier, int head, int row) {
  for (int panel = 0; panel < Layout<kDim, true>::kPanels; ++panel) {
    bulk_load(to + panel * kPanelBytes, map, barrier, head * kDim + panel * kColumns, row);
  }
}
template <int kDim>
__device__ __forceinline__ void bring_pair(unsigned char* to, const Side& side, Barrier* barrier, int head, int row) {
  bring_matrix<kDim>(to, &side.first, barrier, head, row);
  bring_matrix<kDim>(to + Layout<kDim, true>::kMatrixBytes, &side.second, barrier, head, row);
}

// By the warp that brings, after each lane has written its part of the marks: a tile for both groups.
template <int kDim>
__device__ __forceinline__ void send_tile(const Memory& m, Turn& turn, const Side& side, int head, int row, bool first_sees,
                                          bool second_sees) {
  using L = Layout<kDim, true>;
  Barrier* full = &m.full[turn.stage];
  if (threadIdx.x % kWarp == 0) {
    Marks& marks = m.marks[turn.stage];
    marks.row = row;
    marks.seen[0] = first_sees;
    marks.seen[1] = second_sees;
    barrier_expect(full, L::kPairBytes);
    bring_pair<kDim>(m.stages + turn.stage * L::kPairBytes, side, full, head, row);
  } else {
    barrier_arrive(full);
  }
  turn = turn.next();
}

__device__ __forceinline__ void end_walk(const Memory& m, const Turn& turn) {
  barrier_wait(&m.empty[turn.stage], turn.parity ^ 1);
  if (threadIdx.x % kWarp == 0) m.marks[turn.stage].row = -1;
  barrier_arrive(&m.full[turn.stage]);
}

__device__ __forceinline__ void give_tile_back(const Memory& m, const Turn& turn) {
  __syncwarp();
  if (threadIdx.x % kWarp == 0) barrier_arrive(&m.empty[turn.stage]);
}

// Where a group is in the walk: `before` is held while products that read it may be under way.
struct TilePlace {
  Turn turn, before;
  bool held = false;

  __device__ __forceinline__ void go_on() {
    before = turn;
    held = true;
    turn = turn.next();
  }
  __device__ __forceinline__ void give_before_back(const Memory& m) {
    if (held) give_tile_back(m, before);
    held = false;
  }
};

// From there on the next tile that the group sees, or is seen by; false after the last one. Where it passes others it holds nothing that their
// stages are waited for.
__device__ __forceinline__ bool find_tile(const Memory& m, int group, TilePlace& at) {
  for (;; at.turn = at.turn.next()) {
    barrier_wait(&m.full[at.turn.stage], at.turn.parity);
    const Marks& marks = m.marks[at.turn.stage];
    if (marks.row < 0) return false;
    if (marks.seen[group]) return true;
    float none[1] = {0};
    wgmma_wait<0>(none);
    at.give_before_back(m);
    give_tile_back(m, at.turn);
  }
}

// products = left . right^T of two tiles; under way when this returns.
template <int kDim>
__device__ __forceinline__ void multiply_rows(float (&products)[kScores], const unsigned char* left, const unsigned char* right) {
  wgmma_fence();
  wgmma_first(products, tile_descriptor(left, 0), tile_descriptor(right, 0));
  GPU_UNROLL
  for (int k = 1; k < kDim / 16; ++k) {
    const int panel = k / 4 * kPanelBytes;
    wgmma<kBackwardTile>(products, tile_descriptor(left + panel, k % 4), tile_descriptor(right + panel, k % 4));
  }
  wgmma_commit();
}

// sums += weights . tile.
template <int kDim>
__device__ __forceinline__ void add_rows(float (&sums)[kDim / 2], uint32_t (&weights)[kBackwardTile / 16][4], const unsigned char* tile) {
  settle(sums);
  settle(weights);
  wgmma_fence();
  GPU_UNROLL
  for (int k = 0; k < kBackwardTile / 16; ++k) wgmma_rows<kDim, true>(sums, weights[k], across_descriptor(tile, k, kPanelBytes));
  wgmma_commit();
}

// As the left side of a product.
__device__ __forceinline__ void pack_rows(const float (&values)[kScores], uint32_t (&out)[kBackwardTile / 16][4]) {
  GPU_UNROLL
  for (int i = 0; i < kBackwardTile / 8; ++i) {
    GPU_UNROLL
    for (int r = 0; r < 2; ++r) out[i / 2][i % 2 * 2 + r] = pack_rounded(values[4 * i + 2 * r], values[4 * i + 2 * r + 1]);
  }
}

// Element e of a thread: row own_row() + 8 * row_half(e) of its group's 64, of the tile's columns this one.
__device__ __forceinline__ int own_row() { return int(threadIdx.x) % kGroupThreads / kWarp * 16 + int(threadIdx.x) / 4 % 8; }
__device__ __forceinline__ int row_half(int e) { return e / 2 % 2; }
__device__ __forceinline__ int column_of(int e) { return e / 4 * 8 + int(threadIdx.x) % 4 * 2 + e % 2; }

template <int kDim>
__device__ __forceinline__ void write_sums(float* memory, const float (&sums)[kDim / 2], float scale, int64_t rows, int64_t heads,
                                           int64_t head, int64_t first) {
  GPU_UNROLL
  for (int e = 0; e < kDim / 2; e += 2) {
    const int64_t row = first + own_row() + 8 * row_half(e);
    const float2 pair{sums[e] * scale, sums[e + 1] * scale};
    if (row < rows) *reinterpret_cast<float2*>(memory + (row * heads + head) * kDim + column_of(e)) = pair;
  }
}

// A pair's score to its probability.
__device__ __forceinline__ float probability(float score, float scale2, float log_sum2) {
  return exp2_flushed(fmaf(score, scale2, -log_sum2));
}

#endif

template <int kDim>
Side side_of(const AttentionBackward& a, const bf16* first, const bf16* second, int64_t heads) {
  const int64_t columns = heads * kDim;
  return {tensor_map(first, a.rows, columns, columns, kBackwardTile), tensor_map(second, a.rows, columns, columns, kBackwardTile)};
}

template <int kDim, bool kKeys, class Kernel>
void launch_tiles(Kernel kernel, const AttentionBackward& a, int64_t first_tile, int64_t tile_count, cudaStream_t stream) {
  constexpr int kBytes = Layout<kDim, kKeys>::kSharedBytes;
  const Side queries = side_of<kDim>(a, a.queries, a.d_out, a.heads), keys = side_of<kDim>(a, a.keys, a.values, a.kv_heads);
  const int64_t blocks = ceil_div(tile_count, kGroups) * (kKeys ? a.kv_heads : a.heads);
  check_argument(blocks < int64_t(1) << 31, "attention_backward_wgmma", "heads");
  allow_shared_bytes(kernel, kBytes, "attention_backward_wgmma");
  GPU_LAUNCH(kernel, dim3(unsigned(blocks)), dim3(kThreads), kBytes, stream, queries, keys, a, int(first_tile), int(tile_count));
  check_launch("attention_backward_wgmma");
}

}  // namespace gradient
}  // namespace tandem::cuda
