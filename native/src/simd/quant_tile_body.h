// Products of a few rows with a block of quantised weights by vectors; part of quant_body.h, which includes it.
#pragma once
#include <cstring>
#include <type_traits>

#include "simd/quant_kernels.h"

namespace TANDEM_SIMD_NS {
namespace {

constexpr int kStepBytes = kPanel * 4;  // four inputs of every output of a panel

// As kAheadLevel and kStreamAhead, of weights of 8 and of 4 bits; how near is of lines too that tiles share.
// L2, measured on a Xeon with AMX: one stream is 8 % (8 bits) and 21 % (4 bits) faster, eight are 16 % and 2 %; on their way to L1 lines seem to
// keep a core's few buffers full. On an Emerald Rapids without AMX one stream reads 1.6 (8 bits) and 1.85 times (4 bits) what it reads through L1
// alone, eight 1.7 and 1.45 times (avx2: one 1.2, eight the same).
// L1 alone, measured on a Zen 5, shares of what reading alone reaches: 4 bits 1.00 at 2,560 to 4,096, where L1 with the levels behind it gets
// 0.96 at 8,192, its best; 8 bits 0.95 to 0.98 either way. Engines: one stream of 4 bits 1.03x, of 8 bits 1.01x, eight the same.
#if TANDEM_DOT_BF16 && !TANDEM_AMX
constexpr int kStreamLevel = 0;
constexpr int64_t kBytesAhead = 2560, kNibblesAhead = 3584;
#else
constexpr int kStreamLevel = 2;
constexpr int64_t kBytesAhead = kStreamAhead, kNibblesAhead = kStreamAhead;
#endif

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
  const uint8_t* numbers;  // scales and minima of the first group; one group's after the other's
  const uint8_t* values;   // its values; the same, or as unpacked
  int64_t groups;
  const int8_t* x;
  const float* scales;
  const int32_t* sums;
  int64_t ld;   // of rows of x; those of scales and sums follow from it
  float* y;     // where every sum begins: what it has so far
  int64_t ldy;  // kPanel where sums lie side by side
};

// Scales that a row of x has there.
inline int64_t scales_of(const QuantBlock& b, const QuantTraits& t) { return (b.groups * t.group + kQuantRowGroup - 1) / kQuantRowGroup; }

inline VF load_scales(const QuantTraits& traits, const uint8_t* numbers, int reg) {
  if (traits.wide_scales) return vload(reinterpret_cast<const float*>(numbers) + reg * kLanes);
  return vload_half(reinterpret_cast<const uint16_t*>(numbers) + reg * kLanes);
}

// Weights that are fetched while a tile is multiplied: lines of a group, a few with each four inputs, one group's behind the other's. A
// burst of them would stall, and lines out of order would not be seen as a stream.
struct FetchAhead {
  const char* from;
  int64_t lines;  // how far groups are apart
};
// A group's, shared by so many tiles.
constexpr int64_t lines_per_group(const QuantTraits& t, int64_t tiles) { return (t.group_bytes(kPanel) / 64 + tiles - 1) / tiles; }

// What a group needs of some rows: pointers to the first of them and how far the others are apart.
struct GroupRows {
  const int8_t* x;
  const int32_t* sums;
  const float* factors;
  int64_t ld_x, ld_sums, ld_factors;
};
// The compiler takes the result for something new, so that it adds it to one pointer where it is needed instead of keeping a pointer per row,
// most of them in vector registers, as there are too many.
inline int64_t unknown(int64_t v) {
  asm("" : "+r"(v));
  return v;
}

inline int32_t sum_of(const GroupRows& rows, int r, int parts) {
  const int32_t* part = rows.sums + r * rows.ld_sums;
  return parts == 1 ? part[0] : part[0] + part[1];
}

// acc += four inputs at a time, a whole group. So many lines are fetched meanwhile, some with each: how many is a constant, or finding out would
// cost a tenth of the time.
template <typename S, int R, int Group, int Lines>
[[gnu::always_inline]] inline void dot_group(const uint8_t* values, const GroupRows& rows, const char* ahead, VI (&acc)[R][kPanelRegs]) {
  using D = typename S::Dot;
  constexpr int kSteps = Group / 4;
#pragma GCC unroll 8
  for (int step = 0; step < kSteps; ++step) {
    asm volatile("" : "+r"(ahead));  // or the compiler gathers the fetches in a burst
#pragma GCC unroll 8
    for (int line = Lines * step / kSteps; line < Lines * (step + 1) / kSteps; ++line)
      __builtin_prefetch(ahead + line * 64, 0, kStreamLevel);
    typename D::W w[kPanelRegs];
#pragma GCC unroll 4
    for (int c = 0; c < kPanelRegs; ++c) w[c] = D::keep(S::load(values, step, c));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      VI b = vi_broadcast(rows.x + r * rows.ld_x + 4 * step);
#pragma GCC unroll 4
      for (int c = 0; c < kPanelRegs; ++c) acc[r][c] = D::step(acc[r][c], w[c], b);
    }
  }
}

