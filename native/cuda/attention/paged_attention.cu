#include "cuda/attention/paged_attention.h"

#include "cuda/common/launch.h"
#include "cuda/common/tensor_core.h"

namespace tandem::cuda {
namespace {

constexpr int kTileKeys = 64;
constexpr int kChunk = 8;
constexpr int kWideWarps = 4;

__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, 1));
  return fmaxf(v, __shfl_xor_sync(kAllLanes, v, 2));
}

__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(kAllLanes, v, 1);
  return v + __shfl_xor_sync(kAllLanes, v, 2);
}

// Running softmax of a warp's 16 rows. This thread holds rows lane / 4 (index 0) and lane / 4 + 8 (index 1), and of each the columns
// 8 * i + lane % 4 * 2 and the next one.
template <int kDim>
struct Softmax {
  float largest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
  float values[kDim / 8][4] = {};

  // With `other`, whose keys come after.
  __device__ void merge(const Softmax& other) {
    GPU_UNROLL
    for (int r = 0; r < 2; ++r) {
      if (other.largest[r] == -INFINITY) continue;
      const float top = fmaxf(largest[r], other.largest[r]);
      const float mine = expf(largest[r] - top), theirs = expf(other.largest[r] - top);
      largest[r] = top;
      sum[r] = fmaf(sum[r], mine, other.sum[r] * theirs);
      GPU_UNROLL
      for (int i = 0; i < kDim / 8; ++i) {
        GPU_UNROLL
        for (int j = 2 * r; j < 2 * r + 2; ++j) values[i][j] = fmaf(values[i][j], mine, other.values[i][j] * theirs);
      }
    }
  }
};

// What a warp works on: the rows of one tile and one key/value head.
template <int kDim>
struct Rows {
  uint32_t queries[kDim / 16][4];  // fragments
  int position[2];                 // of this thread's two rows; -1: no row
  bf16* out[2];
};

template <int kDim>
__device__ __forceinline__ bf16* tile_chunk(bf16* tile, int row, int chunk) {
  constexpr int kMask = kDim / kChunk % 8 == 0 ? 7 : 3;  // chunks stay within their row
  return tile + row * kDim + ((chunk & ~kMask) | ((chunk ^ row) & kMask)) * kChunk;
}

// Where a token of a tile is: its row of the batch, -1 = there is none.
struct Place {
  int64_t row;
  int position;
};

template <int kDim, class PlaceOf>
__device__ Rows<kDim> load_placed_rows(const PagedAttention& a, int kv_head, const PlaceOf& place_of) {
  const int group = int(a.heads / a.kv.kv_heads), lane = threadIdx.x % kWarp;
  Rows<kDim> rows;
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    const Place place = place_of(row / group);
    const bool valid = place.row >= 0;
    const int64_t at = (place.row * a.heads + kv_head * group + row % group) * kDim;
    rows.position[r] = valid ? place.position : -1;
    rows.out[r] = valid ? a.out + at : nullptr;
    GPU_UNROLL
    for (int k = 0; k < kDim / 16; ++k) {
      GPU_UNROLL
      for (int half = 0; half < 2; ++half) {
        uint32_t pair = 0;
        if (valid) memcpy(&pair, a.queries + at + k * 16 + half * 8 + lane % 4 * 2, 4);
        rows.queries[k][half * 2 + r] = pair;
      }
    }
  }
  return rows;
}

template <int kDim>
__device__ Rows<kDim> load_rows(const PagedAttention& a, const AttentionTile& tile, int kv_head) {
  return load_placed_rows<kDim>(a, kv_head, [&](int token) {
    return token < tile.tokens ? Place{tile.first_row + int64_t(token), tile.first_position + token} : Place{-1, -1};
  });
}

