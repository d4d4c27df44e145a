// The gradient of paged attention, shared prefixes and windows included, against the naive truth; threads do not show in the bits.
#include "ops/attention_backward.h"

#include <algorithm>

#include "support.h"
#include "test.h"

namespace tandem::test {
namespace {

using ops::AttentionBackwardRun;
using ops::Element;

// Sequences that all begin with the same `prefix` positions, whose rows come first; their full pages are shared, the rest copied.
struct Family {
  ops::AttentionShape shape;
  ops::KvPages kv;
  int64_t rows;
  std::vector<std::vector<int32_t>> pages;
  std::vector<AttentionBackwardRun> runs;
  std::vector<float> q, d_out;
  std::vector<uint8_t> q_bytes, d_bytes;

  Family(Random& random, const ops::KvShape& kv_shape, int64_t heads, int64_t window, int64_t prefix, const std::vector<int64_t>& lengths)
      : shape{heads, window}, kv(kv_shape, 200), rows(prefix) {
    int32_t next = 0;
    for (int32_t page = 0; page < kv.pages(); ++page) kv.clear(page);
    std::vector<int32_t> shared;
    for (int64_t p = 0; p < prefix; p += 16) shared.push_back(next++);
    fill(random, shared, 0, prefix);
    pages.reserve(lengths.size() + 1);
    pages.push_back(shared);
    if (prefix > 0) runs.push_back({{0, 0, prefix, pages[0].data()}, 0, 0, 0});
    for (int64_t length : lengths) {
      std::vector<int32_t> own(shared.begin(), shared.begin() + prefix / 16);
      for (int64_t p = prefix / 16 * 16; p < prefix + length; p += 16) own.push_back(next++);
      if (prefix % 16 != 0) copy_page(shared.back(), own[size_t(prefix / 16)]);
      fill(random, own, prefix, length);
      pages.push_back(own);
      runs.push_back({{rows, prefix, length, pages.back().data()}, prefix, 0, rows});
      rows += length;
    }
    make(random, q, q_bytes, 2.0f);
    make(random, d_out, d_bytes, 1.0f);
  }

  void fill(Random& random, const std::vector<int32_t>& table, int64_t first, int64_t count) {
    size_t d = size_t(kv.shape().head_dim);
    for (int64_t p = first; p < first + count; ++p) {
      for (int64_t h = 0; h < kv.shape().kv_heads; ++h) {
        kv.write(layer(), table[size_t(p / 16)], h, int(p % 16), random.normals(d).data(), random.normals(d).data());
      }
    }
  }
  void copy_page(int32_t from, int32_t to) {
    std::vector<uint8_t> bytes(kv.shape().page_bytes());
    kv.copy_out(from, bytes.data());
    kv.copy_in(to, bytes.data());
  }
  void make(Random& random, std::vector<float>& wide, std::vector<uint8_t>& bytes, float scale) const {
    int64_t d = kv.shape().head_dim, dim = kv.shape().dim();
    bool bf16 = kv.shape().element == Element::kBf16;
    wide = random.normals(size_t(rows * shape.heads * d), scale);
    bytes.assign(size_t(rows * shape.heads * dim) * ops::element_size(kv.shape().element), 0);
    for (int64_t i = 0; i < rows * shape.heads; ++i) {
      for (int64_t c = 0; c < d; ++c) {
        float& value = wide[size_t(i * d + c)];
        if (bf16) value = rounded_bf16(value);
        if (bf16) reinterpret_cast<uint16_t*>(bytes.data())[i * dim + c] = float_to_bf16(value);
        if (!bf16) reinterpret_cast<float*>(bytes.data())[i * dim + c] = value;
      }
    }
  }
  int64_t layer() const { return kv.shape().layers - 1; }
};

struct Gradients {
  std::vector<float> dq, dk, dv;  // rows of heads (kv heads) x dim

