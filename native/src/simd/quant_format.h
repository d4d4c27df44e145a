// How quantised weights lie in memory. Weights w[n, k] are cut in panels like unquantised ones (kernels.h); along k they are cut in
// groups that share a scale: w = scale * (stored - offset) + minimum, `stored` being an unsigned number of 8 or 4 bits.
//
// A panel is its groups one after the other, k ascending. With P outputs per panel and G inputs per group, a group is
//   scales   [P] f16 or f32
//   minima   [P] f32, where the format has them
//   values   8 bits: [G / 4][P][4] bytes, the four of an output having consecutive k
//            4 bits: [G / 8][P][4] bytes; the low half of a byte belongs to k, its high half to k + G / 2
// What pads k (to 32) and n (to whole panels) has stored = offset, scale 0 and minimum 0.
//
// A format of floating numbers (kFp8) has a scale per output instead: a panel is its scales [P] f32, then its groups, which are values only.
#pragma once
#include <cstdint>

namespace tandem::simd {

enum class QuantFormat : uint8_t {
  kInt8,         // --quantize int8, GGUF Q8_0
  kInt4,         // --quantize int4, GGUF Q4_0
  kInt4Min,      // GGUF Q4_K: its two levels of scales multiplied out, which is exact in f32
  kInt8Fine,     // GGUF Q6_K: values of 6 bits, stored - 128 = value
  kFp8,          // --quantize fp8: codes of E4M3 (base/e4m3.h); only devices have products of it
  kInt8FineMin,  // holds what any other holds, exactly: panels in which parts of different formats meet
};

// Its functions are always part of their callers: no copy built for one instruction set can be picked by the linker for another.
struct QuantTraits {
  int bits, group;
  bool wide_scales, minima;  // f32 scales instead of f16; minima in f32
  int offset;
  bool floating = false;  // stored is a code, a scale belongs to an output

  // Bytes of one group of one panel.
  [[gnu::always_inline]] constexpr int64_t scale_bytes(int64_t panel) const { return floating ? 0 : panel * (wide_scales ? 4 : 2); }
  // Of a panel, before its groups.
  [[gnu::always_inline]] constexpr int64_t head_bytes(int64_t panel) const { return floating ? panel * 4 : 0; }
  // Of one output with k inputs.
  [[gnu::always_inline]] constexpr int64_t scales_of(int64_t k) const { return floating ? 1 : (k + group - 1) / group; }
  [[gnu::always_inline]] constexpr int64_t minimum_bytes(int64_t panel) const { return minima ? panel * 4 : 0; }
  [[gnu::always_inline]] constexpr int64_t value_bytes(int64_t panel) const { return panel * group * bits / 8; }
  [[gnu::always_inline]] constexpr int64_t group_bytes(int64_t panel) const {
    return scale_bytes(panel) + minimum_bytes(panel) + value_bytes(panel);
  }
  [[gnu::always_inline]] constexpr int64_t panel_bytes(int64_t panel, int64_t k_padded) const {
    return head_bytes(panel) + k_padded / group * group_bytes(panel);
  }
};

[[gnu::always_inline]] constexpr QuantTraits traits_of(QuantFormat format) {
  switch (format) {
    case QuantFormat::kInt8: return {8, 32, false, false, 128};
    case QuantFormat::kInt4: return {4, 32, false, false, 8};
    case QuantFormat::kInt4Min: return {4, 32, true, true, 0};
    case QuantFormat::kInt8Fine: return {8, 16, true, false, 128};
    case QuantFormat::kFp8: return {8, 32, true, false, 0, true};
    case QuantFormat::kInt8FineMin: break;
  }
  return {8, 16, true, true, 128};
}

// Inputs that share a scale when a row of activations is quantised, whatever the format; k_padded is a multiple of it.
constexpr int kQuantRowGroup = 32;
// Inputs whose groups' scales are powers of two apart: most are the same, and then a product scales once per block what it sums. A group
// whose largest magnitude m is below that of the block, M, over kQuantUneven has a finer scale: 2^-k times the block's, the finest at which
// nothing is cut off, of k up to kQuantFinest. So small numbers keep their precision beside a block's few large ones.
constexpr int kQuantScaleBlock = 256;
constexpr float kQuantUneven = 8.0f;
constexpr int kQuantFinest = 8;

}  // namespace tandem::simd
