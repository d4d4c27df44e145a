// The gradient of attention on Hopper: four warps hold 64 rows of queries, or of keys, and walk over tiles of the other side, which come by
// TMA through two stages. Scores and their gradients are products of two tiles in shared memory; probabilities go from registers into the
// products that are summed up, whose other side is a tile taken across.
#include "cuda/attention/attention_variants.h"
#include "cuda/attention/backward_mask.h"
#include "cuda/common/hopper.h"
#include "cuda/common/launch.h"
#include "cuda/common/tensor_map.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 4 * kWarp;
constexpr int kStages = 2;
constexpr int kColumns = 64;  // of a box
constexpr int kPanelBytes = kBackwardTile * kColumns * int(sizeof(bf16));

// What goes with the rows of a tile that is walked over.
struct Marks {
  PackedToken tokens[kBackwardTile];  // of keys only positions, where there is a window
  float log_sums[kBackwardTile];      // of queries, to base 2
  float deltas[kBackwardTile];
  int clear[kBackwardTile / kWarp];  // half of the tile's queries see all of the block's keys
};

// Two matrices of 64 rows of a head, each in panels of 64 columns. Where heads are narrower than panels the columns behind them are those of
// the next head, and nothing reads them.
template <int kDim>
struct Layout {
  static constexpr int kPanels = (kDim + kColumns - 1) / kColumns;
  static constexpr int kMatrixBytes = kPanels * kPanelBytes;
  static constexpr int kPairBytes = 2 * kMatrixBytes;
  static constexpr int kMarks = (1 + kStages) * kPairBytes;
  static constexpr int kBarriers = kMarks + kStages * int(sizeof(Marks));
  static constexpr int kSharedBytes = kBarriers + (1 + kStages) * int(sizeof(Barrier));
};

// The matrices of one side: queries and d_out, or keys and values.
struct Side {
  TensorMap first, second;
};

#if TANDEM_HOPPER_CODE

constexpr int kScores = kBackwardTile / 2;  // of a thread, of 64 rows and 64 columns
constexpr float kLog2E = 1.4426950408889634f;

struct Memory {
  unsigned char* pairs;  // the block's own, then the stages
  Marks* marks;
  Barrier *own, *full;
};

template <int kDim>
__device__ Memory open_memory() {
  GPU_SHARED_BYTES(shared);
  Barrier* barriers = reinterpret_cast<Barrier*>(shared + Layout<kDim>::kBarriers);
  const Memory memory{shared, reinterpret_cast<Marks*>(shared + Layout<kDim>::kMarks), barriers, barriers + 1};
  if (threadIdx.x == 0) {
    for (int i = 0; i < 1 + kStages; ++i) barrier_init(&barriers[i], 1);
    barrier_init_fence();
  }
  __syncthreads();  // the barriers are there for all
  return memory;
}

template <int kDim>
__device__ void bring_pair(unsigned char* to, const Side& side, Barrier* barrier, int64_t head, int64_t row) {
  using L = Layout<kDim>;
  if (threadIdx.x != 0) return;
  barrier_expect(barrier, L::kPairBytes);
  for (int panel = 0; panel < L::kPanels; ++panel) {
    const int column = int(head) * kDim + panel * kColumns;
    bulk_load(to + panel * kPanelBytes, &side.first, barrier, column, int(row));
    bulk_load(to + L::kMatrixBytes + panel * kPanelBytes, &side.second, barrier, column, int(row));
  }
}

// products = left . right^T of two tiles.
template <int kDim>
__device__ __forceinline__ void multiply_rows(float (&products)[kScores], const unsigned char* left, const unsigned char* right) {
  wgmma_first(products, tile_descriptor(left, 0), tile_descriptor(right, 0));
  GPU_UNROLL
  for (int k = 1; k < kDim / 16; ++k) {
    const int panel = k / 4 * kPanelBytes;
    wgmma<kBackwardTile>(products, tile_descriptor(left + panel, k % 4), tile_descriptor(right + panel, k % 4));
  }
}