  Gradients(const Family& f) {
    dq.assign(size_t(f.rows * f.shape.heads * f.kv.shape().dim()), NAN);
    dk.assign(size_t(f.rows * f.kv.shape().kv_heads * f.kv.shape().dim()), 0.0f);
    dv = dk;
  }
  void run(Family& f, ThreadPool& pool, const std::vector<AttentionBackwardRun>& runs) {
    ops::attention_backward(kernels(), pool, f.shape, f.kv, f.layer(), runs,
                            {f.q_bytes.data(), f.d_bytes.data(), dq.data(), dk.data(), dv.data()});
  }
};

// Largest difference over the largest value; `got` has rows of dim, `truth` of head_dim.
double error_of(const Family& f, const std::vector<float>& got, const std::vector<float>& truth) {
  int64_t d = f.kv.shape().head_dim, dim = f.kv.shape().dim();
  double worst = 0, top = 1e-3;
  for (size_t i = 0; i < truth.size() / size_t(d); ++i) {
    for (int64_t c = 0; c < d; ++c) {
      float seen = got[i * size_t(dim) + size_t(c)], wanted = truth[i * size_t(d) + size_t(c)];
      if (!std::isfinite(seen)) return INFINITY;
      worst = std::max(worst, double(std::fabs(seen - wanted)));
      top = std::max(top, double(std::fabs(wanted)));
    }
  }
  return worst / top;
}

void check_family(Random& random, const ops::KvShape& shape, int64_t heads, int64_t window, int64_t prefix,
                  const std::vector<int64_t>& lengths) {
  Family f(random, shape, heads, window, prefix, lengths);
  ThreadPool one(1), three(3);
  Gradients g(f), threaded(f);
  g.run(f, one, f.runs);
  threaded.run(f, three, f.runs);
  CHECK(same_bits(threaded.dq.data(), g.dq.data(), g.dq.size()));
  CHECK(same_bits(threaded.dk.data(), g.dk.data(), g.dk.size()));
  CHECK(same_bits(threaded.dv.data(), g.dv.data(), g.dv.size()));
  size_t d = size_t(shape.head_dim);
  std::vector<float> dq(size_t(f.rows * heads) * d), dk(size_t(f.rows * shape.kv_heads) * d), dv(dk.size());
  ops::attention_backward_reference(f.shape, f.kv, f.layer(), f.runs, f.q.data(), f.d_out.data(), dq.data(), dk.data(), dv.data());
  double tolerance = shape.element == Element::kF32 ? 1e-5 : 0.015;
  CHECK_NEAR(error_of(f, g.dq, dq), 0, tolerance);
  CHECK_NEAR(error_of(f, g.dk, dk), 0, tolerance);
  CHECK_NEAR(error_of(f, g.dv, dv), 0, tolerance);
}

void check_random_families(Element element, uint64_t seed) {
  Random random(seed);
  const std::vector<int64_t> dims = {2, 6, 14, 16, 32, 64, 80, 128}, windows = {0, 1, 7, 16, 64};
  for (int i = 0; i < 16; ++i) {
    int64_t group = 1 + i % 8, kv_heads = random.whole(1, 3), prefix = random.whole(0, 1) * random.whole(1, 90);
    std::vector<int64_t> lengths;
    for (int64_t s = random.whole(1, 3); s > 0; --s) lengths.push_back(random.whole(1, 50));
    check_family(random, {2, kv_heads, dims[size_t(i) % dims.size()], element}, group * kv_heads, windows[size_t(i) % windows.size()],
                 prefix, lengths);
  }
}

TEST(attention_backward_f32_matches_reference) { check_random_families(Element::kF32, 61); }
TEST(attention_backward_bf16_matches_reference) { check_random_families(Element::kBf16, 62); }

TEST(attention_backward_at_page_borders_and_large_groups) {
  Random random(63);
  for (Element element : {Element::kF32, Element::kBf16}) {
    for (int64_t prefix : {0, 1, 15, 16, 17, 64})
      check_family(random, {1, 1, 8, element}, 2, prefix % 2 == 0 ? 0 : 20, prefix, {1, 16, 33});
    for (int64_t group : {11, 32}) check_family(random, {1, 1, 18, element}, group, 0, 20, {5, 3});
  }
}

TEST(attention_backward_of_queries_in_pieces) {
  // Queries in two calls, the later first: dq keeps its bits, dk and dv their values.
  Random random(64);
  Family f(random, {1, 2, 24, Element::kF32}, 4, 0, 0, {70});
  ThreadPool pool(1);
  Gradients whole(f), parts(f);
  whole.run(f, pool, f.runs);
  AttentionBackwardRun early = f.runs[0], late = f.runs[0];
  early.run.count = 48;
  late.run = {48, 48, 22, f.runs[0].run.pages};
  parts.run(f, pool, {late});
  parts.run(f, pool, {early});
  CHECK(same_bits(parts.dq.data(), whole.dq.data(), whole.dq.size()));
  for (size_t i = 0; i < whole.dk.size(); ++i) CHECK_NEAR(parts.dk[i], whole.dk[i], 1e-5);
  for (size_t i = 0; i < whole.dv.size(); ++i) CHECK_NEAR(parts.dv[i], whole.dv[i], 1e-5);
}

}  // namespace
}  // namespace tandem::test
