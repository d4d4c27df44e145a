// Products with quantised weights: against the naive truth, every row alone bitwise equal to the same row in any batch, and their gradients.
#include "ops/quantised_matmul.h"

#include <algorithm>

#include "ops/matmul_backward.h"
#include "quant_support.h"
#include "simd/quant_kernels.h"
#include "support.h"
#include "test.h"

namespace tandem::test {
namespace {

using ops::Element;
using ops::PackedMatrix;
using ops::QuantFormat;

constexpr float kSizes[] = {1.0f, 1e-4f, 0.2f, 0.0f, 0.02f};

struct QuantisedProduct {
  int64_t m;
  Element element;
  QuantSource source;
  std::vector<float> x;
  std::vector<uint16_t> x_bf16;

  QuantisedProduct(Random& random, QuantFormat format, Element e, int64_t n, int64_t k, int64_t batch)
      : m(batch), element(e), source(random, format, n, k), x(random.normals(size_t(m * ldx()))) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t c = 0; c < ldx(); ++c) x[size_t(i * ldx() + c)] *= c < k ? std::exp(0.3f * random.normal()) : 0.0f;
      // Of every third row groups differ so much that they have scales of their own.
      for (int64_t c = 0; i % 3 == 2 && c < ldx(); ++c) x[size_t(i * ldx() + c)] *= kSizes[size_t(c / 32 * 7 % 5)];
      // Beside one of them a row of zeros.
      if (i % 6 == 1) std::fill_n(x.begin() + i * ldx(), std::min<int64_t>(ldx(), 256), 0.0f);
    }
    round();
  }
  void round() {
    x_bf16.clear();
    if (element == Element::kF32) return;
    for (float& value : x) {
      value = rounded_bf16(value);
      x_bf16.push_back(float_to_bf16(value));
    }
  }
  int64_t ldx() const { return round_up(source.k, 32); }
  const void* input(int64_t row) const {
    size_t at = size_t(row * ldx());
    return element == Element::kF32 ? static_cast<const void*>(x.data() + at) : static_cast<const void*>(x_bf16.data() + at);
  }
  PackedMatrix pack(ThreadPool& pool) const {
    return PackedMatrix(element, ops::QuantisedMatrix(kernels().panel, source.k, {source.part()}, pool));
  }
};

std::vector<float> run(const QuantisedProduct& p, const PackedMatrix& w, ThreadPool& pool, int64_t first, int64_t count,
                       const std::vector<float>& start, bool accumulate) {
  int64_t ldy = w.rows_padded();
  std::vector<float> y(start.begin() + first * ldy, start.begin() + (first + count) * ldy);
  ops::matmul(kernels(), pool, p.input(first), p.ldx(), count, w, y.data(), ldy, accumulate);
  return y;
}

void check_product(Random& random, QuantFormat format, Element element, int64_t n, int64_t k, int64_t m, bool accumulate) {
  ThreadPool pool(1), three(3);
  QuantisedProduct p(random, format, element, n, k, m);
  PackedMatrix w = p.pack(pool);
  int64_t ldy = w.rows_padded();
  std::vector<float> start = random.normals(size_t(m * ldy));
  std::vector<float> y = run(p, w, three, 0, m, start, accumulate), truth = start;
  ops::quantised_matmul_reference(p.x.data(), p.ldx(), m, *w.quantised(), truth.data(), ldy, accumulate);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) CHECK_NEAR(y[size_t(i * ldy + j)], truth[size_t(i * ldy + j)], 2e-6 * double(k) + 1e-5);
  }
  int64_t row = random.whole(0, m - 1), count = random.whole(1, m - row);
  std::vector<float> part = run(p, w, pool, row, count, start, accumulate);
  CHECK(same_bits(part.data(), y.data() + row * ldy, size_t(count * ldy)));
  for (int64_t i = 0; i < m; ++i) {
    std::vector<float> alone = run(p, w, pool, i, 1, start, accumulate);
    CHECK(same_bits(alone.data(), y.data() + i * ldy, size_t(ldy)));
  }
}

