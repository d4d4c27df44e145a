// The row-wise kernels against plain loops in double, at every length around the vector widths.
#include <algorithm>
#include <limits>

#include "support.h"
#include "test.h"

namespace tandem::test {
namespace {

// Relative distance to the true value in units of float's last place.
double ulps(float seen, double truth) { return std::fabs(double(seen) - truth) / (std::fabs(truth) * 0x1p-23); }

std::vector<float> exp_of(const std::vector<float>& x) {
  std::vector<float> out(x.size());
  std::vector<float> sums(size_t(simd::row_tiles(int64_t(x.size()))));
  kernels().tile_exp(x.data(), int64_t(x.size()), 0.0f, 1.0f, out.data(), sums.data());
  return out;
}

TEST(exp_is_accurate_over_its_range) {
  std::vector<float> x;
  for (double v = -87.29; v < 88.37; v += 0.00173) x.push_back(float(v));
  for (float v : {-0.0f, 0.0f, 1e-30f, -1e-30f, 1e-7f, -1e-7f, 0.34657359f, -0.34657359f}) x.push_back(v);
  std::vector<float> e = exp_of(x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, ulps(e[i], std::exp(double(x[i]))));
  CHECK(worst < 2.0);
  if (worst >= 2.0) CHECK_NEAR(worst, 0, 2);
}

TEST(exp_saturates_at_both_ends) {
  std::vector<float> x = {-kInf, -1e30f, -1000.0f, -104.0f, -87.4f, 88.8f, 1000.0f, 1e30f, kInf, 88.5f, 88.7f, 0.0f, NAN};
  std::vector<float> e = exp_of(x);
  for (size_t i = 0; i < 5; ++i) CHECK_EQ(e[i], 0.0f);
  for (size_t i = 5; i < 9; ++i) CHECK_EQ(e[i], kInf);
  CHECK(std::fabs(e[9] / std::exp(88.5) - 1) < 1e-4);
  CHECK(std::fabs(e[10] / std::exp(88.7) - 1) < 1e-4);
  CHECK_EQ(e[11], 1.0f);
  CHECK(std::isnan(e[12]));
}

TEST(rms_norm_matches) {
  Random random(21);
  for (int64_t n = 1; n <= 70; ++n) {
    std::vector<float> x = random.normals(size_t(n), 3), w = random.normals(size_t(n)), out(size_t(n), -1.0f);
    std::vector<uint16_t> half(size_t(n), 0);
    double sum = 0;
    for (float v : x) sum += double(v) * v;
    double scale = 1 / std::sqrt(sum / double(n) + 1e-5);
    kernels().rms_norm_f32(x.data(), w.data(), n, 1e-5f, out.data());
    kernels().rms_norm_bf16(x.data(), w.data(), n, 1e-5f, half.data());
    for (int64_t i = 0; i < n; ++i) {
      double truth = double(w[size_t(i)]) * double(x[size_t(i)]) * scale;
      CHECK_NEAR(out[size_t(i)], truth, 2e-6 * std::fabs(truth));
      CHECK_EQ(half[size_t(i)], float_to_bf16(out[size_t(i)]));
    }
    // In place, as the q and k norms use it.
    kernels().rms_norm_f32(x.data(), w.data(), n, 1e-5f, x.data());
    CHECK(same_bits(x.data(), out.data(), size_t(n)));
  }
}

TEST(silu_mul_matches) {
  Random random(22);
  for (int64_t n = 1; n <= 70; ++n) {
    std::vector<float> gate = random.normals(size_t(n), 10), up = random.normals(size_t(n)), out(static_cast<size_t>(n));
    if (n > 3) gate[1] = -100.0f, gate[2] = 100.0f;
    std::vector<uint16_t> half(static_cast<size_t>(n));
    kernels().silu_mul_f32(gate.data(), up.data(), n, out.data());
    kernels().silu_mul_bf16(gate.data(), up.data(), n, half.data());
    for (size_t i = 0; i < size_t(n); ++i) {
      double truth = double(gate[i]) / (1 + std::exp(-double(gate[i]))) * double(up[i]);
      CHECK_NEAR(out[i], truth, 1e-6 * std::fabs(truth) + 1e-35);
      CHECK_EQ(half[i], float_to_bf16(out[i]));
    }
  }
}

TEST(to_bf16_rounds_to_even_and_keeps_the_special_values) {
  std::vector<uint32_t> bits = {0x3f800000, 0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff, 0x7f800000, 0xff800000, 0x7fc00000,
                                0x7f800001, 0xffbfffff, 0x7f7fffff, 0xff7f8000, 0x00000001, 0x80008000, 0x00008001, 0x80000000};
  std::vector<uint16_t> wanted = {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0x3f80, 0x7f80, 0xff80, 0x7fc0,
                                  0x7fc0, 0xffff, 0x7f80, 0xff80, 0x0000, 0x8000, 0x0001, 0x8000};
  std::vector<float> x;
  for (uint32_t b : bits) x.push_back(std::bit_cast<float>(b));
  for (int64_t n = 1; n <= int64_t(x.size()); ++n) {
    std::vector<uint16_t> out(size_t(n), 0);
    kernels().to_bf16(x.data(), n, out.data());
    for (size_t i = 0; i < out.size(); ++i) CHECK_EQ(out[i], wanted[i]);
  }
  Random random(23);
  for (int i = 0; i < 20000; ++i) {
    float value = std::bit_cast<float>(uint32_t(random.bits()));
    uint16_t out;
    kernels().to_bf16(&value, 1, &out);
    CHECK_EQ(out, float_to_bf16(value));
  }
}

TEST(half_floats_widen_exactly) {
  CHECK_EQ(half_to_float(0x3c00), 1.0f);
  CHECK_EQ(half_to_float(0xc000), -2.0f);
  CHECK_EQ(half_to_float(0x7bff), 65504.0f);
  CHECK_EQ(half_to_float(0x0001), 0x1p-24f);
  CHECK_EQ(half_to_float(0x83ff), -float(0x3ff) * 0x1p-24f);
  CHECK_EQ(half_to_float(0x7c00), kInf);
  CHECK(std::isnan(half_to_float(0x7e01)));
  CHECK(same_bits(half_to_float(0x8000), -0.0f));
}

TEST(tile_max_finds_the_largest_of_each_tile) {
  Random random(24);
  for (int64_t n : {1, 2, 3, 7, 16, 17, 31, 100, 1023, 1024, 1025, 2048, 2500}) {
    std::vector<float> x(static_cast<size_t>(n)), maxima(size_t(simd::row_tiles(n)), -1.0f);
    for (float& v : x) v = float(random.whole(-50, -5));
    auto tile_end = [&](size_t t) { return x.begin() + std::min(n, int64_t(t + 1) * simd::kRowTileSize); };
    kernels().tile_max(x.data(), n, maxima.data());
    for (size_t t = 0; t < maxima.size(); ++t) {
      CHECK_EQ(maxima[t], *std::max_element(x.begin() + int64_t(t) * simd::kRowTileSize, tile_end(t)));
    }
    // A NaN at any place is noticed in its tile, whatever comes after it.
    int64_t at = random.whole(0, n - 1);
    x[size_t(at)] = -NAN;
    kernels().tile_max(x.data(), n, maxima.data());
    for (size_t t = 0; t < maxima.size(); ++t) CHECK_EQ(std::isnan(maxima[t]), int64_t(t) == at / simd::kRowTileSize);
  }
  std::vector<float> low(37, -kInf);
  float max;
  kernels().tile_max(low.data(), 37, &max);
  CHECK_EQ(max, -kInf);
  low[20] = kInf;
  kernels().tile_max(low.data(), 37, &max);
  CHECK_EQ(max, kInf);
}

TEST(tile_exp_matches) {
  Random random(25);
  for (int64_t n : {1, 2, 7, 15, 16, 17, 33, 1023, 1024, 1025, 3000, 5001}) {
    std::vector<float> x = random.normals(size_t(n), 4), out(size_t(n), -1.0f), sums(size_t(simd::row_tiles(n))), again = sums;
    float max = *std::max_element(x.begin(), x.end());
    kernels().tile_exp(x.data(), n, max, 0.7f, out.data(), sums.data());
    kernels().tile_exp(x.data(), n, max, 0.7f, nullptr, again.data());
    CHECK(same_bits(sums.data(), again.data(), sums.size()));
    std::vector<double> truth(sums.size(), 0.0);
    for (size_t i = 0; i < out.size(); ++i) {
      double wanted = std::exp(double(x[i] - max) * 0.7);
      CHECK_NEAR(out[i], wanted, 2e-5 * wanted);
      truth[i / simd::kRowTileSize] += wanted;
    }
    for (size_t t = 0; t < sums.size(); ++t) CHECK_NEAR(sums[t], truth[t], 1e-5 * truth[t]);
  }
}

TEST(collect_at_least_matches) {
  Random random(27);
  for (int64_t n : {1, 2, 5, 15, 16, 17, 33, 100, 1000}) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = float(random.whole(-4, 4));
    x[size_t(random.whole(0, n - 1))] = NAN;
    x[size_t(random.whole(0, n - 1))] = -kInf;
    for (float bound : {-10.0f, -1.0f, 0.0f, 3.0f, 9.0f}) {
      std::vector<int32_t> wanted;
      for (int64_t i = 0; i < n; ++i) {
        if (x[size_t(i)] >= bound) wanted.push_back(int32_t(i));
      }
      for (size_t capacity : {size_t(0), wanted.size() / 2, wanted.size(), wanted.size() + 3}) {
        std::vector<int32_t> ids(capacity + 1, -7);
        std::vector<float> values(capacity + 1, -7.0f);
        CHECK_EQ(kernels().collect_at_least(x.data(), n, bound, ids.data(), values.data(), int64_t(capacity)), int64_t(wanted.size()));
        size_t filled = std::min(capacity, wanted.size());
        for (size_t i = 0; i < filled; ++i) CHECK(ids[i] == wanted[i] && values[i] == x[size_t(ids[i])]);
        for (size_t i = filled; i < ids.size(); ++i) CHECK(ids[i] == -7 && values[i] == -7.0f);
      }
    }
  }
}

TEST(count_greater_matches) {
  Random random(26);
  for (int64_t n = 1; n <= 80; ++n) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = float(random.whole(-4, 4));
    float limit = float(random.whole(-5, 5));
    CHECK_EQ(kernels().count_greater(x.data(), n, limit), int64_t(std::count_if(x.begin(), x.end(), [&](float v) { return v > limit; })));
    CHECK_EQ(kernels().count_greater(x.data(), n, -kInf), n);
  }
}

