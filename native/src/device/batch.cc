#include "device/batch.h"

#include <algorithm>
#include <unordered_map>

namespace tandem::device {
namespace {

constexpr int64_t kGroup = 4;  // tiles of a block that does all splits
constexpr int64_t kLeastRank = 16;
constexpr int64_t kSplitPages = cuda::kSplitPositions / cuda::kPagePositions;

int64_t pages_of(const ops::AttentionRun& run) {
  return (run.first_position + run.count + cuda::kPagePositions - 1) / cuda::kPagePositions;
}

struct Rows {
  std::vector<int32_t> tokens, positions, slots, table;
  int64_t max_pages;
};

Rows rows_of(const model::ForwardBatch& batch, int64_t least_pages) {
  Rows out;
  out.tokens = batch.tokens;
  out.max_pages = least_pages;
  for (const ops::AttentionRun& run : batch.runs) out.max_pages = std::max(out.max_pages, pages_of(run));
  out.table.assign(batch.runs.size() * size_t(out.max_pages), -1);
  for (size_t r = 0; r < batch.runs.size(); ++r) {
    const ops::AttentionRun& run = batch.runs[r];
    std::copy(run.pages, run.pages + pages_of(run), out.table.begin() + int64_t(r) * out.max_pages);
    for (int64_t i = 0; i < run.count; ++i) {
      const int64_t position = run.first_position + i;
      out.positions.push_back(int32_t(position));
      out.slots.push_back(run.pages[position / cuda::kPagePositions] * cuda::kPagePositions + int32_t(position % cuda::kPagePositions));
    }
  }
  return out;
}

struct Tiles {
  std::vector<cuda::AttentionTile> wide, split;
  int64_t wide_longest = 1, split_longest = 1;
  std::vector<cuda::PrefixTile> prefixes;
  std::vector<cuda::PrefixMember> members;
};

// Of the first `most` splits, which lie before the position of `a`, those before the position of `b` whose pages are the same.
int64_t shared_splits(const ops::AttentionRun& a, const ops::AttentionRun& b, int64_t most) {
  const int64_t pages = std::min(most, b.first_position / cuda::kSplitPositions) * kSplitPages;
  return std::distance(a.pages, std::mismatch(a.pages, a.pages + pages, b.pages).first) / kSplitPages;
}

// Puts the tiles of one token whose runs begin with the same pages together, as many as fit a prefix tile.
void share_prefixes(const model::ForwardBatch& batch, int64_t tile_tokens, Tiles& tiles) {
  // By the last page of the first split: runs that share it share nearly always all before it, which is looked at.
  std::unordered_map<int32_t, std::vector<int32_t>> candidates;
  for (size_t i = 0; i < tiles.split.size(); ++i) {
    const ops::AttentionRun& run = batch.runs[size_t(tiles.split[i].sequence)];
    if (run.count == 1 && run.first_position >= cuda::kSplitPositions) candidates[run.pages[kSplitPages - 1]].push_back(int32_t(i));
  }
  for (const auto& [page, alike] : candidates) {
    for (size_t first = 0; first + 1 < alike.size(); first += size_t(tile_tokens)) {
      const ops::AttentionRun& leader = batch.runs[size_t(tiles.split[size_t(alike[first])].sequence)];
      const size_t end = std::min(alike.size(), first + size_t(tile_tokens));
      int64_t splits = leader.first_position / cuda::kSplitPositions;
      for (size_t i = first + 1; i < end; ++i) {
        splits = shared_splits(leader, batch.runs[size_t(tiles.split[size_t(alike[i])].sequence)], splits);
      }
      if (splits == 0) continue;
      const int32_t sequence = tiles.split[size_t(alike[first])].sequence;
      tiles.prefixes.push_back({int32_t(tiles.members.size()), int32_t(end - first), int32_t(splits), sequence});
      for (size_t i = first; i < end; ++i) {
        cuda::AttentionTile& tile = tiles.split[size_t(alike[i])];
        tile.shared_splits = int32_t(splits);
        tiles.members.push_back({tile.first_row, tile.first_position, alike[i]});
      }
    }
  }
}

Tiles tiles_of(const model::ForwardBatch& batch, int64_t tile_tokens) {
  Tiles out;
  for (size_t r = 0; r < batch.runs.size(); ++r) {
    const ops::AttentionRun& run = batch.runs[r];
    const bool wide = run.count >= kGroup * tile_tokens;
    std::vector<cuda::AttentionTile>& tiles = wide ? out.wide : out.split;
    for (int64_t i = 0; i < run.count; i += tile_tokens) {
      const int64_t tokens = std::min(tile_tokens, run.count - i);
      tiles.push_back(
          {int32_t(run.first_row + i), int32_t(tokens), int32_t(run.first_position + i), int32_t(r), 0, int32_t(run.first_position)});
    }
    while (wide && tiles.size() % kGroup != 0) tiles.push_back({0, 0, 0, int32_t(r)});
    int64_t& longest = wide ? out.wide_longest : out.split_longest;
    longest = std::max(longest, run.first_position + run.count);
  }
  if (tile_tokens > 1) share_prefixes(batch, tile_tokens, out);
  return out;
}

int64_t next_power(int64_t least, int64_t count) {
  while (least < count) least *= 2;
  return least;
}

// Powers of two up to 8, then steps of 8, then of 32.
int64_t padded_rows(int64_t rows) {
  if (rows <= 8) return next_power(1, rows);
  const int64_t step = rows <= 64 ? 8 : 32;
  return (rows + step - 1) / step * step;
}

// Rows that are nobody's: no token, no place, nothing to attend to. The kernels leave them out or make them NaN; nobody reads them.
void pad(const DecodeSize& size, Rows& rows, Tiles& tiles) {
  const size_t count = size_t(size.rows);
  rows.tokens.resize(count, -1);
  rows.positions.resize(count, -1);
  rows.slots.resize(count, -1);
  rows.table.resize(count * size_t(rows.max_pages), -1);
  tiles.split.resize(count, {0, 0, 0, 0});
  tiles.split_longest = size.positions;
  tiles.prefixes.resize(size_t(size.prefixes), {0, 0, 0, 0});
  if (size.prefixes > 0) tiles.members.resize(count, {-1, -1, -1});
}

const Adapter& placed(const model::Adapter& adapter) {
  const auto* found = dynamic_cast<const Adapter*>(&adapter);
  require(found != nullptr, ErrorKind::kRange, "open.adapter is not on the device");
  return *found;
}

// The adapters of a batch, each once.
struct Adapters {
  std::vector<const Adapter*> distinct;
  std::vector<int32_t> rows;  // index in distinct, -1 = none
  int64_t most_rank = 0;
};

Adapters adapters_of(const model::ForwardBatch& batch) {
  Adapters out;
  std::unordered_map<const model::Adapter*, int32_t> index;
  for (size_t r = 0; r < batch.adapters.size(); ++r) {
    const model::Adapter* adapter = batch.adapters[r];
    int32_t at = -1;
    if (adapter) {
      auto [found, fresh] = index.try_emplace(adapter, int32_t(out.distinct.size()));
      if (fresh) out.distinct.push_back(&placed(*adapter));
      at = found->second;
    }
    out.rows.insert(out.rows.end(), size_t(batch.runs[r].count), at);
  }
  for (const Adapter* adapter : out.distinct) out.most_rank = std::max(out.most_rank, adapter->most_rank());
  return out;
}

const cuda::LoraTile* put_tiles(const std::vector<int32_t>& row_adapters, int64_t adapter_count, cuda::Inputs& inputs) {
  const bool few = int64_t(row_adapters.size()) <= cuda::LoraPart::kMostRows;
  return few ? inputs.put(cuda::lora_tiles(row_adapters, adapter_count)) : nullptr;
}

void send_adapters(const Adapters& adapters, int64_t layers, cuda::Inputs& inputs, Batch& out) {
  if (adapters.distinct.empty()) return;
  std::vector<cuda::LoraWeights> table;
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (int module = 0; module < model::kModules; ++module) {
      for (const Adapter* adapter : adapters.distinct) table.push_back(adapter->weights(layer, model::Module(module)));
      table.resize(table.size() + size_t(out.adapter_count) - adapters.distinct.size(), {nullptr, nullptr, 0, 0});
    }
  }
  std::vector<int32_t> row_adapters = adapters.rows;
  row_adapters.resize(size_t(out.rows), -1);
  out.row_adapters = inputs.put(row_adapters);
  out.adapter_tiles = put_tiles(row_adapters, out.adapter_count, inputs);
  out.adapters = inputs.put(table);
}

void send_wanted(const std::vector<int32_t>& wanted, const Adapters& adapters, cuda::Inputs& inputs, Batch& out) {
  std::vector<int32_t> places(size_t(out.rows), -1), rows;
  for (size_t i = 0; i < wanted.size(); ++i) {
    places[size_t(wanted[i])] = int32_t(i);
    if (!adapters.rows.empty()) rows.push_back(adapters.rows[size_t(wanted[i])]);
  }
  out.wanted = inputs.put(wanted);
  out.wanted_count = int64_t(wanted.size());
  out.wanted_places = inputs.put(places);
  out.wanted_adapters = inputs.put(rows);
  if (!rows.empty()) out.wanted_tiles = put_tiles(rows, out.adapter_count, inputs);
}

}  // namespace

