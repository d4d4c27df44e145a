// What the tests share: fixed-seed numbers, the kernels in use, pools, bitwise comparison.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/bf16.h"
#include "base/thread_pool.h"
#include "simd/isa.h"
#include "simd/kernels.h"

namespace tandem::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

// SplitMix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // Both ends included.
  int64_t whole(int64_t low, int64_t high) { return low + int64_t(bits() % uint64_t(high - low + 1)); }
  double unit() { return double(bits() >> 11) * 0x1p-53; }
  // Nearly: the sum of eight even ones, of mean 0 and variance 1. Logarithms and cosines took a tenth of the tests' time.
  float normal() {
    int64_t sum = 0;
    for (int draw = 0; draw < 2; ++draw) {
      for (uint64_t left = bits(), i = 0; i < 4; ++i, left >>= 16) sum += int64_t(left & 0xffff);
    }
    constexpr double kMean = 8 * 65535 / 2.0, kDeviation = 53509.92;  // sqrt(8 * (65536^2 - 1) / 12)
    return float((double(sum) - kMean) / kDeviation);
  }
  template <typename T>
  T pick(const std::vector<T>& items) {
    return items[size_t(whole(0, int64_t(items.size()) - 1))];
  }
  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[size_t(whole(0, int64_t(i) - 1))]);
  }
  std::vector<float> normals(size_t count, float scale = 1.0f) {
    std::vector<float> out(count);
    for (float& x : out) x = normal() * scale;
    return out;
  }

 private:
  uint64_t state_;
};

// Looked for once: a virtual machine takes long to say what its CPU has.
inline const simd::Kernels& kernels() {
  static const simd::Kernels& selected = simd::kernels_for(simd::selected_isa());
  return selected;
}

inline float rounded_bf16(float x) { return bf16_to_float(float_to_bf16(x)); }

inline bool same_bits(const float* a, const float* b, size_t count) { return std::memcmp(a, b, count * sizeof(float)) == 0; }
inline bool same_bits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

}  // namespace tandem::test
