// Scalar conversions of FP8 E4M3 as the OCP defines it: a sign, 4 bits of exponent (bias 7), 3 of mantissa. There are no infinities, the
// largest number is 448, and 0x7f and 0xff are NaN.
#pragma once
#include <bit>
#include <cstdint>

namespace tandem {

constexpr float kE4m3Largest = 448.0f;

inline float e4m3_to_float(uint8_t code) {
  const uint32_t sign = uint32_t(code & 0x80u) << 24, rest = code & 0x7fu;
  if (rest == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  // The exponent is 120 less than a float's; exact, also for the numbers without a leading one.
  const float magnitude = std::bit_cast<float>(rest << 20) * 0x1p120f;
  return sign ? -magnitude : magnitude;
}

// Round to nearest, ties to even. What is larger than 448 becomes 448, infinities too; NaN stays NaN.
inline uint8_t float_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint8_t(sign | 0x7fu);
  if (magnitude >= std::bit_cast<uint32_t>(kE4m3Largest)) return uint8_t(sign | 0x7eu);
  if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {
    // Without a leading one: adding 2^14 leaves the rounded multiple of 2^-9 in the low bits.
    const float rounded = std::bit_cast<float>(magnitude) + 0x1p14f;
    return uint8_t(sign | (std::bit_cast<uint32_t>(rounded) - std::bit_cast<uint32_t>(0x1p14f)));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return uint8_t(sign | ((rounded - (120u << 23)) >> 20));
}

}  // namespace tandem
