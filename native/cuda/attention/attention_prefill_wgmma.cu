// Prefill attention on Hopper: a block has two groups of tiles, each of which fills the 64 rows of the products of four warps, and one more
// warp that brings keys and values for both. While one group weighs its scores, the other's products are computed; and of each group the sums
// of values and the next tile's scores are computed one right after the other.
#include "cuda/attention/attention_variants.h"
#include "cuda/attention/attention_wgmma.h"
#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"

namespace tandem::cuda {
namespace {

constexpr int kPrefillGroups = 2;
constexpr int kPrefillThreads = (kPrefillGroups + 1) * kGroupThreads;
constexpr int kPrefillStages = 6;

template <int kDim>
struct PrefillLayout {
  // Of what a row has summed up of the splits before, so many blocks of eight columns are in shared memory: registers are too few.
  static constexpr int kSaved = kDim > 96 ? kDim / 32 : 0;
  static constexpr int kSavedBytes = kSaved * kGroupThreads * int(sizeof(float4));  // of a group
  static constexpr int kSums = kPrefillStages * Stage<kDim>::kBytes;
  static constexpr int kBarriers = kSums + kPrefillGroups * kSavedBytes;
  static constexpr int kSharedBytes = kBarriers + (2 * kPrefillStages + kPrefillGroups) * int(sizeof(Barrier));
};

#if TANDEM_HOPPER_CODE

// The block begins with 168 for each thread, as many as three warp groups have room for.
constexpr int kGroupRegisters = 240, kBringerRegisters = 24;

// Of a block: `full` and `empty` of each stage, when its copies have come and when every warp of the groups is done with it; `cleared` of each
// group, when its threads have made zero of what nobody wrote.
struct Barriers {
  Barrier *full, *empty, *cleared;
};

__device__ __forceinline__ Barriers open_barriers(unsigned char* memory) {
  Barrier* first = reinterpret_cast<Barrier*>(memory);
  const Barriers barriers{first, first + kPrefillStages, first + 2 * kPrefillStages};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kPrefillStages; ++stage) {
      barrier_init(&barriers.full[stage], 1);
      barrier_init(&barriers.empty[stage], kPrefillGroups * kGroupTiles);
    }
    for (int group = 0; group < kPrefillGroups; ++group) barrier_init(&barriers.cleared[group], kGroupThreads);
    barrier_init_fence();
  }
  __syncthreads();  // the barriers are there for all
  return barriers;
}

using Turn = RingTurn<kPrefillStages>;

// The keys that a block walks over are those of its groups together, or one after the other where they are of several sequences.
struct Walks {
  const AttentionTile* tiles;
  Span first, second;  // of each group; an empty one where there is none
  bool together;
  int count;

  __device__ __forceinline__ bool has(int walk, int group) const { return together || walk == group; }
  __device__ __forceinline__ Span of_group(int group) const { return group == 0 ? first : second; }
  __device__ __forceinline__ int sequence(int walk) const { return tiles[walk * kGroupTiles].sequence; }
  __device__ __forceinline__ Span span(int walk) const {
    if (!together) return of_group(walk);
    return {min(first.begin, second.begin), max(first.end, second.end)};
  }
};

__device__ __forceinline__ Walks walks_of(const PagedAttention& a, int64_t pair) {
  const AttentionTile* tiles = a.tiles + pair * kPrefillGroups * kGroupTiles;
  const bool both = (pair * kPrefillGroups + 1) * kGroupTiles < a.tile_count;
  const bool together = both && tiles[0].sequence == tiles[kGroupTiles].sequence;
  const Span second = both ? group_span(a, tiles + kGroupTiles) : Span{0, 0};
  return {tiles, group_span(a, tiles), second, together, both && !together ? 2 : 1};
}

// By one warp: the tiles of a walk, one after the other.
template <int kDim>
__device__ __forceinline__ void bring_walk(const PagedAttention& a, const KeyRing& ring, Barrier* empty, Turn& turn) {
  constexpr int kAhead = kWarp * kPagePositions;
  const int lane = int(threadIdx.x) % kWarp;
  int rows = pool_row(a, ring, ring.span.begin + lane * kPagePositions);
  for (int first = ring.span.begin; first < ring.span.end; first += kAhead) {
    const int end = min(ring.span.end, first + kAhead), now = rows;
    rows = pool_row(a, ring, first + kAhead + lane * kPagePositions);  // read while these are brought
    for (int at = first; at < end; at += kTileKeys) {
      const int row = __shfl_sync(kAllLanes, now, (at - first) / kPagePositions + lane % kTilePages);
      barrier_wait(&empty[turn.stage], turn.parity ^ 1);
      bring_tile<kDim>(ring, turn.stage, row);
      turn = turn.next();
    }
  }
}

// What a group of tiles has of its block, and its warp of the group.
struct Own {
  float4* sums;  // of this thread, kGroupThreads apart
  int group;
  Span span;            // of the group
  int lowest, highest;  // positions of the warp's rows

