// Products with packed weights: against the naive truth, and every row alone bitwise equal to the same row in any batch.
#include "ops/matmul.h"

#include "support.h"
#include "test.h"

namespace tandem::test {
namespace {

using ops::Element;
using ops::PackedMatrix;

struct Product {
  int64_t n, k, m;
  Element element;
  std::vector<float> weights, x;
  std::vector<uint16_t> x_bf16;

  Product(Random& random, Element e, int64_t rows, int64_t inner, int64_t batch)
      : n(rows), k(inner), m(batch), element(e), weights(random.normals(size_t(n * k))), x(random.normals(size_t(m * ldx()))) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t c = k; c < ldx(); ++c) x[size_t(i * ldx() + c)] = 0;
    }
    if (e == Element::kF32) return;
    for (float& value : x) {
      value = rounded_bf16(value);
      x_bf16.push_back(float_to_bf16(value));
    }
  }

  int64_t ldx() const { return round_up(k, 32); }
  const void* input(int64_t row) const {
    size_t at = size_t(row * ldx());
    return element == Element::kF32 ? static_cast<const void*>(x.data() + at) : static_cast<const void*>(x_bf16.data() + at);
  }
  PackedMatrix pack(ThreadPool& pool) const {
    return PackedMatrix(kernels(), element, n, k, pool, [this](int64_t first, int64_t count, float* out) {
      std::memcpy(out, weights.data() + first * k, size_t(count * k) * sizeof(float));
      return true;
    });
  }
};

std::vector<float> run(const Product& p, const PackedMatrix& w, ThreadPool& pool, int64_t first, int64_t count,
                       const std::vector<float>& start, bool accumulate) {
  int64_t ldy = w.rows_padded();
  std::vector<float> y(start.begin() + first * ldy, start.begin() + (first + count) * ldy);
  ops::matmul(kernels(), pool, p.input(first), p.ldx(), count, w, y.data(), ldy, accumulate);
  return y;
}

void check_product(Random& random, Element element, int64_t n, int64_t k, int64_t m, bool accumulate) {
  ThreadPool pool(1);
  Product p(random, element, n, k, m);
  PackedMatrix w = p.pack(pool);
  int64_t ldy = w.rows_padded();
  std::vector<float> start = random.normals(size_t(m * ldy));
  std::vector<float> y = run(p, w, pool, 0, m, start, accumulate), truth = start;
  ops::matmul_reference(p.x.data(), p.ldx(), m, w, truth.data(), ldy, accumulate);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) CHECK_NEAR(y[size_t(i * ldy + j)], truth[size_t(i * ldy + j)], 1e-6 * double(k) + 1e-5);
  }
  // Every row alone, and from a row in the middle in a smaller batch.
  int64_t row = random.whole(0, m - 1), count = random.whole(1, m - row);
  std::vector<float> part = run(p, w, pool, row, count, start, accumulate);
  CHECK(same_bits(part.data(), y.data() + row * ldy, size_t(count * ldy)));
  for (int64_t i = 0; i < m; ++i) {
    std::vector<float> alone = run(p, w, pool, i, 1, start, accumulate);
    CHECK(same_bits(alone.data(), y.data() + i * ldy, size_t(ldy)));
  }
}

void check_many(Element element) {
  Random random(element == Element::kF32 ? 11 : 12);
  // Inner sizes around the 256-block of the kernel; row counts around every row tile.
  for (int64_t k : {1, 2, 31, 32, 33, 255, 257, 300, 512, 700}) {
    check_product(random, element, random.whole(1, 200), k, random.whole(1, 40), k % 2 == 0);
  }
  for (int64_t m = 1; m <= 40; m += 3) {
    check_product(random, element, random.whole(1, 90), random.whole(1, 290), m, random.whole(0, 1) == 1);
  }
  for (int64_t m : {1, 5, 6, 7, 12, 13}) check_product(random, element, 65, 513, m, m % 2 == 1);
  // AMX cuts k and rows in other ways from 64 and from 128 rows on.
  for (int64_t m : {41, 63, 65, 95, 113, 129, 255}) check_product(random, element, 65, 290, m, m % 4 == 1);
  check_product(random, element, 65, 300, 259, true);  // more than one block of rows
}