// 64 keys and values from `first` on; positions at or after `end` and bad pages are zero.
template <int kDim>
__device__ void load_keys(const PagedAttention& a, bf16* keys, bf16* values, int sequence, int kv_head, int first, int end) {
  constexpr int kChunks = kDim / kChunk;
  for (int i = threadIdx.x; i < kTileKeys * kChunks; i += int(blockDim.x)) {
    const int key = i / kChunks, chunk = i % kChunks, position = first + key;
    const int64_t index = position / kPagePositions;
    const int64_t page = position < end && index < a.max_pages ? a.page_table[sequence * a.max_pages + index] : -1;
    const bool valid = page >= 0 && page < a.kv.pages;
    const int64_t at = valid ? a.kv.offset(page, kv_head, position % kPagePositions) + chunk * kChunk : 0;
    cp_async_16(tile_chunk<kDim>(keys, key, chunk), a.kv.keys + at, valid ? 16 : 0);
    cp_async_16(tile_chunk<kDim>(values, key, chunk), a.kv.values + at, valid ? 16 : 0);
  }
  cp_async_commit();
}

// scores = queries . keys^T * scale, with -infinity where a row does not see a key.
template <int kDim>
__device__ void score_keys(const PagedAttention& a, const Rows<kDim>& rows, bf16* keys, int first, float (&scores)[kTileKeys / 8][4]) {
  const int lane = threadIdx.x % kWarp, matrix = lane / 8, in_matrix = lane % 8;
  GPU_UNROLL
  for (int n = 0; n < kTileKeys / 16; ++n) {
    float low[4] = {}, high[4] = {};
    GPU_UNROLL
    for (int k = 0; k < kDim / 16; ++k) {
      uint32_t b[4];
      ldmatrix_x4(b, tile_chunk<kDim>(keys, n * 16 + matrix / 2 * 8 + in_matrix, k * 2 + matrix % 2));
      const uint32_t first_half[2] = {b[0], b[1]}, second_half[2] = {b[2], b[3]};
      mma_m16n8k16(low, rows.queries[k], first_half);
      mma_m16n8k16(high, rows.queries[k], second_half);
    }
    GPU_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int row = rows.position[j / 2], key = first + n * 16 + lane % 4 * 2 + (j & 1);
      auto sees = [&](int at) { return at <= row && (a.window == 0 || row - at < a.window); };
      scores[2 * n][j] = sees(key) ? low[j] * a.scale : -INFINITY;
      scores[2 * n + 1][j] = sees(key + 8) ? high[j] * a.scale : -INFINITY;
    }
  }
}

// scores -> probabilities relative to the new maximum; what was there is scaled to it.
template <int kDim>
__device__ void weigh(Softmax<kDim>& s, float (&scores)[kTileKeys / 8][4]) {
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) {
    float top = s.largest[r];
    GPU_UNROLL
    for (int i = 0; i < kTileKeys / 8; ++i) top = fmaxf(top, fmaxf(scores[i][2 * r], scores[i][2 * r + 1]));
    top = quad_max(top);
    const float base = top == -INFINITY ? 0.0f : top;
    const float scale = s.largest[r] == top ? 1.0f : expf(s.largest[r] - base);
    float sum = 0;
    GPU_UNROLL
    for (int i = 0; i < kTileKeys / 8; ++i) {
      GPU_UNROLL
      for (int j = 2 * r; j < 2 * r + 2; ++j) {
        scores[i][j] = expf(scores[i][j] - base);
        sum += scores[i][j];
      }
    }
    s.sum[r] = fmaf(s.sum[r], scale, quad_sum(sum));
    s.largest[r] = top;
    GPU_UNROLL
    for (int i = 0; i < kDim / 8; ++i) {
      GPU_UNROLL
      for (int j = 2 * r; j < 2 * r + 2; ++j) s.values[i][j] *= scale;
    }
  }
}

template <int kDim>
__device__ void add_values(Softmax<kDim>& s, const float (&weights)[kTileKeys / 8][4], bf16* values) {
  const int lane = threadIdx.x % kWarp, matrix = lane / 8, in_matrix = lane % 8;
  GPU_UNROLL
  for (int k = 0; k < kTileKeys / 16; ++k) {
    uint32_t p[4];
    GPU_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float(&w)[4] = weights[2 * k + half];
      p[half * 2] = pack(to_bf16(w[0]), to_bf16(w[1]));
      p[half * 2 + 1] = pack(to_bf16(w[2]), to_bf16(w[3]));
    }
    GPU_UNROLL
    for (int n = 0; n < kDim / 16; ++n) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, tile_chunk<kDim>(values, k * 16 + matrix % 2 * 8 + in_matrix, n * 2 + matrix / 2));
      const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
      mma_m16n8k16(s.values[2 * n], p, low);
      mma_m16n8k16(s.values[2 * n + 1], p, high);
    }
  }
}

