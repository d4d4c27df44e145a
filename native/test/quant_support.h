// Random quantised weights for tests, kept beside as plain arrays.
#pragma once
#include "base/bf16.h"
#include "base/e4m3.h"
#include "ops/quantised_matrix.h"
#include "support.h"

namespace tandem::test {

constexpr ops::QuantFormat kQuantFormats[] = {ops::QuantFormat::kInt8, ops::QuantFormat::kInt4, ops::QuantFormat::kInt4Min,
                                              ops::QuantFormat::kInt8Fine, ops::QuantFormat::kInt8FineMin};

// Those that a device has products of.
constexpr ops::QuantFormat kDeviceFormats[] = {ops::QuantFormat::kInt8,     ops::QuantFormat::kInt4,        ops::QuantFormat::kInt4Min,
                                               ops::QuantFormat::kInt8Fine, ops::QuantFormat::kInt8FineMin, ops::QuantFormat::kFp8};

struct QuantSource {
  ops::QuantFormat format;
  simd::QuantTraits traits;
  int64_t rows, k, groups;
  std::vector<uint8_t> values;
  std::vector<float> scales, minima;

  // Every stored number may come, the extremes often.
  QuantSource(Random& random, ops::QuantFormat f, int64_t n, int64_t columns)
      : format(f), traits(simd::traits_of(f)), rows(n), k(columns), groups(traits.scales_of(columns)) {
    int64_t most = traits.bits == 8 ? 255 : 15;
    for (int64_t i = 0; i < rows * k; ++i)
      values.push_back(uint8_t(random.whole(0, 9) == 0 ? random.pick<int64_t>({0, most}) : random.whole(0, most)));
    if (traits.floating) {
      for (uint8_t& code : values) code -= (code & 0x7f) == 0x7f;  // not NaN
    }
    for (int64_t i = 0; i < rows * groups; ++i) {
      float scale = traits.floating ? std::ldexp(1.0f, int(random.whole(-12, -2))) : 0.02f * random.normal();
      scales.push_back(traits.wide_scales ? scale : half_to_float(float_to_half(scale)));
      minima.push_back(traits.minima ? 0.3f * random.normal() : 0.0f);
    }
  }

  float at(int64_t row, int64_t c) const {
    const uint8_t stored = values[size_t(row * k + c)];
    if (traits.floating) return scales[size_t(row)] * e4m3_to_float(stored);
    size_t group = size_t(row * groups + c / traits.group);
    float product = scales[group] * float(int(stored) - traits.offset);
    return traits.minima ? product + minima[group] : product;
  }

  ops::QuantPart part() const {
    return {rows, format, [this](int64_t first, int64_t count, const ops::QuantRows& out) {
              std::memcpy(out.values, values.data() + first * k, size_t(count * k));
              std::memcpy(out.scales, scales.data() + first * groups, size_t(count * groups) * sizeof(float));
              if (out.minima) std::memcpy(out.minima, minima.data() + first * groups, size_t(count * groups) * sizeof(float));
              return true;
            }};
  }
};

}  // namespace tandem::test
