#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bf16.h"

namespace tandem::ops {
namespace {

// A thread claims so many items of decoding at once, so that the keys of the next are fetched while one is worked on; but so few that each
// thread has kClaims turns, as items differ in length. Measured on a Zen 5: contexts of 48 tokens 1.11x, of 16 1.19x. Prompts find their keys
// in a cache.
constexpr int64_t kItems = 8, kClaims = 8;

// What one thread does at a time under one KV head: some queries of one run, or all queries of a group of runs.
struct Item {
  const AttentionRun* run;
  int64_t first, count;  // queries of the run
  int64_t kv_head;
  const AttentionGroups::Group* group = nullptr;
};

struct Batch {
  const simd::Kernels& kernels;
  const AttentionShape& shape;
  KvPages& kv;
  int64_t layer;
  const void* q;
  void* out;
  int64_t ld_out;
  const BeforeHead& before;
};

template <typename T>
void store(const Batch&, const float* x, int64_t n, T* out);
template <>
void store(const Batch& batch, const float* x, int64_t n, uint16_t* out) {
  batch.kernels.to_bf16(x, n, out);
}
template <>
void store(const Batch&, const float* x, int64_t n, float* out) {
  std::memcpy(out, x, size_t(n) * sizeof(float));
}

// Per-thread memory of run_item, kept between calls.
template <typename T>
struct Workspace {
  std::vector<T> q, wide;
  std::vector<float> out, scratch, state;
  int32_t first_key[simd::kAttendRows], last_key[simd::kAttendRows];
  int64_t rows = 0;
};

template <typename T>
void begin_rows(const Batch& batch, Workspace<T>& space) {
  size_t most = size_t(simd::kAttendRows * batch.kv.shape().dim());
  space.q.resize(most);
  space.out.resize(most);
  space.scratch.resize(size_t(simd::kAttendRows * 2 * simd::kKeyTile));
  space.state.resize(size_t(simd::kAttendRows * 2));
  if (batch.kv.shape().int8) space.wide.resize(size_t(simd::kKeyTile * batch.kv.shape().dim()));
  space.rows = 0;
}

// Appends the rows of some queries of a run: one per query and head of the KV head's.
template <typename T>
void add_rows(const Batch& batch, const Item& item, Workspace<T>& space) {
  const KvShape& kv = batch.kv.shape();
  int64_t group = batch.shape.heads / kv.kv_heads, dim = kv.dim();
  for (int64_t i = 0; i < item.count; ++i) {
    int64_t position = item.run->first_position + item.first + i;
    int64_t row = item.run->first_row + item.first + i;
    if (batch.before) batch.before(row, item.kv_head);
    auto* source = static_cast<const T*>(batch.q) + (row * batch.shape.heads + item.kv_head * group) * dim;
    std::memcpy(space.q.data() + space.rows * dim, source, size_t(group * dim) * sizeof(T));
    int64_t low = batch.shape.window > 0 ? std::max<int64_t>(0, position - batch.shape.window + 1) : 0;
    for (int64_t g = 0; g < group; ++g, ++space.rows) {
      space.first_key[space.rows] = int32_t(low);
      space.last_key[space.rows] = int32_t(position);
    }
  }
}

// The kernel's arguments for `count` of the rows, over the item's pages.
template <typename T>
simd::AttendArgs<T> arguments(const Batch& batch, const Item& item, Workspace<T>& space, int64_t first, int64_t count) {
  const KvShape& kv = batch.kv.shape();
  int64_t dim = kv.dim();
  return {space.q.data() + first * dim,
          batch.kv.keys(batch.layer, 0, item.kv_head),
          int64_t(kv.layer_page_bytes()),
          int64_t(kv.block_bytes()),
          item.run->pages,
          space.first_key + first,
          space.last_key + first,
          int(count),
          int(dim),
          float(1.0 / std::sqrt(double(kv.head_dim))),
          space.out.data() + first * dim,
          space.scratch.data(),
          space.wide.data()};
}

// Rows from `first` on are those of the item's queries.
template <typename T>
void store_rows(const Batch& batch, const Item& item, const Workspace<T>& space, int64_t first) {
  const KvShape& kv = batch.kv.shape();
  int64_t group = batch.shape.heads / kv.kv_heads, dim = kv.dim();
  for (int64_t i = 0; i < item.count; ++i) {
    auto* target = static_cast<T*>(batch.out) + (item.run->first_row + item.first + i) * batch.ld_out;
    for (int64_t g = 0; g < group; ++g) {
      store(batch, space.out.data() + (first + i * group + g) * dim, kv.head_dim, target + (item.kv_head * group + g) * kv.head_dim);
    }
  }
}

int64_t last_position(const Item& item) { return item.run->first_position + item.first + item.count - 1; }

// The keys that an item reads first.
template <typename T>
typename simd::AttendArgs<T>::Next first_keys(const Batch& batch, const Item& item) {
  constexpr int64_t kPages = simd::kKeyTile / simd::kPage;
  const int64_t position = item.run->first_position + item.first, window = batch.shape.window;
  const int64_t low = window > 0 ? std::max<int64_t>(0, position - window + 1) / simd::kKeyTile * kPages : 0;
  const int64_t pages = last_position(item) / simd::kPage + 1 - low;
  return {batch.kv.keys(batch.layer, 0, item.kv_head), item.run->pages + low, int(std::min(kPages, pages))};
}

// `next` is the item that the thread runs after this one; null: none.
template <typename T, typename Kernel>
void run_item(const Batch& batch, const Item& item, const Item* next, Kernel kernel, Workspace<T>& space) {
  begin_rows(batch, space);
  add_rows(batch, item, space);
  simd::AttendArgs<T> args = arguments(batch, item, space, 0, space.rows);
  if (next) args.next = first_keys<T>(batch, *next);
  kernel(args);
  store_rows(batch, item, space, 0);
}

// The shared tiles once for all rows, then each run's own: every row's tiles in ascending order, as alone.
template <typename T, typename Kernel>
void run_group(const Batch& batch, const std::vector<AttentionRun>& runs, const AttentionGroups& groups, const Item& item, Kernel kernel,
               Workspace<T>& space) {
  begin_rows(batch, space);
  auto member = [&](int32_t i) {
    const AttentionRun& run = runs[size_t(groups.order[size_t(item.group->first + i)])];
    return Item{&run, 0, run.count, item.kv_head};
  };
  for (int32_t i = 0; i < item.group->count; ++i) add_rows(batch, member(i), space);
  int64_t tiles = item.group->tiles;
  simd::AttendArgs<T> shared = arguments(batch, item, space, 0, space.rows);
  shared.state = space.state.data();
  shared.end_tile = int(tiles);
  shared.finishes = false;
  kernel(shared);
  int64_t first = 0, heads = batch.shape.heads / batch.kv.shape().kv_heads;
  for (int32_t i = 0; i < item.group->count; ++i) {
    Item own = member(i);
    simd::AttendArgs<T> rest = arguments(batch, own, space, first, own.count * heads);
    rest.state = space.state.data() + 2 * first;
    rest.first_tile = int(tiles);
    rest.end_tile = int(last_position(own) / simd::kKeyTile) + 1;
    rest.begins = false;
    kernel(rest);
    store_rows(batch, own, space, first);
    first += own.count * heads;
  }
}

// Leading tiles that both see whole and whose pages are the same.
int64_t shared_tiles(const AttentionRun& a, const AttentionRun& b) {
  constexpr int64_t kPages = simd::kKeyTile / simd::kPage;
  int64_t most = std::min(a.first_position + 1, b.first_position + 1) / simd::kKeyTile * kPages;
  return (std::mismatch(a.pages, a.pages + most, b.pages).first - a.pages) / kPages;
}

}  // namespace

bool single_queries(const std::vector<AttentionRun>& runs) {
  return std::all_of(runs.begin(), runs.end(), [](const AttentionRun& run) { return run.count == 1; });
}

void attention(const simd::Kernels& kernels, ThreadPool& pool, const AttentionShape& shape, KvPages& kv, int64_t layer, const void* q,
               const std::vector<AttentionRun>& runs, void* out, int64_t ld_out, const AttentionGroups* groups, const BeforeHead& before) {
  int64_t group = shape.heads / kv.shape().kv_heads;
  require(group >= 1 && group <= simd::kAttendRows, ErrorKind::kRange, "more than 32 heads share one KV head");
  int64_t queries = simd::kAttendRows / group;
  // The calling thread's, kept between calls; the pool reads them while it waits.
  thread_local std::vector<Item> kept;
  std::vector<Item>& items = kept;
  items.clear();
  // Head by head: runs that share pages without being grouped still find them in a cache.
  for (int64_t head = 0; head < kv.shape().kv_heads; ++head) {
    auto add = [&](const AttentionRun& run) {
      for (int64_t first = 0; first < run.count; first += queries) {
        items.push_back({&run, first, std::min(queries, run.count - first), head});
      }
    };
    if (!groups) {
      for (const AttentionRun& run : runs) add(run);
      continue;
    }
    for (const AttentionGroups::Group& g : groups->groups) {
      const AttentionRun& run = runs[size_t(groups->order[size_t(g.first)])];
      if (g.count == 1) {
        add(run);
      } else {
        items.push_back({&run, 0, run.count, head, &g});
      }
    }
  }
  Batch batch{kernels, shape, kv, layer, q, out, ld_out, before};
  auto run_any = [&]<typename T>(const Item& item, const Item* next, auto kernel, T) {
    thread_local Workspace<T> space;
    if (item.group) return run_group(batch, runs, *groups, item, kernel, space);
    run_item(batch, item, next, kernel, space);
  };
  const int64_t count = int64_t(items.size());
  const bool decodes = single_queries(runs);
  require(decodes || !before, ErrorKind::kRange, "a run of several queries needs its keys before");
  const int64_t most = decodes ? std::clamp<int64_t>(count / (kClaims * pool.threads()), 1, kItems) : 1, claims = (count + most - 1) / most;
  pool.run(claims, [&](int64_t claim) {
    const int64_t end = std::min(count, (claim + 1) * most);
    for (int64_t i = claim * most; i < end; ++i) {
      // Where threads claim in turn: what this one claims next begins behind a claim of each other thread.
      const int64_t after = i + 1 < end ? i + 1 : decodes ? end + (pool.threads() - 1) * most : count;
      const Item &item = items[size_t(i)], *next = after < count ? &items[size_t(after)] : nullptr;
      if (kv.shape().element == Element::kBf16) {
        run_any(item, next, kv.shape().int8 ? kernels.attend_int8_bf16 : kernels.attend_bf16, uint16_t{});
      } else {
        run_any(item, next, kv.shape().int8 ? kernels.attend_int8_f32 : kernels.attend_f32, float{});
      }
    }
  });
}

void group_runs(const std::vector<AttentionRun>& runs, int64_t sharing_heads, AttentionGroups& groups) {
  groups.order.resize(runs.size());
  groups.groups.clear();
  for (size_t i = 0; i < runs.size(); ++i) groups.order[i] = int32_t(i);
  auto pages_seen = [&](int32_t i) { return (runs[size_t(i)].first_position + 1) / simd::kKeyTile * (simd::kKeyTile / simd::kPage); };
  // Neighbours in the order of their page tables share most.
  std::sort(groups.order.begin(), groups.order.end(), [&](int32_t a, int32_t b) {
    const int32_t *pa = runs[size_t(a)].pages, *pb = runs[size_t(b)].pages;
    if (std::lexicographical_compare(pa, pa + pages_seen(a), pb, pb + pages_seen(b))) return true;
    return !std::lexicographical_compare(pb, pb + pages_seen(b), pa, pa + pages_seen(a)) && a < b;
  });
  int64_t rows = 0;
  for (size_t i = 0; i < groups.order.size(); ++i) {
    const AttentionRun& run = runs[size_t(groups.order[i])];
    int64_t own = run.count * sharing_heads;
    if (!groups.groups.empty() && rows + own <= simd::kAttendRows) {
      AttentionGroups::Group& last = groups.groups.back();
      int64_t tiles = shared_tiles(runs[size_t(groups.order[i - 1])], run);
      if (last.count > 1) tiles = std::min(tiles, last.tiles);
      // One more may shorten what is shared, but not what is saved.
      if (tiles * last.count >= last.tiles * (last.count - 1) && tiles > 0) {
        last.tiles = tiles;
        ++last.count;
        rows += own;
        continue;
      }
    }
    groups.groups.push_back({int32_t(i), 1, 0});
    rows = own;
  }
}

}  // namespace tandem::ops
