#include "cuda/attention/attention_variants.h"
#include "cuda/attention/backward_mask.h"
#include "cuda/common/launch.h"
#include "cuda/common/reduce.h"
#include "cuda/common/tensor_core.h"

namespace tandem::cuda {
namespace {

constexpr int kWarps = 4;  // each with 16 rows of a tile
constexpr int kThreads = kWarps * kWarp;
constexpr int kChunk = 8;  // elements of a 16-byte copy
static_assert(kWarps * 16 == kBackwardTile);

template <int kDim>
__device__ __forceinline__ bf16* tile_chunk(bf16* tile, int row, int chunk) {
  constexpr int kMask = kDim / kChunk % 8 == 0 ? 7 : 3;  // chunks stay within their row
  return tile + row * kDim + ((chunk & ~kMask) | ((chunk ^ row) & kMask)) * kChunk;
}

// Rows [first, first + 64) of one head of [rows][heads][dim]; zero after the last.
template <int kDim>
__device__ void load_rows(bf16* tile, const bf16* memory, int64_t rows, int64_t heads, int64_t head, int64_t first) {
  constexpr int kChunks = kDim / kChunk;
  for (int i = threadIdx.x; i < kBackwardTile * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool valid = first + row < rows;
    const int64_t at = valid ? ((first + row) * heads + head) * kDim + chunk * kChunk : 0;
    cp_async_16(tile_chunk<kDim>(tile, row, chunk), memory + at, valid ? 16 : 0);
  }
}

// A [16 x 16] operand: rows of the tile from 16 * row16 on, columns from 16 * k on.
template <int kDim>
__device__ __forceinline__ void load_a(uint32_t (&a)[4], bf16* tile, int row16, int k) {
  const int lane = threadIdx.x % kWarp, matrix = lane / 8, in_matrix = lane % 8;
  ldmatrix_x4(a, tile_chunk<kDim>(tile, row16 * 16 + matrix % 2 * 8 + in_matrix, k * 2 + matrix / 2));
}

// low, high [16 x 8] = rows 16 * a_row.. of `left` . rows 16 * b_row.. of `right`, transposed.
template <int kDim>
__device__ void dot_rows(float (&low)[4], float (&high)[4], bf16* left, int a_row, bf16* right, int b_row) {
  const int lane = threadIdx.x % kWarp, matrix = lane / 8, in_matrix = lane % 8;
  GPU_UNROLL
  for (int k = 0; k < kDim / 16; ++k) {
    uint32_t a[4], b[4];
    load_a<kDim>(a, left, a_row, k);
    ldmatrix_x4(b, tile_chunk<kDim>(right, b_row * 16 + matrix / 2 * 8 + in_matrix, k * 2 + matrix % 2));
    const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
    mma_m16n8k16(low, a, first);
    mma_m16n8k16(high, a, second);
  }
}

// sums [16 x dim] += weights [16 x 16] . rows 16 * row16.. of the tile.
template <int kDim>
__device__ void add_rows(float (&sums)[kDim / 8][4], const float (&low)[4], const float (&high)[4], bf16* tile, int row16) {
  const int lane = threadIdx.x % kWarp, matrix = lane / 8, in_matrix = lane % 8;
  const uint32_t a[4] = {pack_rounded(low[0], low[1]), pack_rounded(low[2], low[3]), pack_rounded(high[0], high[1]),
                         pack_rounded(high[2], high[3])};
  GPU_UNROLL
  for (int n = 0; n < kDim / 16; ++n) {
    uint32_t b[4];
    ldmatrix_x4_trans(b, tile_chunk<kDim>(tile, row16 * 16 + matrix % 2 * 8 + in_matrix, n * 2 + matrix / 2));
    const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
    mma_m16n8k16(sums[2 * n], a, first);
    mma_m16n8k16(sums[2 * n + 1], a, second);
  }
}

template <int kDim>
__device__ void write_sums(float* memory, const float (&sums)[kDim / 8][4], int64_t rows, int64_t heads, int64_t head, int64_t first) {
  const int lane = threadIdx.x % kWarp;
  GPU_UNROLL
  for (int i = 0; i < kDim / 8; ++i) {
    GPU_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int64_t row = first + lane / 4 + 8 * (j / 2);
      if (row < rows) memory[(row * heads + head) * kDim + i * 8 + lane % 4 * 2 + (j & 1)] = sums[i][j];
    }
  }
}

// Tiles in shared memory, and what goes with the rows of the one that is walked over.
template <int kDim>
struct Shared {
  bf16 *own, *own_other;      // queries and d_out, or keys and values
  bf16 *other, *other_other;  // the reverse
  PackedToken* tokens;        // of the tile's queries, or with only positions of its keys
  float *log_sums, *deltas;   // of queries

  static constexpr size_t kBytes = 4 * kBackwardTile * kDim * sizeof(bf16) + kBackwardTile * (sizeof(PackedToken) + 2 * sizeof(float));

