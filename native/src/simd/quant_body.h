// The kernels of quant_kernels.h; included after kernels_body.h by one .cc per instruction set.
#pragma once
#include <cstring>
#include <type_traits>

#include "simd/quant_kernels.h"
#include "simd/quantise_rows_body.h"

namespace TANDEM_SIMD_NS {
namespace {

// ---------------------------------------------------------------- products

constexpr int kStepBytes = kPanel * 4;  // four inputs of every output of a panel

// How near lines are fetched that a tile needs soon: 3 is L1, 2 is L2. Measured on a Xeon with AMX: with L2 one stream is 8 % (8 bits) and
// 21 % (4 bits) faster, eight are 16 % and 2 %; on their way to L1 lines seem to keep a core's few buffers full. Not measured elsewhere.
#if TANDEM_AMX
constexpr int kStreamLevel = 2;
#else
constexpr int kStreamLevel = 3;
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
  const float* scales;
  int64_t ld_x, ld_sums, ld_scales;
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

// The running sums of a tile, in memory: rows of y, so far apart; if the distance is a constant it is Ld, else 0.
template <int R, int Ld>
struct SumsInMemory {
  float* y;
  int64_t ld;
  explicit SumsInMemory(const QuantBlock& b) : y(b.y), ld(b.ldy) {}
  float* at(int r, int c) const { return y + r * (Ld ? Ld : unknown(ld)) + c * kLanes; }
  VF get(int r, int c) const { return vload(at(r, c)); }
  void set(int r, int c, VF v) { vstore(at(r, c), v); }
  void store(const QuantBlock&) {}
};
// Or in registers until the tile ends, where they fit beside a group's products. Measured on a Zen 5, 32 rows: 1.1x from L2, 1.2x from memory.
template <int R, int Ld>
struct SumsInRegisters {
  VF sum[R][kPanelRegs];
  explicit SumsInRegisters(const QuantBlock& b) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kPanelRegs; ++c) sum[r][c] = vload(b.y + r * (Ld ? Ld : b.ldy) + c * kLanes);
    }
  }
  VF get(int r, int c) const { return sum[r][c]; }
  void set(int r, int c, VF v) { sum[r][c] = v; }
  void store(const QuantBlock& b) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kPanelRegs; ++c) vstore(b.y + r * (Ld ? Ld : b.ldy) + c * kLanes, sum[r][c]);
    }
  }
};
// A group's products and the sums, its weights of four inputs, x and one more.
template <int R>
constexpr bool kSumsFit = (2 * R + 1) * kPanelRegs + 2 <= kVectorRegisters;

// Adds what a group's products are worth.
template <typename S, int R, QuantFormat F, typename Sums>
[[gnu::always_inline]] inline void add_group(const uint8_t* numbers, const GroupRows& rows, const VI (&acc)[R][kPanelRegs], Sums& sums) {
  constexpr QuantTraits t = traits_of(F);
  constexpr int kSums = t.group / kQuantSumGroup;
  VF scale[kPanelRegs];
#pragma GCC unroll 4
  for (int c = 0; c < kPanelRegs; ++c) scale[c] = load_scales(t, numbers, c);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const int32_t sum = sum_of(rows, r, kSums);
    float row_scale = rows.scales[r * rows.ld_scales];
    VF factor = vset(row_scale), shift = t.minima ? vset(row_scale * float(sum)) : factor;
#pragma GCC unroll 4
    for (int c = 0; c < kPanelRegs; ++c) {
      VF old = sums.get(r, c);
      if constexpr (t.minima) {
        old = vfma(vload(reinterpret_cast<const float*>(numbers + t.scale_bytes(kPanel)) + c * kLanes), shift, old);
      }
      sums.set(r, c, vfma(vmul(vi_to_float(S::Dot::finish(acc[r][c], -t.offset * sum)), scale[c]), factor, old));
    }
  }
}

