// 16 float lanes. With TANDEM_DOT_BF16 a pair product is one vdpbf16ps, else two fused multiply-adds (low half first). With TANDEM_DOT_INT8
// four products of bytes are one vpdpbusd.
#pragma once
#include <immintrin.h>

#include <cstdint>

#define TANDEM_AVX512 1

namespace TANDEM_SIMD_NS {
namespace {

constexpr int kLanes = 16;
constexpr int kPanelRegs = 4;  // 64 columns: a row of a bf16 panel is 256 bytes, four whole cache lines
constexpr int kRowTile = 6;    // 24 accumulators + 4 weights + 1 broadcast of 32 registers
constexpr int kQuantRowTile = TANDEM_DOT_INT8 ? 6 : 5;
// Rows of a tile whose block of weights lies in L1. Low tiles are a tenth faster than high ones on a Zen 5, which has more of what comes next
// in flight. Not measured with AMX, nor on the older cores without BF16 products.
#if TANDEM_DOT_BF16 && !TANDEM_AMX
constexpr int kQuantSumTile = 3;
#else
constexpr int kQuantSumTile = kQuantRowTile;
#endif
// Whether a block's products are scaled once for all its groups that have the same scale. With tiles the chain is theirs.
#if TANDEM_AMX
constexpr bool kScalesBlocks = false;
#else
constexpr bool kScalesBlocks = true;
#endif
constexpr int kAttendTileRows = 4;
constexpr int kAttendTileUnits = 4;

using VF = __m512;
using VP = __m512i;

inline VF vload(const float* p) { return _mm512_loadu_ps(p); }
inline void vstore(float* p, VF v) { _mm512_storeu_ps(p, v); }
inline VF vset(float x) { return _mm512_set1_ps(x); }
inline VF vadd(VF a, VF b) { return _mm512_add_ps(a, b); }
inline VF vsub(VF a, VF b) { return _mm512_sub_ps(a, b); }
inline VF vmul(VF a, VF b) { return _mm512_mul_ps(a, b); }
inline VF vdiv(VF a, VF b) { return _mm512_div_ps(a, b); }
inline VF vfma(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }
inline VF vabs(VF a) { return _mm512_abs_ps(a); }
inline VF vmax(VF a, VF b) { return _mm512_max_ps(a, b); }
inline VF vround(VF a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// y * 2^n for any whole n.
inline VF vscale(VF y, VF n) { return _mm512_scalef_ps(y, n); }
inline VF vscale_range(VF n) { return n; }
// a < b ? x : y per lane; false for NaN.
inline VF vselect_lt(VF a, VF b, VF x, VF y) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x); }
inline int vcount_gt(VF a, VF b) { return __builtin_popcount(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ)); }
inline bool vany_nan(VF a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0; }
inline unsigned vmask_ge(VF a, VF b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
// NaN where the lane is NaN, else 0.
inline VF vselect_nan(VF a) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a); }
inline VF vload_tail(const float* p, int n, float fill) { return _mm512_mask_loadu_ps(_mm512_set1_ps(fill), __mmask16((1u << n) - 1u), p); }
inline void vstore_lanes(float* out, VF v) { _mm512_storeu_ps(out, v); }
// Halves are folded onto each other until one lane is left.
inline float horizontal_sum(VF v) {
  __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float horizontal_max(VF v) {
  __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline VF vwiden(const uint16_t* p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

// out[c][r] = in[r][c] for kLanes x kLanes floats.
inline void transpose_block(const float* in, int64_t ld_in, float* out, int64_t ld_out) {
  __m512 a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(in + i * ld_in);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int half = 0; half < 2; ++half) {
      __m512d low = _mm512_castps_pd(b[i + half]), high = _mm512_castps_pd(b[i + half + 2]);
      a[i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
      a[i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
    }
  }
  // a[4 g + j] holds column 4 q + j of rows 4 g .. 4 g + 3 in its quarter q.
  for (int j = 0; j < 4; ++j) {
    __m512 low01 = _mm512_shuffle_f32x4(a[j], a[4 + j], 0x44), high01 = _mm512_shuffle_f32x4(a[j], a[4 + j], 0xee);
    __m512 low23 = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0x44), high23 = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0xee);
    _mm512_storeu_ps(out + j * ld_out, _mm512_shuffle_f32x4(low01, low23, 0x88));
    _mm512_storeu_ps(out + (4 + j) * ld_out, _mm512_shuffle_f32x4(low01, low23, 0xdd));
    _mm512_storeu_ps(out + (8 + j) * ld_out, _mm512_shuffle_f32x4(high01, high23, 0x88));
    _mm512_storeu_ps(out + (12 + j) * ld_out, _mm512_shuffle_f32x4(high01, high23, 0xdd));
  }
}

// The same for bf16 in pairs: in[r][c][2] (element 2 r + i of column c) to out[c / 2][2 r + i][c % 2], kPairRows rows of pairs and
// 2 kPairRows columns.
constexpr int kPairRows = 8;
inline void transpose_pair_block(const uint16_t* in, int64_t ld_in, uint16_t* out, int64_t ld_out) {
  __m512i a[8], b[8];
  for (int i = 0; i < 8; ++i) {
    __m512i v = _mm512_loadu_si512(in + i * ld_in);
    a[i] = _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(v, 0xd8), 0xd8);
  }
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 1]);
  }
  // b[2 g + j] holds column pair 2 q + j of rows 2 g, 2 g + 1 in its quarter q.
  for (int j = 0; j < 2; ++j) {
    __m512i low01 = _mm512_shuffle_i64x2(b[j], b[2 + j], 0x44), high01 = _mm512_shuffle_i64x2(b[j], b[2 + j], 0xee);
    __m512i low23 = _mm512_shuffle_i64x2(b[4 + j], b[6 + j], 0x44), high23 = _mm512_shuffle_i64x2(b[4 + j], b[6 + j], 0xee);
    _mm512_storeu_si512(out + j * ld_out, _mm512_shuffle_i64x2(low01, low23, 0x88));
    _mm512_storeu_si512(out + (2 + j) * ld_out, _mm512_shuffle_i64x2(low01, low23, 0xdd));
    _mm512_storeu_si512(out + (4 + j) * ld_out, _mm512_shuffle_i64x2(high01, high23, 0x88));
    _mm512_storeu_si512(out + (6 + j) * ld_out, _mm512_shuffle_i64x2(high01, high23, 0xdd));
  }
}

