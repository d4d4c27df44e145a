// Weights as small numbers, whole ones with a scale per group or FP8 ones with a scale per output, in panels of 64 outputs as native/src/simd/quant_format.h lays them out. To every
// kernel they are the bf16 weights that they stand for: scale * (stored - offset), then + minimum, rounded. A product gives the bits that it
// gives for those.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

constexpr int kQuantPanel = 64;  // outputs
constexpr int kQuantTile = 64;   // inputs that a product takes at once
constexpr int kQuantStep = 32;   // inputs are padded to a multiple of this

// One panel: the outputs' scales (f32) where numbers are floating, then groups of inputs, one after the other. A group is its scales (f16 or f32), minima (f32, where there are any) and numbers:
// 8 bits [group / 4][64][4]; 4 bits [group / 8][64][4], the low half of a byte for input k, its high half for k + group / 2. A panel's fields
// are those of one of simd::QuantFormat, of which widen.h has one type each.
struct QuantPanel {
  int64_t first_byte;
  int32_t bits, group, offset;
  int32_t wide_scales, minima, floating;  // 0 or 1

  __host__ __device__ int head_bytes() const { return floating ? kQuantPanel * 4 : 0; }
  __host__ __device__ int scale_bytes() const { return floating ? 0 : kQuantPanel * (wide_scales ? 4 : 2); }
  __host__ __device__ int minimum_bytes() const { return minima ? kQuantPanel * 4 : 0; }
  __host__ __device__ int group_bytes() const { return scale_bytes() + minimum_bytes() + number_bytes(); }
  __host__ __device__ int number_bytes() const { return kQuantPanel * group * bits / 8; }
  // A multiple of 128 for every format.
  __host__ __device__ int tile_bytes() const { return kQuantTile / group * group_bytes(); }
};

struct QuantWeights {
  const uint8_t* data = nullptr;  // null: there are none; 16-byte aligned
  const QuantPanel* panels = nullptr;
  int64_t most_tile_bytes = 0;  // of any panel
};

__host__ __device__ inline float half_to_float(uint16_t half) {
#if defined(__CUDA_ARCH__)
  float exact;
  asm("cvt.f32.f16 %0, %1;" : "=f"(exact) : "h"(half));
  return exact;
#else
  uint32_t u = uint32_t(half & 0x7fffu) << 13;
  if ((half & 0x7c00u) == 0x7c00u) u |= 0x7f800000u;  // infinity and NaN
  float f;
  memcpy(&f, &u, 4);
  // The exponent of a half is 112 less; exact, also for those without a leading one.
  if ((half & 0x7c00u) != 0x7c00u) f *= 0x1p112f;
  return half & 0x8000u ? -f : f;
#endif
}

template <class T>
__host__ __device__ inline T load_aligned(const uint8_t* from) {
  T value;
  memcpy(&value, __builtin_assume_aligned(from, sizeof(T)), sizeof value);
  return value;
}

// As native/src/base/e4m3.h.
__host__ __device__ inline float e4m3_to_float(uint32_t code) {
  const uint32_t rest = code & 0x7fu, u = rest << 20;
  float f;
  memcpy(&f, &u, 4);
  f = rest == 0x7fu ? NAN : f * 0x1p120f;
  return code & 0x80u ? -f : f;
}

// Inputs [k, k + 8) of one output of a panel of floating numbers. A scale is a power of two: the bf16 numbers are exact.
__device__ inline void widen_8(const uint8_t* numbers, float scale, int output, int word, bf16 (&out)[8]) {
  for (int j = 0; j < 2; ++j) {
    const uint32_t four = load_aligned<uint32_t>(numbers + ((word + j) * kQuantPanel + output) * 4);
    for (int i = 0; i < 4; ++i) out[4 * j + i] = to_bf16(scale * e4m3_to_float(four >> (8 * i)));
  }
}

// Inputs [k, k + 8) of one output of the panel that begins at `head`, its groups (those from k = 0 on) at `groups`; k is a multiple of 8.
__device__ inline void dequantise_8(const QuantPanel& panel, const uint8_t* head, const uint8_t* groups, int output, int k,
                                    bf16 (&out)[8]) {
  const uint8_t* group = groups + int64_t(k / panel.group) * panel.group_bytes();
  if (panel.floating) return widen_8(group, load_aligned<float>(head + 4 * output), output, k % panel.group / 4, out);
  const float scale =
      panel.wide_scales ? load_aligned<float>(group + 4 * output) : half_to_float(load_aligned<uint16_t>(group + 2 * output));
  const float minimum = panel.minima ? load_aligned<float>(group + panel.scale_bytes() + 4 * output) : 0.0f;
  const uint8_t* numbers = group + panel.scale_bytes() + panel.minimum_bytes();
  const int half_group = panel.group / 2, at = k % panel.group;
  const bool narrow = panel.bits == 4, high = narrow && at >= half_group;
  const int word = (high ? at - half_group : at) / 4;
  for (int j = 0; j < 2; ++j) {
    const uint32_t four = load_aligned<uint32_t>(numbers + ((word + j) * kQuantPanel + output) * 4);
    for (int i = 0; i < 4; ++i) {
      const uint32_t stored = narrow ? four >> (8 * i + (high ? 4 : 0)) & 15u : four >> (8 * i) & 255u;
      const float product = scale * float(int(stored) - panel.offset);
      out[4 * j + i] = to_bf16(panel.minima ? product + minimum : product);
    }
  }
}

}  // namespace tandem::cuda