// Keys [begin, end) of one split, all warps of the block together.
template <int kDim>
__device__ Softmax<kDim> attend_split(const PagedAttention& a, const Rows<kDim>& rows, int sequence, int kv_head, int begin, int end) {
  GPU_SHARED_BYTES(shared);
  bf16* keys = reinterpret_cast<bf16*>(shared);
  bf16* values = keys + kTileKeys * kDim;
  Softmax<kDim> s;
  for (int first = begin; first < end; first += kTileKeys) {
    load_keys<kDim>(a, keys, values, sequence, kv_head, first, end);
    cp_async_wait<0>();
    __syncthreads();
    float scores[kTileKeys / 8][4];
    score_keys<kDim>(a, rows, keys, first, scores);
    weigh<kDim>(s, scores);
    add_values<kDim>(s, scores, values);
    __syncthreads();  // all are done with the tile
  }
  return s;
}

template <int kDim>
__device__ void write_rows(const PagedAttention& a, const Rows<kDim>& rows, const Softmax<kDim>& s) {
  const int lane = threadIdx.x % kWarp;
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) {
    if (rows.out[r] == nullptr) continue;
    if (a.log_sums != nullptr && lane % 4 == 0) a.log_sums[(rows.out[r] - a.out) / kDim] = s.largest[r] + logf(s.sum[r]);
    GPU_UNROLL
    for (int i = 0; i < kDim / 8; ++i) {
      const uint32_t pair = pack(to_bf16(s.values[i][2 * r] / s.sum[r]), to_bf16(s.values[i][2 * r + 1] / s.sum[r]));
      memcpy(rows.out[r] + i * 8 + lane % 4 * 2, &pair, 4);
    }
  }
}

// Each lane's Softmax as it stands: [tile][kv_head][split][floats][lane].
template <int kDim>
__host__ __device__ constexpr int64_t partial_floats() {
  return (4 + kDim / 2) * kWarp;
}

template <int kDim>
__device__ void copy_partial(float* memory, Softmax<kDim>& s, bool store) {
  float* at = memory + threadIdx.x % kWarp;
  auto move = [&](float& value) {
    if (store) *at = value;
    else value = *at;
    at += kWarp;
  };
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) {
    move(s.largest[r]);
    move(s.sum[r]);
  }
  GPU_UNROLL
  for (int i = 0; i < kDim / 8; ++i) {
    GPU_UNROLL
    for (int j = 0; j < 4; ++j) move(s.values[i][j]);
  }
}

__device__ __forceinline__ float* partial_of(const PagedAttention& a, int64_t tile, int64_t kv_head, int64_t split, int64_t floats) {
  const int64_t splits = (a.longest + kSplitPositions - 1) / kSplitPositions;
  return a.workspace + ((tile * a.kv.kv_heads + kv_head) * splits + split) * floats;
}

// Positions that some row of the tiles sees: [first, end).
__device__ __forceinline__ int first_seen(const PagedAttention& a, int first_position) {
  return a.window == 0 ? 0 : max(0, first_position - int(a.window) + 1);
}

// Block (tile, kv head, split) of one warp.
template <int kDim>
__global__ void __launch_bounds__(kWarp) attend_splits_kernel(PagedAttention a) {
  const AttentionTile tile = a.tiles[blockIdx.x];
  const int kv_head = blockIdx.y, begin = int(blockIdx.z) * kSplitPositions;
  const int end = min(tile.first_position + tile.tokens, begin + kSplitPositions);
  if (tile.tokens == 0 || begin >= end || begin + kSplitPositions <= first_seen(a, tile.first_position)) return;
  if (int(blockIdx.z) < tile.shared_splits) return;
  const Rows<kDim> rows = load_rows<kDim>(a, tile, kv_head);
  Softmax<kDim> s = attend_split<kDim>(a, rows, tile.sequence, kv_head, begin, end);
  copy_partial<kDim>(partial_of(a, blockIdx.x, kv_head, blockIdx.z, partial_floats<kDim>()), s, true);
}

