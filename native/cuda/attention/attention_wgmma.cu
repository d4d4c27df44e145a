// Attention on Hopper: pages come by TMA, four warps multiply them by wgmma, 16 query rows each. A warp's rows are those of a tile, as with
// mma.sync, so a group of tiles fills the 64 rows of a product (attention_prefill_wgmma.cu). Where a tile is alone with its split (decode,
// here), three warps have none: so a row's bits come from the same instructions everywhere. One of them brings the pages.
#include "cuda/attention/attention_wgmma.h"
#include "cuda/attention/attention_merge.h"
#include "cuda/attention/attention_variants.h"
#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"

namespace tandem::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kSplitPages = kSplitPositions / kPagePositions;
static_assert(kSplitPages <= kWarp, "each lane of the bringing warp knows one page");

// A slot has the keys or the values of a tile. As many as let three blocks share a multiprocessor.
template <int kDim>
struct Slots {
  static constexpr int kBytes = Stage<kDim>::kKeyBytes;
  static constexpr int kCount = (64 << 10) / kBytes;
  static constexpr int kSharedBytes = kCount * (kBytes + 2 * int(sizeof(Barrier)));
};

#if TANDEM_HOPPER_CODE

constexpr int kBringer = kWarps - 1;

// The keys and the values of a split's tiles by turns: number 2 i are the keys of tile i, 2 i + 1 its values. Number n takes slot
// n % kCount: full() says that it has come, empty() that all warps are done with it.
template <int kDim>
struct Line {
  const TensorMap *keys, *values;  // of the whole pool: rows are positions of pages
  int end;                         // of the positions
  int row;                         // of the pool: of the bringing warp, each lane's page of the span

  __device__ static unsigned char* slot(int number) {
    GPU_SHARED_BYTES(shared);
    return shared + number % Slots<kDim>::kCount * Slots<kDim>::kBytes;
  }
  __device__ static Barrier* full(int number) { return reinterpret_cast<Barrier*>(slots_end()) + number % Slots<kDim>::kCount; }
  __device__ static Barrier* empty(int number) { return full(number) + Slots<kDim>::kCount; }
  __device__ static int begin() { return int(blockIdx.z) * kSplitPositions; }
  __device__ int count() const { return 2 * ((end - begin() + kTileKeys - 1) / kTileKeys); }

 private:
  __device__ static unsigned char* slots_end() {
    GPU_SHARED_BYTES(shared);
    return shared + Slots<kDim>::kCount * Slots<kDim>::kBytes;
  }
};

__device__ __forceinline__ bool first_warp() { return threadIdx.x < kWarp; }
__device__ __forceinline__ int warp_number() { return int(threadIdx.x) / kWarp; }

