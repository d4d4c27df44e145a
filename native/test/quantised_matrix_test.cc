// Quantised weights: what is packed comes back exactly, in every format and where formats meet.
#include "ops/quantised_matrix.h"

#include "dequantised.h"
#include "ops/quantise.h"
#include "quant_support.h"
#include "support.h"
#include "test.h"

namespace tandem::test {
namespace {

using ops::QuantFormat;
using ops::QuantisedMatrix;

TEST(half_floats_round_to_nearest_even) {
  // Every half comes back from its float; midpoints between neighbours go to the even one.
  for (uint32_t h = 0; h < 0x10000; ++h) {
    float value = half_to_float(uint16_t(h));
    if (std::isnan(value)) {
      CHECK(std::isnan(half_to_float(float_to_half(value))));
      continue;
    }
    CHECK_EQ(float_to_half(value), uint16_t(h));
    if ((h & 0x7fff) >= 0x7bff) continue;
    float middle = 0.5f * (value + half_to_float(uint16_t(h + 1)));
    CHECK_EQ(float_to_half(middle), uint16_t(h % 2 == 0 ? h : h + 1));
  }
  CHECK_EQ(float_to_half(65519.0f), uint16_t(0x7bff));
  CHECK_EQ(float_to_half(65520.0f), uint16_t(0x7c00));
  CHECK_EQ(float_to_half(-INFINITY), uint16_t(0xfc00));
}

// Of a code of E4M3, by its definition.
float number_of(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 127) == 127) return NAN;
  const float magnitude = exponent == 0 ? std::ldexp(float(mantissa), -9) : std::ldexp(float(8 + mantissa), exponent - 10);
  return code & 128 ? -magnitude : magnitude;
}

TEST(e4m3_codes_round_to_nearest_even) {
  for (int code = 0; code < 256; ++code) {
    const float value = number_of(code);
    if (std::isnan(value)) {
      CHECK(std::isnan(e4m3_to_float(uint8_t(code))));
      continue;
    }
    CHECK(same_bits(e4m3_to_float(uint8_t(code)), value));
    CHECK_EQ(float_to_e4m3(value), uint8_t(code));
    if ((code & 127) == 126) continue;
    const float next = number_of(code + 1), middle = 0.5f * (value + next);
    CHECK_EQ(float_to_e4m3(middle), uint8_t(code % 2 == 0 ? code : code + 1));
    CHECK_EQ(float_to_e4m3(std::nextafter(middle, value)), uint8_t(code));
    CHECK_EQ(float_to_e4m3(std::nextafter(middle, next)), uint8_t(code + 1));
  }
}

TEST(e4m3_saturates) {
  for (float large : {448.0f, 449.0f, 464.0f, 480.0f, 1e30f, std::numeric_limits<float>::max(), INFINITY}) {
    CHECK_EQ(float_to_e4m3(large), uint8_t(0x7e));
    CHECK_EQ(float_to_e4m3(-large), uint8_t(0xfe));
  }
  CHECK_EQ(float_to_e4m3(std::nextafter(448.0f, 0.0f)), uint8_t(0x7e));
  CHECK_EQ(float_to_e4m3(1e-40f), uint8_t(0));
  CHECK_EQ(float_to_e4m3(-1e-40f), uint8_t(0x80));
  CHECK(std::isnan(e4m3_to_float(float_to_e4m3(NAN))) && std::isnan(e4m3_to_float(float_to_e4m3(-NAN))));
}

TEST(quantised_weights_come_back_exactly) {
  Random random(41);
  ThreadPool pool(3);
  for (QuantFormat format : kDeviceFormats) {
    for (int64_t k : {1, 16, 31, 32, 45, 64, 96}) {
      QuantSource source(random, format, random.whole(1, 150), k);
      QuantisedMatrix w(kernels().panel, k, {source.part()}, pool);
      CHECK_EQ(w.rows(), source.rows);
      CHECK_EQ(w.columns(), k);
      CHECK_EQ(w.columns_padded(), round_up(k, 32));
      std::vector<float> row(static_cast<size_t>(k));
      for (int64_t r = 0; r < source.rows; ++r) {
        w.copy_row(r, row.data());
        for (int64_t c = 0; c < k; ++c) CHECK_EQ(row[size_t(c)], source.at(r, c));
      }
    }
  }
}

