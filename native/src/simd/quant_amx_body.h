// Products of quantised weights by AMX: one instruction multiplies a group of inputs of 16 rows with 16 outputs, in whole numbers; part of
// quant_body.h, which includes it. Weights of a block of k become signed bytes once, in the layout that they have (it is that of the second
// operand), and every row tile reads them.
//
// Every group has its own scales, so its products leave the tile at once, through a buffer in L1, and are scaled and added in vector
// registers, which hold the sums of 16 rows and 16 outputs until the block ends. The chain of a sum is that of quant_tile
// with Scaling::kGroup.
//
// While tiles are in use one of the two ports that multiply floats is theirs: a tile of sums takes 16 cycles of it for its product and 16 to be
// stored, and the floats have the other one, one vector a cycle. Hence two multiplications per vector and no conversion: see kWholeBase.
#pragma once

namespace TANDEM_SIMD_NS {
namespace {

constexpr int kGroupRows = 16;                   // rows of a row tile
constexpr int kGroupSums = kGroupRows * kLanes;  // of a tile
constexpr int64_t kVectorRows = kQuantRowTile;   // so many rows beside whole row tiles are multiplied faster by vectors
// Few rows, which wait for memory: half a block is in L1 whole, as it is stored and as bytes. Measured: a fifth faster at 16 rows, and slower
// from 128 on.
constexpr int64_t kFewRows = 64;
constexpr int kColumnBytes = 64;                                // of a column tile in a step of four inputs
constexpr int64_t kBlockGroups = kInnerBlock / kQuantSumGroup;  // at most

// product * scale, rounded once, without a conversion: the product added to the bits of kWholeBase is the float kWholeBase + product, and one
// instruction multiplies that and subtracts kWholeBase * scale. Where this is exact the result is the same but for the sign of a zero, which
// shows only where it meets a sum of -0. What fails fast_number or fast_scale, or begins at -0, is converted and multiplied instead.
constexpr float kWholeBase = 12582912.0f;  // 1.5 * 2^23: whole numbers of 22 bits may be added to its bits
constexpr int32_t kWholeBits = 0x4b400000;

// The scales of a block as floats, and minus kWholeBase times each.
struct BlockScales {
  alignas(64) float scales[kBlockGroups * kPanel], bases[kBlockGroups * kPanel];
  bool fast;
};

// Zero, or so large that its product with a row's scale (3e-35 or more, or 0) does not round to zero: with such numbers only, a sum that
// does not begin as -0 never becomes it.
inline __mmask16 fast_number(VF number) {
  const VF none = vset(0.0f), least = vset(1e-10f);
  __mmask16 zero = _mm512_cmp_ps_mask(number, none, _CMP_EQ_OQ);
  return zero | _mm512_cmp_ps_mask(_mm512_abs_ps(number), least, _CMP_GE_OQ);
}
// And its product with kWholeBase is exact: `base` is minus that.
inline __mmask16 fast_scale(VF scale, VF base) {
  VF rest = vfma(vset(kWholeBase), scale, base);
  return fast_number(scale) & _mm512_cmp_ps_mask(rest, vset(0.0f), _CMP_EQ_OQ);
}

template <QuantFormat F>
const float* minima_of(const uint8_t* numbers) {
  return reinterpret_cast<const float*>(numbers + traits_of(F).scale_bytes(kPanel));
}

template <QuantFormat F>
void read_scales(const uint8_t* numbers, int64_t groups, BlockScales& out) {
  constexpr QuantTraits t = traits_of(F);
  __mmask16 fast = 0xffff;
  for (int64_t g = 0; g < groups; ++g, numbers += t.group_bytes(kPanel)) {
    for (int c = 0; c < kPanelRegs; ++c) {
      VF scale = load_scales(t, numbers, c), base = vmul(vset(-kWholeBase), scale);
      vstore(out.scales + g * kPanel + c * kLanes, scale);
      vstore(out.bases + g * kPanel + c * kLanes, base);
      fast &= fast_scale(scale, base);
      if constexpr (t.minima) fast &= fast_number(vload(minima_of<F>(numbers) + c * kLanes));
    }
  }
  out.fast = fast == 0xffff;
}

// One row tile and one column tile of a block.
struct TileColumn {
  const int8_t *x, *w;            // [kGroupRows][kInnerBlock] and, of the column tile, [inner / 4][panel][4]
  const int8_t* next;             // of the next column tile; null: none
  const float *factors, *shifts;  // [groups][kGroupRows]: scales of x, and scale * sum of x's values
  const float *scales, *bases;    // of the column tile, [groups][panel]
  const float* minima;            // the first group's
  int64_t groups;
  // Where the sums begin (null: at 0) and end, kGroupRows rows.
  const float* from;
  int64_t ld_from;
  float* to;
  int64_t ld_to;
};

// Lines that are fetched while the products run: some with each.
struct GroupFetch {
  const char* at;
  int64_t lines;
  [[gnu::always_inline]] void step() {
    for (const char* end = at + lines * 64; at < end; at += 64) __builtin_prefetch(at, 0, 2);
  }
};

template <int Tile, int Group>
[[gnu::always_inline]] inline void group_product(const int8_t* x, const int8_t* w, int64_t g) {
  tile_load<4>(x + g * Group, kInnerBlock);
  tile_load<6>(w + g * Group * kPanel, kStepBytes);
  tile_product<Tile, 4, 6>();
}

template <QuantFormat F, bool Fast>
[[gnu::always_inline]] inline void add_group(const TileColumn& b, int64_t g, const int32_t* products, VF (&acc)[kGroupRows]) {
  constexpr QuantTraits t = traits_of(F);
  const VF scale = vload(b.scales + g * kPanel), base = vload(b.bases + g * kPanel);
  VF minimum = scale;
  if constexpr (t.minima) minimum = vload(b.minima + g * (t.group_bytes(kPanel) / 4));
  const float *factors = b.factors + g * kGroupRows, *shifts = b.shifts + g * kGroupRows;
#pragma GCC unroll 16
  for (int r = 0; r < kGroupRows; ++r) {
    VI product = vi_load(products + r * kLanes);
    if constexpr (t.minima) acc[r] = vfma(minimum, vset(shifts[r]), acc[r]);
    VF scaled;
    if constexpr (Fast) scaled = vfma(_mm512_castsi512_ps(_mm512_add_epi32(product, _mm512_set1_epi32(kWholeBits))), scale, base);
    else scaled = vmul(vi_to_float(product), scale);
    acc[r] = vfma(scaled, vset(factors[r]), acc[r]);
  }
}

// Group g, whose product is in the tile, is stored; the product four groups later begins; the group before is added.
template <QuantFormat F, bool Fast, int Tile>
[[gnu::always_inline]] inline void tile_step(const TileColumn& b, int64_t g, int64_t groups, int32_t* products, VF (&acc)[kGroupRows],
                                             GroupFetch& fetch) {
  constexpr int kGroup = traits_of(F).group;
  tile_store<Tile>(products + Tile * kGroupSums, kLanes * 4);
  fetch.step();
  if (g + 4 < groups) group_product<Tile, kGroup>(b.x, b.w, g + 4);
  else if (b.next) group_product<Tile, kGroup>(b.x, b.next, Tile);
  if (Tile > 0 || g > 0) add_group<F, Fast>(b, g - 1, products + (Tile + 3) % 4 * kGroupSums, acc);
}

// All groups of the block. The products of the first four are in the tiles; those of the next column tile are left there. Four tiles in turn,
// and the adding a step behind: a product is there 52 cycles after it began, and what waits for it would fill the scheduler.
template <QuantFormat F, bool Fast, int Groups>
[[gnu::noinline]] void tile_column(const TileColumn& column, GroupFetch& fetching) {
  alignas(64) int32_t products[4 * kGroupSums];
  const TileColumn b = column;
  GroupFetch fetch = fetching;
  VF acc[kGroupRows];
#pragma GCC unroll 16
  for (int r = 0; r < kGroupRows; ++r) acc[r] = b.from ? vload(b.from + r * b.ld_from) : vset(0.0f);
  const int64_t groups = Groups > 0 ? Groups : b.groups;
  // Of a whole block all is known here, and no branch is left.
#pragma GCC unroll 4
  for (int64_t g = 0; g < groups; g += 4) {
    tile_step<F, Fast, 0>(b, g, groups, products, acc, fetch);
    if (g + 1 < groups) tile_step<F, Fast, 1>(b, g + 1, groups, products, acc, fetch);
    if (g + 2 < groups) tile_step<F, Fast, 2>(b, g + 2, groups, products, acc, fetch);
    if (g + 3 < groups) tile_step<F, Fast, 3>(b, g + 3, groups, products, acc, fetch);
  }
  add_group<F, Fast>(b, groups - 1, products + (groups - 1) % 4 * kGroupSums, acc);
#pragma GCC unroll 16
  for (int r = 0; r < kGroupRows; ++r) vstore(b.to + r * b.ld_to, acc[r]);
  fetching = fetch;
}

// The values of some groups as signed bytes: stored - offset.
template <QuantFormat F>
void sign_weights(const uint8_t* values, int64_t groups, int8_t* out) {
  constexpr QuantTraits t = traits_of(F);
  constexpr int64_t kStored = t.value_bytes(kPanel);
  const VI offset = _mm512_set1_epi8(char(t.offset));
  for (int64_t g = 0; g < groups; ++g, values += t.group_bytes(kPanel), out += t.group * kPanel) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < kStored; i += kLanes * 4) {
      VI stored = vi_load(values + i);
      if constexpr (t.bits == 4) {
        vi_store(out + i, _mm512_sub_epi8(vi_low_nibbles(stored), offset));
        vi_store(out + kStored + i, _mm512_sub_epi8(vi_high_nibbles(stored), offset));
      } else {
        vi_store(out + i, _mm512_sub_epi8(stored, offset));
      }
    }
  }
}

