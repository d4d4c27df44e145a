// What adapters add, made by warps of the product's own blocks: the bits of lora_part behind it, and of lora_add.
#include "engine_fixture.h"
#include "product_adapters.h"

namespace tandem::test {
namespace {

using cuda::LoraAlong;
using cuda::LoraPart;

void check_along(const AdaptedShape& shape, const std::vector<int32_t>& rows, const std::vector<int32_t>& ranks) {
  check_adapters(cuda::AdapterKernel::kAlong, shape, rows, ranks);
}

TEST(hopper_adapters_along_their_product_have_the_bits_of_those_behind) {
  if (!on_hopper()) return;
  // Segments that are full, that are not, and that are empty; blocks that have outputs of several projections, and of none.
  for (int64_t k : {64, 320, 2368}) {
    const AdaptedShape shape{600, k, {{0, 260}, {272, 104}, {392, 56}}};
    check_along(shape, {1}, kMixedRanks);
    check_along(shape, {-1}, kMixedRanks);
    check_along(shape, {3, 4}, kMixedRanks);
    check_along(shape, {1, 2, -1, 1, 0, 1, 1, 1}, kMixedRanks);
  }
  check_along({300, 192, {{0, 300}}}, turns(13, 4), kMixedRanks);
  check_along({300, 192, {{0, 300}}}, turns(29, 4), kMixedRanks);
}

TEST(hopper_adapters_along_take_odd_sizes) {
  if (!on_hopper()) return;
  check_odd_sizes(cuda::AdapterKernel::kAlong);
}

// Warps that make several pieces one after the other and add to several tiles; three per block, of one, two and three groups of outputs.
TEST(hopper_adapters_along_of_many_rows) {
  if (!on_hopper()) return;
  std::vector<int32_t> own, ranks;
  for (int i = 0; i < 64; ++i) own.push_back(i), ranks.push_back(i % 5 * 4);
  check_along({128, 64, {{0, 32}, {32, 64}, {96, 32}}}, own, ranks);
  check_along({704, 64, {{0, 704}}}, turns(64, 20), ranks);
  check_along({704, 64, {{0, 704}}}, std::vector<int32_t>(64, 2), ranks);
}

void check_gated(int64_t n, int64_t k, const std::vector<int32_t>& rows) {
  AdaptedProduct c({n, k, {{0, n / 2}, {n / 2, n / 2}}}, rows, kMixedRanks);
  const std::vector<bf16> seen = c.gated(true), wanted = c.gated(false);
  CHECK(std::memcmp(seen.data(), wanted.data(), seen.size() * sizeof(bf16)) == 0);
}

TEST(hopper_adapters_along_are_in_the_activation) {
  if (!on_hopper()) return;
  check_gated(256, 320, {1});
  check_gated(384, 64, {1, 2, -1, 1, 0, 1, 1, 1});
  check_gated(256, 64, turns(13, 4));
  check_gated(128, 128, turns(29, 4));
  check_gated(512, 64, turns(64, 20));
}

// Blocks of two and of three groups of outputs.
TEST_ENGINE(hopper_adapters_along_are_in_the_activation_of_wide_blocks) {
  if (!on_hopper()) return;
  check_gated(17024, 64, turns(50, 2));
  check_gated(23040, 64, turns(40, 2));
}

TEST(gpu_lora_along_shares_its_work_among_the_first_blocks) {
  const auto check = [](const LoraPart& part, int64_t blocks, int64_t adding, int warps, int makers, int adders) {
    const LoraAlong plan = cuda::lora_along(part, blocks, adding, warps);
    CHECK_EQ(plan.makers, makers);
    CHECK_EQ(plan.adders, adders);
  };
  const int most = int(cuda::device_multiprocessors());
  check(planned(1, 1, {4096}), 1, 1, 1, 1, 1);
  check(planned(64, 1, {4096, 1024}), int64_t(most) + 40, 80, 3, 3 * most, 240);
  LoraPart part = planned(65, 1, {64});
  CHECK(!cuda::lora_fits_along(part));
  CHECK_ERROR(kRange, "lora_along: rows", cuda::lora_along(part, 8, 8, 1));
  part = planned(4, 1, {64});
  part.most_rank = 257;
  CHECK_ERROR(kRange, "lora_along: rows", cuda::lora_along(part, 8, 8, 1));
}

}  // namespace
}  // namespace tandem::test
