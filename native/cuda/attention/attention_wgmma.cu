// Attention on Hopper: pages come by TMA through a ring of stages, four warps multiply them by wgmma, 16 query rows each. A warp's rows are
// those of a tile, as with mma.sync, so a group of tiles fills the 64 rows of a product. Where a tile is alone with its split (decode),
// three warps have none: so a row's bits come from the same instructions everywhere.
#include "cuda/attention/attention_rows.h"
#include "cuda/attention/attention_variants.h"
#include "cuda/common/hopper.h"
#include "cuda/common/launch.h"
#include "cuda/common/tensor_map.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = kGroupTiles * kWarp;
constexpr int kStages = 2;
constexpr int kColumns = 64;  // of a box
constexpr int kRowBytes = kColumns * int(sizeof(bf16));
constexpr int kPanelBytes = kTileKeys * kRowBytes;

// 64 keys and their values, each in panels of 64 columns; of the last one, columns beyond kDim are zero.
template <int kDim>
struct Stage {
  static constexpr int kPanels = (kDim + kColumns - 1) / kColumns;
  static constexpr int kKeyBytes = kPanels * kPanelBytes;
  static constexpr int kBytes = 2 * kKeyBytes;
  static constexpr int kSharedBytes = kStages * (kBytes + int(sizeof(Barrier)));
};

#if TANDEM_HOPPER_CODE

constexpr int kTilePages = kTileKeys / kPagePositions;
constexpr int kPageBytes = kPagePositions * kRowBytes;

// The keys of a block, tile by tile: number i of them lies in stage i % kStages, whose barrier says when it has come.
struct Ring {
  unsigned char* stages;
  Barrier* full;
  const TensorMap *keys, *values;  // of the whole pool: rows are positions of pages
  int sequence, kv_head;
  Span span;  // from a multiple of kTileKeys on
  int at;     // position of the next tile
};

// The pool's row at which the page of a position begins; beyond the last, where all is zero, if there is none.
__device__ int pool_row(const PagedAttention& a, const Ring& ring, int position) {
  const int64_t index = position / kPagePositions;
  const bool wanted = position < ring.span.end && index < a.max_pages;
  const int64_t page = wanted ? a.page_table[ring.sequence * a.max_pages + index] : -1;
  const int64_t place = page >= 0 && page < a.kv.pages ? page : a.kv.pages;
  return int((place * a.kv.kv_heads + ring.kv_head) * kPagePositions);
}

// By the first warp, of which each lane below kTilePages gives the row of its page.
template <int kDim>
__device__ void bring_tile(const Ring& ring, int stage, int row) {
  using S = Stage<kDim>;
  const int lane = int(threadIdx.x) % kWarp;
  Barrier* full = &ring.full[stage];
  if (lane == 0) barrier_expect(full, S::kBytes);
  __syncwarp();
  if (lane >= kTilePages) return;
  unsigned char* to = ring.stages + stage * S::kBytes + lane * kPageBytes;
  GPU_UNROLL
  for (int panel = 0; panel < S::kPanels; ++panel) {
    bulk_load(to + panel * kPanelBytes, ring.keys, full, panel * kColumns, row);
    bulk_load(to + S::kKeyBytes + panel * kPanelBytes, ring.values, full, panel * kColumns, row);
  }
}

__device__ __forceinline__ bool first_warp() { return threadIdx.x < kWarp; }

// What the first warp needs to bring the tile at a position.
__device__ __forceinline__ int own_row(const PagedAttention& a, const Ring& ring, int position) {
  return first_warp() ? pool_row(a, ring, position + int(threadIdx.x) % kTilePages * kPagePositions) : 0;
}

// The first tiles are on their way when this returns.
template <int kDim>
__device__ Ring open_ring(const PagedAttention& a, const TensorMap& keys, const TensorMap& values, int sequence, int kv_head, Span span) {
  GPU_SHARED_BYTES(shared);
  Barrier* full = reinterpret_cast<Barrier*>(shared + kStages * Stage<kDim>::kBytes);
  const Ring ring{shared, full, &keys, &values, sequence, kv_head, span, span.begin};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) barrier_init(&full[stage], 1);
    barrier_init_fence();
  }
  __syncthreads();  // the barriers are there for all
  for (int stage = 0; stage < kStages; ++stage) {
    const int position = span.begin + stage * kTileKeys;
    if (position < span.end && first_warp()) bring_tile<kDim>(ring, stage, own_row(a, ring, position));
  }
  return ring;
}

