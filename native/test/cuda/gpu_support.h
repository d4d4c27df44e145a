// What the kernel tests share. They run under the emulation, and on a device where there is one (scripts/gpu-check).
#pragma once
#include <cstdio>

#include "cuda/common/device_buffer.h"
#include "cuda/common/device_info.h"
#include "support.h"
#include "test.h"

namespace tandem::test {

using cuda::bf16;
using cuda::DeviceBuffer;

constexpr double kBf16 = 1.0 / 256;  // half a unit in the last place, relative

// Says so where it is not.
inline bool on_hopper() {
  const bool there = cuda::device_info().major == 9;
  if (!there) std::printf("skipped: the device is not of compute capability 9.0\n");
  return there;
}

inline std::vector<bf16> bf16s(Random& random, size_t count, float scale = 1.0f) {
  std::vector<bf16> out(count);
  for (bf16& x : out) x = cuda::to_bf16(random.normal() * scale);
  return out;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
inline bool same_bits(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(bf16)) == 0;
}

}  // namespace tandem::test
