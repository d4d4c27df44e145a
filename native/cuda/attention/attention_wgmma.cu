// Attention on Hopper: pages come by TMA, four warps multiply them by wgmma, 16 query rows each. A warp's rows are those of a tile, as with
// mma.sync, so a group of tiles fills the 64 rows of a product (attention_prefill_wgmma.cu). Where a tile is alone with its split (decode,
// here), three warps have none: so a row's bits come from the same instructions everywhere.
//
// As many teams as the device has room for take items (a split of a tile and a head) until there are no more. While four warps multiply,
// store and merge an item's states, a fifth one brings the pages of those that come next, so memory always has something to do; and nothing
// is empty but what a window hides. How many items there are the device's memory says alone: launches are recorded for any lengths.
//
// Teams have nothing of each other's. With heads larger than 64 three of them are a block, whose warps that bring pages give those that
// multiply their registers: as blocks of their own there is room for two, which between them do not keep an H200's memory busy.
#include "cuda/attention/attention_wgmma.h"

#include <algorithm>

#include "cuda/attention/attention_merge.h"
#include "cuda/attention/attention_variants.h"
#include "cuda/common/device_info.h"
#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"

namespace tandem::cuda {
namespace {

constexpr int kWarps = 4;  // of a team that multiply
constexpr int kSplitPages = kSplitPositions / kPagePositions;
static_assert(kSplitPages <= kWarp, "each lane of the bringing warp knows one page");
constexpr int kItems = 4;  // of which the four warps may not know yet that the fifth brings them

// How many teams of a block share a multiprocessor, or how many blocks of one team, as registers let; they have most of its shared memory. A
// slot has the keys or the values of a tile.
template <int kHeadDim, int kBlockTeams>
struct Plan {
  static constexpr int kDim = kHeadDim, kTeams = kBlockTeams;
  static constexpr bool kTradesRegisters = kTeams > 1;
  static constexpr int kMultiplying = kTeams * kGroupThreads, kThreads = kMultiplying + (kTradesRegisters ? kGroupThreads : kWarp);
  static constexpr int kBlocks = kTeams > 1 ? 1 : kDim > 64 ? 2 : 3;
  static constexpr int kBytes = Stage<kDim>::kKeyBytes;
  static constexpr int kCount = (192 << 10) / (kBlocks * kTeams) / kBytes;
};
static_assert(kWarps * kWarp == kGroupThreads);

template <int kDim>
using SplitsPlan = Plan<kDim, (kDim > 64 ? 3 : 1)>;
template <int kDim>
using PrefixPlan = Plan<kDim, 1>;

// What a team's warps tell each other. All of these lie behind all slots.
template <class P>
struct alignas(16) Control {
  Barrier full[P::kCount], empty[P::kCount];  // of each slot: it has come, and all four warps are done with it
  Barrier given[kItems], taken[kItems];       // of each item alike
  Barrier met;                                // the four warps
  Item items[kItems];                         // place -1: there are no more
  int32_t votes[2];                           // of meetings by turns
};

template <class P>
constexpr int kSharedBytes = P::kTeams*(P::kCount* P::kBytes + int(sizeof(Control<P>)));

#if TANDEM_HOPPER_CODE

// Where warps trade registers: those that bring pages, and those that multiply.
constexpr int kBringingRegisters = 32, kMultiplyingRegisters = 160;

template <class P>
using Turn = RingTurn<P::kCount>;
using ItemTurn = RingTurn<kItems>;

// A warp's team: its number in the block, its slots and its control.
template <class P>
struct Team {
  int number;
  unsigned char* slots;
  Control<P>& control;