size_t batch_bytes(const BatchSizes& s, int64_t layers) {
  using cuda::Inputs;
  const int64_t tiles = s.adapters > 0 ? std::min(s.rows, cuda::LoraPart::kMostRows) : 0;
  return 7 * Inputs::bytes_of<int32_t>(s.rows) + 2 * Inputs::bytes_of<cuda::LoraTile>(tiles) +
         2 * Inputs::bytes_of<cuda::AttentionTile>(s.tiles) + Inputs::bytes_of<cuda::PrefixTile>(s.prefixes) +
         Inputs::bytes_of<cuda::PrefixMember>(s.rows) + Inputs::bytes_of<int32_t>(s.table) +
         Inputs::bytes_of<cuda::LoraWeights>(layers * model::kModules * s.adapters);
}

BatchSizes batch_sizes(const model::ForwardBatch& batch, const model::Spec& spec) {
  const int64_t rows = int64_t(batch.tokens.size()), runs = int64_t(batch.runs.size());
  const int64_t tile_tokens = cuda::attention_tile_tokens(spec.heads, spec.kv_heads);
  int64_t most_pages = 1;
  for (const ops::AttentionRun& run : batch.runs) most_pages = std::max(most_pages, pages_of(run));
  // Every run may end in a tile that is not full, and in a group that is not.
  return {rows, (rows + tile_tokens - 1) / tile_tokens + kGroup * runs, runs, runs * most_pages,
          adapters_of(batch).distinct.empty() ? 0 : 1};
}