  // Whether every row sees all of the 64 keys from `first` on.
  __device__ __forceinline__ bool sees_all(const PagedAttention& a, int first) const {
    return first + kTileKeys - 1 <= lowest && (a.window == 0 || highest - first < a.window);
  }
};

__device__ __forceinline__ void give_tile_back(const Barriers& barriers, const Turn& turn) {
  __syncwarp();
  if (threadIdx.x % kWarp == 0) barrier_arrive(&barriers.empty[turn.stage]);
}

// Tiles [at, end) that the group sees nothing of.
__device__ __forceinline__ void pass_tiles(const Barriers& barriers, int& at, int end, Turn& turn) {
  for (; at < end; at += kTileKeys) {
    barrier_wait(&barriers.full[turn.stage], turn.parity);
    give_tile_back(barriers, turn);
    turn = turn.next();
  }
}

// As clear_page_end of decode, by each group for itself: the other one writes the same zeros.
template <int kDim>
__device__ __forceinline__ void clear_values_of_group(Barrier* cleared, unsigned char* values, int keys) {
  constexpr int kChunks = kRowBytes / int(sizeof(uint4));
  for (int i = int(threadIdx.x) % kGroupThreads; i < (kTileKeys - keys) * kChunks; i += kGroupThreads) {
    GPU_UNROLL
    for (int panel = 0; panel < Stage<kDim>::kPanels; ++panel) {
      store_same(reinterpret_cast<uint4*>(values + panel * kPanelBytes + keys * kRowBytes) + i, uint4{0, 0, 0, 0});
    }
  }
  shared_writes_fence();
  barrier_arrive(cleared);
  barrier_wait(cleared, 0);  // a group comes here once at most: in the last tile of its walk
}

template <int kDim>
__device__ __forceinline__ void save_sums(const Own& own, const Softmax<kDim>& total) {
  GPU_UNROLL
  for (int i = 0; i < PrefillLayout<kDim>::kSaved; ++i) {
    const float* sums = total.values[i];
    own.sums[i * kGroupThreads] = float4{sums[0], sums[1], sums[2], sums[3]};
  }
}

template <int kDim>
__device__ __forceinline__ void find_sums(const Own& own, Softmax<kDim>& total) {
  GPU_UNROLL
  for (int i = 0; i < PrefillLayout<kDim>::kSaved; ++i) {
    const float4 sums = own.sums[i * kGroupThreads];
    total.values[i][0] = sums.x;
    total.values[i][1] = sums.y;
    total.values[i][2] = sums.z;
    total.values[i][3] = sums.w;
  }
}

// What a split's tiles have given goes to the total.
template <int kDim>
__device__ __forceinline__ void end_split(const Own& own, Softmax<kDim>& s, Softmax<kDim>& total) {
  find_sums<kDim>(own, total);
  total.merge(s);
  save_sums<kDim>(own, total);
  GPU_UNROLL
  for (int i = 0; i < kDim / 2; ++i) flat(s.values)[i] = 0;
}

// The products of a tile's queries and keys are under way when this returns.
template <int kDim>
__device__ __forceinline__ void begin_tile(const Rows<kDim>& rows, const KeyRing& ring, const Turn& turn,
                                           float (&scores)[kTileKeys / 8][4]) {
  GPU_UNROLL
  for (int i = 0; i < kTileKeys / 2; ++i) flat(scores)[i] = 0;
  begin_scores<kDim>(rows, ring.stages + turn.stage * Stage<kDim>::kBytes, scores);
}

// Tiles [at, own.span.end), in splits that are merged in order. While a tile's scores are weighed, the tile before is multiplied with its values.
template <int kDim>
__device__ __forceinline__ void attend_tiles(const PagedAttention& a, const Rows<kDim>& rows, const Own& own, const KeyRing& ring,
                                             const Barriers& barriers, int& at, Turn& turn, Softmax<kDim>& total) {
  using S = Stage<kDim>;
  if (at >= own.span.end) return;
  Softmax<kDim> s;
  Weights p = {};
  float scores[kTileKeys / 8][4];
  barrier_wait(&barriers.full[turn.stage], turn.parity);
  begin_tile<kDim>(rows, ring, turn, scores);
  wgmma_wait<0>(flat(scores));
  Turn before = turn;
  for (int first = at; at < own.span.end; at += kTileKeys) {
    if (!own.sees_all(a, at)) mask_scores<kDim>(a, rows, at, scores);
    const bool fresh = at % kSplitPositions == 0;
    Peaks peaks = s;
    if (fresh) peaks = Peaks();
    const float factor[2] = {weigh_scores(peaks, a.scale, scores, 0), weigh_scores(peaks, a.scale, scores, 1)};
    // All of this comes before the wait for the values, as this wait is a branch.
    settle(flat(scores));
    const bool more = at + kTileKeys < own.span.end;
    const Turn next = turn.next();
    if (more) barrier_wait(&barriers.full[next.stage], next.parity);
    wgmma_wait<0>(flat(s.values));
    keep_rows(p);
    keep_rows(rows.queries);
    if (at > first) give_tile_back(barriers, before);
    if (fresh && at > first) end_split<kDim>(own, s, total);
    static_cast<Peaks&>(s) = peaks;
    GPU_UNROLL
    for (int r = 0; r < 2; ++r) scale_values<kDim>(s, factor[r], r);
    pack_weights(scores, p, [](float low, float high) { return pack_rounded(low, high); });
    unsigned char* values = ring.stages + turn.stage * S::kBytes + S::kKeyBytes;
    if (ring.span.end < at + kTileKeys) clear_values_of_group<kDim>(&barriers.cleared[own.group], values, ring.span.end - at);
    before = turn;
    turn = next;
    settle(flat(s.values));
    settle(p);
    if (more) begin_tile<kDim>(rows, ring, turn, scores);
    begin_values<kDim>(s, p, values);
    wgmma_wait<1>(flat(scores));
  }
  wgmma_wait<0>(flat(s.values));
  keep_rows(p);
  give_tile_back(barriers, before);
  end_split<kDim>(own, s, total);
}