  __device__ explicit Shared(unsigned char* memory) {
    own = reinterpret_cast<bf16*>(memory);
    own_other = own + kBackwardTile * kDim;
    other = own_other + kBackwardTile * kDim;
    other_other = other + kBackwardTile * kDim;
    tokens = reinterpret_cast<PackedToken*>(other_other + kBackwardTile * kDim);
    log_sums = reinterpret_cast<float*>(tokens + kBackwardTile);
    deltas = log_sums + kBackwardTile;
  }
};

// A pair of a query and a key to its probability and the gradient of its unscaled score.
__device__ __forceinline__ void soften(bool seen, float scale, float log_sum, float delta, float& score, float& d) {
  score = seen ? expf(score * scale - log_sum) : 0.0f;
  d = seen ? score * (d - delta) * scale : 0.0f;
}

// Block (tile of queries, head): dq over the keys ascending.
template <int kDim>
__global__ void __launch_bounds__(kThreads) queries_kernel(AttentionBackward a, int64_t first_tile) {
  GPU_SHARED_BYTES(memory);
  const Shared<kDim> s(memory);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t tile = first_tile + blockIdx.x, first = tile * kBackwardTile, head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
  load_rows<kDim>(s.own, a.queries, a.rows, a.heads, head, first);
  load_rows<kDim>(s.own_other, a.d_out, a.rows, a.heads, head, first);  // waited for with the first keys
  PackedToken token[2] = {};
  float log_sum[2] = {}, delta[2] = {};
  int64_t row[2];
  for (int r = 0; r < 2; ++r) {
    row[r] = first + warp * 16 + lane / 4 + 8 * r;
    if (row[r] >= a.rows) continue;
    token[r] = a.tokens[row[r]];
    log_sum[r] = a.log_sums[row[r] * a.heads + head];
    delta[r] = a.deltas[row[r] * a.heads + head];
  }
  const PackedToken reach = a.tiles[tile];
  float dq[kDim / 8][4] = {};
  for (int64_t keys = 0; keys < first + kBackwardTile && keys < a.rows; keys += kBackwardTile) {
    if (!tile_sees(reach, first, keys)) continue;
    load_rows<kDim>(s.other, a.keys, a.rows, a.kv_heads, kv_head, keys);
    load_rows<kDim>(s.other_other, a.values, a.rows, a.kv_heads, kv_head, keys);
    cp_async_commit();
    for (int i = threadIdx.x; i < kBackwardTile; i += kThreads) s.tokens[i].position = keys + i < a.rows ? a.tokens[keys + i].position : 0;
    cp_async_wait<0>();
    __syncthreads();
    for (int n = 0; n < kBackwardTile / 16; ++n) {
      float score[2][4] = {}, d[2][4] = {};
      dot_rows<kDim>(score[0], score[1], s.own, warp, s.other, n);
      dot_rows<kDim>(d[0], d[1], s.own_other, warp, s.other_other, n);
      GPU_UNROLL
      for (int half = 0; half < 2; ++half) {
        GPU_UNROLL
        for (int j = 0; j < 4; ++j) {
          const int r = j / 2, key = n * 16 + half * 8 + lane % 4 * 2 + (j & 1);
          const bool seen = sees(token[r], row[r], keys + key, s.tokens[key].position, a.window);
          soften(seen, a.scale, log_sum[r], delta[r], score[half][j], d[half][j]);
        }
      }
      add_rows<kDim>(dq, d[0], d[1], s.other, n);
    }
    __syncthreads();  // all are done with the keys
  }
  write_sums<kDim>(a.dq, dq, a.rows, a.heads, head, first + warp * 16);
}

// The queries of a tile for one head, with what goes with them.
template <int kDim>
__device__ void load_queries(const AttentionBackward& a, const Shared<kDim>& s, int64_t head, int64_t first) {
  load_rows<kDim>(s.other, a.queries, a.rows, a.heads, head, first);
  load_rows<kDim>(s.other_other, a.d_out, a.rows, a.heads, head, first);
  cp_async_commit();
  for (int i = threadIdx.x; i < kBackwardTile; i += kThreads) {
    const int64_t row = first + i;
    const bool valid = row < a.rows;
    s.tokens[i] = valid ? a.tokens[row] : PackedToken{0, 1 << 30, 0, 0};
    s.log_sums[i] = valid ? a.log_sums[row * a.heads + head] : 0.0f;
    s.deltas[i] = valid ? a.deltas[row * a.heads + head] : 0.0f;
  }
  cp_async_wait<0>();
}

// Block (tile of keys, kv head): dk and dv over the heads of the group, and in each over the queries, ascending.
template <int kDim>
__global__ void __launch_bounds__(kThreads) keys_kernel(AttentionBackward a, int64_t first_tile) {
  GPU_SHARED_BYTES(memory);
  const Shared<kDim> s(memory);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, group = int(a.heads / a.kv_heads);
  const int64_t first = (first_tile + blockIdx.x) * kBackwardTile, kv_head = blockIdx.y;
  load_rows<kDim>(s.own, a.keys, a.rows, a.kv_heads, kv_head, first);
  load_rows<kDim>(s.own_other, a.values, a.rows, a.kv_heads, kv_head, first);  // waited for with the first queries
  int position[2];
  int64_t row[2];
  for (int r = 0; r < 2; ++r) {
    row[r] = first + warp * 16 + lane / 4 + 8 * r;
    position[r] = row[r] < a.rows ? a.tokens[row[r]].position : 0;
  }
  float dk[kDim / 8][4] = {}, dv[kDim / 8][4] = {};
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t queries = first; queries < a.rows; queries += kBackwardTile) {
      if (!tile_sees(a.tiles[queries / kBackwardTile], queries, first)) continue;
      load_queries<kDim>(a, s, head, queries);
      __syncthreads();
      for (int n = 0; n < kBackwardTile / 16; ++n) {
        float score[2][4] = {}, d[2][4] = {};
        dot_rows<kDim>(score[0], score[1], s.own, warp, s.other, n);
        dot_rows<kDim>(d[0], d[1], s.own_other, warp, s.other_other, n);
        GPU_UNROLL
        for (int half = 0; half < 2; ++half) {
          GPU_UNROLL
          for (int j = 0; j < 4; ++j) {
            const int r = j / 2, query = n * 16 + half * 8 + lane % 4 * 2 + (j & 1);
            const bool seen = sees(s.tokens[query], queries + query, row[r], position[r], a.window);
            soften(seen, a.scale, s.log_sums[query], s.deltas[query], score[half][j], d[half][j]);
          }
        }
        add_rows<kDim>(dv, score[0], score[1], s.other_other, n);
        add_rows<kDim>(dk, d[0], d[1], s.other, n);
      }
      __syncthreads();  // all are done with the queries
    }
  }
  write_sums<kDim>(a.dk, dk, a.rows, a.kv_heads, kv_head, first + warp * 16);
  write_sums<kDim>(a.dv, dv, a.rows, a.kv_heads, kv_head, first + warp * 16);
}