// Of the tile's values, those from number `keys` on: nothing has been written there, it may be NaN, and zero times that is not zero.
template <int kDim>
__device__ void clear_values(unsigned char* values, int keys) {
  constexpr int kChunks = kRowBytes / int(sizeof(uint4));
  for (int i = int(threadIdx.x); i < (kTileKeys - keys) * kChunks; i += kThreads) {
    GPU_UNROLL
    for (int panel = 0; panel < Stage<kDim>::kPanels; ++panel) {
      reinterpret_cast<uint4*>(values + panel * kPanelBytes + keys * kRowBytes)[i] = uint4{0, 0, 0, 0};
    }
  }
  shared_writes_fence();
  __syncthreads();  // all of it is zero
}

template <int kCount>
__device__ __forceinline__ float (&flat(float (&blocks)[kCount][4]))[4 * kCount] {
  return reinterpret_cast<float(&)[4 * kCount]>(blocks);
}

// scores += queries . keys^T.
template <int kDim>
__device__ __forceinline__ void score_keys(const Rows<kDim>& rows, const unsigned char* keys, float (&scores)[kTileKeys / 8][4]) {
  auto& sums = flat(scores);
  wgmma_fence();
  GPU_UNROLL
  for (int k = 0; k < kDim / 16; ++k) {
    wgmma_rows<kTileKeys, false>(sums, rows.queries[k], tile_descriptor(keys + k / 4 * kPanelBytes, k % 4));
  }
  wgmma_commit();
  wgmma_wait<0>(sums);
  keep_rows(rows.queries);
}

template <int kDim>
__device__ __forceinline__ void add_values(Softmax<kDim>& s, const float (&weights)[kTileKeys / 8][4], const unsigned char* values) {
  uint32_t p[kTileKeys / 16][4];
  pack_weights(weights, p, [](float low, float high) { return pack_rounded(low, high); });
  auto& sums = flat(s.values);
  wgmma_fence();
  GPU_UNROLL
  for (int k = 0; k < kTileKeys / 16; ++k) {
    wgmma_rows<kDim, true>(sums, p[k], across_descriptor(values, k, kPanelBytes));
  }
  wgmma_commit();
  wgmma_wait<0>(sums);
  keep_rows(p);
}

// The ring's tiles before `end`, all of one split.
template <int kDim>
__device__ __forceinline__ Softmax<kDim> attend_split(const PagedAttention& a, const Rows<kDim>& rows, Ring& ring, int end) {
  using S = Stage<kDim>;
  Softmax<kDim> s;
  for (; ring.at < end; ring.at += kTileKeys) {
    const int tile = (ring.at - ring.span.begin) / kTileKeys, stage = tile % kStages, after = ring.at + kStages * kTileKeys;
    const int next_row = own_row(a, ring, after);  // read while the tile is computed
    unsigned char *keys = ring.stages + stage * S::kBytes, *values = keys + S::kKeyBytes;
    barrier_wait(&ring.full[stage], tile / kStages & 1);
    if (ring.span.end < ring.at + kTileKeys) clear_values<kDim>(values, ring.span.end - ring.at);
    float scores[kTileKeys / 8][4] = {};
    score_keys<kDim>(rows, keys, scores);
    mask_scores<kDim>(a, rows, ring.at, scores);
    weigh<kDim>(s, scores);
    add_values<kDim>(s, scores, values);
    __syncthreads();  // all are done with the stage
    if (after < ring.span.end && first_warp()) bring_tile<kDim>(ring, stage, next_row);
  }
  return s;
}

#endif

// Block (tile, kv head, split); the tile's rows are the first warp's.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 2)
    attend_splits_kernel(const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values, PagedAttention a) {
#if TANDEM_HOPPER_CODE
  AttentionTile tile = a.tiles[blockIdx.x];
  const int kv_head = blockIdx.y, split = int(blockIdx.z);
  const Span span = own_span(a, tile, split);
  if (span.end <= span.begin) return;
  if (!first_warp()) tile.tokens = 0;
  const Rows<kDim> rows = load_rows<kDim>(a, tile, kv_head);
  Ring ring = open_ring<kDim>(a, keys, values, tile.sequence, kv_head, span);
  Softmax<kDim> s = attend_split<kDim>(a, rows, ring, span.end);
  if (first_warp()) copy_partial<kDim>(partial_of(a, blockIdx.x, kv_head, split, partial_floats<kDim>()), s, true);
#endif
}

