// The rotation table against the formulas in double.
#include "ops/rope.h"

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
  ops::RopeSpec plain, large, linear, llama3;
  large.theta = 1e6;
  linear.scaling = ops::RopeScaling::kLinear;
  linear.factor = 4;
  llama3.theta = 500000;
  llama3.scaling = ops::RopeScaling::kLlama3;
  llama3.factor = 8;
  llama3.low_freq_factor = 1;
  llama3.high_freq_factor = 4;
  llama3.original_max_position = 256;
  return {plain, large, linear, llama3};
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

TEST(rope_refuses_odd_heads) { CHECK_ERROR(kRange, "even", ops::RopeTable(ops::RopeSpec{}, 4, 7)); }

}  // namespace
}  // namespace tandem::test