// The member whose rows these are; with tile -1 where there is none.
__device__ __forceinline__ PrefixMember member_of(const PagedAttention& a, const PrefixTile& tile, int token) {
  const int64_t at = int64_t(tile.first_member) + token;
  if (token >= tile.members || at < 0 || at >= a.member_count) return {-1, -1, -1};
  return a.members[at];
}

// Each row's state to where its own tile would have stored it: there it is the first token's.
template <int kDim>
__device__ void store_members(const PagedAttention& a, const PrefixTile& tile, int kv_head, int split, const Softmax<kDim>& s) {
  const int group = int(a.heads / a.kv.kv_heads), lane = threadIdx.x % kWarp;
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r, own = row % group;
    const int64_t at = member_of(a, tile, row / group).tile - a.first_tile;
    if (at < 0 || at >= a.tile_count) continue;
    float* memory = partial_of(a, at, kv_head, split, partial_floats<kDim>()) + own % 8 * 4 + lane % 4;
    const int half = own / 8;
    memory[2 * half * kWarp] = s.largest[r];
    memory[(2 * half + 1) * kWarp] = s.sum[r];
    GPU_UNROLL
    for (int i = 0; i < kDim / 8; ++i) {
      GPU_UNROLL
      for (int j = 0; j < 2; ++j) memory[(4 + 4 * i + 2 * half + j) * kWarp] = s.values[i][2 * r + j];
    }
  }
}

// Block (prefix tile, kv head, split) of one warp.
template <int kDim>
__global__ void __launch_bounds__(kWarp) attend_prefixes_kernel(PagedAttention a) {
  const PrefixTile tile = a.prefixes[blockIdx.x];
  const int kv_head = blockIdx.y, split = int(blockIdx.z), begin = split * kSplitPositions;
  if (split >= tile.splits) return;
  const Rows<kDim> rows = load_placed_rows<kDim>(a, kv_head, [&](int token) {
    const PrefixMember member = member_of(a, tile, token);
    return Place{member.row, member.position};
  });
  store_members<kDim>(a, tile, kv_head, split, attend_split<kDim>(a, rows, tile.sequence, kv_head, begin, begin + kSplitPositions));
}

// Block (tile, kv head): the splits' results merged in order.
template <int kDim>
__global__ void __launch_bounds__(kWarp) merge_splits_kernel(PagedAttention a) {
  const AttentionTile tile = a.tiles[blockIdx.x];
  if (tile.tokens == 0) return;
  const Rows<kDim> rows = load_rows<kDim>(a, tile, blockIdx.y);
  const int end = tile.first_position + tile.tokens;
  Softmax<kDim> total;
  for (int split = first_seen(a, tile.first_position) / kSplitPositions; split * kSplitPositions < end; ++split) {
    Softmax<kDim> part;
    copy_partial<kDim>(partial_of(a, blockIdx.x, blockIdx.y, split, partial_floats<kDim>()), part, false);
    total.merge(part);
  }
  write_rows<kDim>(a, rows, total);
}

// Block (four tiles of one sequence, kv head): every split in turn, keys read once for all four.
template <int kDim>
__global__ void __launch_bounds__(kWideWarps* kWarp) attend_tiles_kernel(PagedAttention a) {
  const AttentionTile* tiles = a.tiles + int64_t(blockIdx.x) * kWideWarps;
  const AttentionTile mine = tiles[threadIdx.x / kWarp];
  const int kv_head = blockIdx.y, sequence = tiles[0].sequence;
  int end = 0, begin = 1 << 30;
  for (int i = 0; i < kWideWarps; ++i) {
    if (tiles[i].tokens == 0) continue;
    end = max(end, tiles[i].first_position + tiles[i].tokens);
    begin = min(begin, first_seen(a, tiles[i].first_position));
  }
  const Rows<kDim> rows = load_rows<kDim>(a, mine, kv_head);
  Softmax<kDim> total;
  for (int split = begin / kSplitPositions; split * kSplitPositions < end; ++split) {
    const int first = split * kSplitPositions;
    total.merge(attend_split<kDim>(a, rows, sequence, kv_head, first, min(end, first + kSplitPositions)));
  }
  write_rows<kDim>(a, rows, total);
}

