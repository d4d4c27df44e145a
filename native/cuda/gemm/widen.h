// Quantised weights as fragments of mma_m16n8k16, in bf16, straight from the bytes of a panel (quant_weights.h): a lane's numbers lie beside
// each other, those that meet in a register 16 bits apart. One type per format, so that nothing of a format is asked for where numbers are widened.
//
// No number is converted. 4 bits are the last of the bf16 32 + stored / 4, or with nothing before them those of stored 2^-129, a number without a
// leading one; two at a time, as they lie in a word. Of either one instruction makes n = (stored - offset) / 4, exactly. A scale of f16
// has 11 bits; 4 scale = high + low, where high has the first 8 and low the last 3, both bf16. n has 4, so
//   n low                is exact in bf16, and
//   fma(n, high, n low)  is rounded once: three instructions for two weights.
// 8 bits are byte 1 of a float whose other bytes are those of 2^15, where it counts ones. Scales of 11 bits times that number less its offset are
// exact in fmaf(scale, 2^15 + stored, -scale * (2^15 + offset)), of which the last term is exact too; those of f32 are multiplied and added
// one by one, as they were quantised.
#pragma once
#include "cuda/common/tensor_core.h"
#include "cuda/gemm/quant_weights.h"

namespace tandem::cuda {

template <int bits, int group, int offset, bool wide_scales, bool minima, bool floating = false>
struct QuantShape {
  static constexpr int kBits = bits, kGroup = group, kOffset = offset;
  static constexpr bool kWide = wide_scales, kMinima = minima, kFloating = floating;
  // As those of QuantPanel.
  static constexpr int kScaleBytes = floating ? 0 : kQuantTile / group * (wide_scales ? 8 : 4);
  static constexpr int kPairBytes = kScaleBytes + (minima ? kQuantTile / group * 8 : 0);
  static constexpr int kHeadBytes = kQuantPairs * kPairBytes, kTileBytes = kHeadBytes + kQuantPanel * kQuantTile * bits / 8;
  static constexpr int kGroupWords = floating ? 1 : (wide_scales ? 2 : 1) + (minima ? 2 : 0);
  // Of a strip of a tile; words of a lane, and of them for 16 inputs.
  static constexpr int kStripBytes = 16 * kQuantTile * bits / 8, kWords = kStripBytes / 4 / kWarp, kStepWords = kWords / 4;
};
using Int8Shape = QuantShape<8, 32, 128, false, false>;
using Int4Shape = QuantShape<4, 32, 8, false, false>;
using Int4MinShape = QuantShape<4, 32, 0, true, true>;
using Int8FineShape = QuantShape<8, 16, 128, true, false>;
using Int8FineMinShape = QuantShape<8, 16, 128, true, true>;
using Fp8Shape = QuantShape<8, 32, 0, true, false, true>;

// Which of them is a panel's, as a small number.
__device__ __forceinline__ int shape_number(const QuantPanel& panel) {
  if (panel.floating) return 5;
  if (panel.bits == 4) return panel.minima ? 2 : 1;
  if (panel.group == 32) return 0;
  return panel.minima ? 4 : 3;
}

// Calls run(shape) for the shape of that number, which all threads of a warp share.
template <class Run>
__device__ __forceinline__ void with_shape(int number, const Run& run) {
  switch (number) {
    case 0: return run(Int8Shape{});
    case 1: return run(Int4Shape{});
    case 2: return run(Int4MinShape{});
    case 3: return run(Int8FineShape{});
    case 4: return run(Int8FineMinShape{});
    default: return run(Fp8Shape{});
  }
}

template <int kCount, class T>
__device__ __forceinline__ void load_beside(T (&values)[kCount], const uint8_t* from) {
  memcpy(values, __builtin_assume_aligned(from, sizeof values), sizeof values);
}

// In a fragment a lane's rows are fragment_row() and that + 8, its columns 2 fragment_pair(), + 1, + 8 and + 9.
__device__ __forceinline__ int fragment_row() { return int(threadIdx.x) % kWarp / 4; }
__device__ __forceinline__ int fragment_pair() { return int(threadIdx.x) % 4; }

// What makes weights of the numbers of two outputs beside each other. Of formats with a scale per group, one group's.
template <class F>
struct Scaling {
  float scale[2];
  float other[2];  // what is added last, where anything is
};
template <>
struct Scaling<Int4Shape> {
  uint32_t high, low;  // parts of both outputs' scales, four times
};
template <>
struct Scaling<Fp8Shape> {
  uint32_t scales;
};

// Two f16 as two pairs of bf16 whose sums they are, four times.
__device__ __forceinline__ Scaling<Int4Shape> split_scales(uint32_t halves) {
  const float scales[2] = {half_to_float(uint16_t(halves)), half_to_float(uint16_t(halves >> 16))};
  float rest[2];
  uint32_t high[2];
  memcpy(high, scales, sizeof high);
  GPU_UNROLL
  for (int i = 0; i < 2; ++i) {
    const uint32_t cut = high[i] & 0xffff0000u;
    float first;
    memcpy(&first, &cut, 4);
    rest[i] = scales[i] - first;
  }
  constexpr uint32_t kFour = 0x40804080u;
  return {multiply_pairs(pick_bytes(high[0], high[1], 0x7632u), kFour), multiply_pairs(pack_rounded(rest[0], rest[1]), kFour)};
}

// Of a group, of whose scales and minima `words` are a pair's.
template <class F>
__device__ __forceinline__ Scaling<F> scaling_of(const uint32_t (&words)[F::kGroupWords]) {
  static_assert(!F::kFloating);
  if constexpr (F::kBits == 4 && !F::kWide) {
    return split_scales(words[0]);
  } else {
    Scaling<F> s = {};
    GPU_UNROLL
    for (int i = 0; i < 2; ++i) {
      if constexpr (F::kWide) {
        memcpy(&s.scale[i], &words[i], 4);
        if constexpr (F::kMinima) memcpy(&s.other[i], &words[2 + i], 4);
      } else {
        s.scale[i] = half_to_float(uint16_t(words[0] >> 16 * i));
        s.other[i] = s.scale[i] * float(-(32768 + F::kOffset));
      }
    }
    return s;
  }
}

// Of group `index` of a tile; `pair`: what its head has of the outputs.
template <class F>
__device__ __forceinline__ Scaling<F> load_scaling(const uint8_t* pair, int index) {
  constexpr int kScaleWords = F::kWide ? 2 : 1;
  uint32_t words[F::kGroupWords], some[kScaleWords];
  load_beside(some, pair + index * kScaleWords * 4);
  memcpy(words, some, sizeof some);
  if constexpr (F::kMinima) {
    load_beside(some, pair + F::kScaleBytes + index * 8);
    memcpy(words + kScaleWords, some, sizeof some);
  }
  return scaling_of<F>(words);
}

// Of two outputs of floating numbers.
__device__ __forceinline__ Scaling<Fp8Shape> load_float_scaling(const uint8_t* scales) {
  float two[2];
  load_beside(two, scales);
  return {pack_rounded(two[0], two[1])};
}

// One of a pair, twice.
__device__ __forceinline__ uint32_t both_of(uint32_t pair, int which) { return which == 0 ? both_halves<0>(pair) : both_halves<1>(pair); }

// The number in `bits` bits of the word from `bit` on, less its offset, exactly; `bit` is known when this is compiled.
template <class F>
__device__ __forceinline__ float number_at(uint32_t word, int bit) {
  float x;
  if constexpr (F::kBits == 8) {
    const uint32_t placed = pick_bytes(word, 0x47000000u, 0x7604u | uint32_t(bit / 8) << 4);
    memcpy(&x, &placed, 4);
    return x - float(32768 + F::kOffset);
  } else {
    // Where it lies, behind 2^23; of the word's high half after a shift that all share.
    const uint32_t placed = mask_or(bit < 16 ? word : word >> 16, 15u << bit % 16, 0x4b000000u);
    memcpy(&x, &placed, 4);
    const float unit = 1.0f / float(1 << bit % 16);
    return fmaf(x, unit, -8388608.0f * unit - float(F::kOffset));
  }
}

// Two codes of E4M3, in the bytes 1 and 3 or 0 and 2, times their scales in bf16. As the high bits of a bf16 a code has an exponent that is 120 less.
__device__ __forceinline__ uint32_t widen_codes(uint32_t word, bool high, uint32_t scales) {
  const uint32_t small = mask_or(high ? word >> 4 : word << 4, 0x07f007f0u, (high ? word : word << 8) & 0x80008000u);
  return multiply_pairs(multiply_pairs(small, 0x7b807b80u), scales);
}

// The two numbers of the word at `bit`, of output `which` of the pair, and at `bit` + 16, of the same output or (kAcross) of the other.
template <class F, bool kAcross>
__device__ __forceinline__ uint32_t widen_two(uint32_t first, uint32_t second, int bit, int second_bit, int which, const Scaling<F>& s) {
  const int other = kAcross ? 1 - which : which;
  float low, high;
  if constexpr (!F::kWide) {
    uint32_t placed[2] = {pick_bytes(first, 0x47000000u, 0x7604u | uint32_t(bit / 8) << 4),
                          pick_bytes(second, 0x47000000u, 0x7604u | uint32_t(second_bit / 8) << 4)};
    float x[2];
    memcpy(x, placed, sizeof x);
    low = fmaf(s.scale[which], x[0], s.other[which]);
    high = fmaf(s.scale[other], x[1], s.other[other]);
  } else {
    low = s.scale[which] * number_at<F>(first, bit);
    high = s.scale[other] * number_at<F>(second, second_bit);
    if constexpr (F::kMinima) {
      low += s.other[which];
      high += s.other[other];
    }
  }
  return pack_rounded(low, high);
}

// Two numbers of 4 bits, of each half the lowest (kFirst: 0) or the next (4), times their scales, of which high and low are parts.
template <int kFirst>
__device__ __forceinline__ uint32_t widen_nibbles(uint32_t halves, uint32_t high, uint32_t low) {
  uint32_t quarters;
  if constexpr (kFirst == 0) quarters = fma_pairs(mask_or(halves, 0x000f000fu, 0x42004200u), 0x3f803f80u, 0xc208c208u);  // 32 + n / 4 - 34
  else quarters = fma_pairs(halves & 0x00f000f0u, 0x7f007f00u, 0xc000c000u);  // 2^127 n 2^-129 - 2
  return fma_pairs(quarters, high, multiply_pairs(quarters, low));
}

// A fragment of 16 outputs by 16 inputs, of the lane's words for these inputs.
template <class F>
__device__ __forceinline__ void widen_step(uint32_t (&a)[4], const uint32_t* words, const Scaling<F>& s) {
  GPU_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int which = i % 2, half = i / 2;
    const uint32_t word = words[F::kBits == 8 ? half : 0];
    if constexpr (F::kFloating) {
      a[i] = widen_codes(word, which == 1, both_of(s.scales, which));
    } else if constexpr (F::kBits == 4 && !F::kWide) {
      const uint32_t halves = word >> 8 * half, high = both_of(s.high, which), low = both_of(s.low, which);
      a[i] = which == 0 ? widen_nibbles<0>(halves, high, low) : widen_nibbles<4>(halves, high, low);
    } else {
      const int bit = F::kBits == 8 ? 8 * which : 4 * i;
      a[i] = widen_two<F, false>(word, word, bit, bit + 16, which, s);
    }
  }
}