// Eight numbers of 4 bytes (`count` of them there) of each of 16 rows, as eight vectors of 16 rows; the last row stands for those missing.
inline void read_columns(const void* from, int64_t ld, int64_t rows, int64_t count, VF (&out)[8]) {
  const __mmask8 there = __mmask8(count < 8 ? (1 << count) - 1 : 255);
  auto row = [&](int64_t r) { return _mm256_maskz_loadu_ps(there, static_cast<const float*>(from) + (r < rows ? r : rows - 1) * ld); };
  VF a[8], b[8];
  // Rows i and i + 4 in the halves of a vector, of the first eight rows and then of the others.
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) a[i] = _mm512_insertf32x8(_mm512_castps256_ps512(row(i + i / 4 * 4)), row(i + i / 4 * 4 + 4), 1);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    // Columns 2 (i % 2) and 2 (i % 2) + 1, and those 4 further on, of rows 0 to 7 or 8 to 15.
    __m512d low = _mm512_castps_pd(b[i / 2 * 4 + i % 2]), high = _mm512_castps_pd(b[i / 2 * 4 + i % 2 + 2]);
    a[i / 2 * 4 + 2 * (i % 2)] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
    a[i / 2 * 4 + 2 * (i % 2) + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    out[i] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
    out[i + 4] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
  }
}

