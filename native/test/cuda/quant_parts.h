// A matrix of random quantised parts, one below the other, and the bf16 weights that they stand for.
#pragma once
#include <deque>

#include "gpu_support.h"
#include "quant_support.h"

namespace tandem::test {

struct QuantParts {
  // Of rows[i] rows in formats[i].
  QuantParts(Random& random, const std::vector<ops::QuantFormat>& formats, const std::vector<int64_t>& rows, int64_t k) {
    for (size_t i = 0; i < formats.size(); ++i) {
      const QuantSource& source = sources.emplace_back(random, formats[i], rows[i], k);
      for (int64_t row = 0; row < source.rows; ++row) {
        for (int64_t c = 0; c < k; ++c) plain.push_back(cuda::to_bf16(source.at(row, c)));
      }
    }
  }

  std::vector<ops::QuantPart> parts() const {
    std::vector<ops::QuantPart> out;
    for (const QuantSource& source : sources) out.push_back(source.part());
    return out;
  }

  std::deque<QuantSource> sources;
  std::vector<bf16> plain;
};

}  // namespace tandem::test
