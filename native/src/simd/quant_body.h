// The kernels of quant_kernels.h; included after kernels_body.h by one .cc per instruction set.
#pragma once
#include <cstring>

#include "simd/quant_kernels.h"

namespace TANDEM_SIMD_NS {
namespace {

// ---------------------------------------------------------------- rows of activations

inline float element_value(float x) { return x; }
inline float element_value(uint16_t x) {
  uint32_t bits = uint32_t(x) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Plain loops of a fixed length: the compiler makes vectors of them.
template <typename T>
void quantise_row(const T* x, int64_t k, int8_t* values, float* scales, int32_t* sums) {
  // Adding 1.5 * 2^23 leaves the nearest whole number (ties to even) in the low bits.
  constexpr float kRound = 12582912.0f;
  constexpr int32_t kRoundBits = 0x4b400000;
  for (int64_t k0 = 0; k0 < k; k0 += kQuantRowGroup) {
    float group[kQuantRowGroup];
    int32_t whole[kQuantRowGroup];
    for (int i = 0; i < kQuantRowGroup; ++i) group[i] = element_value(x[k0 + i]);
    // Magnitudes compare like their bits; infinity and NaN are the largest.
    std::memcpy(whole, group, sizeof group);
    int32_t top = 0;
    for (int i = 0; i < kQuantRowGroup; ++i) {
      int32_t magnitude = whole[i] & 0x7fffffff;
      top = magnitude > top ? magnitude : top;
    }
    float largest;
    std::memcpy(&largest, &top, 4);
    bool finite = top < 0x7f800000, zero = !finite || largest < 1e-30f;
    scales[k0 / kQuantRowGroup] = !finite ? __builtin_nanf("") : zero ? 0.0f : largest / 127.0f;
    float inverse = zero ? 0.0f : 127.0f / largest;
    for (int i = 0; i < kQuantRowGroup; ++i) group[i] = (zero ? 0.0f : group[i] * inverse) + kRound;
    std::memcpy(whole, group, sizeof group);
    for (int i = 0; i < kQuantRowGroup; ++i) values[k0 + i] = int8_t(whole[i] - kRoundBits);
    for (int half = 0; half < 2; ++half) {
      int32_t sum = 0;
      for (int i = 0; i < kQuantSumGroup; ++i) sum += whole[half * kQuantSumGroup + i] - kRoundBits;
      sums[k0 / kQuantSumGroup + half] = sum;
    }
  }
}

// ---------------------------------------------------------------- products

constexpr int kStepBytes = kPanel * 4;  // four inputs of every output of a panel
constexpr int kMostSums = int(kInnerBlock) / kQuantSumGroup;

// How a step's weights are loaded and which products fit them. `values` points to a group's values.
struct ByteWeights {
  using Dot = WideDot;
  static constexpr int kBits = 8;
  static Dot::W load(const uint8_t* values, int step, int reg) {
    return Dot::prepare(vi_load(values + step * kStepBytes + reg * kLanes * 4));
  }
};
// Nibbles that were unpacked to bytes.
struct UnpackedWeights {
  using Dot = SmallDot;
  static constexpr int kBits = 8;
  static Dot::W load(const uint8_t* values, int step, int reg) {
    return Dot::prepare(vi_load(values + step * kStepBytes + reg * kLanes * 4));
  }
};
struct NibbleWeights {
  using Dot = SmallDot;
  static constexpr int kBits = 4;
  static Dot::W load(const uint8_t* values, int step, int reg) {
    VI both = vi_load(values + step % 4 * kStepBytes + reg * kLanes * 4);
    return Dot::prepare(step < 4 ? vi_low_nibbles(both) : vi_high_nibbles(both));
  }
};

// Some groups of one panel and some rows.
struct QuantBlock {
  const QuantTraits& traits;
  const uint8_t* numbers;  // scales and minima of the first group
  const uint8_t* values;   // its values; both continue group by group, their own strides apart
  int64_t number_stride, value_stride;
  int64_t groups;
  const int8_t* x;
  const float* scales;
  const int32_t* sums;
  int64_t k;  // of a whole row: the strides of x, scales and sums follow from it
  float* y;
  int64_t ldy;
  bool accumulate;
};

inline VF load_scales(const QuantTraits& traits, const uint8_t* numbers, int reg) {
  if (traits.wide_scales) return vload(reinterpret_cast<const float*>(numbers) + reg * kLanes);
  return vload_half(reinterpret_cast<const uint16_t*>(numbers) + reg * kLanes);
}

// The sum of x's values in group g of the block.
inline int32_t group_sum(const QuantTraits& traits, const int32_t* sums, int64_t g) {
  return traits.group == kQuantSumGroup ? sums[g] : sums[2 * g] + sums[2 * g + 1];
}

// acc += four inputs at a time, `Steps` of them.
template <typename S, int R>
inline void dot_steps(const uint8_t* values, int first, int count, const int8_t* x, int64_t ldx, VI (&acc)[R][kPanelRegs]) {
  using D = typename S::Dot;
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) {
    int step = first + i;
    typename D::W w[kPanelRegs];
#pragma GCC unroll 4
    for (int c = 0; c < kPanelRegs; ++c) w[c] = S::load(values, step, c);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      VI b = vi_broadcast(x + r * ldx + 4 * step);
#pragma GCC unroll 4
      for (int c = 0; c < kPanelRegs; ++c) acc[r][c] = D::step(acc[r][c], w[c], b);
    }
  }
}

template <typename S, int R>
void quant_tile(const QuantBlock& b, const char* prefetch) {
  using D = typename S::Dot;
  const QuantTraits& t = b.traits;
  int64_t ld_scales = b.k / kQuantRowGroup, ld_sums = b.k / kQuantSumGroup;
  for (int64_t g = 0; g < b.groups; ++g) {
    const uint8_t* numbers = b.numbers + g * b.number_stride;
    const uint8_t* values = b.values + g * b.value_stride;
    const int8_t* x = b.x + g * t.group;
    if (prefetch) {
      // A lone tile is bound by memory: it fetches its own weights further on.
      for (int64_t line = 0; line < b.number_stride; line += 64) __builtin_prefetch(prefetch + g * b.number_stride + line, 0, 3);
    }
    int32_t sum[R], bias[R];
    VI acc[R][kPanelRegs];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      sum[r] = group_sum(t, b.sums + r * ld_sums, g);
      bias[r] = -t.offset * sum[r];
#pragma GCC unroll 4
      for (int c = 0; c < kPanelRegs; ++c) acc[r][c] = D::start(bias[r]);
    }
    dot_steps<S, R>(values, 0, 4, x, b.k, acc);
    if (t.group == 32) dot_steps<S, R>(values, 4, 4, x, b.k, acc);
    bool fresh = g == 0 && !b.accumulate;
#pragma GCC unroll 4
    for (int c = 0; c < kPanelRegs; ++c) {
      VF scale = load_scales(t, numbers, c);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        float row_scale = b.scales[r * ld_scales + g * t.group / kQuantRowGroup];
        float* out = b.y + r * b.ldy + c * kLanes;
        VF old = fresh ? vset(0.0f) : vload(out);
        if (t.minima) {
          VF minimum = vload(reinterpret_cast<const float*>(numbers + t.scale_bytes(kPanel)) + c * kLanes);
          old = vfma(minimum, vset(row_scale * float(sum[r])), old);
        }
        vstore(out, vfma(vmul(vi_to_float(D::finish(acc[r][c], bias[r])), scale), vset(row_scale), old));
      }
    }
  }
}