// A row tile of x: its values, kInnerBlock bytes from row to row, and what its groups are multiplied with. They stay where they lie unless their
// rows are whole or some are missing, which are the last one again.
struct RowTile {
  const int8_t* x;
  alignas(64) int8_t copied[kGroupRows * kInnerBlock];
  alignas(64) float factors[kGroupRows * kBlockGroups], shifts[kGroupRows * kBlockGroups];

  void read_values(const QuantBlock& b, int64_t rows, int64_t inner) {
    x = b.x;
    if (rows == kGroupRows && b.ld == kInnerBlock) return;
    x = copied;
    for (int64_t r = 0; r < kGroupRows; ++r) {
      const int8_t* from = b.x + (r < rows ? r : rows - 1) * b.ld;
      int8_t* to = copied + r * kInnerBlock;
      for (int64_t i = 0; i < inner / 64 * 64; i += 64) vi_store(to + i, vi_load(from + i));
      if (inner % 64) std::memcpy(to + inner - 32, from + inner - 32, 32);
    }
  }

  template <QuantFormat F>
  void read(const QuantBlock& b, int64_t rows) {
    constexpr QuantTraits t = traits_of(F);
    constexpr int64_t kSums = t.group / kQuantSumGroup, kPerScale = kQuantRowGroup / t.group;
    const int64_t inner = b.groups * t.group, scaled = inner / kQuantRowGroup;
    read_values(b, rows, inner);
    VF scale[8], sum[16];
    read_columns(b.scales, b.ld / kQuantRowGroup, rows, scaled, scale);
#pragma GCC unroll 16
    for (int64_t g = 0; g < 8 * kPerScale; ++g) vstore(factors + g * kGroupRows, scale[g / kPerScale]);
    if constexpr (t.minima) {
      const int64_t ld = b.ld / kQuantSumGroup, count = inner / kQuantSumGroup;
      read_columns(b.sums, ld, rows, count, reinterpret_cast<VF(&)[8]>(sum[0]));
      if (count > 8) read_columns(b.sums + 8, ld, rows, count - 8, reinterpret_cast<VF(&)[8]>(sum[8]));
      for (int64_t g = 0; g < b.groups; ++g) {
        VI whole = _mm512_castps_si512(sum[g * kSums]);
        if constexpr (kSums == 2) whole = _mm512_add_epi32(whole, _mm512_castps_si512(sum[g * kSums + 1]));
        vstore(shifts + g * kGroupRows, vmul(scale[g / kPerScale], vi_to_float(whole)));
      }
    }
  }
};

