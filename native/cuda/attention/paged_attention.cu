#include "cuda/attention/attention_merge.h"
#include "cuda/attention/attention_variants.h"
#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/common/tensor_core.h"

namespace tandem::cuda {
namespace {

constexpr int kChunk = 8;
constexpr int kThreads = kGroupTiles * kWarp;
constexpr int kStages = 2;

// Of decode, on a multiprocessor: with heads of 128 no more than two have room in the shared memory of those before Hopper.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kBlocks = 2;
#else
constexpr int kBlocks = 3;
#endif

template <int kDim>
__device__ __forceinline__ bf16* tile_chunk(bf16* tile, int row, int chunk) {
  constexpr int kMask = kDim / kChunk % 8 == 0 ? 7 : 3;  // chunks stay within their row
  return tile + row * kDim + ((chunk & ~kMask) | ((chunk ^ row) & kMask)) * kChunk;
}

// What a block walks over: two stages of keys and values, of which one is computed with while the other is brought.
struct Walk {
  unsigned char* stages;
  int sequence, kv_head;
  Span span;  // from a multiple of kTileKeys on
};

template <int kDim>
__device__ __forceinline__ bf16* keys_of(const Walk& walk, int first) {
  return reinterpret_cast<bf16*>(walk.stages) + first / kTileKeys % kStages * (2 * kTileKeys * kDim);
}

// The 64 keys and values from `first` on, on their way to their stage; positions at or after the end and bad pages are zero.
template <int kDim>
__device__ void load_keys(const PagedAttention& a, const Walk& walk, int first) {
  constexpr int kChunks = kDim / kChunk;
  bf16 *keys = keys_of<kDim>(walk, first), *values = keys + kTileKeys * kDim;
  for (int i = threadIdx.x; first < walk.span.end && i < kTileKeys * kChunks; i += kThreads) {
    const int key = i / kChunks, chunk = i % kChunks, position = first + key;
    const int64_t index = position / kPagePositions;
    const int64_t page = position < walk.span.end && index < a.max_pages ? a.page_table[walk.sequence * a.max_pages + index] : -1;
    const bool valid = page >= 0 && page < a.kv.pages;
    const int64_t at = valid ? a.kv.offset(page, walk.kv_head, position % kPagePositions) + chunk * kChunk : 0;
    cp_async_16(tile_chunk<kDim>(keys, key, chunk), a.kv.keys + at, valid ? 16 : 0);
    cp_async_16(tile_chunk<kDim>(values, key, chunk), a.kv.values + at, valid ? 16 : 0);
  }
  cp_async_commit();
}

// The first keys are on their way when this returns.
template <int kDim>
__device__ Walk begin_walk(const PagedAttention& a, int sequence, int kv_head, Span span) {
  GPU_SHARED_BYTES(shared);
  const Walk walk{shared, sequence, kv_head, span};
  load_keys<kDim>(a, walk, span.begin);
  return walk;
}

// scores = queries . keys^T.
template <int kDim>
__device__ void score_keys(const Rows<kDim>& rows, bf16* keys, float (&scores)[kTileKeys / 8][4]) {
  const int lane = threadIdx.x % kWarp, matrix = lane / 8, in_matrix = lane % 8;
  GPU_UNROLL
  for (int n = 0; n < kTileKeys / 16; ++n) {
    GPU_UNROLL
    for (int k = 0; k < kDim / 16; ++k) {
      uint32_t b[4];
      ldmatrix_x4(b, tile_chunk<kDim>(keys, n * 16 + matrix / 2 * 8 + in_matrix, k * 2 + matrix % 2));
      const uint32_t first_half[2] = {b[0], b[1]}, second_half[2] = {b[2], b[3]};
      mma_m16n8k16(scores[2 * n], rows.queries[k], first_half);
      mma_m16n8k16(scores[2 * n + 1], rows.queries[k], second_half);
    }
  }
}

template <int kDim>
__device__ void add_values(Softmax<kDim>& s, const float (&weights)[kTileKeys / 8][4], bf16* values) {
  const int lane = threadIdx.x % kWarp, matrix = lane / 8, in_matrix = lane % 8;
  uint32_t p[kTileKeys / 16][4];
  // By one instruction for both, the compiler would need more registers than three blocks of heads of 128 leave.
  pack_weights(weights, p, [](float low, float high) { return pack(to_bf16(low), to_bf16(high)); });
  GPU_UNROLL
  for (int k = 0; k < kTileKeys / 16; ++k) {
    GPU_UNROLL
    for (int n = 0; n < kDim / 16; ++n) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, tile_chunk<kDim>(values, k * 16 + matrix % 2 * 8 + in_matrix, n * 2 + matrix / 2));
      const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
      mma_m16n8k16(s.values[2 * n], p[k], low);
      mma_m16n8k16(s.values[2 * n + 1], p[k], high);
    }
  }
}

