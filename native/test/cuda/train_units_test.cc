#include "device/train_units.h"

#include "gpu_support.h"

namespace tandem::test {
namespace {

using device::TileRange;

constexpr int64_t kUnit = int64_t(1) << 38;

TEST(gpu_trainer_chunks_are_whole_tiles_of_products) {
  CHECK_EQ(device::chunk_rows(kUnit, kUnit / 1023), int64_t(768));
  CHECK_EQ(device::chunk_rows(kUnit, kUnit / 257), int64_t(256));
  CHECK_EQ(device::chunk_rows(kUnit, kUnit / 255), int64_t(240));
  CHECK_EQ(device::chunk_rows(kUnit, 1), int64_t(2048));
  CHECK_EQ(device::chunk_rows(1, kUnit), int64_t(16));
}

TEST(gpu_trainer_cuts_the_gradient_of_attention_by_what_is_seen) {
  for (bool of_keys : {false, true}) {
    const std::vector<TileRange> units = device::attention_units(kUnit, 8150, 4096, of_keys);
    CHECK(units.size() > 1);
    int64_t next = 0;
    for (const TileRange& unit : units) {
      CHECK_EQ(unit.first, next);
      CHECK(unit.count > 0 && unit.work <= kUnit);
      next += unit.count;
    }
    CHECK_EQ(next, int64_t(128));
    // The first queries see little, the last keys are seen by few.
    CHECK(of_keys ? units.front().count < units[units.size() - 2].count : units.front().count > units[1].count);
  }
  // However small a unit, a tile is not cut.
  CHECK_EQ(device::attention_units(1, 130, 64, true).size(), size_t(3));
  CHECK(device::attention_units(kUnit, 0, 64, true).empty());
}

}  // namespace
}  // namespace tandem::test