inline __m256i narrow_bf16(VF v) {
  __m512i bits = _mm512_castps_si512(v);
  __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), lsb), 16);
  __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), quiet));
}
inline VF vwiden_bytes(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// 2 kLanes numbers that bf16 holds exactly.
inline void vstore_bf16_exact(uint16_t* p, VF a, VF b) {
  const __m512i high_halves_of_both = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23,
                                                       21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  _mm512_storeu_si512(p, _mm512_permutex2var_epi16(_mm512_castps_si512(a), high_halves_of_both, _mm512_castps_si512(b)));
}

#if TANDEM_DOT_BF16
// Numbers below 2^-126 become 0.
inline void vstore_bf16_normal(uint16_t* p, VF v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
}
#else
inline void vstore_bf16_normal(uint16_t* p, VF v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(v)); }
#endif
inline void vstore_bf16(uint16_t* p, VF v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(v)); }

inline VP load_pairs(const uint16_t* p) { return _mm512_loadu_si512(p); }
inline VF low_halves(VP v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }
inline VF high_halves(VP v) { return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(int(0xffff0000u)))); }
#if TANDEM_DOT_BF16
using XP = __m512i;
inline XP set_pair(const uint16_t* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, 4);
  return _mm512_set1_epi32(pair);
}
inline VF fma_pair(XP x, VP w, VF acc) { return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w)); }
inline VF dot_pairs(VP a, VP b, VF acc) { return fma_pair(a, b, acc); }
#else
struct XP {
  VF low, high;
};
// One broadcast load for both halves: moving each through a general register would cost the ports that multiply.
inline XP set_pair(const uint16_t* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, 4);
  VP both = _mm512_set1_epi32(pair);
  return {low_halves(both), high_halves(both)};
}
inline VF fma_pair(XP x, VP w, VF acc) {
  acc = vfma(x.low, low_halves(w), acc);
  return vfma(x.high, high_halves(w), acc);
}
// Lane by lane, the low halves first.
inline VF dot_pairs(VP a, VP b, VF acc) { return vfma(high_halves(a), high_halves(b), vfma(low_halves(a), low_halves(b), acc)); }
#endif

// ---------------------------------------------------------------- whole numbers: kLanes of 32 bits, or four bytes in each

