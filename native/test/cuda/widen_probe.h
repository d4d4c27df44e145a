// What the kernels make of 4-bit numbers with every scale.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::test {

constexpr int kScales = 1 << 16, kProbeWords = 2;
// Two words that hold every number once at least, at an even place of a fragment and at an odd one.
__host__ __device__ inline uint32_t number_word(int i) { return i == 0 ? 0x76543210u : 0xfedcba98u; }

// For scale s (f16), of output 0, and other_scale(s), of output 1: the fragment's four registers of each word, then the four of the way back.
constexpr int kPerScale = 2 * 4 * kProbeWords;
__host__ __device__ inline uint32_t other_scale(uint32_t scale) { return (scale * 40503u + 12345u) & 0xffffu; }
// kScales * kPerScale in the device's memory.
void widen_every_scale(uint32_t* out);

}  // namespace tandem::test
