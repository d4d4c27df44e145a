// Weights as small numbers, whole ones with a scale per group or FP8 ones with a scale per output, in panels of 64 outputs. To every
// kernel they are the bf16 weights that they stand for: scale * (stored - offset), then + minimum, rounded. A product gives the bits that it
// gives for those.
//
// The numbers are the CPU's (native/src/simd/quant_format.h), in an order of their own, which device/quant_panels.cc makes when they are sent: what a
// lane multiplies as a fragment of mma_m16n8k16 lies in the 16 bytes that it loads.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

constexpr int kQuantPanel = 64;  // outputs
constexpr int kQuantTile = 64;   // inputs that a product takes at once; inputs are padded to a multiple of them, with weights that are zero
constexpr int kQuantPairs = kQuantPanel / 2;

// One panel: the outputs' scales (f32) where numbers are floating, then its tiles, inputs ascending. A tile is
//   heads    [32 pairs of outputs 2 p and 2 p + 1]: scales [64 / group][2] (f16 or f32), then minima [64 / group][2] (f32, where there are any)
//   numbers  [4 strips of 16 outputs][8 bits: 2, 4 bits: 1][32 lanes][16 bytes]
// Lane 4 g + t has outputs 2 g + o of the strip and, of each 16 inputs, 8 h + 2 t + i (o, h, i: 0 or 1). With 4 bits a word is 16 inputs, a
// number's lowest bit in it 16 i + 8 h + 4 o; with 8 bits 16 inputs are two words, for h = 0 and 1, and the bit is 16 i + 8 o. (So numbers that
// meet in a register of a fragment are 16 bits apart.) A panel's fields are those of one of simd::QuantFormat, of which widen.h has one type each.
struct QuantPanel {
  int64_t first_byte;
  int32_t bits, group, offset;
  int32_t wide_scales, minima, floating;  // 0 or 1

  __host__ __device__ int head_bytes() const { return floating ? kQuantPanel * 4 : 0; }
  // Of a pair's scales in a tile, and of them with the minima.
  __host__ __device__ int scale_bytes() const { return floating ? 0 : kQuantTile / group * (wide_scales ? 8 : 4); }
  __host__ __device__ int pair_bytes() const { return scale_bytes() + (minima ? kQuantTile / group * 8 : 0); }
  __host__ __device__ int number_bytes() const { return kQuantPanel * kQuantTile * bits / 8; }
  // A multiple of 256 for every format.
  __host__ __device__ int tile_bytes() const { return kQuantPairs * pair_bytes() + number_bytes(); }
  __host__ __device__ int64_t bytes(int64_t k) const { return head_bytes() + (k + kQuantTile - 1) / kQuantTile * int64_t(tile_bytes()); }
};

struct QuantWeights {
  const uint8_t* data = nullptr;  // null: there are none; 16-byte aligned
  const QuantPanel* panels = nullptr;
  int64_t most_tile_bytes = 0;  // of any panel
  // Where all panels are of one format: it, and the bytes of each; who knows these need not wait for `panels`. Otherwise 0.
  QuantPanel alike = {};
  int64_t alike_bytes = 0;
};

// Where a number of a tile lies: the byte of its word among the tile's numbers, and its lowest bit in the word.
struct NumberPlace {
  int word, bit;
};
__host__ __device__ inline NumberPlace number_place(int bits, int output, int input) {
  const int strip = output / 16, lane = output % 16 / 2 * 4 + input % 8 / 2, step = input / 16, half = input % 16 / 8;
  const int bit = input % 2 * 16 + output % 2 * (bits == 8 ? 8 : 4);
  if (bits == 8) return {(((strip * 2 + step / 2) * kWarp + lane) * 4 + step % 2 * 2 + half) * 4, bit};
  return {((strip * kWarp + lane) * 4 + step) * 4, bit + half * 8};
}

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

// Inputs [k, k + 8) of one output of the panel that begins at `head`; k is a multiple of 8. Of floating numbers a scale is a power of two: the
// bf16 numbers are exact.
__device__ inline void dequantise_8(const QuantPanel& panel, const uint8_t* head, int output, int k, bf16 (&out)[8]) {
  const uint8_t* tile = head + panel.head_bytes() + int64_t(k / kQuantTile) * panel.tile_bytes();
  const uint8_t* numbers = tile + kQuantPairs * panel.pair_bytes();
  const uint8_t* pair = tile + output / 2 * panel.pair_bytes();
  const int at = k % kQuantTile, entry = at / panel.group * 2 + output % 2;
  float scale, minimum = 0.0f;
  if (panel.floating) scale = load_aligned<float>(head + 4 * output);
  else scale = panel.wide_scales ? load_aligned<float>(pair + 4 * entry) : half_to_float(load_aligned<uint16_t>(pair + 2 * entry));
  if (panel.minima) minimum = load_aligned<float>(pair + panel.scale_bytes() + 4 * entry);
  for (int i = 0; i < 8; ++i) {
    const NumberPlace place = number_place(panel.bits, output, at + i);
    const uint32_t stored = load_aligned<uint32_t>(numbers + place.word) >> place.bit & ((1u << panel.bits) - 1);
    const float product = scale * (panel.floating ? e4m3_to_float(stored) : float(int(stored) - panel.offset));
    out[i] = to_bf16(panel.minima ? product + minimum : product);
  }
}

}  // namespace tandem::cuda
