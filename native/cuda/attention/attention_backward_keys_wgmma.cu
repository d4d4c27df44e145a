// dk and dv of attention on Hopper.
#include "cuda/attention/attention_backward_wgmma.h"

namespace tandem::cuda {
namespace {

using namespace gradient;

#if TANDEM_HOPPER_CODE

// Of a tile of queries, by a warp that has few registers; with whether all of them see all keys of each group.
__device__ __forceinline__ void write_marks(const AttentionBackward& a, Marks& marks, const Tiles& tiles, int head, int first) {
  unsigned clear = (1 << kGroups) - 1;
  GPU_NO_UNROLL
  for (int at = int(threadIdx.x) % kWarp; at < kBackwardTile; at += kWarp) {
    const int row = first + at;
    PackedToken token{0, 1 << 30, 0, 0};
    if (row < a.rows) token = a.tokens[row];
    marks.tokens[at] = token;
    GPU_NO_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      if (!sees_all(token, row, tiles.of_group(group), a.window)) clear &= ~(1u << group);
    }
  }
  GPU_NO_UNROLL
  for (int at = int(threadIdx.x) % kWarp; at < kBackwardTile; at += kWarp) {
    const int row = first + at;
    float log_sum = 0, delta = 0;
    if (row < a.rows) {
      log_sum = a.log_sums[int64_t(row) * a.heads + head];
      delta = a.deltas[int64_t(row) * a.heads + head];
    }
    marks.log_sums[at] = log_sum * kLog2E;
    marks.deltas[at] = delta;
  }
  for (int group = 0; group < kGroups; ++group) {
    const bool all = __ballot_sync(kAllLanes, (clear >> group & 1) != 0) == kAllLanes;
    if (threadIdx.x % kWarp == 0) marks.clear[group] = all;
  }
}

// The warp that brings queries: over the heads, and in each over the tiles of queries that see a key of the block, ascending.
template <int kDim>
__device__ __forceinline__ void bring_queries(const AttentionBackward& a, const Memory& m, const Side& queries, const Tiles& tiles,
                                              int head, int end_head) {
  Turn turn;
  for (; head < end_head; ++head) {
    for (int row = tiles.first; row < a.rows; row += kBackwardTile) {
      const PackedToken reach = a.tiles[row / kBackwardTile];
      const bool first_seen = tile_sees(reach, row, tiles.first);
      const bool second_seen = tiles.count > 1 && tile_sees(reach, row, tiles.of_group(1));
      if (!first_seen && !second_seen) continue;
      barrier_wait(&m.empty[turn.stage], turn.parity ^ 1);
      write_marks(a, m.marks[turn.stage], tiles, head, row);
      send_tile<kDim>(m, turn, queries, head, row, first_seen, second_seen);
    }
  }
  end_walk(m, turn);
}

// Scores to probabilities: of the group's keys from row `first` on, and of the tile's queries.
__device__ __forceinline__ void weigh_queries(const AttentionBackward& a, const PackedToken* own, const Marks& marks, int group, int first,
                                              float (&scores)[kScores]) {
  const float scale2 = a.scale * kLog2E;
  GPU_UNROLL
  for (int i = 0; i < kBackwardTile / 8; ++i) {
    const float2 log_sums = *reinterpret_cast<const float2*>(marks.log_sums + column_of(4 * i));
    GPU_UNROLL
    for (int e = 4 * i; e < 4 * i + 4; ++e) scores[e] = probability(scores[e], scale2, e % 2 == 0 ? log_sums.x : log_sums.y);
  }
  if (marks.clear[group]) return;
  const int queries = marks.row;
  GPU_UNROLL
  for (int e = 0; e < kScores; ++e) {
    const int query = column_of(e), key = own_row() + 8 * row_half(e);
    if (!sees(marks.tokens[query], queries + query, first + key, own[key].position, a.window)) scores[e] = 0;
  }
}

// Probabilities and their gradients to those of scores, but for the scale.
__device__ __forceinline__ void differ_queries(const Marks& marks, const float (&scores)[kScores], float (&d)[kScores]) {
  GPU_UNROLL
  for (int i = 0; i < kBackwardTile / 8; ++i) {
    const float2 deltas = *reinterpret_cast<const float2*>(marks.deltas + column_of(4 * i));
    GPU_UNROLL
    for (int e = 4 * i; e < 4 * i + 4; ++e) d[e] = scores[e] * (d[e] - (e % 2 == 0 ? deltas.x : deltas.y));
  }
}

// A group of keys: dk and dv of its tile over the queries that are brought.
template <int kDim>
__device__ __forceinline__ void sum_keys(const AttentionBackward& a, const Memory& m, int group, int first, int kv_head) {
  using L = Layout<kDim, true>;
  const unsigned char* own = m.own + group * L::kOwnBytes;
  const PackedToken* tokens = m.own_tokens + group * kBackwardTile;
  float dk[kDim / 2] = {}, dv[kDim / 2] = {}, scores[kScores], d[kScores];
  uint32_t weights[kBackwardTile / 16][4];
  auto begin = [&](const Turn& turn) {
    const unsigned char* pair = m.stages + turn.stage * L::kPairBytes;
    multiply_rows<kDim>(scores, own, pair);
    multiply_rows<kDim>(d, own + L::kMatrixBytes, pair + L::kMatrixBytes);
    wgmma_wait<1>(scores);
    keep_rows(weights);
  };
  TilePlace at;
  bool end = false;
  barrier_wait(m.own_ready, 0);
  settle(dk);  // zero from here on, and not made so while products are under way
  settle(dv);
  if (find_tile(m, group, at)) begin(at.turn);
  else end = true;
  while (!end) {
    at.give_before_back(m);
    const Marks& marks = m.marks[at.turn.stage];
    const unsigned char* pair = m.stages + at.turn.stage * L::kPairBytes;
    weigh_queries(a, tokens, marks, group, first, scores);
    pack_rows(scores, weights);
    settle(scores);
    add_rows<kDim>(dv, weights, pair + L::kMatrixBytes);
    wgmma_wait<1>(d);
    differ_queries(marks, scores, d);
    settle(d);
    wgmma_wait<0>(dv);  // so that registers keep the left side of one product
    keep_rows(weights);
    pack_rows(d, weights);
    add_rows<kDim>(dk, weights, pair);
    at.go_on();
    if (!find_tile(m, group, at)) break;
    begin(at.turn);
  }
  wgmma_wait<0>(dk);
  keep_rows(weights);
  write_sums<kDim>(a.dk, dk, a.scale, a.rows, a.kv_heads, kv_head, first);
  write_sums<kDim>(a.dv, dv, 1, a.rows, a.kv_heads, kv_head, first);
}

#endif

// Block (two tiles of keys, the first first, as most queries see them; kv head): dk and dv over the heads of the group, and in each over the
// queries, ascending.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 1) keys_wgmma_kernel(const __grid_constant__ Side queries, const __grid_constant__ Side keys,
                                                                 AttentionBackward a, int first_tile, int tile_count) {
#if TANDEM_HOPPER_CODE
  using L = Layout<kDim, true>;
  const int kv_head = int(blockIdx.x) % int(a.kv_heads), heads = int(a.heads / a.kv_heads);
  const int tile = int(blockIdx.x) / int(a.kv_heads) * kGroups;
  const Tiles tiles{(first_tile + tile) * kBackwardTile, min(kGroups, tile_count - tile)};
  const Memory m = open_memory<kDim, true>(a, tiles);
  const int warp = __shfl_sync(kAllLanes, int(threadIdx.x) / kWarp, 0), group = warp * kWarp / kGroupThreads;
  if (group == kGroups) {
    give_registers<kBringerRegisters>();
    if (warp * kWarp % kGroupThreads != 0) return;
    if (threadIdx.x % kWarp == 0) {
      barrier_expect(m.own_ready, kGroups * L::kOwnBytes);
      for (int i = 0; i < kGroups; ++i) bring_pair<kDim>(m.own + i * L::kOwnBytes, keys, m.own_ready, kv_head, tiles.of_group(i));
    }
    __syncwarp();  // it goes on as one
    bring_queries<kDim>(a, m, queries, tiles, kv_head * heads, (kv_head + 1) * heads);
    return;
  }
  take_registers<kGroupRegisters>();
  // A group without a tile passes those of the other one.
  sum_keys<kDim>(a, m, group, group < tiles.count ? tiles.of_group(group) : int(a.rows), kv_head);
#endif
}

}  // namespace

void attention_backward_keys_wgmma(const AttentionBackward& a, int64_t first_tile, int64_t tile_count, cudaStream_t stream) {
  by_dim(a.dim, "attention_backward", [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    launch_tiles<kDim, true>(&keys_wgmma_kernel<kDim>, a, first_tile, tile_count, stream);
  });
}

}  // namespace tandem::cuda
