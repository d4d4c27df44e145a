#include "ops/quantise.h"

#include <algorithm>
#include <cmath>

#include "base/bf16.h"
#include "base/e4m3.h"

namespace tandem::ops {
namespace {

constexpr int kGroup = 32;
constexpr float kNone = 1e-30f;  // groups below it are zero

// The smallest f16 that is not below a positive x.
float half_above(float x) {
  uint16_t half = float_to_half(x);
  if (half_to_float(half) < x) ++half;
  return half_to_float(half);
}

float rounded_half(float x) { return half_to_float(float_to_half(x)); }

// The weight of largest magnitude, with its sign; NaN if one is not finite.
float extreme(const float* w, int64_t count) {
  float found = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(w[i])) return NAN;
    if (std::fabs(w[i]) > std::fabs(found)) found = w[i];
  }
  return found;
}

// Stored numbers and what they stand for, of up to 32 weights; the rest is zero.
struct Codes {
  float levels[kGroup] = {};  // whole numbers
};

// The nearest whole number in low..high: adding 1.5 * 2^23 leaves it. Of one number, or of several.
template <typename T>
inline T rounded_within(T x, float low, float high) {
  constexpr float kRound = 12582912.0f;
  const T nearest = (x + kRound) - kRound, least = T{} + low, most = T{} + high;
  const T raised = least < nearest ? nearest : least;
  return raised < most ? raised : most;
}

float quantise_int8(const float (&w)[kGroup], float top, Codes& codes) {
  float scale = half_above(std::fabs(top) / 127.0f);
  for (int i = 0; i < kGroup; ++i) codes.levels[i] = rounded_within(w[i] * (1.0f / scale), -127.0f, 127.0f);
  return scale;
}

// Scales that are tried for a group: four beside each other, as one instruction takes them, each with sums of its own over the weights in
// their order. (Left to itself the compiler works at four weights at a time, which takes three times as long.)
using Four = float __attribute__((vector_size(16)));
constexpr int kTried = 15, kFours = (kTried + 3) / 4;

struct Tried {
  Four inverses[kFours], levels[kGroup][kFours], products[kFours] = {}, squares[kFours] = {}, errors[kFours] = {}, scales[kFours];
};

void fit(const float (&w)[kGroup], Tried& tried) {
  for (int i = 0; i < kGroup; ++i) {
    for (int f = 0; f < kFours; ++f) {
      const Four level = rounded_within(w[i] * tried.inverses[f], -8.0f, 7.0f);
      tried.levels[i][f] = level;
      tried.products[f] += w[i] * level;
      tried.squares[f] += level * level;
    }
  }
  // The scales that fit the levels best.
  for (int f = 0; f < kFours; ++f) {
    const Four fitted = tried.squares[f] > 0 ? tried.products[f] / tried.squares[f] : Four{};
    for (int c = 0; c < 4; ++c) tried.scales[f][c] = rounded_half(fitted[c]);
  }
  for (int i = 0; i < kGroup; ++i) {
    for (int f = 0; f < kFours; ++f) {
      const Four difference = w[i] - tried.scales[f] * tried.levels[i][f];
      tried.errors[f] += difference * difference;
    }
  }
}

float quantise_int4(const float (&w)[kGroup], float top, Codes& codes) {
  Tried tried;
  for (int c = 0; c < 4 * kFours; ++c) tried.inverses[c / 4][c % 4] = -(8.0f + 0.15f * float(c - 8)) / top;
  fit(w, tried);
  float best_error = INFINITY, best_scale = NAN;  // no candidate is finite where f16 holds none of their scales
  int best = 0;
  for (int c = 0; c < kTried; ++c) {
    const float error = tried.errors[c / 4][c % 4];
    if (!(error < best_error)) continue;
    best_error = error;
    best_scale = tried.scales[c / 4][c % 4];
    best = c;
  }
  for (int i = 0; i < kGroup && best_error < INFINITY; ++i) codes.levels[i] = tried.levels[i][best / 4][best % 4];
  return best_scale;
}

// The exponent of the largest scale: 448 times it is a finite float.
constexpr int kMostExponent = 119;

// log2 of the smallest power of two that takes a positive `top` to at most 448 = 0.875 * 2^9.
int e4m3_exponent(float top) {
  int exponent = 0;
  const float fraction = std::frexp(top, &exponent);
  return std::min(exponent - (fraction <= 0.875f ? 9 : 8), kMostExponent);
}

float quantise_e4m3(const float* row, int64_t k, uint8_t* values) {
  const float top = std::fabs(extreme(row, k));
  if (!std::isfinite(top) || top < kNone) {
    std::fill_n(values, k, uint8_t(0));
    return std::isfinite(top) ? 0.0f : top;
  }
  const int exponent = e4m3_exponent(top);
  for (int64_t i = 0; i < k; ++i) values[i] = float_to_e4m3(std::ldexp(row[i], -exponent));
  return std::ldexp(1.0f, exponent);
}

}  // namespace

void quantise_weights(QuantFormat format, const float* row, int64_t k, uint8_t* values, float* scales) {
  if (format == QuantFormat::kFp8) {
    scales[0] = quantise_e4m3(row, k, values);
    return;
  }
  const simd::QuantTraits traits = simd::traits_of(format);
  for (int64_t k0 = 0; k0 < k; k0 += kGroup) {
    int count = int(std::min<int64_t>(kGroup, k - k0));
    float w[kGroup] = {}, top = extreme(row + k0, count);
    Codes codes;
    float scale = top;
    if (std::isfinite(top)) {
      std::copy_n(row + k0, count, w);
      scale = 0;
      if (std::fabs(top) >= kNone) scale = format == QuantFormat::kInt8 ? quantise_int8(w, top, codes) : quantise_int4(w, top, codes);
    }
    scales[k0 / kGroup] = scale;
    for (int i = 0; i < count; ++i) values[k0 + i] = uint8_t(int(codes.levels[i]) + traits.offset);
  }
}

}  // namespace tandem::ops
