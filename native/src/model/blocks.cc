#include "model/blocks.h"

#include <cstring>
#include <vector>

#include "base/bf16.h"
#include "base/error.h"

namespace tandem::model {
namespace {

float half_at(const uint8_t* raw) {
  uint16_t bits;
  std::memcpy(&bits, raw, 2);
  return half_to_float(bits);
}

// [0, 2) scale, then 32 signed bytes.
void unpack_q8_0(const uint8_t* raw, uint8_t* values, float* scales) {
  scales[0] = half_at(raw);
  for (int i = 0; i < 32; ++i) values[i] = uint8_t(raw[2 + i] + 128);
}

// [0, 2) scale, then 16 bytes: element i in the low half of byte i, element i + 16 in its high half.
void unpack_q4_0(const uint8_t* raw, uint8_t* values, float* scales) {
  scales[0] = half_at(raw);
  for (int i = 0; i < 16; ++i) {
    values[i] = raw[2 + i] & 15;
    values[i + 16] = raw[2 + i] >> 4;
  }
}

// [0, 2) scale of scales, [2, 4) scale of minima, [4, 16) 6-bit scales and minima of 8 groups of 32, [16, 144) numbers: 32 bytes
// hold two groups, the first in their low halves. The scales of groups 4..7 have their upper two bits in the bytes of groups 0..3.
void unpack_q4_k(const uint8_t* raw, uint8_t* values, float* scales, float* minima) {
  float d = half_at(raw), dmin = half_at(raw + 2);
  const uint8_t* packed = raw + 4;
  for (int g = 0; g < 8; ++g) {
    int scale = g < 4 ? packed[g] & 63 : (packed[g + 4] & 15) | (packed[g - 4] >> 6) << 4;
    int minimum = g < 4 ? packed[g + 4] & 63 : packed[g + 4] >> 4 | (packed[g] >> 6) << 4;
    scales[g] = d * float(scale);
    minima[g] = -(dmin * float(minimum));
    const uint8_t* numbers = raw + 16 + g / 2 * 32;
    for (int i = 0; i < 32; ++i) values[g * 32 + i] = g % 2 == 0 ? numbers[i] & 15 : numbers[i] >> 4;
  }
}

// [0, 128) low halves, [128, 192) upper pairs of bits, [192, 208) signed scales of 16 groups of 16, [208, 210) scale of scales.
// A half of 128 elements is four runs of 32: their low halves are in 64 bytes (runs 0, 1 low; 2, 3 high), their pairs in 32.
void unpack_q6_k(const uint8_t* raw, uint8_t* values, float* scales) {
  float d = half_at(raw + 208);
  for (int g = 0; g < 16; ++g) scales[g] = d * float(int8_t(raw[192 + g]));
  for (int half = 0; half < 2; ++half) {
    const uint8_t *low = raw + half * 64, *high = raw + 128 + half * 32;
    for (int run = 0; run < 4; ++run) {
      for (int i = 0; i < 32; ++i) {
        int byte = low[run % 2 * 32 + i], pair = high[i] >> (2 * run) & 3;
        int number = (run < 2 ? byte & 15 : byte >> 4) | pair << 4;
        values[half * 128 + run * 32 + i] = uint8_t(number - 32 + 128);
      }
    }
  }
}

}  // namespace

bool is_blocks(Stored stored) { return stored != Stored::kF32 && stored != Stored::kF16 && stored != Stored::kBf16; }

BlockTraits block_traits(Stored stored) {
  switch (stored) {
    case Stored::kQ8_0: return {32, 34, ops::QuantFormat::kInt8};
    case Stored::kQ4_0: return {32, 18, ops::QuantFormat::kInt4};
    case Stored::kQ4K: return {256, 144, ops::QuantFormat::kInt4Min};
    case Stored::kQ6K: return {256, 210, ops::QuantFormat::kInt8Fine};
    default: throw Error(ErrorKind::kRange, "not a block type");
  }
}

void unpack_row(Stored stored, const uint8_t* raw, int64_t columns, uint8_t* values, float* scales, float* minima) {
  BlockTraits block = block_traits(stored);
  int64_t groups = block.elements / simd::traits_of(block.format).group;
  for (int64_t at = 0; at < columns; at += block.elements, raw += block.bytes) {
    switch (stored) {
      case Stored::kQ8_0: unpack_q8_0(raw, values + at, scales); break;
      case Stored::kQ4_0: unpack_q4_0(raw, values + at, scales); break;
      case Stored::kQ4K: unpack_q4_k(raw, values + at, scales, minima); break;
      default: unpack_q6_k(raw, values + at, scales);
    }
    scales += groups;
    if (minima) minima += groups;
  }
}

void dequantise_row(Stored stored, const uint8_t* raw, int64_t columns, float* out) {
  simd::QuantTraits traits = simd::traits_of(block_traits(stored).format);
  std::vector<uint8_t> values(static_cast<size_t>(columns));
  std::vector<float> scales(size_t(columns / traits.group)), minima(scales.size());
  unpack_row(stored, raw, columns, values.data(), scales.data(), minima.data());
  for (int64_t i = 0; i < columns; ++i) {
    size_t group = size_t(i / traits.group);
    float product = scales[group] * float(int(values[size_t(i)]) - traits.offset);
    out[i] = traits.minima ? product + minima[group] : product;
  }
}

}  // namespace tandem::model