// The format is a constant here: with it as a variable the compiler spends four times as long outside of products as in them. So is how far
// rows of y are apart, if not 0.
template <typename S, int R, QuantFormat F, int Lines, int Ld>
[[gnu::noinline]] void quant_tile(const QuantBlock& block, const FetchAhead& fetch) {
  constexpr QuantTraits t = traits_of(F);
  constexpr int kSums = t.group / kQuantSumGroup;
  constexpr int64_t kStride = t.group_bytes(kPanel), kValueStride = S::kBits == t.bits ? kStride : t.group * kPanel;
  const QuantBlock b = block;
  const uint8_t *numbers = b.numbers, *values = b.values;
  const char* ahead = fetch.from;
  const int64_t fetched = fetch.lines * 64, ld_x = b.ld, ld_sums = ld_x / kQuantSumGroup, ld_scales = ld_x / kQuantRowGroup;
  std::conditional_t<kSumsFit<R>, SumsInRegisters<R, Ld>, SumsInMemory<R, Ld>> sums(b);
  for (int64_t g = 0; g < b.groups; ++g, numbers += kStride, values += kValueStride, ahead += fetched) {
    const GroupRows rows = {b.x + g * t.group, b.sums + g * kSums, b.scales + g * t.group / kQuantRowGroup,
                            unknown(ld_x),     unknown(ld_sums),   unknown(ld_scales)};
    VI acc[R][kPanelRegs];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      VI start = S::Dot::start(-t.offset * sum_of(rows, r, kSums));
#pragma GCC unroll 4
      for (int c = 0; c < kPanelRegs; ++c) acc[r][c] = start;
    }
    dot_group<S, R, t.group, Lines>(values, rows, ahead, acc);
    add_group<S, R, F>(numbers, rows, acc, sums);
  }
  sums.store(b);
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

inline void clear_rows(float* rows, int64_t ld, int64_t m) {
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < kPanel; c += kLanes) vstore(rows + r * ld + c, vset(0.0f));
  }
}

// The groups of columns k0 to k1, of one block of x, with the rows from `row` on; their sums are in y.
template <QuantFormat F>
QuantBlock quant_block(const QuantGemmArgs& args, int64_t row, int64_t k0, int64_t k1, float* y, int64_t ldy) {
  constexpr QuantTraits t = traits_of(F);
  constexpr int64_t kStride = t.group_bytes(kPanel), kHead = t.scale_bytes(kPanel) + t.minimum_bytes(kPanel);
  const uint8_t* numbers = args.w + k0 / t.group * kStride;
  const int64_t at = args.x.place(row, k0);
  return {numbers,
          numbers + kHead,
          (k1 - k0) / t.group,
          args.x.values + at,
          args.x.scales + at / kQuantRowGroup,
          args.x.sums + at / kQuantSumGroup,
          args.x.block,
          y,
          ldy};
}

