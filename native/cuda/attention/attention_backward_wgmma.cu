// dq of attention on Hopper, and where a gradient of attention begins.
#include "cuda/attention/attention_backward_wgmma.h"

namespace tandem::cuda {
namespace {

using namespace gradient;

#if TANDEM_HOPPER_CODE

// The warp that brings keys, ascending, with their positions.
template <int kDim>
__device__ __forceinline__ void bring_keys(const AttentionBackward& a, const Memory& m, const Side& keys, const Tiles& tiles, int kv_head) {
  const int lane = int(threadIdx.x) % kWarp, end = min(int(a.rows), tiles.of_group(tiles.count));
  const PackedToken first = a.tiles[tiles.first / kBackwardTile], second = a.tiles[tiles.of_group(tiles.count - 1) / kBackwardTile];
  Turn turn;
  for (int row = 0; row < end; row += kBackwardTile) {
    const bool first_sees = tile_sees(first, tiles.first, row);
    const bool second_sees = tiles.count > 1 && tile_sees(second, tiles.of_group(1), row);
    if (!first_sees && !second_sees) continue;
    barrier_wait(&m.empty[turn.stage], turn.parity ^ 1);
    for (int key = lane; a.window > 0 && key < kBackwardTile; key += kWarp)
      m.marks[turn.stage].tokens[key].position = row + key < a.rows ? a.tokens[row + key].position : 0;
    send_tile<kDim>(m, turn, keys, kv_head, row, first_sees, second_sees);
  }
  end_walk(m, turn);
}

// The two queries of a thread, and of its warp's what is needed to see that a tile needs no mask.
struct Queries {
  float log_sums[2], deltas[2];
  int lowest, own_first, prefix_first, prefix_end;

  __device__ __forceinline__ bool see_all(int keys) const {
    const int end = keys + kBackwardTile;
    return (keys >= own_first && end <= lowest + 1) || (keys >= prefix_first && end <= prefix_end);
  }
};

__device__ __forceinline__ Queries own_queries(const AttentionBackward& a, const PackedToken* tokens, int head, int first) {
  Queries q = {};
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int64_t row = first + own_row() + 8 * r;
    if (row >= a.rows) continue;
    q.log_sums[r] = a.log_sums[row * a.heads + head] * kLog2E;
    q.deltas[r] = a.deltas[row * a.heads + head];
  }
  const int begin = int(threadIdx.x) % kGroupThreads / kWarp * 16;
  q.lowest = first + begin;
  q.prefix_end = 1 << 30;
  for (int row = begin; row < begin + 16; ++row) {
    const PackedToken token = tokens[row];
    q.own_first = max(q.own_first, token.own_first);
    q.prefix_first = max(q.prefix_first, token.prefix_first);
    q.prefix_end = min(q.prefix_end, token.prefix_end);
  }
  if (a.window > 0) q.own_first = q.prefix_first = 1 << 30;
  return q;
}

// A thread's part of 64 rows of a head as the left side of a product; zero after the last row.
template <int kDim>
__device__ __forceinline__ void load_left(uint32_t (&left)[kDim / 16][4], const bf16* rows, const AttentionBackward& a, int head,
                                          int first) {
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int64_t row = first + own_row() + 8 * r;
    const uint32_t* from = reinterpret_cast<const uint32_t*>(rows + (row * a.heads + head) * kDim) + threadIdx.x % 4;
    GPU_UNROLL
    for (int i = 0; i < kDim / 8; ++i) left[i / 2][i % 2 * 2 + r] = row < a.rows ? from[4 * i] : 0;
  }
}

// products = left . tile^T; under way when this returns.
template <int kDim>
__device__ __forceinline__ void multiply_left(float (&products)[kScores], const uint32_t (&left)[kDim / 16][4], const unsigned char* tile) {
  wgmma_fence();
  wgmma_rows_first(products, left[0], tile_descriptor(tile, 0));
  GPU_UNROLL
  for (int k = 1; k < kDim / 16; ++k) {
    wgmma_rows<kBackwardTile, false>(products, left[k], tile_descriptor(tile + k / 4 * kPanelBytes, k % 4));
  }
  wgmma_commit();
}

// Scores to probabilities, those of 64 keys from row marks.row on.
__device__ __forceinline__ void weigh_keys(const AttentionBackward& a, const Queries& q, const PackedToken* tokens, const Marks& marks,
                                           int first, float (&scores)[kScores]) {
  const float scale2 = a.scale * kLog2E;
  GPU_UNROLL
  for (int e = 0; e < kScores; ++e) scores[e] = probability(scores[e], scale2, q.log_sums[row_half(e)]);
  const int keys = marks.row;
  if (q.see_all(keys)) return;
  GPU_UNROLL
  for (int e = 0; e < kScores; ++e) {
    const int row = own_row() + 8 * row_half(e), key = column_of(e), position = a.window == 0 ? 0 : marks.tokens[key].position;
    if (!sees(tokens[row], first + row, keys + key, position, a.window)) scores[e] = 0;
  }
}