TEST(matmul_f32_matches_reference_and_rows_stand_alone) { check_many(Element::kF32); }
TEST(matmul_bf16_matches_reference_and_rows_stand_alone) { check_many(Element::kBf16); }

TEST(matmul_does_not_depend_on_the_pool) {
  Random random(13);
  for (Element element : {Element::kF32, Element::kBf16}) {
    Product p(random, element, 333, 300, 17);
    ThreadPool one(1), two(2), five(5);
    PackedMatrix w = p.pack(one), w5 = p.pack(five);
    CHECK(std::memcmp(w.panel_data(0), w5.panel_data(0), w.bytes()) == 0);
    std::vector<float> start(size_t(p.m * w.rows_padded()));
    std::vector<float> first = run(p, w, one, 0, p.m, start, false);
    for (ThreadPool* pool : {&two, &five}) {
      std::vector<float> y = run(p, w5, *pool, 0, p.m, start, false);
      CHECK(same_bits(y.data(), first.data(), y.size()));
    }
  }
}

TEST_ONCE(claims_take_every_panel_once) {
  for (int threads : {1, 2, 3, 16, 256}) {
    for (int64_t panels = 1; panels < 120; ++panels) {
      ops::PanelRange range{5, 5 + panels};
      ops::PanelClaims claims(range, threads);
      int64_t next = range.first;
      for (int64_t i = 0; i < claims.count(); ++i) {
        ops::PanelRange claim = claims[i];
        CHECK_EQ(claim.first, next);
        CHECK(claim.end > claim.first);
        next = claim.end;
      }
      CHECK_EQ(next, range.end);
    }
  }
}

TEST(matmul_keeps_a_broken_row_to_itself) {
  Random random(14);
  for (Element element : {Element::kF32, Element::kBf16}) {
    ThreadPool pool(1);
    Product p(random, element, 70, 290, 9);
    PackedMatrix w = p.pack(pool);
    std::vector<float> start(size_t(p.m * w.rows_padded()));
    std::vector<float> before = run(p, w, pool, 0, p.m, start, false);
    size_t at = size_t(4 * p.ldx() + 7);
    p.x[at] = NAN;
    if (element == Element::kBf16) p.x_bf16[at] = float_to_bf16(NAN);
    std::vector<float> after = run(p, w, pool, 0, p.m, start, false);
    size_t ld = size_t(w.rows_padded());
    CHECK(same_bits(before.data(), after.data(), 4 * ld));
    CHECK(same_bits(before.data() + 5 * ld, after.data() + 5 * ld, 4 * ld));
    for (int64_t j = 0; j < p.n; ++j) CHECK(std::isnan(after[4 * ld + size_t(j)]));
  }
}

TEST(packed_rows_come_back) {
  Random random(15);
  for (Element element : {Element::kF32, Element::kBf16}) {
    ThreadPool pool(2);
    Product p(random, element, 131, 45, 1);
    PackedMatrix w = p.pack(pool);
    std::vector<float> row(size_t(p.k));
    for (int64_t r = 0; r < p.n; ++r) {
      w.copy_row(r, row.data());
      for (int64_t c = 0; c < p.k; ++c) {
        float wanted = p.weights[size_t(r * p.k + c)];
        CHECK_EQ(row[size_t(c)], element == Element::kF32 ? wanted : rounded_bf16(wanted));
      }
    }
  }
}

TEST(packing_reports_a_failed_read) {
  ThreadPool pool(3);
  CHECK_ERROR(kIo, "could not read",
              PackedMatrix(kernels(), Element::kF32, 500, 8, pool, [](int64_t first, int64_t, float*) { return first < 200; }));
  CHECK_ERROR(kRange, "positive", PackedMatrix(kernels(), Element::kF32, 0, 8, pool, [](int64_t, int64_t, float*) { return true; }));
}

}  // namespace
}  // namespace tandem::test