  __device__ __forceinline__ unsigned char* slot(const Turn<P>& turn) const { return slots + turn.stage * P::kBytes; }
};

template <class P>
__device__ __forceinline__ Team<P> team_of(int number) {
  GPU_SHARED_BYTES(shared);
  constexpr int kSlots = P::kCount * P::kBytes;
  return {number, shared + number * kSlots, reinterpret_cast<Control<P>*>(shared + P::kTeams * kSlots)[number]};
}

// The first of a team's warps that multiply.
__device__ __forceinline__ bool first_warp() { return threadIdx.x % kGroupThreads < kWarp; }
__device__ __forceinline__ int lane_number() { return int(threadIdx.x) % kWarp; }
// The same for all lanes, as the compiler knows.
__device__ __forceinline__ int warp_number() { return __shfl_sync(kAllLanes, int(threadIdx.x) / kWarp, 0); }

// Before the kernel's inputs are there.
template <class P>
__device__ __forceinline__ void open_barriers(const TensorMap* keys, const TensorMap* values) {
  const int warp = int(threadIdx.x / kWarp) - P::kMultiplying / kWarp;
  if (warp >= 0 && warp < P::kTeams && threadIdx.x % kWarp == 0) {
    prefetch_map(keys);
    prefetch_map(values);
    Control<P>& c = team_of<P>(warp).control;
    for (int i = 0; i < P::kCount; ++i) barrier_init(&c.full[i], 1), barrier_init(&c.empty[i], kWarps);
    for (int i = 0; i < kItems; ++i) barrier_init(&c.given[i], 1), barrier_init(&c.taken[i], kWarps);
    barrier_init(&c.met, kWarps);
    barrier_init_fence();
  }
  __syncthreads();  // the barriers are there for all
}

// What the bringing warp knows of a launch's items: kv head by kv head of each split of each tile.
struct List {
  int first;         // items_before of the first tile
  int count;         // of the items
  int stride, mark;  // of every stride-th tile one lane has how many splits are before it
};

// From tile `first` on, of `count`; a lane without one has more than there can be.
__device__ __forceinline__ int mark_of(const PagedAttention& a, int before, int first, int count, int stride) {
  const int own = lane_number() * stride;
  return own < count ? __ldcg(&a.tiles[first + own].items_before) - before : 1 << 30;
}

__device__ __forceinline__ List list_of(const PagedAttention& a) {
  const int tiles = int(a.tile_count), stride = (tiles + kWarp - 1) / kWarp;
  const int first = __ldcg(&a.tiles->items_before);
  const AttentionTile last = load_tile(a.tiles + tiles - 1);
  const int count = (last.items_before - first + splits_of(last)) * int(a.kv.kv_heads);
  return {first, count, stride, mark_of(a, first, 0, tiles, stride)};
}

// By the whole warp, which cuts what is left of the tiles in 32: the last one that has no more than `splits` before it. It is not an empty
// tile, as behind such a one the next has as many before it.
__device__ __forceinline__ int tile_of(const PagedAttention& a, const List& list, int splits) {
  int first = 0, stride = list.stride, mark = list.mark;
  for (;;) {
    const int marks = __popc(__ballot_sync(kAllLanes, mark <= splits));
    first += (marks - 1) * stride;
    if (stride == 1) return first;
    const int count = min(stride, int(a.tile_count) - first);
    stride = (count + kWarp - 1) / kWarp;
    mark = mark_of(a, list.first, first, count, stride);
  }
}

struct Found {
  Item item;
  Span span;
  int row;  // of the pool: each lane's page of the span
};

// By the whole warp. It reads nothing but the step's inputs (common/early_launch.h).
__device__ __forceinline__ Found find_item(const PagedAttention& a, const List& list, int number) {
  if (number >= list.count) return {{{}, -1, 0, 0}, {0, 0}, 0};
  const int heads = int(a.kv.kv_heads), before = number / heads, kv_head = number % heads, place = tile_of(a, list, before);
  const AttentionTile tile = load_tile(a.tiles + place);
  const int split = tile.shared_splits + before - (tile.items_before - list.first);
  const Span span = own_span(a, tile, split);
  const int row = pool_row(a, tile.sequence, kv_head, span.end, span.begin + lane_number() * kPagePositions);
  return {{tile, place, kv_head, split}, span, row};
}

// By the bringing warp: keys or values to the next slot; the row of a lane's page, where it is one of the tile's.
template <class P>
__device__ __forceinline__ void bring(const Team<P>& team, const TensorMap* map, Turn<P>& turn, bool own, int row) {
  Barrier* full = &team.control.full[turn.stage];
  barrier_wait(&team.control.empty[turn.stage], turn.parity ^ 1);
  if (lane_number() == 0) barrier_expect(full, P::kBytes);
  __syncwarp();
  if (own) {
    unsigned char* to = team.slot(turn) + lane_number() % kTilePages * kPageBytes;
    GPU_UNROLL
    for (int panel = 0; panel < Stage<P::kDim>::kPanels; ++panel) bulk_load(to + panel * kPanelBytes, map, full, panel * kColumns, row);
  }
  turn = turn.next();
}

// The tiles of a span from position `first` on, as far as those that lie before `end`.
template <class P>
__device__ __forceinline__ void bring_span(const Team<P>& team, const TensorMap* keys, const TensorMap* values, const Span& span, int first,
                                           int end, int row, Turn<P>& turn) {
  GPU_NO_UNROLL
  for (int at = first; at < end; at += kTileKeys) {
    const bool own = lane_number() / kTilePages == (at - span.begin) / kTileKeys;
    bring(team, keys, turn, own, row);
    bring(team, values, turn, own, row);
  }
}

template <class P>
__device__ __forceinline__ void give_item(const Team<P>& team, const Item& item, ItemTurn& turn) {
  Control<P>& c = team.control;
  barrier_wait(&c.taken[turn.stage], turn.parity ^ 1);
  if (lane_number() == 0) {
    c.items[turn.stage] = item;
    barrier_arrive(&c.given[turn.stage]);
  }
  turn = turn.next();
}

// Where the tiles of an item end that were stored before the step, as many as the slots hold.
template <class P>
__device__ __forceinline__ int old_end(const Found& found) {
  const int stored = min(found.item.tile.stored, found.span.end) - found.span.begin;
  return found.span.begin + min(max(stored, 0) / kTileKeys, P::kCount / 2) * kTileKeys;
}

// By the bringing warp. A team begins with the item of its own number, which it finds before the kernel's inputs are there, and asks for
// another one whenever it has begun to bring one: teams that begin late or have long ones take fewer. So there are as many claims as items,
// and who makes the last one leaves zero for the next launch.
template <class P>
__device__ __forceinline__ void bring_items(const Team<P>& team, const PagedAttention& a, const TensorMap* keys, const TensorMap* values) {
  const List list = list_of(a);
  int number = team.number * int(gridDim.x) + int(blockIdx.x);  // few items have a multiprocessor each
  Found found = find_item(a, list, number);
  Turn<P> turn;
  // Of the first item what no kernel writes that may still run, as far as there is room.
  int brought = a.stored_is_old ? old_end<P>(found) : found.span.begin;
  bring_span(team, keys, values, found.span, found.span.begin, brought, found.row, turn);
  wait_for_inputs();
  int32_t* claims = a.arrivals + a.tile_count * a.kv.kv_heads;
  ItemTurn item_turn;
  while (number < list.count) {
    int claim = 0;
    if (lane_number() == 0) claim = atomicAdd(claims, 1);  // it is known when these pages are on their way
    if (found.span.begin < found.span.end) {
      give_item(team, found.item, item_turn);
      bring_span(team, keys, values, found.span, brought, found.span.end, found.row, turn);
    }
    if (lane_number() == 0 && claim == list.count - 1) *claims = 0;
    number = P::kTeams * int(gridDim.x) + __shfl_sync(kAllLanes, claim, 0);
    found = find_item(a, list, number);
    brought = found.span.begin;
  }
  give_item(team, found.item, item_turn);
}

// Where a warp that multiplies is.
template <class P>
struct Progress {
  Team<P> team;
  Turn<P> turn = {};
  ItemTurn item_turn = {};
  int meeting = 0;  // of two