// How a group's products are scaled (QuantKernels::gemm).
enum class Scaling {
  kEven,    // all groups of the block have the row's scale: it is applied when the block ends
  kUneven,  // scales are powers of two apart: so are products, exactly, before they are added
  kGroup,   // every group for itself, as tiles do
};

// Sums over a block, in registers. Measured on a Zen 5, tiles of 3 rows of 32: 1.1x from memory.
template <int R, int Ld>
struct BlockSums {
  VF sum[R][kPanelRegs];
  explicit BlockSums(const QuantBlock&) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kPanelRegs; ++c) sum[r][c] = vset(0.0f);
    }
  }
  VF get(int r, int c) const { return sum[r][c]; }
  void set(int r, int c, VF v) { sum[r][c] = v; }
  // y + sums * scale of each row.
  void add_to(const QuantBlock& b, const float (&scale)[R]) const {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kPanelRegs; ++c) {
        float* out = b.y + r * (Ld ? Ld : b.ldy) + c * kLanes;
        vstore(out, vfma(sum[r][c], vset(scale[r]), vload(out)));
      }
    }
  }
};
// Those that are y itself.
template <int R, int Ld>
struct SumsInPlace {
  float* y;
  int64_t ld;
  explicit SumsInPlace(const QuantBlock& b) : y(b.y), ld(b.ldy) {}
  float* at(int r, int c) const { return y + r * (Ld ? Ld : unknown(ld)) + c * kLanes; }
  VF get(int r, int c) const { return vload(at(r, c)); }
  void set(int r, int c, VF v) { vstore(at(r, c), v); }
  void add_to(const QuantBlock&, const float (&)[R]) const {}
};

// Of each row the largest scale of a block, and every group's over that, where they differ.
template <int R, Scaling How>
struct RowScales {
  static constexpr int kGroups = kQuantScaleBlock / kQuantRowGroup;
  float ratio[How == Scaling::kUneven ? R : 1][kGroups];
  float block[R];

  RowScales(const float* scales, int64_t ld, int64_t count) {
    if constexpr (How == Scaling::kGroup) return;
    for (int r = 0; r < R; ++r, scales += ld) {
      block[r] = scales[0];
      if constexpr (How == Scaling::kEven) continue;
      for (int64_t g = 0; g < count; ++g) block[r] = scales[g] > block[r] ? scales[g] : block[r];
      // All zeros, or none that is finite: the block's scale alone decides, as where scales are the same.
      for (int64_t g = 0; g < count; ++g) ratio[r][g] = block[r] > 0.0f ? scales[g] / block[r] : 1.0f;
    }
  }
};