TEST(keep_bits_matches) {
  Random random(28);
  for (int64_t n : {1, 7, 31, 32, 33, 64, 100, 1000, 1024, 1025, 2100}) {
    for (int kind = 0; kind < 3; ++kind) {
      std::vector<uint32_t> bits(size_t(n + 31) / 32);
      for (uint32_t& word : bits) word = kind == 0 ? uint32_t(random.whole(0, 0x7fffffff)) * 2u + 1u : random.whole(0, 1) == 1 ? ~0u : 0u;
      std::vector<float> x = random.normals(size_t(n), 1.0f), wanted, maxima(size_t(simd::row_tiles(n)), 7.0f), best(maxima.size(), -kInf);
      float largest = *std::max_element(x.begin(), x.end());
      x.push_back(3.0f);
      for (int64_t i = 0; i < n; ++i) {
        wanted.push_back(bits[size_t(i) / 32] >> (i % 32) & 1 ? x[size_t(i)] : -kInf);
        best[size_t(i / simd::kRowTileSize)] = std::max(best[size_t(i / simd::kRowTileSize)], wanted.back());
      }
      CHECK_EQ(kernels().keep_bits(x.data(), n, bits.data(), maxima.data()), largest);
      for (int64_t i = 0; i < n; ++i) CHECK(x[size_t(i)] == wanted[size_t(i)]);
      CHECK_EQ(x[size_t(n)], 3.0f);
      CHECK(maxima == best);
    }
  }
}