TEST(quantised_matmul_matches_reference_and_rows_stand_alone) {
  Random random(51);
  for (QuantFormat format : kQuantFormats) {
    for (Element element : {Element::kF32, Element::kBf16}) {
      // Inner sizes around the 256-block of the kernel; row counts around every row tile.
      for (int64_t k : {1, 33, 64, 255, 257, 300, 512, 700}) {
        check_product(random, format, element, random.whole(1, 200), k, random.whole(1, 20), k % 2 == 0);
      }
      for (int64_t m = 1; m <= 14; ++m) check_product(random, format, element, random.whole(1, 90), random.whole(1, 290), m, m % 2 == 0);
      // More than one block of rows and of inputs.
      check_product(random, format, element, 70, 300, 259, true);
    }
  }
}

// Whole-number products saturate nowhere: all weights and activations at their extremes.
TEST(quantised_matmul_is_exact_at_the_extremes) {
  Random random(52);
  ThreadPool pool(1);
  for (QuantFormat format : kQuantFormats) {
    for (uint8_t stored : {0, 255}) {
      for (float sign : {1.0f, -1.0f}) {
        QuantisedProduct p(random, format, Element::kF32, 70, 64, 9);
        for (uint8_t& value : p.source.values) value = p.source.traits.bits == 8 ? stored : stored & 15;
        for (float& value : p.x) value = sign;
        PackedMatrix w = p.pack(pool);
        std::vector<float> start(size_t(p.m * w.rows_padded())), y = run(p, w, pool, 0, p.m, start, false), truth = start;
        ops::quantised_matmul_reference(p.x.data(), p.ldx(), p.m, *w.quantised(), truth.data(), w.rows_padded(), false);
        for (int64_t i = 0; i < p.m; ++i) {
          for (int64_t j = 0; j < 70; ++j) {
            size_t at = size_t(i * w.rows_padded() + j);
            CHECK_NEAR(y[at], truth[at], 1e-5 * std::fabs(truth[at]) + 1e-5);
          }
        }
      }
    }
  }
}

TEST(quantised_rows_are_the_same_everywhere) {
  Random random(53);
  const simd::QuantKernels& quant = simd::quant_kernels_for(kernels().isa);
  for (int round = 0; round < 200; ++round) {
    int64_t k = 32 * random.whole(1, 9);
    std::vector<float> x = random.normals(size_t(k), std::exp(10 * random.normal()));
    // Ties, zeros, tiny and huge numbers, and what is not finite.
    for (int i = 0; i < 3; ++i)
      x[size_t(random.whole(0, k - 1))] = random.pick<float>({127.0f, 0.5f, -63.5f, 0.0f, 1e-31f, 3e38f, NAN, -INFINITY});
    if (round % 4 == 0) std::fill_n(x.begin(), 32, round % 8 == 0 ? 0.0f : 1e-32f);
    // Groups of other sizes than their block, also by just the factor from which they have a scale of their own.
    for (int64_t i = 0; round % 3 == 0 && i < k; ++i) x[size_t(i)] *= i / 32 % 2 ? std::ldexp(1.0f, -(round / 3 % 12)) : 1.0f;
    if (round % 5 == 0) x[0] = simd::kQuantUneven * *std::max_element(x.begin() + 32 * (k / 32 - 1), x.end());
    std::vector<int8_t> values(static_cast<size_t>(k)), wanted(static_cast<size_t>(k));
    std::vector<float> scales(static_cast<size_t>(k / 32)), wanted_scales(static_cast<size_t>(k / 32));
    std::vector<int32_t> sums(static_cast<size_t>(k / 16));
    quant.quantise_f32(x.data(), k, values.data(), scales.data(), sums.data());
    ops::quantise_activation_reference(x.data(), k, wanted.data(), wanted_scales.data());
    CHECK(values == wanted);
    for (int64_t i = 0; i < k / 32; ++i) CHECK(same_bits(scales[size_t(i)], wanted_scales[size_t(i)]) || std::isnan(scales[size_t(i)]));
    for (int64_t i = 0; i < k / 32; ++i) CHECK_EQ(std::isnan(scales[size_t(i)]), std::isnan(wanted_scales[size_t(i)]));
    for (int64_t i = 0; i < k / 16; ++i) {
      int32_t sum = 0;
      for (int64_t c = 0; c < 16; ++c) sum += values[size_t(16 * i + c)];
      CHECK_EQ(sums[size_t(i)], sum);
    }
  }
}

