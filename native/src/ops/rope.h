// Rotary position embedding, the half-split form of the Hugging Face Llama family: x1' = x1 cos - x2 sin, x2' = x2 cos + x1 sin.
// Su et al., "RoFormer"; the scaling rules as transformers' modeling_rope_utils computes them, in float like there.
#pragma once
#include <cstdint>
#include <vector>

#include "base/buffer.h"

namespace tandem::ops {

enum class RopeScaling { kNone, kLinear, kLlama3, kYarn, kFactors };

struct RopeSpec {
  double theta = 10000;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position = 8192;
  // kYarn only (Peng et al., "YaRN"). A frequency that turns at least beta_fast times within original_max_position stays, one that turns at
  // most beta_slow times is divided by the factor; between them lies a ramp, which begins and ends at whole pairs where `truncate`.
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  double attention_factor = 1;  // queries and keys are multiplied by it
  std::vector<float> factors;   // [head_dim / 2], kFactors only: what each frequency is divided by
};

class RopeTable {
 public:
  RopeTable() = default;
  // Angles of positions 0..positions-1; head_dim even.
  RopeTable(const RopeSpec& spec, int64_t positions, int64_t head_dim);
  // Rotates head_dim floats in place. 0 <= position < positions.
  void rotate(float* x, int64_t position) const;
  // The gradient of rotate: turns a gradient of its output, in place, into that of its input.
  void rotate_back(float* d, int64_t position) const;
  int64_t positions() const { return positions_; }
  // [positions][head_dim / 2]
  const float* cosines() const { return cos_.data(); }
  const float* sines() const { return sin_.data(); }

 private:
  int64_t positions_ = 0, half_ = 0;
  Buffer<float> cos_, sin_;  // [positions][head_dim / 2]
};

// The naive truth for one vector: angles in double from the formulas, no table.
void rope_reference(const RopeSpec& spec, int64_t position, int64_t head_dim, float* x);

}  // namespace tandem::ops
