// Quantised weights as fragments of mma_m16n8k16, in bf16, straight from the bytes of a panel: a lane loads words of numbers that lie beside
// each other and widens those that it multiplies. One type per format, so that nothing of a format is asked for where numbers are widened.
//
// An integer becomes a float without a conversion: as byte 1 of a float whose other bytes are those of 2^15, where it counts ones. Scales
// of 11 bits (f16) times that number less its offset are exact in fmaf(scale, 2^15 + stored, -scale * (2^15 + offset)), of which the last
// term is exact too; those of f32 are multiplied and added one by one, as they were quantised.
#pragma once
#include "cuda/common/tensor_core.h"
#include "cuda/gemm/quant_weights.h"

namespace tandem::cuda {

template <int bits, int group, int offset, bool wide_scales, bool minima, bool floating = false>
struct QuantShape {
  static constexpr int kBits = bits, kGroup = group, kOffset = offset;
  static constexpr bool kWide = wide_scales, kMinima = minima, kFloating = floating;
  // Of a group's scales, and of them with its minima, of a panel.
  static constexpr int kScaleBytes = floating ? 0 : kQuantPanel * (wide_scales ? 4 : 2);
  static constexpr int kHeadBytes = kScaleBytes + (minima ? kQuantPanel * 4 : 0);
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

constexpr int kWordRowBytes = kQuantPanel * 4;  // a word of every output

// Where in a tile's numbers the word `row` of an output lies: rows of 256 bytes, in which four rows have their runs of 32 bytes elsewhere, so
// that lanes that read the same outputs of such rows meet no bank twice.
__device__ __forceinline__ int word_place(int row, int output) { return row * kWordRowBytes + ((output * 4) ^ ((row & 3) << 5)); }

// Likewise of 16-byte chunks.
__device__ __forceinline__ int word_chunk(int chunk) { return chunk ^ (chunk >> 3 & 6); }

template <int kCount, class T>
__device__ __forceinline__ void load_beside(T (&values)[kCount], const uint8_t* from) {
  memcpy(values, __builtin_assume_aligned(from, sizeof values), sizeof values);
}

// What makes weights of the numbers of one output and group.
template <class F>
struct QuantLine {
  float scale, other;            // `other`: what is added last, where anything is
  float high_scale, high_other;  // of the high halves of bytes, which count sixteens
};

// Of kCount outputs beside each other from `output` on; `head` is the group's scales and minima.
template <class F, int kCount>
__device__ __forceinline__ void load_lines(QuantLine<F> (&lines)[kCount], const uint8_t* head, int output) {
  [[maybe_unused]] float scales[kCount], minima[kCount];
  if constexpr (F::kWide) {
    load_beside(scales, head + output * 4);
    if constexpr (F::kMinima) load_beside(minima, head + F::kScaleBytes + output * 4);
  } else {
    uint16_t halves[kCount];
    load_beside(halves, head + output * 2);
    GPU_UNROLL
    for (int i = 0; i < kCount; ++i) scales[i] = half_to_float(halves[i]);
  }
  GPU_UNROLL
  for (int i = 0; i < kCount; ++i) {
    lines[i].scale = scales[i];
    if constexpr (F::kMinima) lines[i].other = minima[i];
    if constexpr (F::kWide) continue;
    lines[i].other = scales[i] * float(-(32768 + F::kOffset));
    lines[i].high_scale = scales[i] * 0.0625f;
    lines[i].high_other = scales[i] * float(-(2048 + F::kOffset));
  }
}

// The weight of a number in byte 1 of 2^15; kHigh: a half of a byte, times 16.
template <class F, bool kHigh>
__device__ __forceinline__ float weight_of(uint32_t placed, const QuantLine<F>& line) {
  if constexpr (F::kBits == 4) placed &= kHigh ? 0xfffff0ffu : 0xffff0fffu;
  float x;
  memcpy(&x, &placed, 4);
  if constexpr (!F::kWide) return kHigh ? fmaf(line.high_scale, x, line.high_other) : fmaf(line.scale, x, line.other);
  const float number = kHigh ? fmaf(x, 0.0625f, float(-(2048 + F::kOffset))) : x - float(32768 + F::kOffset);
  const float product = line.scale * number;
  return F::kMinima ? product + line.other : product;
}

// Byte `byte` of the word, placed.
__device__ __forceinline__ uint32_t place_byte(uint32_t word, int byte) {
  return pick_bytes(word, 0x47000000u, 0x7604u | uint32_t(byte) << 4);
}

// Two codes of E4M3, in bytes 1 and 3, times their scales in bf16. As the high bits of a bf16 a code has an exponent that is 120 less.
__device__ __forceinline__ uint32_t widen_codes(uint32_t codes, uint32_t scales) {
  const uint32_t small = (codes & 0x80008000u) | (codes & 0x7f007f00u) >> 4;
  return multiply_pairs(multiply_pairs(small, 0x7b807b80u), scales);
}

// In a fragment a lane's rows are fragment_row() and that + 8, its columns 2 fragment_pair(), + 1, + 8 and + 9.
__device__ __forceinline__ int fragment_row() { return int(threadIdx.x) % kWarp / 4; }
__device__ __forceinline__ int fragment_pair() { return int(threadIdx.x) % 4; }

// Fragments of 16 kTiles outputs by inputs [32 block + 16 kStep, + 16). A lane's outputs are the 2 kTiles from `output` on; rows fragment_row()
// and that + 8 of tile i are numbers 2 i and 2 i + 1 of them. `scales`: those of floating numbers, two by two.
template <class F, int kStep, int kTiles>
__device__ __forceinline__ void widen_step(uint32_t (&a)[kTiles][4], const uint8_t* numbers, const uint8_t* heads, int block, int output,
                                           const uint32_t (&scales)[kTiles]) {
  constexpr bool kHigh = F::kBits == 4 && kStep == 1;
  const int half = fragment_pair() % 2 * 2;  // of a word: which two of its four inputs are this lane's
  uint32_t words[2][2 * kTiles];
  GPU_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int row = block * F::kBits + (F::kBits == 8 ? kStep * 4 : 0) + h * 2;
    load_beside(words[h], numbers + word_place(row | fragment_pair() / 2, output));
  }
  [[maybe_unused]] QuantLine<F> lines[2 * kTiles];
  if constexpr (!F::kFloating) load_lines(lines, heads + (block * 32 + kStep * 16) / F::kGroup * F::kHeadBytes, output);
  GPU_UNROLL
  for (int i = 0; i < 4 * kTiles; ++i) {
    const int at = i / 4 * 2 + i % 2;  // the output
    const uint32_t word = words[i % 4 / 2][at];
    uint32_t& pair = a[i / 4][i % 4];
    if constexpr (F::kFloating) {
      const uint32_t codes = pick_bytes(word, word, 0x1000u + uint32_t(half) * 0x1010u);
      pair = widen_codes(codes, pick_bytes(scales[i / 4], 0, i % 2 ? 0x3232u : 0x1010u));
    } else {
      pair =
          pack_rounded(weight_of<F, kHigh>(place_byte(word, half), lines[at]), weight_of<F, kHigh>(place_byte(word, half + 1), lines[at]));
    }
  }
}

// The way back: fragments of 32 inputs by outputs [16 step, 16 step + 16) of the panel. A lane's inputs are the four of a word, the
// `row`th of the 32; rows `row` and row + 8 of tile i are numbers 2 i and 2 i + 1 of them. `scales`: a float per output.
template <class F>
__device__ __forceinline__ void widen_across(uint32_t (&a)[2][4], const uint8_t* numbers, const uint8_t* heads, int first_row, int step,
                                             const uint8_t* scales) {
  constexpr bool narrow = F::kBits == 4;
  const int own = fragment_row(), row = first_row + (narrow ? own % 4 : own);
  GPU_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int output = step * 16 + h * 8 + fragment_pair() * 2;
    uint32_t words[2];
    load_beside(words, numbers + word_place(row, output));
    [[maybe_unused]] QuantLine<F> lines[2];
    [[maybe_unused]] uint32_t pair_scales = 0;
    if constexpr (F::kFloating) {
      float two[2];
      load_beside(two, scales + output * 4);
      pair_scales = pack_rounded(two[0], two[1]);
    } else {
      load_lines(lines, heads + (F::kGroup == 16 ? own / 4 : 0) * F::kHeadBytes, output);
    }
    if constexpr (narrow) {
      GPU_UNROLL
      for (int i = 0; i < 2; ++i) words[i] >>= own / 4 * 4;
    }
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      uint32_t& pair = a[i / 2][h * 2 + i % 2];
      if constexpr (F::kFloating) {
        pair = widen_codes(pick_bytes(words[0], words[1], 0x4000u + uint32_t(i) * 0x1010u), pair_scales);
      } else {
        pair = pack_rounded(weight_of<F, false>(place_byte(words[0], i), lines[0]), weight_of<F, false>(place_byte(words[1], i), lines[1]));
      }
    }
  }
}

}  // namespace tandem::cuda