TEST(quantised_matmul_keeps_a_broken_row_to_itself) {
  Random random(54);
  ThreadPool pool(2);
  for (QuantFormat format : kQuantFormats) {
    QuantisedProduct p(random, format, Element::kBf16, 70, 290, 9);
    PackedMatrix w = p.pack(pool);
    std::vector<float> start(size_t(p.m * w.rows_padded()));
    std::vector<float> before = run(p, w, pool, 0, p.m, start, false);
    p.x[size_t(4 * p.ldx() + 7)] = INFINITY;
    p.round();
    std::vector<float> after = run(p, w, pool, 0, p.m, start, false);
    size_t ld = size_t(w.rows_padded());
    CHECK(same_bits(before.data(), after.data(), 4 * ld));
    CHECK(same_bits(before.data() + 5 * ld, after.data() + 5 * ld, 4 * ld));
    for (int64_t j = 0; j < 70; ++j) CHECK(std::isnan(after[4 * ld + size_t(j)]));
  }
}

TEST(quantised_backward_is_that_of_the_dequantised_weights) {
  Random random(55);
  for (QuantFormat format : kQuantFormats) {
    for (Element element : {Element::kF32, Element::kBf16}) {
      ThreadPool pool(3);
      int64_t n = random.whole(30, 300), k = random.whole(10, 200), m = random.whole(1, 120);
      QuantSource source(random, format, n, k);
      PackedMatrix w(element, ops::QuantisedMatrix(kernels().panel, k, {source.part()}, pool));
      int64_t ld = w.rows_padded(), ld_dx = ops::ld_backward(w);
      std::vector<float> dy = random.normals(size_t(m * ld)), dx(size_t(m * ld_dx)), truth(size_t(m * ld_dx));
      std::vector<uint16_t> narrow;
      for (float& value : dy) {
        if (element == Element::kBf16) narrow.push_back(float_to_bf16(value)), value = rounded_bf16(value);
      }
      const void* input = element == Element::kBf16 ? static_cast<const void*>(narrow.data()) : static_cast<const void*>(dy.data());
      ops::matmul_backward(kernels(), pool, input, ld, m, w, ops::all_panels(w), ops::backward_panels(w), dx.data(), ld_dx, false);
      ops::matmul_backward_reference(dy.data(), ld, m, w, ops::all_panels(w), truth.data(), ld_dx, false);
      // bf16 rounds each weight, by at most 2^-9 of it.
      double wrong = 0, all = 0;
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t c = 0; c < k; ++c) {
          wrong += std::pow(double(dx[size_t(i * ld_dx + c)]) - double(truth[size_t(i * ld_dx + c)]), 2);
          all += std::pow(double(truth[size_t(i * ld_dx + c)]), 2);
        }
      }
      CHECK(std::sqrt(wrong / all) < (element == Element::kBf16 ? 2e-3 : 1e-6));
    }
  }
}

// ---------------------------------------------------------------- tiles

// Rows of x with zeros, tiny and huge groups, in the form that products take.
struct QuantisedRows {
  int64_t m, k;
  std::vector<int8_t> values;
  std::vector<float> scales;
  std::vector<int32_t> sums;

  QuantisedRows(Random& random, int64_t rows, int64_t inputs)
      : m(rows), k(inputs), values(size_t(m * k)), scales(size_t(m * k / 32)), sums(size_t(m * k / 16)) {
    std::vector<float> x = random.normals(size_t(m * k));
    for (int64_t group = 0; group < m * k / 32; ++group) {
      float factor = random.whole(0, 3) > 0 ? 1.0f : random.pick<float>({0.0f, -0.0f, 1e-29f, 1e30f, 1e-12f});
      for (int i = 0; i < 32; ++i) x[size_t(32 * group + i)] *= factor;
    }
    if (m > 3) x[size_t(random.whole(0, m - 1) * k)] = NAN;
    for (int64_t r = 0; r < m; ++r) {
      simd::quant_kernels_for(simd::Isa::kAvx512Vnni)
          .quantise_f32(x.data() + r * k, k, values.data() + r * k, scales.data() + r * k / 32, sums.data() + r * k / 16);
    }
  }
  simd::QuantRowsView view() const { return {values.data(), scales.data(), sums.data(), k, m}; }
  simd::QuantRowsView row(int64_t r) const { return {values.data() + r * k, scales.data() + r * k / 32, sums.data() + r * k / 16, k, 1}; }
};

