#include <algorithm>
#include <cmath>

#include "ops/attention.h"
#include "ops/kv_read.h"

namespace tandem::ops {
void attention_reference(const AttentionShape& shape, KvPages& kv, int64_t layer, const float* q, const std::vector<AttentionRun>& runs,
                         float* out) {
  int64_t dim = kv.shape().head_dim, group = shape.heads / kv.shape().kv_heads;
  for (const AttentionRun& run : runs) {
    for (int64_t i = 0; i < run.count * shape.heads; ++i) {
      int64_t head = i % shape.heads, query = i / shape.heads, position = run.first_position + query;
      int64_t low = shape.window > 0 ? std::max<int64_t>(0, position - shape.window + 1) : 0;
      const float* vector = q + (run.first_row + query) * shape.heads * dim + head * dim;
      std::vector<double> weights;
      for (int64_t p = low; p <= position; ++p) {
        double dot = 0;
        for (int64_t d = 0; d < dim; ++d)
          dot += vector[d] * key_at(kv, layer, run.pages[p / simd::kPage], head / group, p % simd::kPage, d);
        weights.push_back(dot / std::sqrt(double(dim)));
      }
      double top = *std::max_element(weights.begin(), weights.end()), total = 0;
      for (double& w : weights) total += w = std::exp(w - top);
      for (int64_t d = 0; d < dim; ++d) {
        double sum = 0;
        for (int64_t p = low; p <= position; ++p) {
          sum += weights[size_t(p - low)] * value_at(kv, layer, run.pages[p / simd::kPage], head / group, p % simd::kPage, d);
        }
        out[(run.first_row + query) * shape.heads * dim + head * dim + d] = float(sum / total);
      }
    }
  }
}

}  // namespace tandem::ops
