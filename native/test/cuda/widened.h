// Quantised weights as the floats that they stand for.
#pragma once
#include "device/device.h"
#include "model/tensor_files.h"
#include "ops/quantise.h"

namespace tandem::test {

// A model's matrices as the floats that their quantised numbers stand for.
class Widened final : public device::WeightSource {
 public:
  Widened(const std::vector<std::string>& files, const std::vector<model::Tensor>& tensors, ops::QuantFormat format)
      : files_(files, tensors), format_(format) {}

  void read(const std::string& name, const std::vector<int64_t>& shape, int64_t first, int64_t count, float* out) const override {
    const model::Tensor& tensor = files_.find(name, shape);
    if (count == 0) return;
    require(files_.read(tensor, first, count, out), ErrorKind::kIo, "could not read");
    if (shape.size() != 2) return;
    const int64_t k = shape[1], offset = simd::traits_of(format_).offset;
    std::vector<uint8_t> values(static_cast<size_t>(k));
    std::vector<float> scales(size_t(k + 31) / 32);
    for (float* row = out; row < out + count; row += k) {
      ops::quantise_weights(format_, row, k, values.data(), scales.data());
      for (int64_t i = 0; i < k; ++i) row[i] = scales[size_t(i) / 32] * float(values[size_t(i)] - offset);
    }
  }
  std::vector<ops::QuantPart> quantised(const std::vector<std::pair<std::string, int64_t>>&, int64_t) const override { return {}; }

 private:
  model::TensorFiles files_;
  ops::QuantFormat format_;
};

}  // namespace tandem::test