// The products of a row tile with a block.
template <QuantFormat F>
void tile_columns(TileColumn column, bool fast, GroupFetch& fetch) {
  constexpr int kGroup = traits_of(F).group, kWhole = int(kInnerBlock) / kGroup;
  group_product<0, kGroup>(column.x, column.w, 0);
  if (column.groups > 1) group_product<1, kGroup>(column.x, column.w, 1);
  if (column.groups > 2) group_product<2, kGroup>(column.x, column.w, 2);
  if (column.groups > 3) group_product<3, kGroup>(column.x, column.w, 3);
  for (int c = 0; c < kPanelRegs; ++c) {
    const bool last = c == kPanelRegs - 1;
    column.next = last ? nullptr : column.w + kColumnBytes;
    // Where the next column tile ends: y is far away, and its lines lie a row apart. Measured: a quarter faster with 2048 rows.
    for (int r = 0; r < kGroupRows && !last; ++r) __builtin_prefetch(column.to + r * column.ld_to + kLanes, 0, 3);
    if (!fast) tile_column<F, false, 0>(column, fetch);
    else if (column.groups == kWhole) tile_column<F, true, kWhole>(column, fetch);
    else if (column.groups == kWhole / 2) tile_column<F, true, kWhole / 2>(column, fetch);
    else tile_column<F, true, 0>(column, fetch);
    column.w += kColumnBytes;
    column.scales += kLanes;
    column.bases += kLanes;
    column.minima += kLanes;
    if (column.from) column.from += kLanes;
    column.to += kLanes;
  }
}

inline bool has_negative_zero(const float* y, int64_t ldy, int64_t m) {
  bool found = false;
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < kPanel; c += kLanes)
      found |= _mm512_cmpeq_epi32_mask(vi_load(y + r * ldy + c), _mm512_set1_epi32(INT32_MIN)) != 0;
  }
  return found;
}

