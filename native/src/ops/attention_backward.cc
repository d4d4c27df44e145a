#include "ops/attention_backward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "simd/backward_kernels.h"

namespace tandem::ops {
namespace {

struct BackwardBatch {
  const AttentionShape& shape;
  KvPages& kv;
  int64_t layer;
  const AttentionGradients& gradients;
};

// Per-thread memory of one call of the kernel, kept between calls.
template <typename T>
struct BackwardWorkspace {
  Buffer<T> q, d_out;
  Buffer<float> dq, scratch;
  std::vector<const T*> key_pages, value_pages;

  template <typename U>
  static U* at_least(Buffer<U>& buffer, int64_t count) {
    if (buffer.size() < size_t(count)) buffer = Buffer<U>(size_t(count));
    return buffer.data();
  }
};

// Some queries of one run under one KV head.
template <typename T, typename Kernel>
void run_block(const BackwardBatch& batch, const AttentionBackwardRun& b, int64_t kv_head, int64_t first, int64_t count, Kernel kernel) {
  thread_local BackwardWorkspace<T> space;
  const KvShape& kv = batch.kv.shape();
  int64_t heads = batch.shape.heads, group = heads / kv.kv_heads, dim = kv.dim(), rows = count * group;
  int64_t last = b.run.first_position + first + count - 1;
  T* q = space.at_least(space.q, rows * dim);
  T* d_out = space.at_least(space.d_out, rows * dim);
  float* dq = space.at_least(space.dq, rows * dim);
  float* scratch = space.at_least(space.scratch, simd::attend_backward_scratch(last + 1, dim));
  int64_t pages = last / simd::kPage + 1;
  space.key_pages.resize(size_t(pages));
  space.value_pages.resize(size_t(pages));
  for (int64_t p = 0; p < pages; ++p) {
    space.key_pages[size_t(p)] = reinterpret_cast<const T*>(batch.kv.keys(batch.layer, b.run.pages[p], kv_head));
    space.value_pages[size_t(p)] = reinterpret_cast<const T*>(batch.kv.values(batch.layer, b.run.pages[p], kv_head));
  }
  int32_t first_key[simd::kAttendRows], last_key[simd::kAttendRows];
  auto at = [&](int64_t i) { return ((b.run.first_row + first + i) * heads + kv_head * group) * dim; };
  for (int64_t i = 0; i < count; ++i) {
    int64_t position = b.run.first_position + first + i;
    std::memcpy(q + i * group * dim, static_cast<const T*>(batch.gradients.q) + at(i), size_t(group * dim) * sizeof(T));
    std::memcpy(d_out + i * group * dim, static_cast<const T*>(batch.gradients.d_out) + at(i), size_t(group * dim) * sizeof(T));
    int64_t low = batch.shape.window > 0 ? std::max<int64_t>(0, position - batch.shape.window + 1) : 0;
    for (int64_t g = 0; g < group; ++g) {
      first_key[i * group + g] = int32_t(low);
      last_key[i * group + g] = int32_t(position);
    }
  }
  int64_t ld = kv.kv_heads * dim;
  auto span = [&](int64_t position, int64_t positions, int64_t row) {
    int64_t offset = row * ld + kv_head * dim;
    return simd::KeySpan{int32_t(position), int32_t(positions), batch.gradients.dk + offset, batch.gradients.dv + offset, ld};
  };
  simd::KeySpan spans[2] = {span(0, b.prefix, b.prefix_row), span(b.prefix, last + 1 - b.prefix, b.own_row)};
  kernel({q, d_out, space.key_pages.data(), space.value_pages.data(), first_key, last_key, int(rows), int(dim),
          float(1.0 / std::sqrt(double(kv.head_dim))), dq, spans, 2, scratch});
  for (int64_t i = 0; i < count; ++i) std::memcpy(batch.gradients.dq + at(i), dq + i * group * dim, size_t(group * dim) * sizeof(float));
}

}  // namespace

void attention_backward(const simd::Kernels& kernels, ThreadPool& pool, const AttentionShape& shape, KvPages& kv, int64_t layer,
                        const std::vector<AttentionBackwardRun>& runs, const AttentionGradients& gradients) {
  int64_t kv_heads = kv.shape().kv_heads, group = shape.heads / kv_heads;
  require(group >= 1 && group <= simd::kAttendRows, ErrorKind::kRange, "more than 32 heads share one KV head");
  const simd::BackwardKernels& backward = simd::backward_kernels_for(kernels.isa);
  int64_t queries = simd::kAttendRows / group;
  BackwardBatch batch{shape, kv, layer, gradients};
  // One KV head is one claim: its keys gather from all queries in a fixed order.
  pool.run(kv_heads, [&](int64_t kv_head) {
    for (const AttentionBackwardRun& b : runs) {
      for (int64_t first = 0; first < b.run.count; first += queries) {
        int64_t count = std::min(queries, b.run.count - first);
        if (kv.shape().element == Element::kBf16) {
          run_block<uint16_t>(batch, b, kv_head, first, count, backward.attend_backward_bf16);
        } else {
          run_block<float>(batch, b, kv_head, first, count, backward.attend_backward_f32);
        }
      }
    }
  });
}

}  // namespace tandem::ops