// The products of the block's pair with another one, of queries with keys and of d_out with values. The multiprocessor's other block computes
// meanwhile.
template <int kDim>
__device__ __forceinline__ void multiply_pairs(float (&scores)[kScores], float (&d)[kScores], const unsigned char* own,
                                               const unsigned char* pair) {
  constexpr int kMatrixBytes = Layout<kDim>::kMatrixBytes;
  wgmma_fence();
  multiply_rows<kDim>(scores, own, pair);
  multiply_rows<kDim>(d, own + kMatrixBytes, pair + kMatrixBytes);
  wgmma_commit();
  wgmma_wait<0>(scores);
  wgmma_wait<0>(d);
}

// sums += weights . tile.
template <int kDim>
__device__ __forceinline__ void add_rows(float (&sums)[kDim / 2], const uint32_t (&weights)[kBackwardTile / 16][4],
                                         const unsigned char* tile) {
  GPU_UNROLL
  for (int k = 0; k < kBackwardTile / 16; ++k) wgmma_rows<kDim, true>(sums, weights[k], across_descriptor(tile, k, kPanelBytes));
}

// As the left side of a product.
__device__ __forceinline__ void pack_rows(const float (&values)[kScores], uint32_t (&out)[kBackwardTile / 16][4]) {
  GPU_UNROLL
  for (int i = 0; i < kBackwardTile / 8; ++i) {
    GPU_UNROLL
    for (int r = 0; r < 2; ++r) out[i / 2][i % 2 * 2 + r] = pack_rounded(values[4 * i + 2 * r], values[4 * i + 2 * r + 1]);
  }
}

// Element e of a thread: row lane / 4 + 8 * row_half(e) of its warp's 16, of the tile's columns this one.
__device__ __forceinline__ int row_half(int e) { return e / 2 % 2; }
__device__ __forceinline__ int column_of(int e) { return e / 4 * 8 + int(threadIdx.x) % 4 * 2 + e % 2; }

template <int kDim>
__device__ void write_sums(float* memory, const float (&sums)[kDim / 2], int64_t rows, int64_t heads, int64_t head, int64_t first) {
  GPU_UNROLL
  for (int e = 0; e < kDim / 2; e += 2) {
    const int64_t row = first + int(threadIdx.x) / 4 % 8 + int(threadIdx.x) / kWarp * 16 + 8 * row_half(e);
    if (row < rows) *reinterpret_cast<float2*>(memory + (row * heads + head) * kDim + column_of(e)) = float2{sums[e], sums[e + 1]};
  }
}

#endif

#if TANDEM_HOPPER_CODE

// A pair's score to its probability.
__device__ __forceinline__ float probability(float score, float scale2, float log_sum2) {
  return exp2_flushed(fmaf(score, scale2, -log_sum2));
}

// The two queries of a thread.
struct Queries {
  PackedToken tokens[2];
  int64_t rows[2];
  float log_sums[2], deltas[2];
  bool there[2];
};

__device__ __forceinline__ Queries own_queries(const AttentionBackward& a, int64_t head, int64_t first) {
  Queries q = {};
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int64_t row = first + int(threadIdx.x) / kWarp * 16 + int(threadIdx.x) / 4 % 8 + 8 * r;
    q.rows[r] = row;
    q.there[r] = row < a.rows;
    if (!q.there[r]) continue;
    q.tokens[r] = a.tokens[row];
    q.log_sums[r] = a.log_sums[row * a.heads + head] * kLog2E;
    q.deltas[r] = a.deltas[row * a.heads + head];
  }
  return q;
}

// From `from` on the next tile of keys that the tile of queries sees; `end` where there is none.
__device__ __forceinline__ int64_t next_keys(const PackedToken& reach, int64_t first, int64_t from, int64_t end) {
  while (from < end && !tile_sees(reach, first, from)) from += kBackwardTile;
  return from < end ? from : end;
}