// Numbers whose scales have few bits, many bits, the sign of a zero at stake, or no finite value.
enum class Numbers { kShort, kLong, kTiny, kBroken, kCount };

void change_numbers(Random& random, QuantSource& source, Numbers numbers) {
  auto change = [&](float& value) {
    if (numbers == Numbers::kShort || !source.traits.wide_scales) value = half_to_float(float_to_half(value));
    if (random.whole(0, 30) == 0) value = random.pick<float>({0.0f, -0.0f});
    if (numbers == Numbers::kTiny && random.whole(0, 2) == 0) value *= source.traits.wide_scales ? 1e-30f : 0x1p-14f;
    if (numbers == Numbers::kBroken && random.whole(0, 200) == 0) value = random.pick<float>({INFINITY, -INFINITY, NAN});
    if (!source.traits.wide_scales) value = half_to_float(float_to_half(value));
  };
  for (float& scale : source.scales) change(scale);
  if (source.traits.minima) {
    for (float& minimum : source.minima) change(minimum);
  }
}

void check_tiles(Random& random, QuantFormat format, Numbers numbers, int64_t n, int64_t k, int64_t m, bool accumulate) {
  const simd::QuantKernels& tiles = simd::quant_kernels_for(simd::Isa::kAmx);
  constexpr int64_t kPanel = 64;
  ThreadPool pool(1);
  QuantSource source(random, format, n, k);
  change_numbers(random, source, numbers);
  ops::QuantisedMatrix w(kPanel, k, {source.part()}, pool);
  const int64_t inner = w.columns_padded(), ldy = w.rows_padded() + 16;
  QuantisedRows x(random, m, inner);
  std::vector<float> y = random.normals(size_t(m * ldy));
  for (size_t i = 0; i < y.size(); i += 3) y[i] = random.whole(0, 40) == 0 ? -0.0f : y[i];
  std::vector<float> wanted = y;
  for (int64_t p = 0; p < w.rows_padded() / kPanel; ++p) {
    tiles.gemm({x.view(), m, format, w.panel_data(p), inner, y.data() + p * kPanel, ldy, accumulate});
    // A row alone is multiplied by vectors.
    for (int64_t r = 0; r < m; ++r) {
      tiles.gemm({x.row(r), 1, format, w.panel_data(p), inner, wanted.data() + r * ldy + p * kPanel, ldy, accumulate});
    }
  }
  for (size_t i = 0; i < y.size(); ++i) CHECK(same_bits(y[i], wanted[i]) || (std::isnan(y[i]) && std::isnan(wanted[i])));
}

TEST(quantised_tiles_have_the_bits_of_vectors) {
  if (kernels().isa != simd::Isa::kAmx) return;  // once, and only where the machine has tiles
  Random random(56);
  for (QuantFormat format : kQuantFormats) {
    for (int numbers = 0; numbers < int(Numbers::kCount); ++numbers) {
      // Inner sizes around the block of 256, of every number of groups in flight; row counts around the row tiles and the rows of sums.
      for (int64_t k : {1, 33, 70, 97, 160, 192, 225, 256, 257, 300, 512, 700}) {
        check_tiles(random, format, Numbers(numbers), random.whole(1, 130), k, random.whole(1, 70), k % 2 == 0);
      }
      for (int64_t m : {15, 16, 17, 31, 32, 33, 47, 49, 255, 256, 257, 290, 511, 513}) {
        check_tiles(random, format, Numbers(numbers), random.whole(1, 64), random.whole(1, 600), m, m % 2 == 0);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::test