// Adds what a group's products are worth.
template <typename S, int R, QuantFormat F, Scaling How, typename Sums>
[[gnu::always_inline]] inline void add_group(const uint8_t* numbers, const GroupRows& rows, const VI (&acc)[R][kPanelRegs], Sums& sums) {
  constexpr QuantTraits t = traits_of(F);
  constexpr int kSums = t.group / kQuantSumGroup;
  VF scale[kPanelRegs];
#pragma GCC unroll 4
  for (int c = 0; c < kPanelRegs; ++c) scale[c] = load_scales(t, numbers, c);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const int32_t sum = sum_of(rows, r, kSums);
    const float number = How == Scaling::kEven ? 1.0f : rows.factors[r * rows.ld_factors];
    const VF factor = vset(number), shift = t.minima ? vset(number * float(sum)) : factor;
#pragma GCC unroll 4
    for (int c = 0; c < kPanelRegs; ++c) {
      VF old = sums.get(r, c), product = vi_to_float(S::Dot::finish(acc[r][c], -t.offset * sum));
      if constexpr (t.minima) {
        old = vfma(vload(reinterpret_cast<const float*>(numbers + t.scale_bytes(kPanel)) + c * kLanes), shift, old);
      }
      if constexpr (How == Scaling::kGroup) sums.set(r, c, vfma(vmul(product, scale[c]), factor, old));
      else sums.set(r, c, vfma(How == Scaling::kEven ? product : vmul(product, factor), scale[c], old));
    }
  }
}

// y += some groups' products: where they are not scaled one by one, those of at most kQuantScaleBlock inputs. The format is a constant here:
// with it as a variable the compiler spends four times as long outside of products as in them. So is how far rows of y are apart, if not 0.
template <typename S, int R, QuantFormat F, int Lines, int Ld, Scaling How>
[[gnu::noinline]] void quant_tile_block(const QuantBlock& block, const FetchAhead& fetch) {
  constexpr QuantTraits t = traits_of(F);
  constexpr int kSums = t.group / kQuantSumGroup;
  constexpr int64_t kStride = t.group_bytes(kPanel), kValueStride = S::kBits == t.bits ? kStride : t.group * kPanel;
  const QuantBlock b = block;
  const uint8_t *numbers = b.numbers, *values = b.values;
  const char* ahead = fetch.from;
  const int64_t fetched = fetch.lines * 64, ld_x = b.ld, ld_sums = ld_x / kQuantSumGroup;
  const RowScales<R, How> scales(b.scales, ld_x / kQuantRowGroup, scales_of(b, t));
  const float* factors = How == Scaling::kGroup ? b.scales : scales.ratio[0];
  const int64_t ld_factors = How == Scaling::kGroup ? ld_x / kQuantRowGroup : RowScales<R, How>::kGroups;
  std::conditional_t<How == Scaling::kGroup, SumsInPlace<R, Ld>, BlockSums<R, Ld>> sums(b);
  for (int64_t g = 0; g < b.groups; ++g, numbers += kStride, values += kValueStride, ahead += fetched) {
    const GroupRows rows = {b.x + g * t.group, b.sums + g * kSums, factors + g * t.group / kQuantRowGroup,
                            unknown(ld_x),     unknown(ld_sums),   unknown(ld_factors)};
    VI acc[R][kPanelRegs];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      VI start = S::Dot::start(-t.offset * sum_of(rows, r, kSums));
#pragma GCC unroll 4
      for (int c = 0; c < kPanelRegs; ++c) acc[r][c] = start;
    }
    dot_group<S, R, t.group, Lines>(values, rows, ahead, acc);
    add_group<S, R, F, How>(numbers, rows, acc, sums);
  }
  sums.add_to(b, scales.block);
}

// Whether these scales are the same, bit by bit.
inline bool same_scales(const float* scales, int64_t count) {
#if TANDEM_AVX512
  if (count == 8) {
    __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales));
    return _mm256_cmpneq_epi32_mask(all, _mm256_broadcastd_epi32(_mm256_castsi256_si128(all))) == 0;
  }
