// Random sequences in paged memory for one of the kernels of attention, and what it must give.
#pragma once
#include <limits>

#include "cuda/attention/paged_attention.h"
#include "cuda/common/device_info.h"
#include "cuda/common/graph.h"
#include "gpu_support.h"

namespace tandem::test {

struct AttentionShape {
  int64_t heads = 6, kv_heads = 2, dim = 64, window = 0;
  cuda::AttentionKernel kernel = cuda::AttentionKernel::kMma;
};

// Sequences with their new tokens last; pages in random order. NaN: unused positions, and splits that lie before the window of all new tokens.
struct AttentionBatch {
  AttentionBatch(const AttentionShape& shape, const std::vector<std::pair<int, int>>& sequences, uint64_t seed) : s(shape), random(seed) {
    for (auto [length, fresh] : sequences) longest = std::max<int64_t>(longest, length);
    max_pages = (longest + 15) / 16;
    pages = max_pages * int64_t(sequences.size()) + 3;
    std::vector<int32_t> free;
    for (int32_t p = 0; p < pages; ++p) free.push_back(p);
    random.shuffle(free);
    keys.assign(size_t(pages * s.kv_heads * 16 * s.dim), cuda::to_bf16(std::numeric_limits<float>::quiet_NaN()));
    values = keys;
    for (auto [length, fresh] : sequences) add(length, fresh, free);
    queries = bf16s(random, rows.size() * size_t(s.heads * s.dim));
  }

  void add(int length, int fresh, std::vector<int32_t>& free) {
    const int32_t sequence = int32_t(table.size() / size_t(max_pages));
    for (int64_t p = 0; p < max_pages; ++p) {
      table.push_back(p * 16 < length ? free.back() : -1);
      if (p * 16 < length) free.pop_back();
    }
    const int first_seen = s.window == 0 ? 0 : std::max(0, length - fresh - int(s.window) + 1);
    for (int position = first_seen / cuda::kSplitPositions * cuda::kSplitPositions; position < length; ++position) {
      for (int64_t h = 0; h < s.kv_heads; ++h) {
        for (int64_t i = 0; i < s.dim; ++i) {
          keys[size_t(at(sequence, position, h) + i)] = cuda::to_bf16(random.normal());
          values[size_t(at(sequence, position, h) + i)] = cuda::to_bf16(random.normal());
        }
      }
    }
    for (int i = length - fresh; i < length; ++i) rows.push_back({sequence, i});
  }

  int64_t at(int64_t sequence, int64_t position, int64_t head) const {
    const int64_t page = table[size_t(sequence * max_pages + position / 16)];
    return ((page * s.kv_heads + head) * 16 + position % 16) * s.dim;
  }

  // Rows cut into tiles; groups of four of one sequence, padded with empty ones; before and behind them groups that are empty.
  std::vector<cuda::AttentionTile> tiles() const {
    std::vector<cuda::AttentionTile> out(size_t(4 * empty_before), {0, 0, 0, rows[0].first});
    const int64_t most = cuda::attention_tile_tokens(s.heads, s.kv_heads);
    int32_t stored = 0;
    for (size_t i = 0; i < rows.size();) {
      if (i > 0 && rows[i].first != rows[i - 1].first) {
        while (out.size() % 4 != 0) out.push_back({0, 0, 0, rows[i - 1].first});
      }
      size_t end = i;
      while (end < rows.size() && end - i < size_t(most) && rows[end].first == rows[i].first) ++end;
      if (i == 0 || rows[i].first != rows[i - 1].first) stored = rows[i].second;
      out.push_back({int32_t(i), int32_t(end - i), rows[i].second, rows[i].first, 0, stored});
      i = end;
    }
    while (out.size() % 4 != 0) out.push_back({0, 0, 0, rows.back().first});
    out.resize(out.size() + size_t(4 * empty_behind), {0, 0, 0, rows.back().first});
    cuda::number_items(out);
    return out;
  }

  // Leaves the logs of the sums of exp(score) in `logs`, if that is there.
  std::vector<bf16> run(bool splits_in_grid, std::vector<float>* logs = nullptr, int64_t few_blocks = 0) const;

