#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/error.h"

namespace tandem::ops {
namespace {

double llama3_scaled(const RopeSpec& spec, double frequency) {
  double wavelength = 2 * std::numbers::pi / frequency;
  double low = double(spec.original_max_position) / spec.low_freq_factor;
  double high = double(spec.original_max_position) / spec.high_freq_factor;
  if (wavelength < high) return frequency;
  if (wavelength > low) return frequency / spec.factor;
  double smooth = (double(spec.original_max_position) / wavelength - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor);
  return (1 - smooth) * frequency / spec.factor + smooth * frequency;
}

// The pair, as a fraction, whose frequency turns this often within the original context.
double yarn_pair(const RopeSpec& spec, double turns, int64_t head_dim) {
  return double(head_dim) * std::log(double(spec.original_max_position) / (turns * 2 * std::numbers::pi)) / (2 * std::log(spec.theta));
}

double yarn_scaled(const RopeSpec& spec, double frequency, int64_t i, int64_t head_dim) {
  double low = yarn_pair(spec, spec.beta_fast, head_dim), high = yarn_pair(spec, spec.beta_slow, head_dim);
  if (spec.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, double(head_dim - 1));
  if (low == high) high += 0.001;
  double divided = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
  return divided * frequency / spec.factor + (1 - divided) * frequency;
}

double inverse_frequency(const RopeSpec& spec, int64_t i, int64_t head_dim) {
  double frequency = 1.0 / std::pow(spec.theta, double(2 * i) / double(head_dim));
  if (spec.scaling == RopeScaling::kLinear) return frequency / spec.factor;
  if (spec.scaling == RopeScaling::kLlama3) return llama3_scaled(spec, frequency);
  if (spec.scaling == RopeScaling::kYarn) return yarn_scaled(spec, frequency, i, head_dim);
  if (spec.scaling == RopeScaling::kFactors) return frequency / double(spec.factors[size_t(i)]);
  return frequency;
}

double attention_factor(const RopeSpec& spec) { return spec.scaling == RopeScaling::kYarn ? spec.attention_factor : 1; }

}  // namespace

RopeTable::RopeTable(const RopeSpec& spec, int64_t positions, int64_t head_dim)
    : positions_(positions), half_(head_dim / 2), cos_(size_t(positions * (head_dim / 2))), sin_(size_t(positions * (head_dim / 2))) {
  require(head_dim > 0 && head_dim % 2 == 0, ErrorKind::kRange, "head_dim must be even");
  require(spec.scaling != RopeScaling::kFactors || int64_t(spec.factors.size()) == half_, ErrorKind::kRange, "a rope factor per frequency");
  const float factor = float(attention_factor(spec));
  for (int64_t i = 0; i < half_; ++i) {
    // Rounded to float before the product, as the models were trained.
    float frequency = float(inverse_frequency(spec, i, head_dim));
    for (int64_t p = 0; p < positions; ++p) {
      float angle = float(p) * frequency;
      cos_[size_t(p * half_ + i)] = std::cos(angle) * factor;
      sin_[size_t(p * half_ + i)] = std::sin(angle) * factor;
    }
  }
}

void RopeTable::rotate(float* x, int64_t position) const {
  const float* c = cos_.data() + position * half_;
  const float* s = sin_.data() + position * half_;
  for (int64_t i = 0; i < half_; ++i) {
    float a = x[i], b = x[i + half_];
    x[i] = a * c[i] - b * s[i];
    x[i + half_] = b * c[i] + a * s[i];
  }
}

void RopeTable::rotate_back(float* d, int64_t position) const {
  const float* c = cos_.data() + position * half_;
  const float* s = sin_.data() + position * half_;
  for (int64_t i = 0; i < half_; ++i) {
    float a = d[i], b = d[i + half_];
    d[i] = a * c[i] + b * s[i];
    d[i + half_] = b * c[i] - a * s[i];
  }
}

void rope_reference(const RopeSpec& spec, int64_t position, int64_t head_dim, float* x) {
  std::vector<double> out(static_cast<size_t>(head_dim));
  int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    double angle = double(position) * inverse_frequency(spec, i, head_dim);
    out[size_t(i)] = x[i] * std::cos(angle) - x[i + half] * std::sin(angle);
    out[size_t(i + half)] = x[i + half] * std::cos(angle) + x[i] * std::sin(angle);
  }
  for (int64_t i = 0; i < head_dim; ++i) x[i] = float(out[size_t(i)] * attention_factor(spec));
}

}  // namespace tandem::ops