std::optional<DecodeSize> decode_size(const model::ForwardBatch& batch, const model::Spec& spec, int64_t most_rows) {
  int64_t longest = 1;
  for (const ops::AttentionRun& run : batch.runs) {
    if (run.count != 1) return {};
    longest = std::max(longest, run.first_position + 1);
  }
  DecodeSize size{padded_rows(int64_t(batch.runs.size())), next_power(kPositionStep, longest), 0, 0, 0};
  if (size.rows > most_rows) return {};
  const int64_t prefixes = int64_t(tiles_of(batch, cuda::attention_tile_tokens(spec.heads, spec.kv_heads)).prefixes.size());
  if (prefixes > 0) size.prefixes = next_power(1, prefixes);
  const Adapters adapters = adapters_of(batch);
  if (adapters.distinct.empty()) return size;
  size.adapters = next_power(1, int64_t(adapters.distinct.size()));
  size.rank = next_power(kLeastRank, adapters.most_rank);
  return size;
}

Batch send_batch(const model::ForwardBatch& batch, const model::Spec& spec, const std::optional<DecodeSize>& size, cuda::Inputs& inputs,
                 cuda::Stream& stream) {
  Rows rows = rows_of(batch, size ? size->positions / cuda::kPagePositions : 1);
  Tiles tiles = tiles_of(batch, cuda::attention_tile_tokens(spec.heads, spec.kv_heads));
  if (size) pad(*size, rows, tiles);
  cuda::number_items(tiles.split);
  inputs.begin();
  Batch out;
  out.rows = int64_t(rows.tokens.size());
  out.runs = int64_t(rows.table.size()) / rows.max_pages;
  out.tokens = inputs.put(rows.tokens);
  out.positions = inputs.put(rows.positions);
  out.slots = inputs.put(rows.slots);
  out.page_table = inputs.put(rows.table);
  out.max_pages = rows.max_pages;
  out.wide_tiles = inputs.put(tiles.wide);
  out.split_tiles = inputs.put(tiles.split);
  out.wide_count = int64_t(tiles.wide.size());
  out.split_count = int64_t(tiles.split.size());
  out.wide_longest = tiles.wide_longest;
  out.split_longest = tiles.split_longest;
  for (const cuda::AttentionTile& tile : tiles.split) out.split_tokens = std::max<int64_t>(out.split_tokens, tile.tokens);
  out.prefixes = inputs.put(tiles.prefixes);
  out.members = inputs.put(tiles.members);
  out.prefix_count = int64_t(tiles.prefixes.size());
  out.member_count = int64_t(tiles.members.size());
  const Adapters adapters = adapters_of(batch);
  out.adapter_count = size ? size->adapters : int64_t(adapters.distinct.size());
  out.most_rank = size ? size->rank : adapters.most_rank;
  send_adapters(adapters, spec.layers, inputs, out);
  if (!size && int64_t(batch.wanted.size()) < out.rows) send_wanted(batch.wanted, adapters, inputs, out);
  inputs.send(stream);
  return out;
}

}  // namespace tandem::device