// Scores to probabilities, those of 64 keys from row `keys` on.
__device__ __forceinline__ void weigh_keys(const AttentionBackward& a, const Queries& q, const Marks& marks, int64_t keys,
                                           float (&scores)[kScores]) {
  const float scale2 = a.scale * kLog2E;
  bool clear = true;
  for (int r = 0; r < 2; ++r) clear = clear && q.there[r] && sees_all(q.tokens[r], q.rows[r], keys, a.window);
  GPU_UNROLL
  for (int e = 0; e < kScores; ++e) scores[e] = probability(scores[e], scale2, q.log_sums[row_half(e)]);
  if (clear) return;
  GPU_UNROLL
  for (int e = 0; e < kScores; ++e) {
    const int r = row_half(e), key = column_of(e), position = a.window == 0 ? 0 : marks.tokens[key].position;
    if (!q.there[r] || !sees(q.tokens[r], q.rows[r], keys + key, position, a.window)) scores[e] = 0;
  }
}

#endif

// Block (tile of queries, the last first, as it has most keys; head): dq over the keys ascending.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 2)
    queries_wgmma_kernel(const __grid_constant__ Side queries, const __grid_constant__ Side keys, AttentionBackward a, int64_t last_tile) {
#if TANDEM_HOPPER_CODE
  using L = Layout<kDim>;
  const int64_t tile = last_tile - int64_t(blockIdx.x), first = tile * kBackwardTile, head = blockIdx.y;
  const int64_t kv_head = head / (a.heads / a.kv_heads), end = min(first + kBackwardTile, a.rows);
  const Memory m = open_memory<kDim>();
  bring_pair<kDim>(m.pairs, queries, m.own, head, first);
  const PackedToken reach = a.tiles[tile];
  auto bring = [&](int stage, int64_t row) {
    if (row >= end) return;
    bring_pair<kDim>(m.pairs + (1 + stage) * L::kPairBytes, keys, &m.full[stage], kv_head, row);
    const int64_t key = row + int64_t(threadIdx.x);
    if (a.window > 0 && threadIdx.x < kBackwardTile)
      m.marks[stage].tokens[threadIdx.x].position = key < a.rows ? a.tokens[key].position : 0;
  };
  int64_t at = next_keys(reach, first, 0, end), after = next_keys(reach, first, at + kBackwardTile, end);
  bring(0, at);
  bring(1, after);
  const Queries q = own_queries(a, head, first);
  float dq[kDim / 2] = {};
  barrier_wait(m.own, 0);
  __syncthreads();  // the first tiles' marks are there for all
  for (int i = 0; at < end; ++i) {
    const int stage = i % kStages;
    unsigned char* pair = m.pairs + (1 + stage) * L::kPairBytes;
    barrier_wait(&m.full[stage], i / kStages & 1);
    float scores[kScores], d[kScores];
    multiply_pairs<kDim>(scores, d, m.pairs, pair);
    weigh_keys(a, q, m.marks[stage], at, scores);
    GPU_UNROLL
    for (int e = 0; e < kScores; ++e) d[e] = scores[e] * (d[e] - q.deltas[row_half(e)]) * a.scale;
    uint32_t weights[kBackwardTile / 16][4];
    pack_rows(d, weights);
    settle(dq);
    settle(weights);
    wgmma_fence();
    add_rows<kDim>(dq, weights, pair);
    wgmma_commit();
    wgmma_wait<0>(dq);
    keep_rows(weights);
    __syncthreads();  // all are done with the keys
    at = after;
    after = next_keys(reach, first, at + kBackwardTile, end);
    bring(stage, after);
  }
  write_sums<kDim>(a.dq, dq, a.rows, a.heads, head, first);
#endif
}

#if TANDEM_HOPPER_CODE

// Where a block of keys is in its walk: over the heads of the group, and in each over the tiles of queries that see it.
struct Walk {
  int head, row;
};

// From there on the next one; its head is `end_head` where there is none.
__device__ __forceinline__ Walk next_queries(const AttentionBackward& a, int first, int end_head, Walk at) {
  for (; at.head < end_head; ++at.head, at.row = first) {
    for (; at.row < a.rows; at.row += kBackwardTile) {
      if (tile_sees(a.tiles[at.row / kBackwardTile], at.row, first)) return at;
    }
  }
  return at;
}

struct Mark {
  PackedToken token;
  int64_t row;
  float log_sum, delta;
};