// Block (prefix tile, kv head, split); the members' rows are the first warp's.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 2)
    attend_prefixes_kernel(const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values, PagedAttention a) {
#if TANDEM_HOPPER_CODE
  const PrefixTile tile = a.prefixes[blockIdx.x];
  const int kv_head = blockIdx.y, split = int(blockIdx.z), begin = split * kSplitPositions;
  if (split >= tile.splits) return;
  const Rows<kDim> rows = load_placed_rows<kDim>(a, kv_head, [&](int token) {
    if (!first_warp()) return Place{-1, -1};
    const PrefixMember member = member_of(a, tile, token);
    return Place{member.row, member.position};
  });
  Ring ring = open_ring<kDim>(a, keys, values, tile.sequence, kv_head, {begin, begin + kSplitPositions});
  const Softmax<kDim> s = attend_split<kDim>(a, rows, ring, begin + kSplitPositions);
  if (first_warp()) store_members<kDim>(a, tile, kv_head, split, s);
#endif
}

// Block (group of tiles, kv head): every split in turn.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 2)
    attend_tiles_kernel(const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values, PagedAttention a) {
#if TANDEM_HOPPER_CODE
  const AttentionTile* tiles = a.tiles + int64_t(blockIdx.x) * kGroupTiles;
  const Span span = group_span(a, tiles);
  const Rows<kDim> rows = load_rows<kDim>(a, tiles[threadIdx.x / kWarp], blockIdx.y);
  Ring ring = open_ring<kDim>(a, keys, values, tiles[0].sequence, blockIdx.y, span);
  Softmax<kDim> total;
  for (int end = span.begin; end < span.end;) {
    end = min(span.end, end + kSplitPositions);
    total.merge(attend_split<kDim>(a, rows, ring, end));
  }
  write_rows<kDim>(a, rows, total);
#endif
}

// Of all pages as one matrix, boxes of a page of a head and 64 of its columns.
template <int kDim>
TensorMap pool_map(const PagedAttention& a, const bf16* data) {
  return tensor_map(data, a.kv.pages * a.kv.kv_heads * kPagePositions, kDim, kDim, kPagePositions);
}

template <int kDim>
void launch(const PagedAttention& a, cudaStream_t stream) {
  constexpr int kBytes = Stage<kDim>::kSharedBytes;
  const TensorMap keys = pool_map<kDim>(a, a.kv.keys), values = pool_map<kDim>(a, a.kv.values);
  const unsigned tiles = unsigned(a.tile_count), heads = unsigned(a.kv.kv_heads);
  if (!a.splits_in_grid) {
    allow_shared_bytes(&attend_tiles_kernel<kDim>, kBytes, "attention_wgmma");
    GPU_LAUNCH(attend_tiles_kernel<kDim>, dim3(tiles / kGroupTiles, heads), dim3(kThreads), kBytes, stream, keys, values, a);
    return check_launch("attention_wgmma");
  }
  allow_shared_bytes(&attend_splits_kernel<kDim>, kBytes, "attention_wgmma");
  const dim3 grid(tiles, heads, unsigned(ceil_div(a.longest, kSplitPositions)));
  GPU_LAUNCH(attend_splits_kernel<kDim>, grid, dim3(kThreads), kBytes, stream, keys, values, a);
  check_launch("attention_wgmma: splits");
  if (a.prefix_count == 0) return;
  allow_shared_bytes(&attend_prefixes_kernel<kDim>, kBytes, "attention_wgmma");
  const dim3 prefixes(unsigned(a.prefix_count), heads, grid.z);
  GPU_LAUNCH(attend_prefixes_kernel<kDim>, prefixes, dim3(kThreads), kBytes, stream, keys, values, a);
  check_launch("attention_wgmma: prefixes");
}

}  // namespace

void attention_wgmma(const PagedAttention& a, cudaStream_t stream) {
  // Rows of the pool, and those of the page behind it, are numbers of a bulk copy.
  const int64_t most_rows = (a.kv.pages + 1) * a.kv.kv_heads * kPagePositions;
  check_argument(a.kv.pages >= 1 && most_rows < int64_t(1) << 31, "attention_wgmma", "kv.pages");
  by_dim(a.kv.dim, "paged_attention", [&](auto dim) { launch<decltype(dim)::value>(a, stream); });
}

}  // namespace tandem::cuda