  // And the log of the sum of exp(score).
  std::vector<double> wanted(size_t row, int64_t head, double& log_sum) const {
    const auto [sequence, position] = rows[row];
    const int64_t kv_head = head / (s.heads / s.kv_heads);
    const int64_t first = s.window == 0 ? 0 : std::max<int64_t>(0, position - s.window + 1);
    std::vector<double> out(size_t(s.dim), 0.0);
    double sum = 0;
    for (int64_t key = first; key <= position; ++key) {
      double score = 0;
      for (int64_t i = 0; i < s.dim; ++i) {
        score += double(cuda::to_float(queries[(row * size_t(s.heads) + size_t(head)) * size_t(s.dim) + size_t(i)])) *
                 cuda::to_float(keys[size_t(at(sequence, key, kv_head) + i)]);
      }
      const double weight = std::exp(score * scale);
      sum += weight;
      for (int64_t i = 0; i < s.dim; ++i) out[size_t(i)] += weight * cuda::to_float(values[size_t(at(sequence, key, kv_head) + i)]);
    }
    for (double& x : out) x /= sum;
    log_sum = std::log(sum);
    return out;
  }

  AttentionShape s;
  Random random;
  float scale = 0.125f;
  int64_t longest = 0, max_pages = 0, pages = 0;
  int64_t empty_before = 0, empty_behind = 0;
  std::vector<int32_t> table;
  std::vector<bf16> keys, values, queries;
  std::vector<std::pair<int32_t, int32_t>> rows;  // sequence and position of each new token
};

constexpr int64_t kAnyBlocks = int64_t(1) << 40;

// A batch on the device, and a list of tiles for it.
struct AttentionLaunch {
  AttentionLaunch(const AttentionBatch& batch, const std::vector<cuda::AttentionTile>& list, bool splits_in_grid, int64_t few_blocks = 0)
      : k(batch.keys), v(batch.values), q(batch.queries), out(batch.queries.size()), table(batch.table), tiles(list),
        workspace(
            std::vector<float>(size_t(cuda::attention_workspace_floats(int64_t(list.size()), batch.s.kv_heads, batch.s.dim, batch.longest)),
                               std::numeric_limits<float>::quiet_NaN())),
        arrivals(size_t(cuda::attention_arrivals(int64_t(list.size()), batch.s.kv_heads))) {
    args.queries = q.data();
    args.kv = {k.data(), v.data(), batch.pages, batch.s.kv_heads, batch.s.dim};
    args.page_table = table.data();
    args.sequences = int64_t(batch.table.size()) / batch.max_pages;
    args.max_pages = batch.max_pages;
    args.tiles = tiles.data();
    args.tile_count = int64_t(list.size());
    args.longest = batch.longest;
    args.heads = batch.s.heads;
    args.scale = batch.scale;
    args.window = batch.s.window;
    args.out = out.data();
    args.workspace = workspace.data();
    args.workspace_floats = int64_t(workspace.size());
    args.arrivals = arrivals.data();
    args.splits_in_grid = splits_in_grid;
    args.few_blocks = few_blocks;
    args.stored_is_old = true;
    args.kernel = batch.s.kernel;
  }

  // Of the list `count` tiles.
  void run(int64_t first, int64_t count) {
    cuda::PagedAttention part = args;
    part.tiles = tiles.data() + first;
    part.first_tile = first;
    part.tile_count = count;
    cuda::paged_attention(part, nullptr);
    CHECK(arrivals.download() == std::vector<int32_t>(arrivals.size()));
  }

