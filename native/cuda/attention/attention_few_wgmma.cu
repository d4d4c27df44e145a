// Attention of few tokens on Hopper, where nothing is short but time: in a step of one stream of a small model the kernel of many blocks
// (attention_wgmma.cu) took 11.6 us per layer, a third of the step. Here a split has a multiprocessor to itself. All of its keys and values
// lie in shared memory, most of them fetched while the kernels ahead still run; four groups of warps multiply a tile of keys each, all at
// once, and then up to two of them its values, 64 columns each. The instructions that make a row's bits, and their order, are those of
// attention_wgmma.h: largest scores are joined from tile to tile, then sums, then values.
//
// The splits of a tile leave their states in the device's memory, and the last one to come merges them.
#include "cuda/attention/attention_merge.h"
#include "cuda/attention/attention_variants.h"
#include "cuda/attention/attention_wgmma.h"
#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"

namespace tandem::cuda {
namespace {

constexpr int kTiles = kSplitPositions / kTileKeys;  // of a split, and groups of four warps
constexpr int kThreads = kTiles * kGroupThreads;
// As for so many threads a thread's registers are counted: the rest is for blocks of the product behind, which fetch their weights meanwhile.
constexpr int kCountedThreads = kThreads + 3 * kWarp;

// Behind the tiles.
struct Shared {
  Barrier keys[kTiles], values[kTiles];
  // Of a tile's rows.
  float largest[kTiles][kTileRows], factor[kTiles][kTileRows], sum[kTiles][kTileRows];
  uint32_t weights[kTiles][kTileKeys / 16][4][kWarp];  // fragments by lane
};

template <int kDim>
constexpr int kSharedBytes = kTiles* Stage<kDim>::kBytes + int(sizeof(Shared));

#if TANDEM_HOPPER_CODE

__device__ __forceinline__ int group_number() { return int(threadIdx.x) / kGroupThreads; }
// The warp of a group whose rows are the tile's; the others have none.
__device__ __forceinline__ bool has_rows() { return int(threadIdx.x) % kGroupThreads < kWarp; }
// Row r of this thread's two.
__device__ __forceinline__ int row_number(int r) { return int(threadIdx.x) % kWarp / 4 + 8 * r; }

template <int kDim>
__device__ __forceinline__ unsigned char* keys_of(int tile) {
  GPU_SHARED_BYTES(shared);
  return shared + tile * Stage<kDim>::kBytes;
}
template <int kDim>
__device__ __forceinline__ unsigned char* values_of(int tile) {
  return keys_of<kDim>(tile) + Stage<kDim>::kKeyBytes;
}
template <int kDim>
__device__ __forceinline__ Shared& shared_of() {
  return *reinterpret_cast<Shared*>(keys_of<kDim>(kTiles));
}

// The tiles [first, end) of the split, by the first warp; `row` is the pool's row of each lane's page.
template <int kDim>
__device__ __forceinline__ void bring(const TensorMap& keys, const TensorMap& values, int first, int end, int row) {
  using S = Stage<kDim>;
  Shared& shared = shared_of<kDim>();
  const int lane = int(threadIdx.x) % kWarp;
  if (lane >= first && lane < end) {
    barrier_expect(&shared.keys[lane], S::kKeyBytes);
    barrier_expect(&shared.values[lane], S::kKeyBytes);
  }
  __syncwarp();
  const int tile = lane / kTilePages;
  if (tile >= first && tile < end) {
    const int at = lane % kTilePages * kPageBytes;
    GPU_UNROLL
    for (int panel = 0; panel < S::kPanels; ++panel) {
      bulk_load(keys_of<kDim>(tile) + at + panel * kPanelBytes, &keys, &shared.keys[tile], panel * kColumns, row);
    }
    GPU_UNROLL
    for (int panel = 0; panel < S::kPanels; ++panel) {
      bulk_load(values_of<kDim>(tile) + at + panel * kPanelBytes, &values, &shared.values[tile], panel * kColumns, row);
    }
  }
  __syncwarp();
}

// Of the split's last tile the values behind its positions that share their page: nothing has been written there, it may be NaN, and zero
// times that is not zero. By the warps without rows.
template <int kDim>
__device__ __forceinline__ void clear_end(const Span& span) {
  constexpr int kChunks = kRowBytes / int(sizeof(uint4)), kOthers = kGroupThreads - kWarp;
  const int tile = (span.end - span.begin - 1) / kTileKeys, keys = span.end - span.begin - tile * kTileKeys;
  const int behind = (keys + kPagePositions - 1) / kPagePositions * kPagePositions - keys;
  if (behind == 0 || has_rows() || group_number() > 0) return;
  barrier_wait(&shared_of<kDim>().values[tile], 0);
  for (int i = int(threadIdx.x) - kWarp; i < behind * kChunks; i += kOthers) {
    GPU_UNROLL
    for (int panel = 0; panel < Stage<kDim>::kPanels; ++panel) {
      reinterpret_cast<uint4*>(values_of<kDim>(tile) + panel * kPanelBytes + keys * kRowBytes)[i] = uint4{0, 0, 0, 0};
    }
  }
  shared_writes_fence();
}

// What weigh_scores() will find the largest of row r.
__device__ __forceinline__ float largest_score(float scale, const float (&scores)[kTileKeys / 8][4], int r) {
  float top = -INFINITY;
  GPU_UNROLL
  for (int i = 0; i < kTileKeys / 8; ++i) top = fmaxf(top, fmaxf(scores[i][2 * r], scores[i][2 * r + 1]));
  return quad_max(top) * (scale * kLog2E);
}

// Of a row, before tile number `end`.
__device__ __forceinline__ float largest_before(const Shared& shared, int end, int row) {
  float largest = -INFINITY;
  for (int tile = 0; tile < end; ++tile) largest = fmaxf(largest, shared.largest[tile][row]);
  return largest;
}

// body(r) for this thread's two rows, the second where there are `more` than eight.
template <class Body>
__device__ __forceinline__ void each_row(bool more, const Body& body) {
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) {
    if (r == 0 || more) body(r);
  }
}

// Weights of the group's tile of keys, if it has one. All are there for all threads when this returns, and what no key belongs to is zero.
template <int kDim>
__device__ __forceinline__ void make_weights(const PagedAttention& a, const Rows<kDim>& rows, bool more, const Span& span) {
  Shared& shared = shared_of<kDim>();
  const int tile = group_number(), first = span.begin + tile * kTileKeys;
  const bool there = first < span.end;
  const bool writes = int(threadIdx.x) % 4 == 0;
  float scores[kTileKeys / 8][4] = {};
  if (there) {
    barrier_wait(&shared.keys[tile], 0);
    score_keys<kDim>(rows, keys_of<kDim>(tile), scores);
    if (has_rows()) {
      each_row(more, [&](int r) {
        mask_row<kDim>(a, rows, first, scores, r);
        const float largest = largest_score(a.scale, scores, r);
        if (writes) shared.largest[tile][row_number(r)] = largest;
      });
    }
  }
  __syncthreads();  // the largest scores of all tiles are there
  if (there && has_rows()) {
    Peaks peaks;
    each_row(more, [&](int r) {
      const int row = row_number(r);
      peaks.largest[r] = largest_before(shared, tile, row);
      const float factor = weigh_scores(peaks, a.scale, scores, r);
      if (writes) shared.factor[tile][row] = factor, shared.sum[tile][row] = peaks.sum[r];
    });
    Weights p;
    pack_weights(scores, p, [](float low, float high) { return pack_rounded(low, high); });
    GPU_UNROLL
    for (int k = 0; k < kTileKeys / 16; ++k) {
      GPU_UNROLL
      for (int i = 0; i < 4; ++i) shared.weights[tile][k][i][threadIdx.x % kWarp] = p[k][i];
    }
  }
  clear_end<kDim>(span);
  __syncthreads();  // all weights are there
}

// Columns of a panel of the values, of the group's rows.
template <int kDim, int kCount>
__device__ __forceinline__ void add_panel(bool more, int panel, int tiles, float (&values)[kCount / 8][4]) {
  Shared& shared = shared_of<kDim>();
  GPU_UNROLL_1
  for (int tile = 0; tile < tiles; ++tile) {
    Weights p = {};
    if (has_rows()) {
      GPU_UNROLL
      for (int k = 0; k < kTileKeys / 16; ++k) {
        GPU_UNROLL
        for (int i = 0; i < 4; ++i) p[k][i] = shared.weights[tile][k][i][threadIdx.x % kWarp];
      }
      each_row(more, [&](int r) {
        const float factor = shared.factor[tile][row_number(r)];
        GPU_UNROLL
        for (int i = 0; i < kCount / 8; ++i) {
          GPU_UNROLL
          for (int j = 0; j < 2; ++j) values[i][2 * r + j] *= factor;
        }
      });
    }
    barrier_wait(&shared.values[tile], 0);
    wgmma_fence();
    GPU_UNROLL
    for (int k = 0; k < kTileKeys / 16; ++k) {
      wgmma_rows<kCount, true>(flat(values), p[k], across_descriptor(values_of<kDim>(tile) + panel * kPanelBytes, k, kPanelBytes));
    }
    wgmma_commit();
    wgmma_wait<0>(flat(values));
    keep_rows(p);
  }
}

// The state of the rows after all tiles.
__device__ __forceinline__ Peaks all_peaks(const Shared& shared, bool more, int tiles) {
  Peaks peaks;
  each_row(more, [&](int r) {
    const int row = row_number(r);
    for (int tile = 0; tile < tiles; ++tile) {
      peaks.largest[r] = fmaxf(peaks.largest[r], shared.largest[tile][row]);
      peaks.sum[r] = fmaf(peaks.sum[r], shared.factor[tile][row], shared.sum[tile][row]);
    }
  });
  return peaks;
}

// What write_row() and store_state() do, of a panel's columns: where the rows have no other split the result, else their state.
template <int kDim, int kCount>
__device__ __forceinline__ void leave_panel(const PagedAttention& a, const AttentionTile& tile, int panel, bool alone, const Peaks& peaks,
                                            const float (&values)[kCount / 8][4]) {
  const int kv_head = blockIdx.y, count = tile.tokens * group_of(a), own = int(threadIdx.x) % 4 * 2;
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = row_number(r);
    if (row >= count) continue;
    const bool first = own == 0 && panel == 0;
    if (alone) {
      const int64_t place = place_of(a, tile, kv_head, row);
      bf16* out = a.out + place * kDim + panel * kColumns + own;
      if (first && a.log_sums != nullptr) a.log_sums[place] = log_sum(peaks.largest[r], peaks.sum[r]);
      const float share = 1.0f / peaks.sum[r];
      GPU_UNROLL
      for (int i = 0; i < kCount / 8; ++i) {
        *reinterpret_cast<uint32_t*>(out + i * 8) =
            pack_rounded(fmaf(values[i][2 * r], share, 0.0f), fmaf(values[i][2 * r + 1], share, 0.0f));
      }
      continue;
    }
    float* state = state_of<kDim>(a, blockIdx.x, kv_head, blockIdx.z, row);
    GPU_UNROLL
    for (int i = 0; i < kCount / 8; ++i) {
      *reinterpret_cast<float2*>(state + panel * kColumns + i * 8 + own) = float2{values[i][2 * r], values[i][2 * r + 1]};
    }
    if (first) *reinterpret_cast<float2*>(state + kDim) = float2{peaks.largest[r], peaks.sum[r]};
  }
}