TEST(parts_of_different_formats_share_a_matrix) {
  Random random(42);
  ThreadPool pool(2);
  int64_t k = 64, panel = kernels().panel;
  std::vector<QuantSource> sources;
  for (QuantFormat format : kQuantFormats) sources.emplace_back(random, format, random.whole(1, 3 * panel), k);
  std::vector<ops::QuantPart> parts;
  for (const QuantSource& source : sources) parts.push_back(source.part());
  QuantisedMatrix w(panel, k, parts, pool);
  std::vector<float> row(static_cast<size_t>(k));
  int64_t first = 0;
  for (const QuantSource& source : sources) {
    for (int64_t r = 0; r < source.rows; ++r) {
      w.copy_row(first + r, row.data());
      for (int64_t c = 0; c < k; ++c) CHECK_EQ(row[size_t(c)], source.at(r, c));
    }
    first += source.rows;
  }
  CHECK(w.format(0) == sources[0].format || w.format(0) == QuantFormat::kInt8FineMin);
}

// Blocks of Q8_0 and Q4_0 (llama.cpp's scale: the extreme number is 127 or -8 steps) survive being widened and quantised again.
TEST(quantising_what_was_quantised_changes_nothing) {
  Random random(44);
  for (QuantFormat format : {QuantFormat::kInt8, QuantFormat::kInt4}) {
    int offset = simd::traits_of(format).offset, low = format == QuantFormat::kInt8 ? -127 : -8,
        high = format == QuantFormat::kInt8 ? 127 : 7;
    for (int round = 0; round < 2000; ++round) {
      float scale = half_to_float(float_to_half(0.01f * random.normal())), wide[32], found;
      if (format == QuantFormat::kInt8) scale = std::fabs(scale);
      std::vector<uint8_t> wanted, values(32);
      for (int i = 0; i < 32; ++i) wanted.push_back(uint8_t(random.whole(low, high) + offset));
      wanted[size_t(random.whole(0, 31))] = uint8_t(low + offset);
      for (int i = 0; i < 32; ++i) wide[i] = scale * float(int(wanted[size_t(i)]) - offset);
      ops::quantise_weights(format, wide, 32, values.data(), &found);
      CHECK(values == wanted);
      CHECK_EQ(found, scale);
    }
  }
}

TEST(quantised_weights_that_are_not_finite_stay_so) {
  for (QuantFormat format : {QuantFormat::kInt8, QuantFormat::kInt4}) {
    std::vector<float> row(64, 0.5f), scales(2);
    std::vector<uint8_t> values(64);
    row[40] = NAN;
    ops::quantise_weights(format, row.data(), 64, values.data(), scales.data());
    CHECK(std::isfinite(scales[0]));
    CHECK(std::isnan(scales[1]));
    // Too large for any scale: infinite or NaN, never weights of another size.
    row.assign(64, 1e8f);
    ops::quantise_weights(format, row.data(), 64, values.data(), scales.data());
    CHECK(!std::isfinite(scales[0]));
  }
}

TEST(fp8_weights_are_bf16_numbers_near_the_old_ones) {
  Random random(45);
  for (float size : {1e-28f, 1e-5f, 0.02f, 1.0f, 3e4f}) {
    std::vector<float> row = random.normals(100, size), once, scales(1);
    std::vector<uint8_t> codes(100);
    ops::quantise_weights(QuantFormat::kFp8, row.data(), 100, codes.data(), scales.data());
    int exponent = 0;
    CHECK_EQ(std::frexp(scales[0], &exponent), 0.5f);
    float top = 0;
    for (float w : row) top = std::max(top, std::fabs(w));
    CHECK(top <= 448 * scales[0] && top > 224 * scales[0]);
    once = row;
    dequantise_row(QuantFormat::kFp8, once.data(), 100);
    for (size_t i = 0; i < row.size(); ++i) {
      CHECK_NEAR(once[i], row[i], std::max(std::fabs(row[i]) / 16, 0x1p-10f * scales[0]));
      CHECK(same_bits(bf16_to_float(float_to_bf16(once[i])), once[i]));
    }
    std::vector<float> twice = once;
    dequantise_row(QuantFormat::kFp8, twice.data(), 100);
    CHECK(twice == once);
  }
}