template <int kDim>
void launch(const PagedAttention& a, cudaStream_t stream) {
  constexpr size_t bytes = size_t(2) * kTileKeys * kDim * sizeof(bf16);
  const unsigned tiles = unsigned(a.tile_count), heads = unsigned(a.kv.kv_heads);
  if (!a.splits_in_grid) {
    allow_shared_bytes(&attend_tiles_kernel<kDim>, bytes, "paged_attention");
    const dim3 grid(tiles / kWideWarps, heads);
    GPU_LAUNCH(attend_tiles_kernel<kDim>, grid, dim3(kWideWarps * kWarp), bytes, stream, a);
    return check_launch("paged_attention");
  }
  allow_shared_bytes(&attend_splits_kernel<kDim>, bytes, "paged_attention");
  const dim3 grid(tiles, heads, unsigned(ceil_div(a.longest, kSplitPositions)));
  GPU_LAUNCH(attend_splits_kernel<kDim>, grid, dim3(kWarp), bytes, stream, a);
  check_launch("paged_attention: splits");
  if (a.prefix_count > 0) {
    allow_shared_bytes(&attend_prefixes_kernel<kDim>, bytes, "paged_attention");
    GPU_LAUNCH(attend_prefixes_kernel<kDim>, dim3(unsigned(a.prefix_count), heads, grid.z), dim3(kWarp), bytes, stream, a);
    check_launch("paged_attention: prefixes");
  }
  GPU_LAUNCH(merge_splits_kernel<kDim>, dim3(tiles, heads), dim3(kWarp), 0, stream, a);
  check_launch("paged_attention: merge");
}

void check(const PagedAttention& a) {
  const char* name = "paged_attention";
  check_argument(a.kv.kv_heads >= 1 && a.kv.kv_heads < 1 << 16, name, "kv_heads");
  check_argument(a.heads >= a.kv.kv_heads && a.heads % a.kv.kv_heads == 0 && a.heads / a.kv.kv_heads <= kTileRows, name, "heads");
  check_argument(a.tile_count >= 0 && a.tile_count < 1 << 24, name, "tile_count");
  check_argument(a.splits_in_grid || a.tile_count % kWideWarps == 0, name, "tile_count");
  check_argument(a.longest >= 1 && a.longest < 1 << 25, name, "longest");
  check_argument(a.window >= 0, name, "window");
  check_argument(a.prefix_count >= 0 && a.prefix_count < 1 << 24 && (a.prefix_count == 0 || a.splits_in_grid), name, "prefix_count");
  const int64_t floats = attention_workspace_floats(a.tile_count, a.kv.kv_heads, a.kv.dim, a.longest);
  check_argument(!a.splits_in_grid || a.workspace_floats >= floats, name, "workspace_floats");
}

}  // namespace

int64_t attention_tile_tokens(int64_t heads, int64_t kv_heads) { return kTileRows / (heads / kv_heads); }

int64_t attention_workspace_floats(int64_t tile_count, int64_t kv_heads, int64_t dim, int64_t longest) {
  return tile_count * kv_heads * ceil_div(longest, kSplitPositions) * (4 + dim / 2) * kWarp;
}

void paged_attention(const PagedAttention& a, cudaStream_t stream) {
  check(a);
  if (a.tile_count == 0) return;
  switch (a.kv.dim) {
    case 32: return launch<32>(a, stream);
    case 64: return launch<64>(a, stream);
    case 96: return launch<96>(a, stream);
    case 128: return launch<128>(a, stream);
    default: throw Error(ErrorKind::kUnsupported, "paged_attention: heads of this size have no kernel");
  }
}

}  // namespace tandem::cuda
