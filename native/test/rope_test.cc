// The rotation table against the formulas in double.
#include "ops/rope.h"

#include <numbers>

#include "support.h"
#include "test.h"

namespace tandem::test {
namespace {

// A number per frequency, whatever the size of the head.
ops::RopeSpec with_factors(int64_t head_dim) {
  ops::RopeSpec spec;
  spec.scaling = ops::RopeScaling::kFactors;
  for (int64_t i = 0; i < head_dim / 2; ++i) spec.factors.push_back(1 + float(i) * 0.75f);
  return spec;
}

std::vector<ops::RopeSpec> specs() {
  ops::RopeSpec plain, large, linear, llama3, yarn, whole;
  large.theta = 1e6;
  linear.scaling = ops::RopeScaling::kLinear;
  linear.factor = 4;
  llama3.theta = 500000;
  llama3.scaling = ops::RopeScaling::kLlama3;
  llama3.factor = 8;
  llama3.low_freq_factor = 1;
  llama3.high_freq_factor = 4;
  llama3.original_max_position = 256;
  yarn.theta = 1e6;
  yarn.scaling = ops::RopeScaling::kYarn;
  yarn.factor = 4;
  yarn.original_max_position = 256;
  yarn.beta_fast = 8;
  yarn.attention_factor = 1.25;
  whole = yarn;
  whole.truncate = false;
  return {plain, large, linear, llama3, yarn, whole};
}

TEST(rope_matches_the_formulas) {
  Random random(31);
  for (int64_t head_dim : {2, 6, 16, 64, 80, 128}) {
    std::vector<ops::RopeSpec> all = specs();
    all.push_back(with_factors(head_dim));
    for (const ops::RopeSpec& spec : all) {
      ops::RopeTable table(spec, 3000, head_dim);
      CHECK_EQ(table.positions(), 3000);
      for (int64_t position : {0, 1, 2, 15, 16, 255, 256, 1000, 2999}) {
        std::vector<float> x = random.normals(size_t(head_dim)), truth = x;
        table.rotate(x.data(), position);
        ops::rope_reference(spec, position, head_dim, truth.data());
        // The table's angles are floats: their error grows with the position.
        for (size_t i = 0; i < x.size(); ++i) CHECK_NEAR(x[i], truth[i], 2e-6 + 4e-7 * double(position));
      }
    }
  }
}

// Scaling rules written out once more, so that a slip in the shared formula is seen.
TEST(rope_scaling_moves_the_right_frequencies) {
  std::vector<ops::RopeSpec> all = specs();
  const ops::RopeSpec& linear = all[2];
  const ops::RopeSpec& llama3 = all[3];
  auto angle = [](const ops::RopeSpec& spec, int64_t pair, int64_t head_dim) {
    std::vector<float> x(size_t(head_dim), 0.0f);
    x[size_t(pair)] = 1;
    ops::RopeTable table(spec, 2, head_dim);
    table.rotate(x.data(), 1);
    return std::atan2(double(x[size_t(pair + head_dim / 2)]), double(x[size_t(pair)]));
  };
  for (int64_t i = 0; i < 8; ++i) {
    double base = std::pow(10000.0, -double(i) / 8);
    CHECK_NEAR(angle(linear, i, 16), base / 4, 1e-6);
    base = std::pow(500000.0, -double(i) / 8);
    double turns = 256 * base / (2 * std::numbers::pi);  // rotations within the original context
    double smooth = std::min(1.0, std::max(0.0, (turns - 1) / 3));
    CHECK_NEAR(angle(llama3, i, 16), base * (smooth + (1 - smooth) / 8), 1e-6);
    CHECK_NEAR(angle(with_factors(16), i, 16), std::pow(10000.0, -double(i) / 8) / (1 + 0.75 * double(i)), 1e-6);
  }
}

// Pair 8 / ln 1e6 * ln(256 / 2 pi n) turns n times in 256 positions: 0.943 for 8 turns, 2.147 for one; whole pairs are 0 and 3.
TEST(rope_yarn_divides_slow_frequencies_and_makes_all_longer) {
  const std::vector<ops::RopeSpec> all = specs();
  for (const auto& [spec, begin, end] : {std::tuple(all[4], 0.0, 3.0), std::tuple(all[5], 0.942627, 2.146747)}) {
    for (int64_t i = 0; i < 8; ++i) {
      std::vector<float> x(16, 0.0f);
      x[size_t(i)] = 1;
      ops::RopeTable(spec, 2, 16).rotate(x.data(), 1);
      const double a = double(x[size_t(i)]), b = double(x[size_t(i + 8)]), base = std::pow(1e6, -double(i) / 8);
      const double divided = std::min(1.0, std::max(0.0, (double(i) - begin) / (end - begin)));
      CHECK_NEAR(std::atan2(b, a), base * (1 - divided + divided / 4), 1e-5 * base);
      CHECK_NEAR(std::hypot(a, b), 1.25, 1e-6);
    }
  }
}

TEST(rope_yarn_of_a_ramp_without_length) {
  ops::RopeSpec spec = specs()[4];
  spec.truncate = false;
  spec.beta_slow = spec.beta_fast;  // 0.943: pair 0 stays, all others are divided
  for (int64_t i = 0; i < 8; ++i) {
    std::vector<float> x(16, 0.0f);
    x[size_t(i)] = 1;
    ops::RopeTable(spec, 2, 16).rotate(x.data(), 1);
    const double base = std::pow(1e6, -double(i) / 8);
    CHECK_NEAR(std::atan2(double(x[size_t(i + 8)]), double(x[size_t(i)])), i == 0 ? base : base / 4, 1e-5 * base);
  }
}

TEST(rope_refuses_odd_heads) { CHECK_ERROR(kRange, "even", ops::RopeTable(ops::RopeSpec{}, 4, 7)); }

}  // namespace
}  // namespace tandem::test
