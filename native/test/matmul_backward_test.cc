// Products with the turned panels and factor gradients: against the naive truth; ranges, rows and pools do not show in the bits.
#include "ops/matmul_backward.h"

#include "support.h"
#include "test.h"

namespace tandem::test {
namespace {

using ops::Element;
using ops::PackedMatrix;
using ops::PanelRange;

// Values as the element type holds them, beside the same as floats.
struct RowsBack {
  std::vector<float> wide;
  std::vector<uint16_t> narrow;

  RowsBack(Element element, std::vector<float> values) : wide(std::move(values)) {
    if (element == Element::kF32) return;
    for (float& x : wide) narrow.push_back(float_to_bf16(x));
    for (float& x : wide) x = rounded_bf16(x);
  }
  const void* at(size_t i) const { return narrow.empty() ? static_cast<const void*>(&wide[i]) : static_cast<const void*>(&narrow[i]); }
};

struct ProductBack {
  int64_t n, k, m, ld_dy;
  PackedMatrix w;
  RowsBack dy;

  ProductBack(Random& random, ThreadPool& pool, Element element, int64_t rows, int64_t inner, int64_t batch)
      : n(rows), k(inner), m(batch), ld_dy(round_up(n, kernels().panel) + 3), w(pack(random, pool, element)),
        dy(element, gradients(random)) {}

  PackedMatrix pack(Random& random, ThreadPool& pool, Element element) const {
    std::vector<float> weights = random.normals(size_t(n * k));
    return PackedMatrix(kernels(), element, n, k, pool, [&](int64_t first, int64_t count, float* out) {
      std::memcpy(out, weights.data() + first * k, size_t(count * k) * sizeof(float));
      return true;
    });
  }
  std::vector<float> gradients(Random& random) const {
    std::vector<float> values = random.normals(size_t(m * ld_dy));
    for (int64_t i = 0; i < m; ++i) std::fill(values.begin() + i * ld_dy + n, values.begin() + (i + 1) * ld_dy, 0.0f);
    return values;
  }
  // In one piece, or cut where the panels divide by three.
  std::vector<PanelRange> columns_of(int64_t panels) const {
    int64_t cut = panels % 3 == 0 ? panels / 3 : panels;
    return {{0, cut}, {cut, panels}};
  }
  std::vector<float> run(ThreadPool& pool, const std::vector<PanelRange>& ranges, int64_t first, int64_t count, std::vector<float> dx,
                         bool accumulate) const {
    int64_t ld = ops::ld_backward(w);
    for (PanelRange range : ranges) {
      for (PanelRange columns : columns_of(ops::backward_panels(w).end)) {
        ops::matmul_backward(kernels(), pool, dy.at(size_t(first * ld_dy)), ld_dy, count, w, range, columns, dx.data() + first * ld, ld,
                             accumulate);
      }
      accumulate = true;
    }
    return dx;
  }
};

void check_product_back(Random& random, Element element, int64_t n, int64_t k, int64_t m, bool accumulate) {
  ThreadPool one(1), nine(9);
  ProductBack p(random, one, element, n, k, m);
  int64_t ld = ops::ld_backward(p.w), panels = ops::all_panels(p.w).end;
  std::vector<float> start = random.normals(size_t(m * ld)), truth = start;
  std::vector<float> dx = p.run(one, {{0, panels}}, 0, m, start, accumulate);
  ops::matmul_backward_reference(p.dy.wide.data(), p.ld_dy, m, p.w, {0, panels}, truth.data(), ld, accumulate);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < k; ++j) CHECK_NEAR(dx[size_t(i * ld + j)], truth[size_t(i * ld + j)], 1e-6 * double(n) + 1e-5);
  }
  std::vector<float> threaded = p.run(nine, {{0, panels}}, 0, m, start, accumulate);
  CHECK(same_bits(threaded.data(), dx.data(), dx.size()));
  int64_t cut = random.whole(0, panels);
  std::vector<float> parts = p.run(one, {{0, cut}, {cut, panels}}, 0, m, start, accumulate);
  if (cut > 0) CHECK(same_bits(parts.data(), dx.data(), dx.size()));
  for (int64_t i = 0; i < m; i += 5) {
    std::vector<float> alone = p.run(one, {{0, panels}}, i, 1, start, accumulate);
    CHECK(same_bits(alone.data() + i * ld, dx.data() + i * ld, size_t(k)));
  }
}

