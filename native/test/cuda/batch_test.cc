// How a step's runs of rows become tiles, prefixes and sizes: where a bound lies one beside another, bits stay right and work is done twice, or the
// reverse.
#include "device/batch.h"

#include "gpu_support.h"

namespace tandem::test {
namespace {

// Four rows of queries for each token of a tile.
constexpr int64_t kHeads = 4, kTileTokens = 4, kGroupTiles = 4;

model::Spec spec_of_heads() {
  model::Spec spec;
  spec.layers = 1;
  spec.heads = kHeads;
  spec.kv_heads = 1;
  return spec;
}

// A run per {first position, count}, whose pages are those of `pages`.
struct Runs {
  Runs(const std::vector<std::pair<int64_t, int64_t>>& runs, const std::vector<int32_t>& ids) : pages(ids) {
    for (auto [first, count] : runs) {
      batch.runs.push_back({int64_t(batch.tokens.size()), first, count, pages.data()});
      batch.tokens.resize(batch.tokens.size() + size_t(count), 1);
    }
    for (size_t i = 0; i < batch.tokens.size(); ++i) batch.wanted.push_back(int32_t(i));
    inputs = cuda::Inputs(device::batch_bytes(device::batch_sizes(batch, spec), spec.layers));
    sent = device::send_batch(batch, spec, {}, inputs, stream);
    stream.wait();
  }

  std::vector<cuda::PrefixTile> prefixes() const {
    std::vector<cuda::PrefixTile> out(size_t(sent.prefix_count));
    if (!out.empty()) cuda::device_copy(out.data(), sent.prefixes, out.size() * sizeof out[0]);
    return out;
  }

  std::vector<int32_t> items_before() const {
    std::vector<cuda::AttentionTile> tiles(size_t(sent.split_count));
    cuda::device_copy(tiles.data(), sent.split_tiles, tiles.size() * sizeof tiles[0]);
    std::vector<int32_t> out;
    for (const cuda::AttentionTile& tile : tiles) out.push_back(tile.items_before);
    return out;
  }
  void send_padded() {
    const std::optional<device::DecodeSize> size = device::decode_size(batch, spec, 16);
    inputs = cuda::Inputs(device::batch_bytes({size->rows, size->rows, size->rows, size->rows * size->positions / 16, 0}, spec.layers));
    sent = device::send_batch(batch, spec, size, inputs, stream);
    stream.wait();
  }

  std::vector<int32_t> pages;
  model::Spec spec = spec_of_heads();
  model::ForwardBatch batch;
  cuda::Stream stream;
  cuda::Inputs inputs;
  device::Batch sent;
};

std::vector<int32_t> pages_from(int32_t first, int32_t count) {
  std::vector<int32_t> pages;
  for (int32_t i = 0; i < count; ++i) pages.push_back(first + i);
  return pages;
}

// Whole splits before the position of each, though all pages are alike.
void check_shared(const std::vector<int64_t>& positions, int64_t members, int64_t splits) {
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (int64_t position : positions) runs.push_back({position, 1});
  const std::vector<cuda::PrefixTile> seen = Runs(runs, pages_from(5, 80)).prefixes();
  CHECK_EQ(seen.size(), size_t(members > 0));
  if (seen.empty()) return;
  CHECK_EQ(seen[0].members, members);
  CHECK_EQ(seen[0].splits, splits);
}

TEST(gpu_batch_shares_the_splits_before_all_positions) {
  check_shared({600, 700}, 2, 2);
  check_shared({600, 300}, 2, 1);
  check_shared({300, 600}, 2, 1);
  check_shared({511, 600}, 2, 1);
  check_shared({600, 511}, 2, 1);
  check_shared({512, 600}, 2, 2);
  check_shared({256, 256}, 2, 1);
  check_shared({255, 600}, 0, 0);
  // As many as a tile has room for.
  check_shared({600, 601, 602, 603}, kTileTokens, 2);
  CHECK_EQ(Runs(std::vector<std::pair<int64_t, int64_t>>(size_t(kTileTokens) + 2, {600, 1}), pages_from(5, 80)).prefixes().size(),
           size_t(2));
}

TEST(gpu_batch_counts_positions_with_the_new_tokens) {
  for (int64_t first : {int64_t(255), int64_t(256)}) {
    const Runs one({{first, 1}}, pages_from(5, 80));
    CHECK_EQ(one.sent.split_longest, first + 1);
    CHECK_EQ(one.sent.max_pages, first / 16 + 1);
    CHECK_EQ(device::decode_size(one.batch, one.spec, 8)->positions, first == 255 ? 256 : 512);
  }
}

// Splits of its own that each tile's predecessors have; behind the last one, of all.
TEST(gpu_batch_numbers_what_tiles_attend_to) {
  Runs some({{255, 1}, {256, 1}, {100, 6}}, pages_from(5, 80));
  CHECK(some.items_before() == std::vector<int32_t>({0, 1, 3, 4}));
  // Two splits of these are shared.
  Runs alike({{600, 1}, {10, 1}, {1100, 1}}, pages_from(5, 80));
  CHECK(alike.items_before() == std::vector<int32_t>({0, 1, 2}));
  alike.send_padded();
  Runs padded({{300, 1}, {10, 1}, {255, 1}}, pages_from(5, 80));
  padded.send_padded();
  CHECK(padded.items_before() == std::vector<int32_t>({0, 2, 3, 4}));
}

// Whole groups of whole tiles go by blocks of all splits, and what is one token short of that does not.
TEST(gpu_batch_takes_runs_of_whole_groups_for_wide_ones) {
  const int64_t whole = kGroupTiles * kTileTokens;
  const Runs both({{0, whole - 1}, {256 - whole, whole}}, pages_from(5, 80));
  CHECK_EQ(both.sent.split_count, kGroupTiles);
  CHECK_EQ(both.sent.split_longest, whole - 1);
  CHECK_EQ(both.sent.wide_count, kGroupTiles);
  CHECK_EQ(both.sent.wide_longest, int64_t(256));
}

}  // namespace
}  // namespace tandem::test
