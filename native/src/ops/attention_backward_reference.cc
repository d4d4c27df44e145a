#include <algorithm>
#include <cmath>

#include "ops/attention_backward.h"
#include "ops/kv_read.h"

namespace tandem::ops {
namespace {

struct Truth {
  const AttentionShape& shape;
  KvPages& kv;
  int64_t layer;

  // One query of one head; adds to dk and dv.
  void query(const AttentionBackwardRun& b, int64_t i, int64_t head, const float* q, const float* d_out, float* dq, float* dk,
             float* dv) const {
    int64_t dim = kv.shape().head_dim, kv_head = head / (shape.heads / kv.shape().kv_heads), position = b.run.first_position + i;
    int64_t low = shape.window > 0 ? std::max<int64_t>(0, position - shape.window + 1) : 0;
    double scale = 1 / std::sqrt(double(dim)), total = 0, mean = 0, top = -INFINITY;
    std::vector<double> p, dp;
    for (int64_t key = low; key <= position; ++key) {
      double score = 0, value = 0;
      for (int64_t d = 0; d < dim; ++d) score += q[d] * key_at(kv, layer, b.run.pages[key / simd::kPage], kv_head, key % simd::kPage, d);
      for (int64_t d = 0; d < dim; ++d)
        value += d_out[d] * value_at(kv, layer, b.run.pages[key / simd::kPage], kv_head, key % simd::kPage, d);
      p.push_back(score * scale);
      dp.push_back(value);
      top = std::max(top, score * scale);
    }
    for (double& w : p) total += w = std::exp(w - top);
    for (size_t j = 0; j < p.size(); ++j) mean += (p[j] /= total) * dp[j];
    std::vector<double> sum(size_t(dim), 0.0);
    for (int64_t key = low; key <= position; ++key) {
      size_t j = size_t(key - low);
      int64_t row = key < b.prefix ? b.prefix_row + key : b.own_row + key - b.prefix, at = (row * kv.shape().kv_heads + kv_head) * dim;
      double ds = p[j] * (dp[j] - mean) * scale;
      for (int64_t d = 0; d < dim; ++d) {
        sum[size_t(d)] += ds * key_at(kv, layer, b.run.pages[key / simd::kPage], kv_head, key % simd::kPage, d);
        dk[at + d] = float(dk[at + d] + ds * q[d]);
        dv[at + d] = float(dv[at + d] + p[j] * d_out[d]);
      }
    }
    for (int64_t d = 0; d < dim; ++d) dq[d] = float(sum[size_t(d)]);
  }
};

}  // namespace

void attention_backward_reference(const AttentionShape& shape, KvPages& kv, int64_t layer, const std::vector<AttentionBackwardRun>& runs,
                                  const float* q, const float* d_out, float* dq, float* dk, float* dv) {
  Truth truth{shape, kv, layer};
  for (const AttentionBackwardRun& b : runs) {
    for (int64_t i = 0; i < b.run.count; ++i) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        int64_t at = ((b.run.first_row + i) * shape.heads + head) * kv.shape().head_dim;
        truth.query(b, i, head, q + at, d_out + at, dq + at, dk, dv);
      }
    }
  }
}

}  // namespace tandem::ops
