// What quantised weights stand for, as floats.
#pragma once
#include "base/e4m3.h"
#include "ops/quantise.h"
#include "tiny_model.h"

namespace tandem::test {

// A row of weights as ops::quantise_weights leaves it.
inline void dequantise_row(ops::QuantFormat format, float* row, int64_t k) {
  const simd::QuantTraits traits = simd::traits_of(format);
  std::vector<uint8_t> values(static_cast<size_t>(k));
  std::vector<float> scales(static_cast<size_t>(traits.scales_of(k)));
  ops::quantise_weights(format, row, k, values.data(), scales.data());
  for (int64_t i = 0; i < k; ++i) {
    const uint8_t stored = values[size_t(i)];
    row[i] = traits.floating ? scales[0] * e4m3_to_float(stored) : scales[size_t(i / traits.group)] * float(int(stored) - traits.offset);
  }
}

// The model with every matrix changed so.
inline TinyModel dequantised(TinyModel tiny, ops::QuantFormat format) {
  tiny.edit = [format, spec = tiny.spec](const std::string& name, std::vector<float>& values) {
    for (const model::Tensor& tensor : tensors_of(spec).tensors) {
      if (tensor.name != name || tensor.shape.size() != 2) continue;
      for (int64_t row = 0; row < tensor.shape[0]; ++row) dequantise_row(format, values.data() + row * tensor.shape[1], tensor.shape[1]);
    }
  };
  return tiny;
}

}  // namespace tandem::test