template <typename S>
void quant_rows(int rows, const QuantBlock& block, const char* prefetch) {
  static_assert(kQuantRowTile <= 6);
  if (rows == 1) return quant_tile<S, 1>(block, prefetch);
  if (rows == 2) return quant_tile<S, 2>(block, prefetch);
  if constexpr (kQuantRowTile >= 3) {
    if (rows == 3) return quant_tile<S, 3>(block, prefetch);
  }
  if constexpr (kQuantRowTile >= 4) {
    if (rows == 4) return quant_tile<S, 4>(block, prefetch);
  }
  if constexpr (kQuantRowTile >= 5) {
    if (rows == 5) return quant_tile<S, 5>(block, prefetch);
  }
  if constexpr (kQuantRowTile >= 6) quant_tile<S, 6>(block, prefetch);
}

// The values of some groups of nibbles as bytes, [8][panel][4] per group.
inline void unpack_nibbles(const uint8_t* values, int64_t stride, int64_t groups, uint8_t* out) {
  for (int64_t g = 0; g < groups; ++g, out += 8 * kStepBytes) {
    for (int64_t i = 0; i < 4 * kStepBytes; i += kLanes * 4) {
      VI both = vi_load(values + g * stride + i);
      vi_store(out + i, vi_low_nibbles(both));
      vi_store(out + 4 * kStepBytes + i, vi_high_nibbles(both));
    }
  }
}