// A group of queries: dq of its tile over the keys that are brought.
template <int kDim>
__device__ __forceinline__ void sum_queries(const AttentionBackward& a, const Memory& m, int group, int first, int head) {
  using L = Layout<kDim, false>;
  const PackedToken* tokens = m.own_tokens + group * kBackwardTile;
  const unsigned char* d_out = m.own + group * L::kOwnBytes;
  const Queries q = own_queries(a, tokens, head, first);
  uint32_t queries[kDim / 16][4], weights[kBackwardTile / 16][4];
  load_left<kDim>(queries, a.queries, a, head, first);
  settle(queries);
  float dq[kDim / 2] = {}, scores[kScores], d[kScores];
  auto begin = [&](const Turn& turn) {
    const unsigned char* pair = m.stages + turn.stage * L::kPairBytes;
    multiply_left<kDim>(scores, queries, pair);
    multiply_rows<kDim>(d, d_out, pair + L::kMatrixBytes);
  };
  TilePlace at;
  bool end = false;
  barrier_wait(m.own_ready, 0);
  settle(dq);  // zero from here on, and not made so while products are under way
  if (find_tile(m, group, at)) begin(at.turn);
  else end = true;
  while (!end) {
    wgmma_wait<1>(scores);
    keep_rows(weights);
    at.give_before_back(m);
    weigh_keys(a, q, tokens, m.marks[at.turn.stage], first, scores);
    settle(scores);
    wgmma_wait<0>(d);
    GPU_UNROLL
    for (int e = 0; e < kScores; ++e) d[e] = scores[e] * (d[e] - q.deltas[row_half(e)]);
    pack_rows(d, weights);
    add_rows<kDim>(dq, weights, m.stages + at.turn.stage * L::kPairBytes);
    at.go_on();
    if (!find_tile(m, group, at)) break;
    begin(at.turn);
  }
  wgmma_wait<0>(dq);
  keep_rows(weights);
  keep_rows(queries);
  write_sums<kDim>(a.dq, dq, a.scale, a.rows, a.heads, head, first);
}

#endif

// Block (two tiles of queries, the last first, as they have most keys; head): dq over the keys ascending.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 1) queries_wgmma_kernel(const __grid_constant__ Side queries, const __grid_constant__ Side keys,
                                                                    AttentionBackward a, int first_tile, int tile_count) {
#if TANDEM_HOPPER_CODE
  using L = Layout<kDim, false>;
  const int head = int(blockIdx.x) % int(a.heads);
  const int tile = (int(gridDim.x) - 1 - int(blockIdx.x)) / int(a.heads) * kGroups;
  const Tiles tiles{(first_tile + tile) * kBackwardTile, min(kGroups, tile_count - tile)};
  const Memory m = open_memory<kDim, false>(a, tiles);
  const int warp = __shfl_sync(kAllLanes, int(threadIdx.x) / kWarp, 0), group = warp * kWarp / kGroupThreads;
  if (group == kGroups) {
    give_registers<kBringerRegisters>();
    if (warp * kWarp % kGroupThreads != 0) return;
    if (threadIdx.x % kWarp == 0) {
      barrier_expect(m.own_ready, kGroups * L::kOwnBytes);
      for (int i = 0; i < kGroups; ++i) bring_matrix<kDim>(m.own + i * L::kOwnBytes, &queries.second, m.own_ready, head, tiles.of_group(i));
    }
    __syncwarp();  // it goes on as one
    bring_keys<kDim>(a, m, keys, tiles, head / int(a.heads / a.kv_heads));
    return;
  }
  take_registers<kGroupRegisters>();
  // A group without a tile passes those of the other one.
  sum_queries<kDim>(a, m, group, group < tiles.count ? tiles.of_group(group) : int(a.rows), head);
#endif
}

}  // namespace

void attention_backward_wgmma(const AttentionBackward& a, bool of_keys, int64_t first_tile, int64_t tile_count, cudaStream_t stream) {
  for (const bf16* rows : {a.queries, a.keys, a.values, a.d_out}) {
    check_argument(reinterpret_cast<uintptr_t>(rows) % 16 == 0, "attention_backward_wgmma", "rows are 16-byte aligned");
  }
  for (const float* sums : {a.dq, a.dk, a.dv}) {
    check_argument(reinterpret_cast<uintptr_t>(sums) % 8 == 0, "attention_backward_wgmma", "sums are 8-byte aligned");
  }
  if (of_keys) return attention_backward_keys_wgmma(a, first_tile, tile_count, stream);
  by_dim(a.dim, "attention_backward", [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    launch_tiles<kDim, false>(&queries_wgmma_kernel<kDim>, a, first_tile, tile_count, stream);
  });
}

}  // namespace tandem::cuda
