// Attention of few tokens on Hopper, where nothing is short but time: in a step of one stream of a small model the kernel of many blocks
// (attention_wgmma.cu) took 11.6 us per layer, a third of the step. Here a split has a multiprocessor to itself. All of its keys and values
// lie in shared memory, most of them fetched while the kernels ahead still run; four groups of warps multiply a tile of keys each, all at
// once, and then up to two of them its values, 64 columns each. The instructions that make a row's bits, and their order, are those of
// attention_wgmma.h: largest scores are joined from tile to tile, then sums, then values.
//
// The splits of a tile leave their states in the device's memory, and the last one to come merges them.
#include "cuda/attention/attention_merge.h"
#include "cuda/attention/attention_rotate.h"
#include "cuda/attention/attention_variants.h"
#include "cuda/attention/attention_wgmma.h"
#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"

namespace tandem::cuda {
namespace {

constexpr int kTiles = kSplitPositions / kTileKeys;  // of a split, and groups of four warps
constexpr int kThreads = kTiles * kGroupThreads;
static_assert(kThreads / kWarp == kSplitPositions / kPagePositions, "each warp brings one page");
// As for so many threads a thread's registers are counted: the rest is for blocks of the product behind, which fetch their weights meanwhile.
constexpr int kCountedThreads = kThreads + 3 * kWarp;

// Of a tile and one of its rows.
struct alignas(16) Part {
  float largest, factor, sum, unused;
};

// Behind the tiles.
struct Shared {
  Barrier keys[kTiles], values[kTiles];
  Part parts[kTiles][kTileRows];
  uint4 weights[kTiles][kTileKeys / 16][kWarp];  // fragments by lane
};

static_assert(sizeof(Shared) % 16 == 0);

template <int kDim>
constexpr int kSharedBytes = kTiles* Stage<kDim>::kBytes + int(sizeof(Shared));

// What a kernel that finds its rows made has instead of what makes them.
struct Rotated {};

#if TANDEM_HOPPER_CODE

// The same for all lanes, as the compiler knows.
__device__ __forceinline__ int warp_number() { return __shfl_sync(kAllLanes, int(threadIdx.x / kWarp), 0); }
__device__ __forceinline__ int lane_number() { return int(threadIdx.x % kWarp); }
// Row r of this thread's two.
__device__ __forceinline__ int row_number(int r) { return lane_number() / 4 + 8 * r; }

// Where a warp is: a group's first one has the tile's rows, the others none.
struct Warp {
  int group;
  bool has_rows;
};

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

// A page of the split, by one lane of its warp; `row` is the pool's row of it.
template <int kDim>
__device__ __forceinline__ void bring(const TensorMap& keys, const TensorMap& values, uint32_t page, int row) {
  using S = Stage<kDim>;
  Shared& shared = shared_of<kDim>();
  const int tile = int(page / kTilePages), at = int(page % kTilePages) * kPageBytes;
  barrier_expect(&shared.keys[tile], S::kPanels * kPageBytes);
  barrier_expect(&shared.values[tile], S::kPanels * kPageBytes);
  GPU_UNROLL
  for (int panel = 0; panel < S::kPanels; ++panel) {
    bulk_load(keys_of<kDim>(tile) + at + panel * kPanelBytes, &keys, &shared.keys[tile], panel * kColumns, row);
  }
  GPU_UNROLL
  for (int panel = 0; panel < S::kPanels; ++panel) {
    bulk_load(values_of<kDim>(tile) + at + panel * kPanelBytes, &values, &shared.values[tile], panel * kColumns, row);
  }
}

// Of the split's last tile the values behind its positions that share their page: nothing has been written there, it may be NaN, and zero
// times that is not zero. By the first group's warps without rows.
template <int kDim>
__device__ __forceinline__ void clear_end(const Warp& warp, const Span& span) {
  constexpr int kChunks = kRowBytes / int(sizeof(uint4)), kOthers = kGroupThreads - kWarp;
  const int tile = (span.end - span.begin - 1) / kTileKeys, keys = span.end - span.begin - tile * kTileKeys;
  const int behind = (keys + kPagePositions - 1) / kPagePositions * kPagePositions - keys;
  if (behind == 0 || warp.has_rows || warp.group > 0) return;
  barrier_wait(&shared_of<kDim>().values[tile], 0);
  GPU_NO_UNROLL
  for (int i = int(threadIdx.x) - kWarp; i < behind * kChunks; i += kOthers) {
    GPU_UNROLL
    for (int panel = 0; panel < Stage<kDim>::kPanels; ++panel) {
      reinterpret_cast<uint4*>(values_of<kDim>(tile) + panel * kPanelBytes + keys * kRowBytes)[i] = uint4{0, 0, 0, 0};
    }
  }
  shared_writes_fence();
}

// Of a row, before tile number `end`.
__device__ __forceinline__ float largest_before(const Shared& shared, int end, int row) {
  float largest = -INFINITY;
  GPU_UNROLL
  for (int tile = 0; tile < kTiles - 1; ++tile) {
    if (tile < end) largest = fmaxf(largest, shared.parts[tile][row].largest);
  }
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
__device__ __forceinline__ void make_weights(const PagedAttention& a, const Rows<kDim>& rows, const Warp& warp, bool more,
                                             const Span& span) {
  Shared& shared = shared_of<kDim>();
  const int tile = warp.group, first = span.begin + tile * kTileKeys;
  const bool there = first < span.end;
  const bool writes = int(threadIdx.x % 4) == 0;
  float scores[kTileKeys / 8][4] = {};
  float largest[2];
  if (there) {
    barrier_wait(&shared.keys[tile], 0);
    score_keys<kDim>(rows, keys_of<kDim>(tile), scores);
    if (warp.has_rows) {
      each_row(more, [&](int r) {
        mask_row<kDim>(a, rows, first, scores, r);
        largest[r] = largest_score(a.scale, scores, r);
        if (writes) shared.parts[tile][row_number(r)].largest = largest[r];
      });
    }
  }
  __syncthreads();  // the largest scores of all tiles are there
  if (there && warp.has_rows) {
    Peaks peaks;
    each_row(more, [&](int r) {
      Part& part = shared.parts[tile][row_number(r)];
      peaks.largest[r] = largest_before(shared, tile, row_number(r));
      const float factor = weigh_below(peaks, largest[r], a.scale, scores, r);
      if (writes) part.factor = factor, part.sum = peaks.sum[r];
    });
    Weights p;
    pack_weights(scores, p, [](float low, float high) { return pack_rounded(low, high); });
    GPU_UNROLL
    for (int k = 0; k < kTileKeys / 16; ++k) shared.weights[tile][k][lane_number()] = uint4{p[k][0], p[k][1], p[k][2], p[k][3]};
  }
  clear_end<kDim>(warp, span);
  __syncthreads();  // all weights are there
}

// Columns of a panel of the values, of the group's rows.
template <int kDim, int kCount>
__device__ __forceinline__ void add_panel(const Warp& warp, bool more, int tiles, float (&values)[kCount / 8][4]) {
  Shared& shared = shared_of<kDim>();
  Weights p = {};
  GPU_NO_UNROLL
  for (int tile = 0; tile < tiles; ++tile) {
    if (warp.has_rows) {
      GPU_UNROLL
      for (int k = 0; k < kTileKeys / 16; ++k) {
        const uint4 four = shared.weights[tile][k][lane_number()];
        p[k][0] = four.x, p[k][1] = four.y, p[k][2] = four.z, p[k][3] = four.w;
      }
      each_row(more, [&](int r) {
        const float factor = shared.parts[tile][row_number(r)].factor;
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
      wgmma_rows<kCount, true>(flat(values), p[k], across_descriptor(values_of<kDim>(tile) + warp.group * kPanelBytes, k, kPanelBytes));
    }
    wgmma_commit();
    wgmma_wait<0>(flat(values));
    keep_rows(p);
  }
}

// The state of a row after all tiles: its largest score and its sum.
__device__ __forceinline__ float2 state_after(const Shared& shared, int row, int tiles) {
  float2 state{-INFINITY, 0};
  GPU_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    if (tile >= tiles) continue;
    const Part part = shared.parts[tile][row];
    state.x = fmaxf(state.x, part.largest);
    state.y = fmaf(state.y, part.factor, part.sum);
  }
  return state;
}

// What write_row() and store_state() do, of the columns of the group's panel: where the rows have no other split the result, else their state.
template <int kDim, int kCount>
__device__ __forceinline__ void leave_panel(const PagedAttention& a, const AttentionTile& tile, const Warp& warp, int row, bool alone,
                                            const float2& state, const float (&values)[kCount / 8][4]) {
  const int kv_head = blockIdx.y, own = int(threadIdx.x % 4) * 2, column = warp.group * kColumns + own;
  const bool first = column == 0;
  if (alone) {
    const int64_t place = place_of(a, tile, kv_head, row);
    bf16* out = a.out + place * kDim + column;
    if (first && a.log_sums != nullptr) a.log_sums[place] = log_sum(state.x, state.y);
    const float share = 1.0f / state.y;
    GPU_UNROLL
    for (int i = 0; i < kCount / 8; ++i) {
      *reinterpret_cast<uint32_t*>(out + i * 8) = pack_rounded(fmaf(values[i][0], share, 0.0f), fmaf(values[i][1], share, 0.0f));
    }
    return;
  }
  float* left = state_of<kDim>(a, blockIdx.x, kv_head, blockIdx.z, row);
  GPU_UNROLL
  for (int i = 0; i < kCount / 8; ++i) *reinterpret_cast<float2*>(left + column + i * 8) = float2{values[i][0], values[i][1]};
  if (first) *reinterpret_cast<float2*>(left + kDim) = state;
}

template <int kDim, int kCount>
__device__ __forceinline__ void attend_panel(const PagedAttention& a, const AttentionTile& tile, const Warp& warp, bool more, int tiles,
                                             bool alone) {
  float values[kCount / 8][4] = {};
  add_panel<kDim, kCount>(warp, more, tiles, values);
  if (!warp.has_rows) return;
  const int count = tile.tokens * group_of(a);
  // One code for both rows: the second one's values take the first one's places.
  GPU_NO_UNROLL
  for (int row = row_number(0);; row += kTileRows / 2) {
    if (row < count) leave_panel<kDim, kCount>(a, tile, warp, row, alone, state_after(shared_of<kDim>(), row, tiles), values);
    if (!more || row >= kTileRows / 2) return;
    GPU_UNROLL
    for (int i = 0; i < kCount / 8; ++i) values[i][0] = values[i][2], values[i][1] = values[i][3];
  }
}

// By the groups that have one. Code is fetched by each step anew, so those that are alike have the same.
template <int kDim>
__device__ __forceinline__ void attend_panels(const PagedAttention& a, const AttentionTile& tile, const Warp& warp, bool more, int tiles,
                                              bool alone) {
  constexpr int kWhole = kDim / kColumns, kRest = kDim % kColumns;
  if constexpr (kWhole > 0) {
    if (warp.group < kWhole) attend_panel<kDim, kColumns>(a, tile, warp, more, tiles, alone);
  }
  if constexpr (kRest > 0) {
    if (warp.group == kWhole) attend_panel<kDim, kRest>(a, tile, warp, more, tiles, alone);
  }
}

// The tile's rows, made when the kernel's inputs are there, and their key and value in their places.
template <int kDim>
__device__ __forceinline__ Rows<kDim> make_rows(const PagedAttention& a, const RopeStore& rope, const AttentionTile& tile, int kv_head,
                                                const Span& span, int tiles, const Warp& warp) {
  Shared& shared = shared_of<kDim>();
  bf16* queries = reinterpret_cast<bf16*>(&shared + 1);
  const int at = tile.first_position - span.begin, of_token = at / kTileKeys;
  const bool holds = tiles > 0 && tile.first_position >= span.begin && tile.first_position < span.end;
  const OwnHead<kDim> own(a, rope, tile, kv_head, holds);
  wait_for_inputs();
  const int place = holds ? of_token : 0;
  make_own_head<kDim>(rope, own, queries, keys_of<kDim>(place), values_of<kDim>(place), at % kTileKeys,
                      [&](bool of_key) { barrier_wait(of_key ? &shared.keys[place] : &shared.values[place], 0); });
  __syncthreads();  // the rows are there, and their key and value
  return own_rows<kDim>(a, tile, queries, warp.has_rows);
}

template <int kDim>
__device__ __forceinline__ void open_barriers(const TensorMap& keys, const TensorMap& values) {
  if (threadIdx.x < kTiles) {
    Shared& shared = shared_of<kDim>();
    barrier_init(&shared.keys[threadIdx.x], kTilePages);
    barrier_init(&shared.values[threadIdx.x], kTilePages);
    barrier_init_fence();
  }
  if (threadIdx.x == kWarp) {
    prefetch_map(&keys);
    prefetch_map(&values);
  }
  __syncthreads();  // the barriers are there for all
}

#endif

// Block (tile, kv head, split). Rope: RopeStore, and the block makes its rows (attention_rotate.h); or Rotated.
template <int kDim, class Rope>
__global__ void __launch_bounds__(kCountedThreads, 1)
    attend_few_kernel(const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values, PagedAttention a,
                      const __grid_constant__ Rope rope) {
#if TANDEM_HOPPER_CODE
  constexpr bool kRotates = std::is_same_v<Rope, RopeStore>;
  let_next_begin();
  const int kv_head = blockIdx.y, split = int(blockIdx.z);
  const AttentionTile tile = load_tile(a.tiles + blockIdx.x);  // on its way while barriers are opened
  open_barriers<kDim>(keys, values);
  const Span span = own_span(a, tile, split);
  const int tiles = max(0, span.end - span.begin + kTileKeys - 1) / kTileKeys;
  const uint32_t page = uint32_t(warp_number());
  const Warp warp{int(page / kTilePages), page % kTilePages == 0};
  const int row = pool_row(a, tile.sequence, kv_head, span.end, span.begin + int(page) * kPagePositions);
  // Pages that no kernel writes which may still run. What is new in them a block that rotates knows by itself.
  const bool old = a.stored_is_old && (kRotates || span.begin + int(page + 1) * kPagePositions <= tile.stored);
  if (!old) wait_for_inputs();
  if (warp.group < tiles && lane_number() == 0) bring<kDim>(keys, values, page, row);
  Rows<kDim> rows;
  if constexpr (kRotates) {
    rows = make_rows<kDim>(a, rope, tile, kv_head, span, tiles, warp);
    if (tiles == 0) return;
  } else {
    wait_for_inputs();
    if (tiles == 0) return;
    AttentionTile own = tile;
    if (!warp.has_rows) own.tokens = 0;
    rows = load_rows<kDim>(a, own, kv_head);
  }
  const bool more = tile.tokens * group_of(a) > kTileRows / 2;
  make_weights<kDim>(a, rows, warp, more, span);
  const Span splits = seen_splits(a, tile);
  const bool alone = splits.end - splits.begin == 1;
  attend_panels<kDim>(a, tile, warp, more, tiles, alone);
  if (alone) return;
  __syncthreads();  // the block's states are there
  const bool last = page == 0 && comes_last(tile, splits, a.arrivals + int64_t(blockIdx.x) * a.kv.kv_heads + kv_head);
  if (__syncthreads_or(last) == 0 || int(page) >= tile.tokens * group_of(a)) return;
  merge_row<kDim, 8>(a, {tile, int(blockIdx.x), kv_head, split}, splits, int(page));
#endif
}

template <int kDim, class Rope>
void launch(const PagedAttention& a, unsigned splits, const Rope& rope, cudaStream_t stream) {
  const TensorMap keys = pool_map<kDim>(a, a.kv.keys), values = pool_map<kDim>(a, a.kv.values);
  const unsigned tiles = unsigned(a.tile_count), heads = unsigned(a.kv.kv_heads);
  constexpr int kBytes = kSharedBytes<kDim> + (std::is_same_v<Rope, RopeStore> ? kQueryBytes<kDim> : 0);
  const auto kernel = &attend_few_kernel<kDim, Rope>;
  allow_shared_bytes(kernel, kBytes, "attention_wgmma");
  GPU_LAUNCH_EARLY(kernel, dim3(tiles, heads, splits), dim3(kThreads), kBytes, stream, keys, values, a, rope);
  check_launch("attention_wgmma: few");
}

bool attends_few(const PagedAttention& a) {
  return a.prefix_count == 0 && a.tile_count * a.kv.kv_heads * ceil_div(a.longest, kSplitPositions) <= a.few_blocks;
}

}  // namespace

bool attend_few_wgmma(const PagedAttention& a, cudaStream_t stream) {
  if (!attends_few(a)) return false;
  const unsigned splits = unsigned(ceil_div(a.longest, kSplitPositions));
  by_dim(a.kv.dim, "paged_attention", [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    if (a.rope != nullptr) launch<kDim>(a, splits, *a.rope, stream);
    else launch<kDim>(a, splits, Rotated{}, stream);
  });
  return true;
}

bool attention_rotates(const PagedAttention& a) {
  const bool one_token = a.splits_in_grid && a.tile_rows * a.kv.kv_heads == a.heads;
  if (a.rope == nullptr || a.kernel != AttentionKernel::kWgmma || !one_token || !attends_few(a) || a.log_sums != nullptr) return false;
  const RopeStore& r = *a.rope;
  const bool same_pool = r.kv.keys == a.kv.keys && r.kv.values == a.kv.values && r.kv.pages == a.kv.pages && r.kv.kv_heads == a.kv.kv_heads;
  const int64_t width = (r.heads + 2 * r.kv.kv_heads) * r.dim;
  const bool parts = r.parts.count == 0 || (r.parts.rows == r.rows && r.parts.columns == width);
  if (!same_pool || !parts || r.ld < width || r.rows < 1 || (r.q_norm == nullptr) != (r.k_norm == nullptr)) return false;
  return r.qk == nullptr && r.dim == a.kv.dim && r.heads == a.heads && rope_in_fours(r);
}

}  // namespace tandem::cuda