// Of the query that this thread brings, by the first two warps: only read, so that nobody waits for it before it is stored.
__device__ __forceinline__ Mark read_mark(const AttentionBackward& a, const Walk& at, int end_head) {
  const int64_t row = int64_t(at.row) + threadIdx.x;
  if (threadIdx.x >= kBackwardTile || at.head >= end_head || row >= a.rows) return {{0, 1 << 30, 0, 0}, row, 0, 0};
  const int64_t index = row * a.heads + at.head;
  return {a.tokens[row], row, a.log_sums[index], a.deltas[index]};
}

__device__ __forceinline__ void store_mark(const AttentionBackward& a, Marks& marks, const Mark& mark, int first) {
  if (threadIdx.x >= kBackwardTile) return;
  marks.tokens[threadIdx.x] = mark.token;
  marks.log_sums[threadIdx.x] = mark.log_sum * kLog2E;
  marks.deltas[threadIdx.x] = mark.delta;
  int clear = sees_all(mark.token, mark.row, first, a.window);
  for (int mask = 16; mask > 0; mask >>= 1) clear &= __shfl_xor_sync(kAllLanes, clear, mask);
  if (threadIdx.x % kWarp == 0) marks.clear[threadIdx.x / kWarp] = clear;
}

// Scores to probabilities: of this thread's two keys, and of the queries from row `queries` on.
__device__ __forceinline__ void weigh_queries(const AttentionBackward& a, const int64_t (&keys)[2], const int (&positions)[2],
                                              const Marks& marks, int64_t queries, float (&scores)[kScores]) {
  const float scale2 = a.scale * kLog2E;
  GPU_UNROLL
  for (int e = 0; e < kScores; ++e) scores[e] = probability(scores[e], scale2, marks.log_sums[column_of(e)]);
  if (marks.clear[0] && marks.clear[1]) return;
  GPU_UNROLL
  for (int e = 0; e < kScores; ++e) {
    const int query = column_of(e), r = row_half(e);
    if (!sees(marks.tokens[query], queries + query, keys[r], positions[r], a.window)) scores[e] = 0;
  }
}

// What a tile of queries adds to the sums of the block's keys.
template <int kDim>
__device__ __forceinline__ void add_queries(const AttentionBackward& a, const int64_t (&keys)[2], const int (&positions)[2],
                                            const Marks& marks, int64_t queries, const unsigned char* own, const unsigned char* pair,
                                            float (&dk)[kDim / 2], float (&dv)[kDim / 2]) {
  float scores[kScores], d[kScores];
  multiply_pairs<kDim>(scores, d, own, pair);
  weigh_queries(a, keys, positions, marks, queries, scores);
  uint32_t weights[kBackwardTile / 16][4], gradients[kBackwardTile / 16][4];
  pack_rows(scores, weights);
  GPU_UNROLL
  for (int e = 0; e < kScores; ++e) d[e] = scores[e] * (d[e] - marks.deltas[column_of(e)]) * a.scale;
  pack_rows(d, gradients);
  settle(dk);
  settle(dv);
  settle(weights);
  settle(gradients);
  wgmma_fence();
  add_rows<kDim>(dv, weights, pair + Layout<kDim>::kMatrixBytes);
  add_rows<kDim>(dk, gradients, pair);
  wgmma_commit();
  wgmma_wait<0>(dv);
  wgmma_wait<0>(dk);
  keep_rows(weights);
  keep_rows(gradients);
}

#endif

