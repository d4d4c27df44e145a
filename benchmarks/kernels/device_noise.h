// Noise in a device's memory. Without structure: zeros would flatter the clock of the tensor cores.
#pragma once
#include <algorithm>
#include <vector>

#include "cuda/common/device_buffer.h"

namespace tandem::benchmarks {

// In [-1, 1), by its number.
inline float noise_at(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return float(int64_t((z ^ (z >> 31)) >> 40)) / float(1 << 23) - 1.0f;
}

// So many numbers of noise of that size, others for another number of them: some are made, and copied on the device until there are enough.
inline cuda::DeviceBuffer<cuda::bf16> device_noise(size_t count, float scale) {
  constexpr size_t kMade = 1'000'003;  // no power of two: rows of a matrix differ
  std::vector<cuda::bf16> some;
  for (size_t i = 0; i < std::min(count, kMade); ++i) some.push_back(cuda::to_bf16(noise_at(count + i) * scale));
  cuda::DeviceBuffer<cuda::bf16> out(count);
  cuda::device_copy(out.data(), some.data(), some.size() * sizeof(cuda::bf16));
  for (size_t there = some.size(); there < count; there *= 2) {
    cuda::device_copy(out.data() + there, out.data(), std::min(there, count - there) * sizeof(cuda::bf16));
  }
  return out;
}

}  // namespace tandem::benchmarks