template <int kDim, int kCount>
__device__ __forceinline__ void attend_panel(const PagedAttention& a, const AttentionTile& tile, int panel, bool more, int tiles,
                                             bool alone) {
  float values[kCount / 8][4] = {};
  add_panel<kDim, kCount>(more, panel, tiles, values);
  if (has_rows()) leave_panel<kDim, kCount>(a, tile, panel, alone, all_peaks(shared_of<kDim>(), more, tiles), values);
}

// By the groups that have one. Code is fetched by each step anew, so those that are alike have the same.
template <int kDim>
__device__ __forceinline__ void attend_panels(const PagedAttention& a, const AttentionTile& tile, bool more, int tiles, bool alone) {
  constexpr int kWhole = kDim / kColumns, kRest = kDim % kColumns;
  const int panel = group_number();
  if constexpr (kWhole > 0) {
    if (panel < kWhole) attend_panel<kDim, kColumns>(a, tile, panel, more, tiles, alone);
  }
  if constexpr (kRest > 0) {
    if (panel == kWhole) attend_panel<kDim, kRest>(a, tile, panel, more, tiles, alone);
  }
}

template <int kDim>
__device__ __forceinline__ void open_barriers(const TensorMap& keys, const TensorMap& values) {
  if (threadIdx.x == 0) {
    prefetch_map(&keys);
    prefetch_map(&values);
    Shared& shared = shared_of<kDim>();
    for (int tile = 0; tile < kTiles; ++tile) {
      barrier_init(&shared.keys[tile], 1);
      barrier_init(&shared.values[tile], 1);
    }
    barrier_init_fence();
  }
  __syncthreads();  // the barriers are there for all
}