// Block (tile of keys, kv head): dk and dv over the heads of the group, and in each over the queries, ascending.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 2)
    keys_wgmma_kernel(const __grid_constant__ Side queries, const __grid_constant__ Side keys, AttentionBackward a, int64_t first_tile) {
#if TANDEM_HOPPER_CODE
  using L = Layout<kDim>;
  const int first = int(first_tile + int64_t(blockIdx.x)) * kBackwardTile, kv_head = int(blockIdx.y), group = int(a.heads / a.kv_heads);
  const int end_head = (kv_head + 1) * group;
  const Memory m = open_memory<kDim>();
  bring_pair<kDim>(m.pairs, keys, m.own, kv_head, first);
  auto bring = [&](int stage, const Walk& at, const Mark& mark) {
    if (at.head >= end_head) return;
    bring_pair<kDim>(m.pairs + (1 + stage) * L::kPairBytes, queries, &m.full[stage], at.head, at.row);
    store_mark(a, m.marks[stage], mark, first);
  };
  auto next = [&](const Walk& at) { return next_queries(a, first, end_head, {at.head, at.row + kBackwardTile}); };
  Walk at = next_queries(a, first, end_head, {kv_head * group, first}), after = next(at);
  bring(0, at, read_mark(a, at, end_head));
  bring(1, after, read_mark(a, after, end_head));
  int positions[2];
  int64_t rows[2];
  for (int r = 0; r < 2; ++r) {
    rows[r] = first + int(threadIdx.x) / kWarp * 16 + int(threadIdx.x) / 4 % 8 + 8 * r;
    positions[r] = rows[r] < a.rows ? a.tokens[rows[r]].position : 0;
  }
  float dk[kDim / 2] = {}, dv[kDim / 2] = {};
  barrier_wait(m.own, 0);
  __syncthreads();  // the first tiles' marks are there for all
  for (int i = 0; at.head < end_head; ++i) {
    const int stage = i % kStages;
    const Walk later = next(after);
    const Mark mark = read_mark(a, later, end_head);  // on its way while the tile is computed
    barrier_wait(&m.full[stage], i / kStages & 1);
    add_queries<kDim>(a, rows, positions, m.marks[stage], at.row, m.pairs, m.pairs + (1 + stage) * L::kPairBytes, dk, dv);
    __syncthreads();  // all are done with the queries
    bring(stage, later, mark);
    at = after;
    after = later;
  }
  write_sums<kDim>(a.dk, dk, a.rows, a.kv_heads, kv_head, first);
  write_sums<kDim>(a.dv, dv, a.rows, a.kv_heads, kv_head, first);
#endif
}

template <int kDim>
Side side_of(const AttentionBackward& a, const bf16* first, const bf16* second, int64_t heads) {
  const int64_t columns = heads * kDim;
  return {tensor_map(first, a.rows, columns, columns, kBackwardTile), tensor_map(second, a.rows, columns, columns, kBackwardTile)};
}

template <int kDim>
void launch(const AttentionBackward& a, bool of_keys, int64_t first_tile, int64_t tile_count, cudaStream_t stream) {
  constexpr int kBytes = Layout<kDim>::kSharedBytes;
  const auto kernel = of_keys ? &keys_wgmma_kernel<kDim> : &queries_wgmma_kernel<kDim>;
  const Side queries = side_of<kDim>(a, a.queries, a.d_out, a.heads), keys = side_of<kDim>(a, a.keys, a.values, a.kv_heads);
  const int64_t begin = of_keys ? first_tile : first_tile + tile_count - 1;
  const dim3 grid(unsigned(tile_count), unsigned(of_keys ? a.kv_heads : a.heads));
  allow_shared_bytes(kernel, kBytes, "attention_backward_wgmma");
  GPU_LAUNCH(kernel, grid, dim3(kThreads), kBytes, stream, queries, keys, a, begin);
  check_launch("attention_backward_wgmma");
}

}  // namespace

void attention_backward_wgmma(const AttentionBackward& a, bool of_keys, int64_t first_tile, int64_t tile_count, cudaStream_t stream) {
  for (const bf16* rows : {a.queries, a.keys, a.values, a.d_out}) {
    check_argument(reinterpret_cast<uintptr_t>(rows) % 16 == 0, "attention_backward_wgmma", "rows are 16-byte aligned");
  }
  for (const float* sums : {a.dq, a.dk, a.dv}) {
    check_argument(reinterpret_cast<uintptr_t>(sums) % 8 == 0, "attention_backward_wgmma", "sums are 8-byte aligned");
  }
  by_dim(a.dim, "attention_backward", [&](auto dim) { launch<decltype(dim)::value>(a, of_keys, first_tile, tile_count, stream); });
}

}  // namespace tandem::cuda
