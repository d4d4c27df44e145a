#include "cuda/lora/lora_within.h"

#include <algorithm>

#include "cuda/common/launch.h"
#include "cuda/lora/lora_sums.h"

namespace tandem::cuda {
namespace {

// Outputs that a block's threads have one vector of each.
constexpr int64_t kWithinPass = int64_t(LoraWithin::kThreads) * lora::kEach;
// Each slice of a tile's outputs makes all of A x for itself, so not more are made than shorten the time of a few rows.
constexpr int64_t kEnoughWithin = 48;
// That a block makes one after the other, before the product is given less room, and at most.
constexpr int64_t kFewItems = 2, kMostItems = 4;

int64_t items_of(const LoraPart& a, int64_t slice) {
  int64_t slices = 0;
  for (int64_t i = 0; i < a.count; ++i) slices += ceil_div(a.projections[i].out, slice);
  return a.tile_count * slices;
}

}  // namespace

bool lora_fits_within(const LoraPart& a) {
  // Of inputs, factors and outputs, which are read and written 16 bytes at a time.
  bool whole = lora::whole_vectors(a.x, a.in, a.ldx) && reinterpret_cast<uintptr_t>(a.part) % 16 == 0 && a.columns % 4 == 0;
  for (int64_t i = 0; i < a.count; ++i) whole = whole && a.projections[i].out % lora::kEach == 0 && a.projections[i].first % 4 == 0;
  return whole && a.rows >= 1 && a.rows <= LoraWithin::kMostRows && a.most_rank <= LoraWithin::kMostRank;
}

int64_t lora_least_within(const LoraPart& a) { return ceil_div(a.tile_count * a.count, kFewItems); }

LoraWithin lora_within(const LoraPart& a, int64_t free) {
  check_lora_part(a, "lora_within");
  check_argument(lora_fits_within(a), "lora_within", "rows");
  int64_t widest = 1;
  for (int64_t i = 0; i < a.count; ++i) widest = std::max(widest, a.projections[i].out);
  widest = ceil_div(widest, kWithinPass) * kWithinPass;
  const int64_t enough = std::min(free, kEnoughWithin);
  int64_t slice = kWithinPass;
  while (slice < widest && items_of(a, slice) > enough) slice += kWithinPass;
  const int64_t items = items_of(a, slice);
  LoraWithin out{a, int(items <= free ? items : std::max(free, ceil_div(items, kMostItems))), int(slice), {}, 0};
  for (int64_t i = 0; i < a.count; ++i) out.slices_to[i] = out.per_tile += int(ceil_div(a.projections[i].out, slice));
  return out;
}

}  // namespace tandem::cuda