  DeviceBuffer<bf16> k, v, q, out;
  DeviceBuffer<int32_t> table;
  DeviceBuffer<cuda::AttentionTile> tiles;
  DeviceBuffer<float> workspace;
  DeviceBuffer<int32_t> arrivals;
  cuda::PagedAttention args{};
};

inline std::vector<bf16> AttentionBatch::run(bool splits_in_grid, std::vector<float>* logs, int64_t few_blocks) const {
  DeviceBuffer<float> log_sums(rows.size() * size_t(s.heads));
  AttentionLaunch launch(*this, tiles(), splits_in_grid, few_blocks);
  if (logs != nullptr) launch.args.log_sums = log_sums.data();
  launch.run(0, launch.args.tile_count);
  if (logs != nullptr) *logs = log_sums.download();
  return launch.out.download();
}

// The same bits from blocks that take splits as they come, from one with room for all of a split and from blocks of all splits, near plain
// loops in double.
inline void check_attention(const AttentionBatch& batch) {
  std::vector<float> wide_logs, split_logs, few_logs;
  const std::vector<bf16> wide = batch.run(false, &wide_logs), split = batch.run(true, &split_logs);
  CHECK(same_bits(wide, split));
  CHECK(same_bits(wide_logs, split_logs));
  CHECK(same_bits(batch.run(true), split));
  CHECK(same_bits(batch.run(true, &few_logs, kAnyBlocks), split));
  CHECK(same_bits(few_logs, split_logs));
  for (size_t row = 0; row < batch.rows.size(); ++row) {
    for (int64_t head = 0; head < batch.s.heads; ++head) {
      double log_sum = 0;
      const std::vector<double> wanted = batch.wanted(row, head, log_sum);
      CHECK_NEAR(wide_logs[row * size_t(batch.s.heads) + size_t(head)], log_sum, 1e-4);
      for (size_t i = 0; i < wanted.size(); ++i) {
        CHECK_NEAR(cuda::to_float(wide[(row * size_t(batch.s.heads) + size_t(head)) * wanted.size() + i]), wanted[i], 0.02);
      }
    }
  }
}

// A page before the first one and one behind the last, and a sequence longer than its row of the table.
inline void check_missing_pages(const AttentionShape& shape) {
  AttentionBatch zeros(shape, {{140, 1}}, 17);
  AttentionBatch missing = zeros;
  const int64_t page_size = shape.kv_heads * 16 * shape.dim;
  for (size_t page : {2, 5, 8}) {
    for (auto* values : {&zeros.keys, &zeros.values}) std::fill_n(values->begin() + zeros.table[page] * page_size, page_size, bf16{0});
  }
  missing.table[2] = -1;
  missing.table[5] = int32_t(missing.pages);
  missing.table.pop_back();
  missing.max_pages = 8;
  for (bool splits_in_grid : {false, true}) CHECK(same_bits(missing.run(splits_in_grid), zeros.run(splits_in_grid)));
  CHECK(same_bits(missing.run(true, nullptr, kAnyBlocks), zeros.run(true)));
}

// A sequence with 40 new tokens at once, and some of them alone in their tile.
inline void check_rows_alone(const AttentionShape& shape) {
  const AttentionBatch all(shape, {{520, 40}}, 7);
  const std::vector<bf16> together = all.run(false);
  const size_t width = size_t(shape.heads * shape.dim);
  for (size_t row : {size_t(0), size_t(13), size_t(39)}) {
    AttentionBatch one = all;
    one.rows = {all.rows[row]};
    one.queries.assign(all.queries.begin() + int64_t(row * width), all.queries.begin() + int64_t((row + 1) * width));
    const std::vector<bf16> wanted(together.begin() + int64_t(row * width), together.begin() + int64_t((row + 1) * width));
    CHECK(same_bits(one.run(true), wanted));
    CHECK(same_bits(one.run(true, nullptr, kAnyBlocks), wanted));
    CHECK(same_bits(one.run(false), wanted));
  }
}

// One new token per sequence; those of `groups` begin with the pages of their first one.
inline void check_prefixes(const AttentionShape& shape, const std::vector<int>& lengths, const std::vector<std::vector<int32_t>>& groups,
                           int splits) {
  std::vector<std::pair<int, int>> sequences;
  for (int length : lengths) sequences.push_back({length, 1});
  AttentionBatch batch(shape, sequences, 11);
  for (const std::vector<int32_t>& group : groups) {
    for (int32_t s : group) {
      const int64_t shared = splits * cuda::kSplitPositions / 16;
      std::copy_n(batch.table.begin() + group[0] * batch.max_pages, shared, batch.table.begin() + s * batch.max_pages);
    }
  }
  std::vector<cuda::AttentionTile> tiles;
  for (size_t i = 0; i < batch.rows.size(); ++i) tiles.push_back({int32_t(i), 1, batch.rows[i].second, batch.rows[i].first});
  // An empty one, and one without members that are there, are left out.
  std::vector<cuda::PrefixTile> prefixes{{0, 0, 0, 0}, {1 << 20, 1, splits, 0}, {-1 << 20, 1, splits, 0}};
  std::vector<cuda::PrefixMember> members;
  auto run = [&](int64_t first, int64_t count, const std::vector<bf16>& start) {
    cuda::number_items(tiles);
    DeviceBuffer<cuda::PrefixTile> p(prefixes);
    DeviceBuffer<cuda::PrefixMember> m(members);
    AttentionLaunch launch(batch, tiles, true);
    launch.out = DeviceBuffer<bf16>(start);
    launch.args.out = launch.out.data();
    launch.args.tile_rows = shape.heads / shape.kv_heads;
    launch.args.prefixes = p.data();
    launch.args.prefix_count = int64_t(prefixes.size());
    launch.args.members = m.data();
    launch.args.member_count = int64_t(members.size());
    launch.run(first, count);
    return launch.out.download();
  };
  const int64_t count = int64_t(tiles.size());
  const std::vector<bf16> none(batch.queries.size()), alone = run(0, count, none);
  for (const std::vector<int32_t>& group : groups) {
    prefixes.push_back({int32_t(members.size()), int32_t(group.size()), splits, group.back()});
    for (int32_t s : group) {
      members.push_back({s, batch.rows[size_t(s)].second, s});
      tiles[size_t(s)].shared_splits = splits;
    }
  }
  CHECK(same_bits(run(0, count, none), alone));
  // In two pieces, as where the workspace is small.
  CHECK(same_bits(run(2, count - 2, run(0, 2, none)), alone));
}

// One new token per sequence, as many that blocks take several items each, with empty tiles between them: the bits of blocks that do all
// splits, in one launch and in pieces that begin and end anywhere.
inline void check_lists(const AttentionShape& shape) {
  Random random(23);
  std::vector<std::pair<int, int>> sequences;
  for (int i = 0; i < 6 * cuda::device_multiprocessors(); ++i) sequences.push_back({int(random.whole(1, i % 3 == 0 ? 700 : 90)), 1});
  const AttentionBatch batch(shape, sequences, 24);
  const std::vector<bf16> wanted = batch.run(false);
  std::vector<cuda::AttentionTile> list(2);
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    list.push_back({int32_t(i), 1, batch.rows[i].second, batch.rows[i].first});
    list.resize(list.size() + size_t(random.whole(0, 2)));
  }
  list.resize(list.size() + 40);
  cuda::number_items(list);
  const int64_t count = int64_t(list.size());
  for (int64_t most : {count, count / 2, int64_t(5)}) {
    AttentionLaunch launch(batch, list, true);
    for (int64_t first = 0; first < count; first += most) launch.run(first, std::min(most, count - first));
    CHECK(same_bits(launch.out.download(), wanted));
  }
}