#endif
  for (int64_t i = 1; i < count; ++i) {
    if (std::memcmp(scales, scales + i, sizeof(float)) != 0) return false;
  }
  return true;
}

// y += the products of a kQuantScaleBlock's groups.
template <typename S, int R, QuantFormat F, int Lines, int Ld>
inline void quant_scale_block(const QuantBlock& block, const FetchAhead& fetch) {
  bool even = true;
  const int64_t ld = block.ld / kQuantRowGroup, count = scales_of(block, traits_of(F));
  for (int r = 0; r < R; ++r) even &= same_scales(block.scales + r * ld, count);
  if (even) quant_tile_block<S, R, F, Lines, Ld, Scaling::kEven>(block, fetch);
  else quant_tile_block<S, R, F, Lines, Ld, Scaling::kUneven>(block, fetch);
}

// y += some groups' products, block by block. A single block is passed on as it is: a copy would be written in pieces and read as a whole, and
// wait for the writes. Measured: 5 % of a product of 32 rows.
template <typename S, int R, QuantFormat F, int Lines, int Ld>
void quant_tile(const QuantBlock& block, const FetchAhead& fetch) {
  if constexpr (!kScalesBlocks) return quant_tile_block<S, R, F, Lines, Ld, Scaling::kGroup>(block, fetch);
  constexpr QuantTraits t = traits_of(F);
  constexpr int64_t kGroups = kQuantScaleBlock / t.group, kStride = t.group_bytes(kPanel);
  if (block.groups <= kGroups) return quant_scale_block<S, R, F, Lines, Ld>(block, fetch);
  QuantBlock part = block;
  FetchAhead ahead = fetch;
  for (int64_t left = block.groups; left > 0; left -= kGroups) {
    part.groups = left < kGroups ? left : kGroups;
    quant_scale_block<S, R, F, Lines, Ld>(part, ahead);
    part.numbers += kGroups * kStride;
    part.values += S::kBits == t.bits ? kGroups * kStride : kQuantScaleBlock * kPanel;
    part.x += kQuantScaleBlock;
    part.scales += kQuantScaleBlock / kQuantRowGroup;
    part.sums += kQuantScaleBlock / kQuantSumGroup;
    ahead.from += kGroups * fetch.lines * 64;
  }
}

// At most Top rows.
template <typename S, QuantFormat F, int Top, int Lines, int Ld>
void quant_rows(int rows, const QuantBlock& block, const FetchAhead& fetch) {
  static_assert(Top <= 6);
  if (rows == 1) return quant_tile<S, 1, F, Lines, Ld>(block, fetch);
  if (rows == 2) return quant_tile<S, 2, F, Lines, Ld>(block, fetch);
  if constexpr (Top >= 3) {
    if (rows == 3) return quant_tile<S, 3, F, Lines, Ld>(block, fetch);
  }
  if constexpr (Top >= 4) {
    if (rows == 4) return quant_tile<S, 4, F, Lines, Ld>(block, fetch);
  }
  if constexpr (Top >= 5) {
    if (rows == 5) return quant_tile<S, 5, F, Lines, Ld>(block, fetch);
  }
  if constexpr (Top >= 6) quant_tile<S, 6, F, Lines, Ld>(block, fetch);
}

// A tile of those that share a block of weights and fetch the next one.
template <typename S, QuantFormat F>
void quant_shared_rows(int rows, const QuantBlock& block, const FetchAhead& fetch) {
  constexpr int kFew = traits_of(F).group / 4, kMany = int(lines_per_group(traits_of(F), 2));
  if (fetch.lines <= kFew) return quant_rows<S, F, kQuantSumTile, kFew, kPanel>(rows, block, fetch);
  quant_rows<S, F, kQuantSumTile, kMany, kPanel>(rows, block, fetch);
}

}  // namespace
}  // namespace TANDEM_SIMD_NS