#endif

// Block (tile, kv head, split).
template <int kDim>
__global__ void __launch_bounds__(kCountedThreads, 1)
    attend_few_kernel(const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values, PagedAttention a) {
#if TANDEM_HOPPER_CODE
  let_next_begin();
  open_barriers<kDim>(keys, values);
  const int kv_head = blockIdx.y, split = int(blockIdx.z);
  const AttentionTile tile = load_tile(a.tiles + blockIdx.x);
  const Span span = own_span(a, tile, split);
  const int tiles = max(0, span.end - span.begin + kTileKeys - 1) / kTileKeys;
  // Tiles of keys that no kernel writes which may still run.
  const int old = a.stored_is_old ? min(tiles, max(0, tile.stored - span.begin) / kTileKeys) : 0;
  const bool brings = threadIdx.x < kWarp;
  const int page = span.begin + int(threadIdx.x) % kWarp * kPagePositions;
  const int row = brings ? pool_row(a, tile.sequence, kv_head, span.end, page) : 0;
  if (brings) bring<kDim>(keys, values, 0, old, row);
  wait_for_inputs();
  if (tiles == 0) return;
  if (brings) bring<kDim>(keys, values, old, tiles, row);
  AttentionTile own = tile;
  if (!has_rows()) own.tokens = 0;
  const Rows<kDim> rows = load_rows<kDim>(a, own, kv_head);
  const bool more = tile.tokens * group_of(a) > kTileRows / 2;
  make_weights<kDim>(a, rows, more, span);
  const Span splits = seen_splits(a, tile);
  const bool alone = splits.end - splits.begin == 1;
  attend_panels<kDim>(a, tile, more, tiles, alone);
  if (alone) return;
  __syncthreads();  // the block's states are there
  const bool last = brings && comes_last(tile, splits, a.arrivals + int64_t(blockIdx.x) * a.kv.kv_heads + kv_head);
  const Item item{tile, int(blockIdx.x), kv_head, split};
  if (__syncthreads_or(last)) merge_splits<kDim>(a, item, splits, kThreads / kWarp);
#endif
}

template <int kDim>
void launch(const PagedAttention& a, unsigned splits, cudaStream_t stream) {
  const TensorMap keys = pool_map<kDim>(a, a.kv.keys), values = pool_map<kDim>(a, a.kv.values);
  const unsigned tiles = unsigned(a.tile_count), heads = unsigned(a.kv.kv_heads);
  constexpr int kBytes = kSharedBytes<kDim>;
  const auto kernel = &attend_few_kernel<kDim>;
  allow_shared_bytes(kernel, kBytes, "attention_wgmma");
  GPU_LAUNCH_EARLY(kernel, dim3(tiles, heads, splits), dim3(kThreads), kBytes, stream, keys, values, a);
  check_launch("attention_wgmma: few");
}

}  // namespace

bool attend_few_wgmma(const PagedAttention& a, cudaStream_t stream) {
  const int64_t splits = ceil_div(a.longest, kSplitPositions);
  if (a.prefix_count > 0 || a.tile_count * a.kv.kv_heads * splits > a.few_blocks) return false;
  by_dim(a.kv.dim, "paged_attention", [&](auto dim) { launch<decltype(dim)::value>(a, unsigned(splits), stream); });
  return true;
}

}  // namespace tandem::cuda