// Keys [begin, end) of the walk, all of one split. All warps of the block bring them; those without rows compute nothing.
template <int kDim>
__device__ Softmax<kDim> attend_split(const PagedAttention& a, const Rows<kDim>& rows, bool any_rows, const Walk& walk, int begin,
                                      int end) {
  Softmax<kDim> s;
  for (int first = begin; first < end; first += kTileKeys) {
    cp_async_wait<0>();
    __syncthreads();  // these keys are there for all, and all are done with those whose stage the next ones take
    load_keys<kDim>(a, walk, first + kTileKeys);
    if (any_rows) {
      bf16* keys = keys_of<kDim>(walk, first);
      float scores[kTileKeys / 8][4] = {};
      score_keys<kDim>(rows, keys, scores);
      mask_scores<kDim>(a, rows, first, scores);
      weigh<kDim>(s, a.scale, scores);
      add_values<kDim>(s, scores, keys + kTileKeys * kDim);
    }
  }
  return s;
}

__device__ __forceinline__ bool first_warp() { return threadIdx.x < kWarp; }

// Block (tile, kv head, split); the tile's rows are the first warp's, the others help to bring its keys.
template <int kDim>
__global__ void __launch_bounds__(kThreads, kBlocks) attend_splits_kernel(PagedAttention a) {
  wait_for_inputs();
  const AttentionTile tile = a.tiles[blockIdx.x];
  const int kv_head = blockIdx.y, split = int(blockIdx.z);
  const Span span = own_span(a, tile, split);
  if (span.end <= span.begin) return;
  const Walk walk = begin_walk<kDim>(a, tile.sequence, kv_head, span);
  const Rows<kDim> rows = load_rows<kDim>(a, tile, kv_head);
  const Softmax<kDim> s = attend_split<kDim>(a, rows, first_warp(), walk, span.begin, span.end);
  // The tile is read again: while products are made, all registers are needed.
  finish_split<kDim>(a, {a.tiles[blockIdx.x], int(blockIdx.x), kv_head, split}, s, kGroupTiles,
                     [](bool last) { return __syncthreads_or(last) != 0; });
}

// Block (prefix tile, kv head, split); the members' rows are the first warp's.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 2) attend_prefixes_kernel(PagedAttention a) {
  wait_for_inputs();
  const PrefixTile tile = a.prefixes[blockIdx.x];
  const int kv_head = blockIdx.y, split = int(blockIdx.z), begin = split * kSplitPositions;
  if (split >= tile.splits) return;
  const Walk walk = begin_walk<kDim>(a, tile.sequence, kv_head, {begin, begin + kSplitPositions});
  const Rows<kDim> rows = load_placed_rows<kDim>(a, kv_head, [&](int token) {
    const PrefixMember member = member_of(a, tile, token);
    return TokenPlace{member.row, member.position};
  });
  const Softmax<kDim> s = attend_split<kDim>(a, rows, first_warp(), walk, begin, begin + kSplitPositions);
  if (first_warp()) store_members<kDim>(a, tile, kv_head, split, s);
}

// Block (group of tiles, kv head): every split in turn, keys read once for all of them.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 2) attend_tiles_kernel(PagedAttention a) {
  wait_for_inputs();
  const AttentionTile* tiles = a.tiles + int64_t(blockIdx.x) * kGroupTiles;
  const Span span = group_span(a, tiles);
  const Walk walk = begin_walk<kDim>(a, tiles[0].sequence, blockIdx.y, span);
  const Rows<kDim> rows = load_rows<kDim>(a, tiles[threadIdx.x / kWarp], blockIdx.y);
  Softmax<kDim> total;
  for (int first = span.begin; first < span.end; first += kSplitPositions) {
    total.merge(attend_split<kDim>(a, rows, true, walk, first, min(span.end, first + kSplitPositions)));
  }
  write_rows<kDim>(a, rows, total);
}