// One panel, all rows. With more than one row tile, k is cut in blocks that stay in the innermost cache while every tile reads them; nibbles are
// unpacked once per block. The running sums go through y anyway, so the cuts change no bit.
template <typename S, typename Unpacked>
void quant_gemm_as(const QuantGemmArgs& args, const QuantTraits& t) {
  int64_t stride = t.group_bytes(kPanel), head = t.scale_bytes(kPanel) + t.minimum_bytes(kPanel);
  auto block_of = [&](int64_t row, int64_t k0, int64_t k1) {
    const uint8_t* numbers = args.w + k0 / t.group * stride;
    return QuantBlock{t,
                      numbers,
                      numbers + head,
                      stride,
                      stride,
                      (k1 - k0) / t.group,
                      args.x.values + row * args.k + k0,
                      args.x.scales + row * (args.k / kQuantRowGroup) + k0 / kQuantRowGroup,
                      args.x.sums + row * (args.k / kQuantSumGroup) + k0 / kQuantSumGroup,
                      args.k,
                      args.y + row * args.ldy,
                      args.ldy,
                      args.accumulate || k0 > 0};
  };
  if (args.m <= kQuantRowTile) {
    return quant_rows<S>(int(args.m), block_of(0, 0, args.k), reinterpret_cast<const char*>(args.w) + kStreamAhead);
  }
  int64_t tiles = (args.m + kQuantRowTile - 1) / kQuantRowTile;
  alignas(64) uint8_t unpacked[S::kBits == 4 ? kInnerBlock * kPanel : 64];
  for (int64_t k0 = 0; k0 < args.k; k0 += kInnerBlock) {
    int64_t k1 = k0 + kInnerBlock < args.k ? k0 + kInnerBlock : args.k;
    if constexpr (S::kBits == 4) unpack_nibbles(block_of(0, k0, k1).values, stride, (k1 - k0) / t.group, unpacked);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      // Tiles of nearly the same size: their rows fill the pipeline evenly.
      int64_t row = args.m * tile / tiles, end = args.m * (tile + 1) / tiles;
      QuantBlock block = block_of(row, k0, k1);
      if constexpr (S::kBits == 4) {
        block.values = unpacked;
        block.value_stride = 8 * kStepBytes;
      }
      // The next block of weights is fetched while this one is used, the row tiles taking turns.
      const char* next = reinterpret_cast<const char*>(args.w) + k1 / t.group * stride;
      int64_t lines = (kInnerBlock / t.group * stride + 63) / 64;
      for (int64_t line = lines * tile / tiles; line < lines * (tile + 1) / tiles; ++line) __builtin_prefetch(next + line * 64, 0, 2);
      quant_rows<Unpacked>(int(end - row), block, nullptr);
    }
  }
}

void quant_gemm(const QuantGemmArgs& args) {
  const QuantTraits t = traits_of(args.format);
  if (t.bits == 4) {
    quant_gemm_as<NibbleWeights, UnpackedWeights>(args, t);
  } else {
    quant_gemm_as<ByteWeights, ByteWeights>(args, t);
  }
}

// ---------------------------------------------------------------- weights as floats

inline void store_pair_row(float* out, int64_t c, int reg, VF even, VF odd) {
  vstore(out + c * kPanel + reg * kLanes, even);
  vstore(out + (c + 1) * kPanel + reg * kLanes, odd);
}
inline void store_pair_row(uint16_t* out, int64_t c, int reg, VF even, VF odd) {
  uint16_t low[kLanes], high[kLanes];
  vstore_bf16(low, even);
  vstore_bf16(high, odd);
  uint16_t* to = out + c * kPanel + reg * kLanes * 2;
  for (int i = 0; i < kLanes; ++i) {
    to[2 * i] = low[i];
    to[2 * i + 1] = high[i];
  }
}

template <typename T>
void dequantise(QuantFormat format, const uint8_t* w, int64_t k0, int64_t columns, T* out) {
  const QuantTraits t = traits_of(format);
  int64_t stride = t.group_bytes(kPanel), head = t.scale_bytes(kPanel) + t.minimum_bytes(kPanel);
  for (int64_t c = 0; c < columns; c += 4) {
    const uint8_t* numbers = w + (k0 + c) / t.group * stride;
    int64_t within = (k0 + c) % t.group, half = t.group / 2;
    bool high = t.bits == 4 && within >= half;
    const uint8_t* values = numbers + head + (high ? within - half : within) / 4 * kStepBytes;
    for (int reg = 0; reg < kPanelRegs; ++reg) {
      VI four = vi_load(values + reg * kLanes * 4);
      if (t.bits == 4) four = high ? vi_high_nibbles(four) : vi_low_nibbles(four);
      VF scale = load_scales(t, numbers, reg), value[4];
      for (int i = 0; i < 4; ++i) {
        value[i] = vmul(scale, vsub(vi_to_float(vi_byte(four, i)), vset(float(t.offset))));
        if (t.minima) value[i] = vadd(value[i], vload(reinterpret_cast<const float*>(numbers + t.scale_bytes(kPanel)) + reg * kLanes));
      }
      store_pair_row(out, c, reg, value[0], value[1]);
      store_pair_row(out, c + 2, reg, value[2], value[3]);
    }
  }
}

}  // namespace

extern const QuantKernels quant_table;
const QuantKernels quant_table = {
    quantise_row<uint16_t>, quantise_row<float>, quant_gemm, dequantise<uint16_t>, dequantise<float>,
};

}  // namespace TANDEM_SIMD_NS