  __device__ __forceinline__ unsigned char* take() const {
    barrier_wait(&team.control.full[turn.stage], turn.parity);
    return team.slot(turn);
  }
  // When what the warp has multiplied with it is there.
  __device__ __forceinline__ void give_back() {
    if (lane_number() == 0) barrier_arrive(&team.control.empty[turn.stage]);
    turn = turn.next();
  }
  __device__ __forceinline__ const Item& take_item() const {
    barrier_wait(&team.control.given[item_turn.stage], item_turn.parity);
    return team.control.items[item_turn.stage];
  }
  __device__ __forceinline__ void give_item_back() {
    __syncwarp();
    if (lane_number() == 0) barrier_arrive(&team.control.taken[item_turn.stage]);
    item_turn = item_turn.next();
  }
  // All four warps, and whether the first of their threads votes for it. All have read a vote before they meet again, so before the one after that.
  __device__ __forceinline__ bool meet(bool vote) {
    Control<P>& c = team.control;
    if (threadIdx.x % kGroupThreads == 0) c.votes[meeting] = vote;
    __syncwarp();
    if (lane_number() == 0) barrier_arrive(&c.met);
    barrier_wait(&c.met, meeting);
    const bool voted = c.votes[meeting] != 0;
    meeting ^= 1;
    return voted;
  }
};

// Of a tile's values those from number `keys` on that share its page: nothing has been written there, it may be NaN, and zero times that is
// not zero. By the warps without rows, while the first one makes weights.
template <class P>
__device__ void clear_page_end(unsigned char* values, int keys, Progress<P>& progress) {
  constexpr int kChunks = kRowBytes / int(sizeof(uint4));
  const int behind = (keys + kPagePositions - 1) / kPagePositions * kPagePositions - keys;
  for (int i = int(threadIdx.x % kGroupThreads) - kWarp; i >= 0 && i < behind * kChunks; i += (kWarps - 1) * kWarp) {
    GPU_UNROLL
    for (int panel = 0; panel < Stage<P::kDim>::kPanels; ++panel) {
      reinterpret_cast<uint4*>(values + panel * kPanelBytes + keys * kRowBytes)[i] = uint4{0, 0, 0, 0};
    }
  }
  shared_writes_fence();
  progress.meet(false);  // all of it is zero
}

// What the first warp's rows make of the products with the keys from `first` on; the second half of the rows only where there are `more`.
// The positions that some do not see are the last of the sequence.
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

// The tiles of a span, all of one split.
template <class P, int kDim>
__device__ __forceinline__ Softmax<kDim> attend_span(const PagedAttention& a, const Rows<kDim>& rows, bool more, const Span& span,
                                                     Progress<P>& progress) {
  Softmax<kDim> s;
  for (int first = span.begin; first < span.end; first += kTileKeys) {
    float scores[kTileKeys / 8][4] = {};
    score_keys<kDim>(rows, progress.take(), scores);
    progress.give_back();
    if (first_warp()) make_weights<kDim>(a, rows, more, first, span.end, s, scores);
    unsigned char* values = progress.take();
    if (span.end < first + kTileKeys) clear_page_end(values, span.end - first, progress);
    add_values<kDim>(s, scores, values);
    progress.give_back();
  }
  return s;
}

#endif

// The tile's rows are the first warp's of the team.
template <int kDim>
__global__ void __launch_bounds__(SplitsPlan<kDim>::kThreads, SplitsPlan<kDim>::kBlocks)
    attend_splits_kernel(const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values, PagedAttention a) {
#if TANDEM_HOPPER_CODE
  using P = SplitsPlan<kDim>;
  open_barriers<P>(&keys, &values);
  const int warp = warp_number(), bringer = warp - P::kMultiplying / kWarp;
  if (bringer >= 0) {
    if constexpr (P::kTradesRegisters) give_registers<kBringingRegisters>();
    if (bringer < P::kTeams) bring_items(team_of<P>(bringer), a, &keys, &values);
    return;
  }
  if constexpr (P::kTradesRegisters) take_registers<kMultiplyingRegisters>();
  wait_for_inputs();
  Progress<P> progress{team_of<P>(warp / kWarps)};
  for (;;) {
    const Item& item = progress.take_item();
    if (item.place < 0) return;
    AttentionTile own = item.tile;
    if (!first_warp()) own.tokens = 0;
    const Rows<kDim> rows = load_rows<kDim>(a, own, item.kv_head);
    const bool more = item.tile.tokens * group_of(a) > kTileRows / 2;
    const Softmax<kDim> s = attend_span(a, rows, more, own_span(a, item.tile, item.split), progress);
    finish_split<kDim>(a, item, s, kWarps, [&](bool last) { return progress.meet(last); });
    progress.give_item_back();
  }
#endif
}

// Block (prefix tile, kv head, split); the members' rows are the first warp's.
template <int kDim>
__global__ void __launch_bounds__(PrefixPlan<kDim>::kThreads, PrefixPlan<kDim>::kBlocks)
    attend_prefixes_kernel(const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values, PagedAttention a) {
#if TANDEM_HOPPER_CODE
  using P = PrefixPlan<kDim>;
  open_barriers<P>(&keys, &values);
  wait_for_inputs();
  const PrefixTile tile = a.prefixes[blockIdx.x];
  const int kv_head = blockIdx.y, split = int(blockIdx.z);
  const Span span{split * kSplitPositions, (split + 1) * kSplitPositions};
  if (split >= tile.splits) return;
  const Team<P> team = team_of<P>(0);
  if (warp_number() == kWarps) {
    const int row = pool_row(a, tile.sequence, kv_head, span.end, span.begin + lane_number() * kPagePositions);
    Turn<P> turn;
    return bring_span(team, &keys, &values, span, span.begin, span.end, row, turn);
  }
  const Rows<kDim> rows = load_placed_rows<kDim>(a, kv_head, [&](int token) {
    if (!first_warp()) return TokenPlace{-1, -1};
    const PrefixMember member = member_of(a, tile, token);
    return TokenPlace{member.row, member.position};
  });
  Progress<P> progress{team};
  const Softmax<kDim> s = attend_span(a, rows, true, span, progress);
  if (first_warp()) store_members<kDim>(a, tile, kv_head, split, s);
#endif
}

template <int kDim>
void launch_prefixes(const PagedAttention& a, const TensorMap& keys, const TensorMap& values, cudaStream_t stream) {
  using P = PrefixPlan<kDim>;
  constexpr int kBytes = kSharedBytes<P>;
  allow_shared_bytes(&attend_prefixes_kernel<kDim>, kBytes, "attention_wgmma");
  const dim3 grid(unsigned(a.prefix_count), unsigned(a.kv.kv_heads), unsigned(ceil_div(a.longest, kSplitPositions)));
  GPU_LAUNCH_EARLY(attend_prefixes_kernel<kDim>, grid, dim3(P::kThreads), kBytes, stream, keys, values, a);
  check_launch("attention_wgmma: prefixes");
}

template <int kDim>
void launch_splits(const PagedAttention& a, const TensorMap& keys, const TensorMap& values, cudaStream_t stream) {
  using P = SplitsPlan<kDim>;
  constexpr int kBytes = kSharedBytes<P>;
  const auto kernel = &attend_splits_kernel<kDim>;
  allow_shared_bytes(kernel, kBytes, "attention_wgmma");
  // At most, and small enough that a team's number and theirs add up.
  const int64_t items = a.tile_count * ceil_div(a.longest, kSplitPositions) * a.kv.kv_heads;
  const int64_t places = int64_t(P::kBlocks) * device_multiprocessors();
  check_argument(items < int64_t(1) << 30, "attention_wgmma", "tile_count");
  const dim3 grid(unsigned(std::min(items, places)));
  GPU_LAUNCH_EARLY(kernel, grid, dim3(P::kThreads), kBytes, stream, keys, values, a);
  check_launch("attention_wgmma: splits");
}

template <int kDim>
void launch(const PagedAttention& a, cudaStream_t stream) {
  const TensorMap keys = pool_map<kDim>(a, a.kv.keys), values = pool_map<kDim>(a, a.kv.values);
  if (a.prefix_count > 0) launch_prefixes<kDim>(a, keys, values, stream);
  launch_splits<kDim>(a, keys, values, stream);
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