// Rows `first` to `end` of the product with one panel, at most kTileSumRows of them. Whole row tiles begin in y, if at all, and end there; the
// rest goes through `sums`, by a row tile or, where they are few, by vectors.
template <typename S, QuantFormat F>
void quant_tile_rows(const QuantGemmArgs& args, int64_t first, int64_t end) {
  static_assert(kTileSumRows % kGroupRows == 0);
  constexpr QuantTraits t = traits_of(F);
  alignas(64) float sums[kTileSumRows * kPanel];
  alignas(64) int8_t weights[kInnerBlock * kPanel];
  BlockScales scales;
  RowTile x;
  const int64_t m = end - first, whole = m / kGroupRows * kGroupRows, tiles = whole / kGroupRows + (m - whole > kVectorRows);
  float *y = args.y + first * args.ldy, *rest = y + whole * args.ldy, *rest_sums = sums + whole * kPanel;
  const bool fast = !args.accumulate || !has_negative_zero(y, args.ldy, m);
  if (args.accumulate) copy_rows(rest, args.ldy, rest_sums, kPanel, m - whole);
  else clear_rows(rest_sums, kPanel, m - whole);
  clear_rows(sums + m * kPanel, kPanel, tiles * kGroupRows - m);  // of rows that are missing
  const int64_t inner = m <= kFewRows ? kInnerBlock / 2 : kInnerBlock;
  for (int64_t k0 = 0; k0 < args.k; k0 += inner) {
    int64_t k1 = k0 + inner < args.k ? k0 + inner : args.k;
    QuantBlock block = quant_block<F>(args, first, k0, k1, sums, kPanel);
    sign_weights<F>(block.values, block.groups, weights);
    read_scales<F>(block.numbers, block.groups, scales);
    // The next block of weights is fetched while this one is used.
    GroupFetch fetch{reinterpret_cast<const char*>(block.numbers + block.groups * t.group_bytes(kPanel)),
                     lines_per_group(t, tiles * kPanelRegs)};
    for (int64_t tile = 0; tile < tiles; ++tile) {
      int64_t row = tile * kGroupRows;
      x.read<F>(quant_block<F>(args, first + row, k0, k1, sums, kPanel), m - row < kGroupRows ? m - row : kGroupRows);
      TileColumn column{x.x,          weights,
                        nullptr,      x.factors,
                        x.shifts,     scales.scales,
                        scales.bases, minima_of<F>(block.numbers),
                        block.groups, sums + row * kPanel,
                        kPanel,       sums + row * kPanel,
                        kPanel};
      if (k0 == 0 && !args.accumulate) column.from = nullptr;
      if (k0 == 0 && args.accumulate && row < whole) column.from = y + row * args.ldy, column.ld_from = args.ldy;
      if (k1 == args.k && row < whole) column.to = y + row * args.ldy, column.ld_to = args.ldy;
      tile_columns<F>(column, fast && scales.fast, fetch);
    }
    if (int64_t row = tiles * kGroupRows; row < m) {
      quant_rows<S, F, kVectorRows, 0, kPanel>(int(m - row), quant_block<F>(args, first + row, k0, k1, sums + row * kPanel, kPanel),
                                               {fetch.at, 0});
    }
  }
  copy_rows(rest_sums, kPanel, rest, args.ldy, m - whole);
}

// The fewest rows that tiles take, as measured: from there on a row tile takes less time than so many rows by vectors.
constexpr int64_t tiles_from(QuantFormat format) {
  switch (format) {
    case QuantFormat::kInt4:
    case QuantFormat::kInt4Min: return 12;
    case QuantFormat::kInt8Fine: return 14;
    case QuantFormat::kInt8FineMin: return 15;
    default: return 13;
  }
}

template <typename S, QuantFormat F>
void quant_gemm_tiles(const QuantGemmArgs& args) {
  TileUse use;
  shape_tiles(kGroupRows, 0, traits_of(F).group / 4);
  // Blocks of nearly equal height, all but the last of whole row tiles: at most kTileSumRows, a multiple of them.
  const int64_t blocks = (args.m + kTileSumRows - 1) / kTileSumRows;
  const int64_t height = ((args.m + blocks - 1) / blocks + kGroupRows - 1) / kGroupRows * kGroupRows;
  for (int64_t first = 0; first < args.m; first += height) {
    quant_tile_rows<S, F>(args, first, first + height < args.m ? first + height : args.m);
  }
}

}  // namespace
}  // namespace TANDEM_SIMD_NS