// A launch that is recorded once serves whatever lengths the lists have that come into its place, none too.
inline void check_replays(const AttentionShape& shape, int64_t few_blocks = 0) {
  AttentionBatch batch(shape, {{700, 1}, {700, 1}, {700, 1}, {700, 1}, {700, 1}}, 25);
  cuda::Stream stream;
  cuda::Graph graph;
  AttentionLaunch launch(batch, std::vector<cuda::AttentionTile>(8), true, few_blocks);
  cuda::paged_attention(launch.args, stream.get());  // what is recorded has run before
  graph.record(stream, [&] { cuda::paged_attention(launch.args, stream.get()); });
  const size_t width = size_t(shape.heads * shape.dim);
  for (const std::vector<int>& positions :
       std::vector<std::vector<int>>{{}, {699, 3, 256, 255, 500}, {0}, {511, 699, 699, 699, 699}, {}, {64, 64, 64}}) {
    std::vector<cuda::AttentionTile> list;
    for (size_t i = 0; i < positions.size(); ++i) {
      batch.rows[i].second = positions[i];
      list.push_back({int32_t(i), 1, positions[i], int32_t(i)});
    }
    list.resize(8);
    cuda::number_items(list);
    stream.wait();
    cuda::device_copy(launch.tiles.data(), list.data(), list.size() * sizeof list[0]);
    graph.launch(stream);
    stream.wait();
    CHECK(launch.arrivals.download() == std::vector<int32_t>(launch.arrivals.size()));
    std::vector<bf16> seen = launch.out.download(), wanted = batch.run(false);
    seen.resize(positions.size() * width);
    wanted.resize(seen.size());
    CHECK(same_bits(seen, wanted));
  }
}

}  // namespace tandem::test