// A warp per row and head: the sum of out * d_out.
__global__ void __launch_bounds__(kThreads) deltas_kernel(AttentionBackward a) {
  const int64_t at = int64_t(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (at >= a.rows * a.heads) return;
  float sum = 0;
  for (int64_t i = threadIdx.x % kWarp; i < a.dim; i += kWarp) {
    sum = fmaf(to_float(a.out[at * a.dim + i]), to_float(a.d_out[at * a.dim + i]), sum);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) a.deltas[at] = sum;
}

void check(const AttentionBackward& a, const char* name) {
  check_argument(a.rows >= 0 && a.rows < 1 << 24, name, "rows");
  check_argument(a.kv_heads >= 1 && a.kv_heads < 1 << 16, name, "kv_heads");
  check_argument(a.heads >= a.kv_heads && a.heads % a.kv_heads == 0 && a.heads < 1 << 16, name, "heads");
  check_argument(a.window >= 0, name, "window");
}

template <int kDim, bool kKeys>
void launch(const AttentionBackward& a, int64_t first_tile, int64_t tile_count, cudaStream_t stream) {
  const auto kernel = kKeys ? &keys_kernel<kDim> : &queries_kernel<kDim>;
  const dim3 grid(unsigned(tile_count), unsigned(kKeys ? a.kv_heads : a.heads));
  allow_shared_bytes(kernel, Shared<kDim>::kBytes, "attention_backward");
  GPU_LAUNCH(kernel, grid, dim3(kThreads), Shared<kDim>::kBytes, stream, a, first_tile);
  check_launch("attention_backward");
}

void run(const AttentionBackward& a, bool of_keys, int64_t first_tile, int64_t tile_count, cudaStream_t stream) {
  check(a, "attention_backward");
  const bool inside = first_tile >= 0 && tile_count >= 0 && first_tile + tile_count <= ceil_div(a.rows, kBackwardTile);
  check_argument(inside, "attention_backward", "tiles");
  if (tile_count > 0) variant_of(a.kernel).launch_backward(a, of_keys, first_tile, tile_count, stream);
}

}  // namespace

void attention_backward_mma(const AttentionBackward& a, bool of_keys, int64_t first_tile, int64_t tile_count, cudaStream_t stream) {
  by_dim(a.dim, "attention_backward", [&](auto dim) {
    if (of_keys) return launch<decltype(dim)::value, true>(a, first_tile, tile_count, stream);
    launch<decltype(dim)::value, false>(a, first_tile, tile_count, stream);
  });
}

void attention_deltas(const AttentionBackward& a, cudaStream_t stream) {
  check(a, "attention_deltas");
  if (a.rows == 0) return;
  GPU_LAUNCH(deltas_kernel, dim3(unsigned(ceil_div(a.rows * a.heads, kWarps))), dim3(kThreads), 0, stream, a);
  check_launch("attention_deltas");
}

void attention_backward_queries(const AttentionBackward& a, int64_t first_tile, int64_t tile_count, cudaStream_t stream) {
  run(a, false, first_tile, tile_count, stream);
}

void attention_backward_keys(const AttentionBackward& a, int64_t first_tile, int64_t tile_count, cudaStream_t stream) {
  run(a, true, first_tile, tile_count, stream);
}

}  // namespace tandem::cuda