// The way back, of one word per 16 inputs (4 bits) or two: fragments of 16 inputs by two outputs beside each other. The lane's inputs in tile h are
// the words' numbers 8 h + 2 t (row of the fragment's upper half) and 8 h + 2 t + 1 (lower half): a[h][0] and a[h][1].
template <class F>
__device__ __forceinline__ void widen_across(uint32_t (&a)[2][2], const uint32_t* words, const Scaling<F>& s) {
  GPU_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int tile = i / 2, lower = i % 2;
    const uint32_t word = words[F::kBits == 8 ? tile : 0];
    uint32_t& pair = a[tile][lower];
    if constexpr (F::kFloating) {
      // Both codes of a half, as bytes 1 and 3.
      pair = widen_codes(pick_bytes(word, 0, lower ? 0x3424u : 0x1404u), true, s.scales);
    } else if constexpr (F::kBits == 4 && !F::kWide) {
      const uint32_t half = word >> (16 * lower + 8 * tile);
      pair = widen_nibbles<0>((half & 15u) | half << 12, s.high, s.low);
    } else {
      const int bit = 16 * lower + (F::kBits == 8 ? 0 : 8 * tile);
      pair = widen_two<F, true>(word, word, bit, bit + F::kBits, 0, s);
    }
  }
}

}  // namespace tandem::cuda