void check_many_back(Element element) {
  Random random(element == Element::kF32 ? 21 : 22);
  for (int64_t n : {1, 15, 16, 17, 64, 65, 255, 257, 300, 513})
    check_product_back(random, element, n, random.whole(1, 200), random.whole(1, 40), n % 2 == 0);
  for (int64_t k : {1, 31, 32, 33, 64, 96, 97, 128, 160})
    check_product_back(random, element, random.whole(1, 300), k, random.whole(1, 220), k % 2 == 1);
}

TEST(matmul_backward_f32_matches_reference) { check_many_back(Element::kF32); }
TEST(matmul_backward_bf16_matches_reference) { check_many_back(Element::kBf16); }

TEST(matmul_backward_is_the_transpose_of_matmul) {
  // <dy, W x> = <W^T dy, x>
  Random random(23);
  ThreadPool pool(2);
  ProductBack p(random, pool, Element::kF32, 90, 70, 4);
  std::vector<float> dx = p.run(pool, {ops::all_panels(p.w)}, 0, 4, std::vector<float>(size_t(4 * ops::ld_backward(p.w))), false);
  RowsBack x(Element::kF32, random.normals(size_t(4 * p.w.columns_padded())));
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t c = p.k; c < p.w.columns_padded(); ++c) x.wide[size_t(i * p.w.columns_padded() + c)] = 0;
  }
  std::vector<float> y(size_t(4 * p.w.rows_padded()));
  ops::matmul(kernels(), pool, x.at(0), p.w.columns_padded(), 4, p.w, y.data(), p.w.rows_padded(), false);
  double left = 0, right = 0;
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < p.n; ++j) left += double(p.dy.wide[size_t(i * p.ld_dy + j)]) * double(y[size_t(i * p.w.rows_padded() + j)]);
    for (int64_t c = 0; c < p.k; ++c)
      right += double(dx[size_t(i * ops::ld_backward(p.w) + c)]) * double(x.wide[size_t(i * p.w.columns_padded() + c)]);
  }
  CHECK_NEAR(left, right, 1e-3);
}

TEST(factor_gradients_match_reference) {
  Random random(24);
  for (Element element : {Element::kF32, Element::kBf16}) {
    for (int64_t i = 0; i < 12; ++i) {
      int64_t m = i == 0 ? 0 : random.whole(1, 600), n = random.whole(1, 150), ranks = random.whole(1, 20), ldu = ranks + 2, ldx = n + 5;
      int64_t ld = round_up(n, kernels().panel), panels = ld / kernels().panel;
      PanelRange all = {0, panels};
      ThreadPool one(1), three(3);
      std::vector<float> u = random.normals(size_t(m * ldu) + 1), start = random.normals(size_t(ranks * ld)), grad = start,
                         threaded = start;
      RowsBack x(element, random.normals(size_t(m * ldx) + 1));
      ops::accumulate_outer(kernels(), one, u.data(), ldu, ranks, x.at(0), ldx, element, m, n, all, grad.data(), ld);
      ops::accumulate_outer(kernels(), three, u.data(), ldu, ranks, x.at(0), ldx, element, m, n, all, threaded.data(), ld);
      CHECK(same_bits(threaded.data(), grad.data(), grad.size()));
      for (int64_t r = 0; r < ranks; ++r) {
        for (int64_t j = 0; j < n; ++j) {
          double truth = double(start[size_t(r * ld + j)]);
          for (int64_t t = 0; t < m; ++t) truth += double(u[size_t(t * ldu + r)]) * double(x.wide[size_t(t * ldx + j)]);
          CHECK_NEAR(grad[size_t(r * ld + j)], truth, 1e-6 * double(m) + 1e-5);
        }
      }
      // Columns in two calls are those of one.
      std::vector<float> columns = start;
      for (PanelRange range : {PanelRange{0, panels / 2}, PanelRange{panels / 2, panels}}) {
        ops::accumulate_outer(kernels(), one, u.data(), ldu, ranks, x.at(0), ldx, element, m, n, range, columns.data(), ld);
      }
      CHECK(same_bits(columns.data(), grad.data(), grad.size()));
      // RowsBack in two calls continue the same chains.
      if (m < 2) continue;
      int64_t cut = random.whole(1, m - 1);
      std::vector<float> parts = start;
      ops::accumulate_outer(kernels(), one, u.data(), ldu, ranks, x.at(0), ldx, element, cut, n, all, parts.data(), ld);
      ops::accumulate_outer(kernels(), one, u.data() + cut * ldu, ldu, ranks, x.at(size_t(cut * ldx)), ldx, element, m - cut, n, all,
                            parts.data(), ld);
      CHECK(same_bits(parts.data(), grad.data(), grad.size()));
    }
  }
}

}  // namespace
}  // namespace tandem::test
