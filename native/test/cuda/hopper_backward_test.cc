// The gradient of attention by Hopper's own instructions; those themselves are tried in hopper_test.cc.
#include "attention_gradient.h"
#include "hopper_probe.h"

namespace tandem::test {
namespace {

constexpr cuda::AttentionKernel kWgmmaGradient = cuda::AttentionKernel::kWgmma;

TEST(hopper_pairs_are_rounded_like_numbers) {
  if (!on_hopper()) return;
  Random random(41);
  std::vector<float> values = random.normals(62);
  // Ties to even, what becomes infinite, and what is smallest.
  for (float x : {1.00390625f, 1.01171875f, -1.00390625f, 3.4e38f, 1e-45f, -0.0f}) values.push_back(x);
  const std::vector<uint32_t> pairs = rounded_pairs(values);
  for (size_t i = 0; i < pairs.size(); ++i) {
    CHECK_EQ(pairs[i], cuda::pack(cuda::to_bf16(values[2 * i]), cuda::to_bf16(values[2 * i + 1])));
  }
}

TEST(hopper_powers_of_two_are_near) {
  if (!on_hopper()) return;
  std::vector<float> values{0, 1, -1, 5.5f, -125.5f, -1000, -INFINITY};
  Random random(42);
  for (float x : random.normals(40)) values.push_back(8 * x);
  const std::vector<float> seen = powers_of_two(values);
  for (size_t i = 0; i < values.size(); ++i) CHECK_NEAR(seen[i], std::exp2(double(values[i])), 3e-7 * std::exp2(double(values[i])) + 1e-38);
}

TEST(hopper_attention_backward_matches_plain_loops) {
  if (!on_hopper()) return;
  check_attention_gradient({1, 1, 32, 0, {{1, -1}}, 1}, kWgmmaGradient);
  check_attention_gradient({2, 1, 64, 0, {{20, -1}, {70, -1}}, 2}, kWgmmaGradient);
  check_attention_gradient({4, 2, 96, 9, {{30, -1}}, 3}, kWgmmaGradient);
  check_attention_gradient({2, 1, 128, 0, {{70, -1}}, 4}, kWgmmaGradient);
}

TEST(hopper_attention_backward_takes_rows_of_any_length) {
  if (!on_hopper()) return;
  Random random(43);
  for (uint64_t i = 0; i < 3; ++i) {
    const int64_t heads = random.whole(1, 3), first = random.whole(1, 90), second = random.whole(1, 90);
    check_attention_gradient({heads, 1, 32 * random.whole(1, 4), i == 2 ? 30 : 0, {{first, -1}, {second, -1}}, 50 + i}, kWgmmaGradient);
  }
}

TEST(hopper_attention_backward_sees_shared_prefixes) {
  if (!on_hopper()) return;
  check_attention_gradient({2, 1, 32, 0, {{20, -1}, {30, 0}, {5, 0}, {80, -1}, {9, 0}, {1, 3}}, 5}, kWgmmaGradient);
  check_attention_gradient({1, 1, 32, 13, {{20, -1}, {30, 0}, {24, 0}}, 6}, kWgmmaGradient);
  // A prefix of more than a tile, all of which the endings see.
  check_attention_gradient({2, 1, 32, 0, {{130, -1}, {60, 0}, {70, 0}}, 7}, kWgmmaGradient);
}

// Sequences and prefixes whose ends are a row away from those of tiles.
TEST(hopper_attention_backward_knows_where_all_of_a_tile_is_seen) {
  if (!on_hopper()) return;
  check_attention_gradient({1, 1, 32, 0, {{65, -1}, {130, -1}}, 11}, kWgmmaGradient);
  check_attention_gradient({1, 1, 32, 0, {{63, -1}, {130, 0}, {127, 0}}, 12}, kWgmmaGradient);
  check_attention_gradient({1, 1, 32, 0, {{65, -1}, {63, -1}, {64, 1}}, 15}, kWgmmaGradient);
  check_attention_gradient({1, 1, 32, 0, kSingleRowsOfTiles, 16}, kWgmmaGradient);
}

// More tiles than stages, and for some blocks an odd number of them.
TEST(hopper_attention_backward_goes_round_its_stages) {
  if (!on_hopper()) return;
  check_attention_gradient({2, 1, 32, 0, {{330, -1}}, 8}, kWgmmaGradient);
  check_attention_gradient({3, 1, 64, 100, {{270, -1}}, 9}, kWgmmaGradient);
}

// One group of a block passes more tiles than there are stages while the other one sees them.
TEST(hopper_attention_backward_passes_what_its_other_tile_sees) {
  if (!on_hopper()) return;
  check_attention_gradient({2, 1, 32, 0, {{64, -1}, {64, 0}, {128, 0}, {200, 0}}, 13}, kWgmmaGradient);
  check_attention_gradient({1, 1, 32, 0, {{64, -1}, {320, -1}, {64, 0}, {64, 1}}, 14}, kWgmmaGradient);
}

TEST(hopper_attention_backward_rows_do_not_depend_on_what_follows) {
  if (!on_hopper()) return;
  Packed all(2, 1, 64, 0, {{100, -1}, {50, -1}, {40, 1}}, 10);
  std::vector<double> dq(all.q.size()), dk(all.k.size()), dv(all.k.size());
  all.run(dq, dk, dv);
  Packed alone = all;
  alone.cut(100);
  check_rows_before_others(alone, all, kWgmmaGradient);
}

}  // namespace
}  // namespace tandem::test
