#include "model/quant_parts.h"

#include <algorithm>

#include "ops/quantise.h"

namespace tandem::model {
namespace {

ops::QuantPart made_anew(const TensorFiles& files, const Tensor* tensor, ops::QuantFormat format) {
  const int64_t columns = tensor->shape[1], groups = simd::traits_of(format).scales_of(columns);
  auto read_rows = [&files, tensor, format, columns, groups](int64_t first, int64_t count, const ops::QuantRows& out) {
    thread_local std::vector<float> floats;
    floats.resize(size_t(count * columns));
    if (!files.read(*tensor, first * columns, count * columns, floats.data())) return false;
    for (int64_t r = 0; r < count; ++r) {
      ops::quantise_weights(format, floats.data() + r * columns, columns, out.values + r * columns, out.scales + r * groups);
    }
    return true;
  };
  return {tensor->shape[0], format, read_rows};
}

ops::QuantPart as_stored(const TensorFiles& files, const Tensor* tensor) {
  auto read_rows = [&files, tensor](int64_t first, int64_t count, const ops::QuantRows& out) {
    return files.read_blocks(*tensor, first, count, out);
  };
  return {tensor->shape[0], block_traits(tensor->stored).format, read_rows};
}

}  // namespace

std::vector<ops::QuantPart> quant_parts(const TensorFiles& files, const std::vector<const Tensor*>& tensors,
                                        std::optional<ops::QuantFormat> quantise) {
  const bool in_blocks = std::all_of(tensors.begin(), tensors.end(), [](const Tensor* tensor) { return is_blocks(tensor->stored); });
  std::vector<ops::QuantPart> parts;
  if (!quantise && !in_blocks) return parts;
  for (const Tensor* tensor : tensors) parts.push_back(quantise ? made_anew(files, tensor, *quantise) : as_stored(files, tensor));
  return parts;
}

ops::QuantPart zero_part(int64_t rows, ops::QuantFormat format, int64_t columns) {
  const simd::QuantTraits traits = simd::traits_of(format);
  return {rows, format, [=](int64_t, int64_t count, const ops::QuantRows& out) {
            std::fill_n(out.values, count * columns, uint8_t(traits.offset));
            std::fill_n(out.scales, count * traits.scales_of(columns), 0.0f);
            if (out.minima) std::fill_n(out.minima, count * traits.scales_of(columns), 0.0f);
            return true;
          }};
}

}  // namespace tandem::model
