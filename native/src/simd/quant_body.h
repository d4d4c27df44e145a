// The kernels of quant_kernels.h; included after kernels_body.h by one .cc per instruction set.
#pragma once
#include <cstring>

#include "simd/quant_kernels.h"
#include "simd/quant_tile_body.h"
#include "simd/quantise_rows_body.h"

namespace TANDEM_SIMD_NS {
namespace {

// ---------------------------------------------------------------- products

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

inline QuantBlock from_row(const QuantBlock& block, int64_t row) {
  QuantBlock from = block;
  from.x += row * block.ld;
  from.scales += row * (block.ld / kQuantRowGroup);
  from.sums += row * (block.ld / kQuantSumGroup);
  from.y += row * block.ldy;
  return from;
}

// Rows `first` to `end` of the product with one panel, at most kSumRows of them. k is cut in blocks that stay in the innermost cache while
// every row tile reads them; nibbles are unpacked once per block. The blocks are those of the scales, or sums lie in memory anyway: the cuts
// change no bit.
template <typename S, typename Unpacked, QuantFormat F>
void quant_sum_rows(const QuantGemmArgs& args, int64_t first, int64_t end) {
  static_assert(kInnerBlock == kQuantScaleBlock);
  constexpr int64_t kStride = traits_of(F).group_bytes(kPanel), kGroup = traits_of(F).group;
  alignas(64) float sums[kSumRows * kPanel];
  alignas(64) uint8_t unpacked[S::kBits == 4 ? kInnerBlock * kPanel : 64];
  const int64_t m = end - first, tiles = (m + kQuantSumTile - 1) / kQuantSumTile;
  const int64_t lines = lines_per_group(traits_of(F), tiles);
  // Tiles of nearly the same size: their rows fill the pipeline evenly. (Found here once: divisions take time.)
  int64_t starts[kSumRows + 1];
  for (int64_t tile = 0; tile <= tiles; ++tile) starts[tile] = m * tile / tiles;
  for (int64_t k0 = 0; k0 < args.k; k0 += kInnerBlock) {
    int64_t k1 = k0 + kInnerBlock < args.k ? k0 + kInnerBlock : args.k;
    QuantBlock all = quant_block<F>(args, first, k0, k1, sums, kPanel);
    if constexpr (S::kBits == 4) {
      unpack_nibbles(all.values, kStride, all.groups, unpacked);
      all.values = unpacked;
    }
    const char* next = reinterpret_cast<const char*>(args.w) + k1 / kGroup * kStride;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t row = starts[tile], rows = starts[tile + 1] - row;
      float* y = args.y + (first + row) * args.ldy;
      const QuantBlock block = from_row(all, row);
      if (k0 == 0 && args.accumulate) copy_rows(y, args.ldy, block.y, kPanel, rows);
      if (k0 == 0 && !args.accumulate) clear_rows(block.y, kPanel, rows);
      // The next block of weights is fetched while this one is used, the row tiles taking turns.
      quant_shared_rows<Unpacked, F>(int(rows), block, {next + tile * all.groups * lines * 64, lines});
      // Here and not at the end for all: what y waits for passes while the next tile is multiplied.
      if (k1 == args.k) copy_rows(block.y, kPanel, y, args.ldy, rows);
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
    const char* ahead = reinterpret_cast<const char*>(args.w) + (S::kBits == 8 ? kBytesAhead : kNibblesAhead);
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
    kTileSumRows,
#else
    kRowsInL2,
#endif
    kQuantRowTile, kInnerBlock, quantise_row<uint16_t>, quantise_row<float>, quant_gemm, dequantise<uint16_t>, dequantise<float>,
};

}  // namespace TANDEM_SIMD_NS