// Rows `first` to `end` of the product with one panel, at most kSumRows of them. k is cut in blocks that stay in the innermost cache while
// every row tile reads them; nibbles are unpacked once per block. The running sums go through memory anyway, so the cuts change no bit.
template <typename S, typename Unpacked, QuantFormat F>
void quant_sum_rows(const QuantGemmArgs& args, int64_t first, int64_t end) {
  constexpr int64_t kStride = traits_of(F).group_bytes(kPanel), kGroup = traits_of(F).group;
  alignas(64) float sums[kSumRows * kPanel];
  alignas(64) uint8_t unpacked[S::kBits == 4 ? kInnerBlock * kPanel : 64];
  const int64_t m = end - first, tiles = (m + kQuantSumTile - 1) / kQuantSumTile;
  const int64_t lines = lines_per_group(traits_of(F), tiles);
  for (int64_t k0 = 0; k0 < args.k; k0 += kInnerBlock) {
    int64_t k1 = k0 + kInnerBlock < args.k ? k0 + kInnerBlock : args.k, groups = (k1 - k0) / kGroup;
    const char* next = reinterpret_cast<const char*>(args.w) + k1 / kGroup * kStride;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      // Tiles of nearly the same size: their rows fill the pipeline evenly.
      int64_t row = m * tile / tiles, rows = m * (tile + 1) / tiles - row;
      float *y = args.y + (first + row) * args.ldy, *tile_sums = sums + row * kPanel;
      if (k0 == 0 && args.accumulate) copy_rows(y, args.ldy, tile_sums, kPanel, rows);
      if (k0 == 0 && !args.accumulate) clear_rows(tile_sums, kPanel, rows);
      QuantBlock block = quant_block<F>(args, first + row, k0, k1, tile_sums, kPanel);
      if constexpr (S::kBits == 4) {
        if (tile == 0) unpack_nibbles(block.values, kStride, block.groups, unpacked);
        block.values = unpacked;
      }
      // The next block of weights is fetched while this one is used, the row tiles taking turns.
      quant_shared_rows<Unpacked, F>(int(rows), block, {next + tile * groups * lines * 64, lines});
      // Here and not at the end for all: what y waits for passes while the next tile is multiplied.
      if (k1 == args.k) copy_rows(tile_sums, kPanel, y, args.ldy, rows);
    }
  }
}

}  // namespace
}  // namespace TANDEM_SIMD_NS

#if TANDEM_AMX
#include "simd/quant_amx_body.h"
#endif

namespace TANDEM_SIMD_NS {
namespace {

// One panel, all rows.
template <typename S, typename Unpacked, QuantFormat F>
void quant_gemm_as(const QuantGemmArgs& args) {
#if TANDEM_AMX
  if (args.m >= tiles_from(F)) return quant_gemm_tiles<S, F>(args);
#endif
  if (args.m <= kQuantRowTile && args.k <= args.x.block) {
    if (!args.accumulate) clear_rows(args.y, args.ldy, args.m);
    QuantBlock block = quant_block<F>(args, 0, 0, args.k, args.y, args.ldy);
    // A lone tile is bound by memory: it fetches its own weights further on.
    const char* ahead = reinterpret_cast<const char*>(args.w) + kStreamAhead;
    constexpr int kLines = int(lines_per_group(traits_of(F), 1));
    return quant_rows<S, F, kQuantRowTile, kLines, 0>(int(args.m), block, {ahead, kLines});
  }
  int64_t blocks = (args.m + kSumRows - 1) / kSumRows;
  for (int64_t block = 0; block < blocks; ++block)
    quant_sum_rows<S, Unpacked, F>(args, args.m * block / blocks, args.m * (block + 1) / blocks);
}

void quant_gemm(const QuantGemmArgs& args) {
  switch (args.format) {
    case QuantFormat::kInt8: return quant_gemm_as<ByteWeights, ByteWeights, QuantFormat::kInt8>(args);
    case QuantFormat::kInt4: return quant_gemm_as<NibbleWeights, UnpackedWeights, QuantFormat::kInt4>(args);
    case QuantFormat::kInt4Min: return quant_gemm_as<NibbleWeights, UnpackedWeights, QuantFormat::kInt4Min>(args);
    case QuantFormat::kInt8Fine: return quant_gemm_as<ByteWeights, ByteWeights, QuantFormat::kInt8Fine>(args);
    case QuantFormat::kInt8FineMin: return quant_gemm_as<ByteWeights, ByteWeights, QuantFormat::kInt8FineMin>(args);
    case QuantFormat::kFp8: break;  // devices only; refused before
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
#if TANDEM_AMX
    kTileSumRows,           kQuantRowTile,       INT64_MAX,
#else
    kRowsInL2, kQuantRowTile, kInnerBlock,
#endif
    quantise_row<uint16_t>, quantise_row<float>, quant_gemm, dequantise<uint16_t>, dequantise<float>,
};

}  // namespace TANDEM_SIMD_NS