// Before the kernel's inputs are there.
template <int kDim>
__device__ Line<kDim> empty_line(const TensorMap& keys, const TensorMap& values) {
  const Line<kDim> line{&keys, &values, 0, 0};
  if (threadIdx.x == kBringer * kWarp) {
    prefetch_map(&keys);
    prefetch_map(&values);
    for (int slot = 0; slot < Slots<kDim>::kCount; ++slot) {
      barrier_init(line.full(slot), 1);
      barrier_init(line.empty(slot), kWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();  // the barriers are there for all
  return line;
}

// By the bringing warp.
template <int kDim>
__device__ __forceinline__ void bring(const Line<kDim>& line, const TensorMap* map, int number) {
  using S = Slots<kDim>;
  const int lane = int(threadIdx.x) % kWarp;
  Barrier* full = line.full(number);
  if (lane == 0) barrier_expect(full, S::kBytes);
  __syncwarp();
  if (lane / kTilePages == number / 2) {
    unsigned char* to = line.slot(number) + lane % kTilePages * kPageBytes;
    GPU_UNROLL
    for (int panel = 0; panel < Stage<kDim>::kPanels; ++panel) bulk_load(to + panel * kPanelBytes, map, full, panel * kColumns, line.row);
  }
  __syncwarp();
}

// All that there is room for is on its way when this returns.
template <int kDim>
__device__ __forceinline__ void begin_line(const PagedAttention& a, Line<kDim>& line, int sequence, int kv_head, Span span) {
  line.end = span.end;
  if (warp_number() != kBringer) return;
  line.row = pool_row(a, sequence, kv_head, span.end, span.begin + int(threadIdx.x) % kWarp * kPagePositions);
  const int count = min(line.count(), Slots<kDim>::kCount);
  for (int number = 0; number < count; number += 2) {
    bring<kDim>(line, line.keys, number);
    bring<kDim>(line, line.values, number + 1);
  }
}

template <int kDim>
__device__ __forceinline__ unsigned char* take(const Line<kDim>& line, int number) {
  barrier_wait(line.full(number), number / Slots<kDim>::kCount & 1);
  return line.slot(number);
}

// By each warp, when what it has multiplied with it is there: the slot is for the number that comes kCount later.
template <int kDim>
__device__ __forceinline__ void give_back(const Line<kDim>& line, const TensorMap* map, int number) {
  using S = Slots<kDim>;
  if (number + S::kCount >= line.count()) return;
  Barrier* empty = line.empty(number);
  if (threadIdx.x % kWarp == 0) barrier_arrive(empty);
  if (warp_number() != kBringer) return;
  barrier_wait(empty, number / S::kCount & 1);
  bring<kDim>(line, map, number + S::kCount);
}

// Of a tile's values those from number `keys` on that share its page: nothing has been written there, it may be NaN, and zero times that is
// not zero. By the warps without rows, while the first one makes weights.
template <int kDim>
__device__ void clear_page_end(unsigned char* values, int keys) {
  constexpr int kChunks = kRowBytes / int(sizeof(uint4));
  const int behind = (keys + kPagePositions - 1) / kPagePositions * kPagePositions - keys;
  for (int i = int(threadIdx.x) - kWarp; i >= 0 && i < behind * kChunks; i += kThreads - kWarp) {
    GPU_UNROLL
    for (int panel = 0; panel < Stage<kDim>::kPanels; ++panel) {
      reinterpret_cast<uint4*>(values + panel * kPanelBytes + keys * kRowBytes)[i] = uint4{0, 0, 0, 0};
    }
  }
  shared_writes_fence();
  __syncthreads();  // all of it is zero
}

// What the first warp's rows make of the products with the keys from `first` on; the second half of the rows only where there are `more`.
// The positions that some do not see are the last of the line.
template <int kDim>
__device__ __forceinline__ void make_weights(const PagedAttention& a, const Rows<kDim>& rows, bool more, int first, int end,
                                             Softmax<kDim>& s, float (&scores)[kTileKeys / 8][4]) {
  const bool all_seen = a.window == 0 && first + kTileKeys <= end - kTileRows;
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) {
    if (r == 1 && !more) continue;
    if (!all_seen) mask_row<kDim>(a, rows, first, scores, r);
    weigh_row<kDim>(s, a.scale, scores, r);
  }
}

// The line's tiles, all of one split.
template <int kDim>
__device__ __forceinline__ Softmax<kDim> attend_line(const PagedAttention& a, const Rows<kDim>& rows, bool more, const Line<kDim>& line) {
  Softmax<kDim> s;
  for (int number = 0; number < line.count(); number += 2) {
    const int first = line.begin() + number / 2 * kTileKeys;
    float scores[kTileKeys / 8][4] = {};
    score_keys<kDim>(rows, take<kDim>(line, number), scores);
    give_back<kDim>(line, line.keys, number);
    if (first_warp()) make_weights<kDim>(a, rows, more, first, line.end, s, scores);
    unsigned char* values = take<kDim>(line, number + 1);
    if (line.end < first + kTileKeys) clear_page_end<kDim>(values, line.end - first);
    add_values<kDim>(s, scores, values);
    give_back<kDim>(line, line.values, number + 1);
  }
  return s;
}

#endif

// Block (tile, kv head, split); the tile's rows are the first warp's.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 3)
    attend_splits_kernel(const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values, PagedAttention a) {
#if TANDEM_HOPPER_CODE
  Line<kDim> line = empty_line<kDim>(keys, values);
  wait_for_inputs();
  const AttentionTile tile = a.tiles[blockIdx.x];
  const int kv_head = blockIdx.y, split = int(blockIdx.z);
  const Span span = own_span(a, tile, split);
  if (span.end <= span.begin) return;
  begin_line<kDim>(a, line, tile.sequence, kv_head, span);
  AttentionTile own = tile;
  if (!first_warp()) own.tokens = 0;
  const Rows<kDim> rows = load_rows<kDim>(a, own, kv_head);
  const bool more = tile.tokens * group_of(a) > kTileRows / 2;
  const Softmax<kDim> s = attend_line<kDim>(a, rows, more, line);
  finish_split<kDim>(a, kv_head, split, s);
#endif
}

// Block (prefix tile, kv head, split); the members' rows are the first warp's.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 3)
    attend_prefixes_kernel(const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values, PagedAttention a) {
#if TANDEM_HOPPER_CODE
  Line<kDim> line = empty_line<kDim>(keys, values);
  wait_for_inputs();
  const PrefixTile tile = a.prefixes[blockIdx.x];
  const int kv_head = blockIdx.y, split = int(blockIdx.z), begin = split * kSplitPositions, end = begin + kSplitPositions;
  if (split >= tile.splits) return;
  begin_line<kDim>(a, line, tile.sequence, kv_head, {begin, end});
  const Rows<kDim> rows = load_placed_rows<kDim>(a, kv_head, [&](int token) {
    if (!first_warp()) return Place{-1, -1};
    const PrefixMember member = member_of(a, tile, token);
    return Place{member.row, member.position};
  });
  const Softmax<kDim> s = attend_line<kDim>(a, rows, true, line);
  if (first_warp()) store_members<kDim>(a, tile, kv_head, split, s);
#endif
}

template <int kDim>
void launch(const PagedAttention& a, cudaStream_t stream) {
  constexpr int kBytes = Slots<kDim>::kSharedBytes;
  const TensorMap keys = pool_map<kDim>(a, a.kv.keys), values = pool_map<kDim>(a, a.kv.values);
  const unsigned heads = unsigned(a.kv.kv_heads), splits = unsigned(ceil_div(a.longest, kSplitPositions));
  if (a.prefix_count > 0) {
    allow_shared_bytes(&attend_prefixes_kernel<kDim>, kBytes, "attention_wgmma");
    const dim3 grid(unsigned(a.prefix_count), heads, splits);
    GPU_LAUNCH_EARLY(attend_prefixes_kernel<kDim>, grid, dim3(kThreads), kBytes, stream, keys, values, a);
    check_launch("attention_wgmma: prefixes");
  }
  allow_shared_bytes(&attend_splits_kernel<kDim>, kBytes, "attention_wgmma");
  const dim3 grid(unsigned(a.tile_count), heads, splits);
  GPU_LAUNCH_EARLY(attend_splits_kernel<kDim>, grid, dim3(kThreads), kBytes, stream, keys, values, a);
  check_launch("attention_wgmma: splits");
}

}  // namespace

void attention_wgmma(const PagedAttention& a, cudaStream_t stream) {
  // Rows of the pool, and those of the page behind it, are numbers of a bulk copy.
  const int64_t most_rows = (a.kv.pages + 1) * a.kv.kv_heads * kPagePositions;
  check_argument(a.kv.pages >= 1 && most_rows < int64_t(1) << 31, "attention_wgmma", "kv.pages");
  if (!a.splits_in_grid) return attend_groups_wgmma(a, stream);
  if (attend_few_wgmma(a, stream)) return;
  by_dim(a.kv.dim, "paged_attention", [&](auto dim) { launch<decltype(dim)::value>(a, stream); });
}

}  // namespace tandem::cuda
