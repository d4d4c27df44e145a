// Quantised weights as the floats that they stand for.
#pragma once
#include "dequantised.h"
#include "device/device.h"
#include "model/tensor_files.h"

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
    // A router is never quantised.
    if (shape.size() != 2 || name.ends_with("mlp.gate.weight")) return;
    for (float* row = out; row < out + count; row += shape[1]) dequantise_row(format_, row, shape[1]);
  }
  std::vector<ops::QuantPart> quantised(const std::vector<std::pair<std::string, int64_t>>&, int64_t) const override { return {}; }

 private:
  model::TensorFiles files_;
  ops::QuantFormat format_;
};

}  // namespace tandem::test
