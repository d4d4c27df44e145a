#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bf16.h"

namespace tandem::ops {
namespace {

// One call of the kernel: some queries of one run under one KV head.
struct Item {
  const AttentionRun* run;
  int64_t first, count;  // queries of the run
  int64_t kv_head;
};

struct Batch {
  const simd::Kernels& kernels;
  const AttentionShape& shape;
  KvPages& kv;
  int64_t layer;
  const void* q;
  void* out;
  int64_t ld_out;
};

template <typename T>
void store(const Batch&, const float* x, int64_t n, T* out);
template <>
void store(const Batch& batch, const float* x, int64_t n, uint16_t* out) {
  batch.kernels.to_bf16(x, n, out);
}
template <>
void store(const Batch&, const float* x, int64_t n, float* out) {
  std::memcpy(out, x, size_t(n) * sizeof(float));
}

// Per-thread memory of run_item, kept between calls.
template <typename T>
struct Workspace {
  std::vector<T> q;
  std::vector<const T*> key_pages, value_pages;
  std::vector<float> out, scratch;
};

template <typename T, typename Kernel>
void run_item(const Batch& batch, const Item& item, Kernel kernel) {
  thread_local Workspace<T> space;
  const KvShape& kv = batch.kv.shape();
  int64_t group = batch.shape.heads / kv.kv_heads, dim = kv.dim(), rows = item.count * group;
  int64_t last = item.run->first_position + item.first + item.count - 1;
  int64_t pages = last / simd::kPage + 1;
  space.q.resize(size_t(rows * dim));
  space.out.resize(size_t(rows * dim));
  space.scratch.resize(size_t(simd::kAttendRows * 2 * simd::kKeyTile));
  space.key_pages.resize(size_t(pages));
  space.value_pages.resize(size_t(pages));
  for (int64_t p = 0; p < pages; ++p) {
    space.key_pages[size_t(p)] = reinterpret_cast<const T*>(batch.kv.keys(batch.layer, item.run->pages[p], item.kv_head));
    space.value_pages[size_t(p)] = reinterpret_cast<const T*>(batch.kv.values(batch.layer, item.run->pages[p], item.kv_head));
  }
  int32_t first_key[simd::kAttendRows], last_key[simd::kAttendRows];
  for (int64_t i = 0; i < item.count; ++i) {
    int64_t position = item.run->first_position + item.first + i;
    int64_t row = item.run->first_row + item.first + i;
    auto* source = static_cast<const T*>(batch.q) + (row * batch.shape.heads + item.kv_head * group) * dim;
    std::memcpy(space.q.data() + i * group * dim, source, size_t(group * dim) * sizeof(T));
    int64_t low = batch.shape.window > 0 ? std::max<int64_t>(0, position - batch.shape.window + 1) : 0;
    for (int64_t g = 0; g < group; ++g) {
      first_key[i * group + g] = int32_t(low);
      last_key[i * group + g] = int32_t(position);
    }
  }
  kernel({space.q.data(), space.key_pages.data(), space.value_pages.data(), first_key, last_key, int(rows), int(dim),
          float(1.0 / std::sqrt(double(kv.head_dim))), space.out.data(), space.scratch.data()});
  for (int64_t i = 0; i < item.count; ++i) {
    auto* target = static_cast<T*>(batch.out) + (item.run->first_row + item.first + i) * batch.ld_out;
    for (int64_t g = 0; g < group; ++g) {
      store(batch, space.out.data() + (i * group + g) * dim, kv.head_dim, target + (item.kv_head * group + g) * kv.head_dim);
    }
  }
}

}  // namespace

void attention(const simd::Kernels& kernels, ThreadPool& pool, const AttentionShape& shape, KvPages& kv, int64_t layer, const void* q,
               const std::vector<AttentionRun>& runs, void* out, int64_t ld_out) {
  int64_t group = shape.heads / kv.shape().kv_heads;
  require(group >= 1 && group <= simd::kAttendRows, ErrorKind::kRange, "more than 32 heads share one KV head");
  int64_t queries = simd::kAttendRows / group;
  std::vector<Item> items;
  for (const AttentionRun& run : runs) {
    for (int64_t head = 0; head < kv.shape().kv_heads; ++head) {
      for (int64_t first = 0; first < run.count; first += queries) {
        items.push_back({&run, first, std::min(queries, run.count - first), head});
      }
    }
  }
  Batch batch{kernels, shape, kv, layer, q, out, ld_out};
  pool.run(int64_t(items.size()), [&](int64_t i) {
    if (kv.shape().element == Element::kBf16) {
      run_item<uint16_t>(batch, items[size_t(i)], kernels.attend_bf16);
    } else {
      run_item<float>(batch, items[size_t(i)], kernels.attend_f32);
    }
  });
}

}  // namespace tandem::ops