#endif

// Block (two groups of tiles, the last first, as they have most keys; kv head): every split in turn.
template <int kDim>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    attend_tiles_kernel(const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values, PagedAttention a) {
#if TANDEM_HOPPER_CODE
  wait_for_inputs();
  using L = PrefillLayout<kDim>;
  GPU_SHARED_BYTES(shared);
  const Barriers barriers = open_barriers(shared + L::kBarriers);
  const int kv_heads = int(a.kv.kv_heads), kv_head = int(blockIdx.x) % kv_heads;
  const Walks walks = walks_of(a, (gridDim.x - 1 - blockIdx.x) / kv_heads);
  const int warp = __shfl_sync(kAllLanes, int(threadIdx.x) / kWarp, 0), group = warp / kGroupTiles;
  Turn turn;
  if (group == kPrefillGroups) {
    give_registers<kBringerRegisters>();
    if (warp % kGroupTiles != 0) return;
    for (int walk = 0; walk < walks.count; ++walk) {
      bring_walk<kDim>(a, {shared, barriers.full, &keys, &values, walks.sequence(walk), kv_head, walks.span(walk), 0}, barriers.empty,
                       turn);
    }
    return;
  }
  take_registers<kGroupRegisters>();
  const bool there = group == 0 || walks.together || walks.count == 2;
  const AttentionTile tile = there ? walks.tiles[warp] : AttentionTile{0, 0, 0, 0};
  const Rows<kDim> rows = load_rows<kDim>(a, tile, kv_head);
  float4* sums = reinterpret_cast<float4*>(shared + L::kSums + group * L::kSavedBytes) + threadIdx.x % kGroupThreads;
  const Own own{sums, group, walks.of_group(group), tile.first_position, tile.first_position + tile.tokens - 1};
  Softmax<kDim> total;
  save_sums<kDim>(own, total);
  for (int walk = 0; walk < walks.count; ++walk) {
    const KeyRing ring{shared, barriers.full, &keys, &values, 0, kv_head, walks.span(walk), 0};
    int at = ring.span.begin;
    if (walks.has(walk, group)) {
      pass_tiles(barriers, at, min(own.span.begin, ring.span.end), turn);
      attend_tiles<kDim>(a, rows, own, ring, barriers, at, turn, total);
    }
    pass_tiles(barriers, at, ring.span.end, turn);
  }
  find_sums<kDim>(own, total);
  // Where the rows go is read again: no registers keep it meanwhile.
  write_rows<kDim>(a, load_rows<kDim>(a, there ? walks.tiles[warp] : AttentionTile{0, 0, 0, 0}, kv_head), total);
#endif
}

template <int kDim>
void launch_groups(const PagedAttention& a, cudaStream_t stream) {
  constexpr int kBytes = PrefillLayout<kDim>::kSharedBytes;
  const TensorMap keys = pool_map<kDim>(a, a.kv.keys), values = pool_map<kDim>(a, a.kv.values);
  allow_shared_bytes(&attend_tiles_kernel<kDim>, kBytes, "attention_wgmma");
  const int64_t blocks = ceil_div(a.tile_count, kPrefillGroups * kGroupTiles) * a.kv.kv_heads;
  check_argument(blocks < int64_t(1) << 31, "attention_wgmma", "tile_count");
  GPU_LAUNCH_EARLY(attend_tiles_kernel<kDim>, dim3(unsigned(blocks)), dim3(kPrefillThreads), kBytes, stream, keys, values, a);
  check_launch("attention_wgmma");
}

}  // namespace

void attend_groups_wgmma(const PagedAttention& a, cudaStream_t stream) {
  by_dim(a.kv.dim, "paged_attention", [&](auto dim) { launch_groups<decltype(dim)::value>(a, stream); });
}

}  // namespace tandem::cuda
