#include "device/train_units.h"

#include <algorithm>

#include "cuda/attention/attention_backward.h"

namespace tandem::device {
namespace {

constexpr int64_t kLeastChunkRows = 16, kMostChunkRows = 2048;
constexpr int64_t kTileRows = 256;  // of the largest block of a product
// Products of a pair of a query and a key: scores and their gradient, and what they are added to.
constexpr int64_t kQueryProducts = 3, kKeyProducts = 4;
// Such a product takes that many times as long as a large one.
constexpr int64_t kAttentionCost = 2;

}  // namespace

int64_t chunk_rows(int64_t unit_work, int64_t layer_work) {
  const int64_t wanted = std::clamp(unit_work / layer_work, kLeastChunkRows, kMostChunkRows);
  const int64_t step = wanted >= kTileRows ? kTileRows : kLeastChunkRows;
  return wanted / step * step;
}

int64_t feed_forward_work(const model::Spec& spec, int64_t layer) {
  const model::Experts& experts = spec.experts;
  if (!spec.mixes(layer)) return 3 * spec.hidden_size * spec.intermediate_size;
  return spec.hidden_size * (experts.count + 3 * experts.used * experts.size);
}

std::vector<TileRange> attention_units(int64_t unit_work, int64_t rows, int64_t width, bool of_keys) {
  constexpr int64_t kTile = cuda::kBackwardTile;
  const int64_t tiles = (rows + kTile - 1) / kTile;
  std::vector<TileRange> units;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t seen = of_keys ? rows - tile * kTile : std::min(rows, (tile + 1) * kTile);
    const int64_t work = kAttentionCost * (of_keys ? kKeyProducts : kQueryProducts) * kTile * seen * width;
    if (units.empty() || units.back().work + work > unit_work) units.push_back({tile, 0, 0});
    ++units.back().count;
    units.back().work += work;
  }
  return units;
}

}  // namespace tandem::device