// Also where the element is masked, and in the last, partial vector.
TEST(keep_bits_tells_of_a_broken_row) {
  for (float bad : {NAN, -NAN, kInf}) {
    for (size_t at : {size_t(0), size_t(40), size_t(1030), size_t(1100)}) {
      std::vector<float> x(1101, 1.0f), maxima(2);
      std::vector<uint32_t> bits(35, 0u);
      x[at] = bad;
      float largest = kernels().keep_bits(x.data(), int64_t(x.size()), bits.data(), maxima.data());
      CHECK(!std::isfinite(largest));
    }
  }
}

TEST(an_unknown_instruction_set_is_refused_by_name) {
  const char* forced = std::getenv("TANDEM_ISA");
  std::string before = forced ? forced : "";
  setenv("TANDEM_ISA", "doesnotexist", 1);
  CHECK_ERROR(kUnsupported, "doesnotexist", simd::selected_isa());
  setenv("TANDEM_ISA", "scalar", 1);
  CHECK_EQ(simd::selected_isa(), simd::Isa::kScalar);
  setenv("TANDEM_ISA", "", 1);
  CHECK_EQ(simd::selected_isa(), simd::supported_isas().front());
  if (forced) {
    setenv("TANDEM_ISA", before.c_str(), 1);
  } else {
    unsetenv("TANDEM_ISA");
  }
}

}  // namespace
}  // namespace tandem::test