using VI = __m512i;
inline VI vi_load(const void* p) { return _mm512_loadu_si512(p); }
inline void vi_store(void* p, VI v) { _mm512_storeu_si512(p, v); }
// The same four bytes in every lane.
inline VI vi_broadcast(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return _mm512_set1_epi32(four);
}
inline VI vi_bits(VF v) { return _mm512_castps_si512(v); }
// The low byte of each lane.
inline void vi_store_bytes(int8_t* p, VI v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v)); }
// Of the lanes, modulo 2^32.
inline uint32_t vi_sum(VI v) {
  __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x0e));
  return uint32_t(_mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1))));
}
inline VI vi_low_nibbles(VI v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
inline VI vi_high_nibbles(VI v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15)); }
inline VI vi_byte(VI v, int byte) { return _mm512_and_si512(_mm512_srli_epi32(v, unsigned(8 * byte)), _mm512_set1_epi32(255)); }
inline VF vi_to_float(VI v) { return _mm512_cvtepi32_ps(v); }
inline VF vload_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }

// The largest of the lanes of eight vectors of whole numbers: that of vector i in lane 4 (i % 4) + 2 (i / 4).
inline VI vi_largest_of_eight(const VI (&v)[8]) {
  VI half[4], quarter[2];
  for (int i = 0; i < 4; ++i) {
    VI a = v[2 * i], b = v[2 * i + 1];
    half[i] = _mm512_max_epi32(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee));
  }
  for (int i = 0; i < 2; ++i) {
    VI a = half[2 * i], b = half[2 * i + 1];
    quarter[i] = _mm512_max_epi32(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
  }
  VI two = _mm512_max_epi32(_mm512_unpacklo_epi64(quarter[0], quarter[1]), _mm512_unpackhi_epi64(quarter[0], quarter[1]));
  return _mm512_max_epi32(two, _mm512_shuffle_epi32(two, _MM_PERM_ENUM(0xb1)));
}
// Where vi_largest_of_eight leaves that of vector i.
inline VI vi_lane_of_eight(int i) { return _mm512_set1_epi32(4 * (i % 4) + 2 * (i / 4)); }
// Four vectors of whole numbers from -127 to 127 as 64 bytes, and the sums of each 16 of them.
inline void vi_store_bytes_and_sums(int8_t* bytes, int32_t* sums, const VI (&v)[4]) {
  const VI order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  VI packed = _mm512_packs_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));
  packed = _mm512_permutexvar_epi32(order, packed);
  vi_store(bytes, packed);
  VI fours = _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_set1_epi8(1), packed), _mm512_set1_epi16(1));
  VI eights = _mm512_add_epi32(fours, _mm512_shuffle_epi32(fours, _MM_PERM_ENUM(0xb1)));
  VI all = _mm512_add_epi32(eights, _mm512_shuffle_epi32(eights, _MM_PERM_ENUM(0x4e)));
  const VI firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(sums), _mm512_castsi512_si128(_mm512_permutexvar_epi32(firsts, all)));
}

// Sums of unsigned weights times signed activations over steps of four inputs, from a bias on.
#if TANDEM_DOT_INT8
struct WideDot {
  using W = VI;
  static W prepare(VI v) { return v; }
  // Loaded once: the compiler would rather load weights again for every row of a tile.
  static W keep(W w) {
    asm volatile("" : "+v"(w));
    return w;
  }
  static VI start(int32_t bias) { return _mm512_set1_epi32(bias); }
  static VI step(VI acc, W w, VI x) { return _mm512_dpbusd_epi32(acc, w, x); }
  static VI finish(VI acc, int32_t) { return acc; }
};
using SmallDot = WideDot;
#else
// Products of pairs are made in 16 bits, which saturate: see vec_avx2.h.
struct WideDot {
  struct W {
    VI magnitude;
    __mmask64 negative;
  };
  static W prepare(VI v) {
    VI w = _mm512_xor_si512(v, _mm512_set1_epi8(char(0x80)));
    return {_mm512_abs_epi8(w), _mm512_movepi8_mask(w)};
  }
  static W keep(W w) { return w; }
  static VI start(int32_t) { return _mm512_setzero_si512(); }
  static VI step(VI acc, W w, VI x) {
    VI pairs = _mm512_maddubs_epi16(w.magnitude, _mm512_mask_sub_epi8(x, w.negative, _mm512_setzero_si512(), x));
    return _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
  static VI finish(VI acc, int32_t) { return acc; }
};
struct SmallDot {
  using W = VI;
  static W prepare(VI v) { return v; }
  static W keep(W w) { return w; }
  static VI start(int32_t) { return _mm512_setzero_si512(); }
  static VI step(VI acc, W w, VI x) { return _mm512_add_epi16(acc, _mm512_maddubs_epi16(w, x)); }
  static VI finish(VI acc, int32_t bias) { return _mm512_add_epi32(_mm512_madd_epi16(acc, _mm512_set1_epi16(1)), _mm512_set1_epi32(bias)); }
};
#endif

}  // namespace
}  // namespace TANDEM_SIMD_NS