template <int kDim>
void launch(const PagedAttention& a, cudaStream_t stream) {
  constexpr size_t bytes = size_t(kStages) * 2 * kTileKeys * kDim * sizeof(bf16);
  const unsigned tiles = unsigned(a.tile_count), heads = unsigned(a.kv.kv_heads);
  if (!a.splits_in_grid) {
    allow_shared_bytes(&attend_tiles_kernel<kDim>, bytes, "paged_attention");
    GPU_LAUNCH_EARLY(attend_tiles_kernel<kDim>, dim3(tiles / kGroupTiles, heads), dim3(kThreads), bytes, stream, a);
    return check_launch("paged_attention");
  }
  const unsigned splits = unsigned(ceil_div(a.longest, kSplitPositions));
  if (a.prefix_count > 0) {
    allow_shared_bytes(&attend_prefixes_kernel<kDim>, bytes, "paged_attention");
    GPU_LAUNCH_EARLY(attend_prefixes_kernel<kDim>, dim3(unsigned(a.prefix_count), heads, splits), dim3(kThreads), bytes, stream, a);
    check_launch("paged_attention: prefixes");
  }
  allow_shared_bytes(&attend_splits_kernel<kDim>, bytes, "paged_attention");
  GPU_LAUNCH_EARLY(attend_splits_kernel<kDim>, dim3(tiles, heads, splits), dim3(kThreads), bytes, stream, a);
  check_launch("paged_attention: splits");
}

void check(const PagedAttention& a) {
  const char* name = "paged_attention";
  check_argument(a.kv.kv_heads >= 1 && a.kv.kv_heads < 1 << 16, name, "kv_heads");
  check_argument(a.heads >= a.kv.kv_heads && a.heads % a.kv.kv_heads == 0 && a.heads / a.kv.kv_heads <= kTileRows, name, "heads");
  check_argument(a.tile_count >= 0 && a.tile_count < 1 << 24, name, "tile_count");
  check_argument(a.splits_in_grid || a.tile_count % kGroupTiles == 0, name, "tile_count");
  check_argument(a.longest >= 1 && a.longest < 1 << 25, name, "longest");
  check_argument(a.window >= 0, name, "window");
  check_argument(a.scale > 0, name, "scale");
  check_argument(a.prefix_count >= 0 && a.prefix_count < 1 << 24 && (a.prefix_count == 0 || a.splits_in_grid), name, "prefix_count");
  check_argument(a.tile_rows >= a.heads / a.kv.kv_heads && a.tile_rows <= kTileRows, name, "tile_rows");
  const int64_t floats = attention_workspace_floats(a.tile_count, a.kv.kv_heads, a.kv.dim, a.longest, a.tile_rows);
  check_argument(!a.splits_in_grid || a.workspace_floats >= floats, name, "workspace_floats");
  check_argument(!a.splits_in_grid || a.arrivals != nullptr, name, "arrivals");
  check_argument(a.rope == nullptr || attention_rotates(a), name, "rope");
}

}  // namespace

int64_t attention_tile_tokens(int64_t heads, int64_t kv_heads) { return kTileRows / (heads / kv_heads); }

int64_t attention_workspace_floats(int64_t tile_count, int64_t kv_heads, int64_t dim, int64_t longest, int64_t tile_rows) {
  return tile_count * kv_heads * ceil_div(longest, kSplitPositions) * tile_rows * (dim + 4);
}

int64_t attention_arrivals(int64_t tile_count, int64_t kv_heads) { return tile_count * kv_heads + 1; }

void number_items(std::vector<AttentionTile>& tiles) {
  int64_t items = 0;
  for (AttentionTile& tile : tiles) {
    tile.items_before = int32_t(items);
    items += splits_of(tile);
    check_argument(items < int64_t(1) << 31, "paged_attention", "tiles");
  }
}

void attention_mma(const PagedAttention& a, cudaStream_t stream) {
  by_dim(a.kv.dim, "paged_attention", [&](auto dim) { launch<decltype(dim)::value>(a, stream); });
}

void paged_attention(const PagedAttention& a, cudaStream_t stream) {
  check(a);
  if (a.tile_count == 0) return;
  PagedAttention args = a;
  args.group = int32_t(a.heads / a.kv.kv_heads);
  args.group_part = 255 / args.group + 1;
  variant_of(a.kernel).launch(args, stream);
}

}  // namespace tandem::cuda