TEST(fp8_rows_that_have_no_scale) {
  std::vector<uint8_t> codes(40);
  auto scale_of = [&](float first, float rest) {
    std::vector<float> row(40, rest);
    row[0] = first;
    float scale = 1;
    ops::quantise_weights(QuantFormat::kFp8, row.data(), 40, codes.data(), &scale);
    return scale;
  };
  CHECK(std::isnan(scale_of(NAN, 1)));
  CHECK(std::isnan(scale_of(INFINITY, 1)));
  CHECK_EQ(scale_of(448, 1), 1.0f);
  CHECK_EQ(scale_of(448.25f, 1), 2.0f);
  CHECK_EQ(scale_of(0, 0), 0.0f);
  CHECK_EQ(scale_of(1e-31f, -1e-35f), 0.0f);
  // The largest scale is one that leaves every number finite.
  CHECK_EQ(scale_of(std::numeric_limits<float>::max(), 0), 0x1p119f);
  CHECK_EQ(codes[0], uint8_t(0x7e));
  CHECK(std::isfinite(0x1p119f * e4m3_to_float(codes[0])));
}

TEST(fp8_parts_share_panels_with_each_other_only) {
  Random random(46);
  ThreadPool pool(1);
  const QuantSource one(random, QuantFormat::kFp8, 20, 40), two(random, QuantFormat::kFp8, 50, 40),
      other(random, QuantFormat::kInt8, 4, 40);
  const QuantisedMatrix w(64, 40, {one.part(), two.part()}, pool);
  std::vector<float> row(40);
  w.copy_row(69, row.data());
  for (int64_t c = 0; c < 40; ++c) CHECK_EQ(row[size_t(c)], two.at(49, c));
  CHECK_EQ(w.bytes(), size_t(2 * 64 * (4 + 64)));
  CHECK_ERROR(kRange, "cannot share", QuantisedMatrix(64, 40, {one.part(), other.part()}, pool));
  CHECK_ERROR(kRange, "cannot share", QuantisedMatrix(64, 40, {other.part(), one.part()}, pool));
}

TEST(quantised_packing_reports_a_failed_read) {
  ThreadPool pool(3);
  ops::QuantPart broken{500, QuantFormat::kInt8, [](int64_t first, int64_t, const ops::QuantRows&) { return first < 200; }};
  CHECK_ERROR(kIo, "could not read", QuantisedMatrix(16, 8, {broken}, pool));
  CHECK_ERROR(kRange, "positive", QuantisedMatrix(16, 0, {broken}, pool));
}

TEST(quantised_reference_is_close_to_the_dequantised_product) {
  Random random(43);
  ThreadPool pool(1);
  for (QuantFormat format : kQuantFormats) {
    int64_t k = 320, m = 5;
    QuantSource source(random, format, 70, k);
    QuantisedMatrix w(kernels().panel, k, {source.part()}, pool);
    std::vector<float> x = random.normals(size_t(m * k)), y(size_t(m * w.rows_padded()), 0.5f);
    ops::quantised_matmul_reference(x.data(), k, m, w, y.data(), w.rows_padded(), true);
    double wrong = 0, all = 0;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t n = 0; n < source.rows; ++n) {
        double truth = 0.5;
        for (int64_t c = 0; c < k; ++c) truth += double(x[size_t(i * k + c)]) * double(source.at(n, c));
        wrong += std::pow(double(y[size_t(i * w.rows_padded() + n)]) - truth, 2);
        all += truth * truth;
      }
    }
    CHECK(std::sqrt(wrong / all) < 0.01);
    CHECK(std::sqrt(wrong / all) > 1e-4);
  }
}

}  // namespace
}  // namespace tandem::test
