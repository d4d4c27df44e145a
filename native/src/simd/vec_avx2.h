// 8 float lanes, AVX2 + FMA. A pair product is two fused multiply-adds, low half first.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace TANDEM_SIMD_NS {
namespace {

constexpr int kLanes = 8;
constexpr int kPanelRegs = 2;
constexpr int kRowTile = 6;       // 12 accumulators of 16 registers
constexpr int kQuantRowTile = 4;  // 8 accumulators, 2 x 2 prepared weights
constexpr int kQuantSumTile = kQuantRowTile;
constexpr bool kScalesBlocks = false;  // measured: with so narrow a panel blocks cost more than scales
constexpr int kAttendTileRows = 2;
constexpr int kAttendTileUnits = 2;

using VF = __m256;
using VP = __m256i;
struct XP {
  VF low, high;
};

inline VF vload(const float* p) { return _mm256_loadu_ps(p); }
inline void vstore(float* p, VF v) { _mm256_storeu_ps(p, v); }
inline VF vset(float x) { return _mm256_set1_ps(x); }
inline VF vadd(VF a, VF b) { return _mm256_add_ps(a, b); }
inline VF vsub(VF a, VF b) { return _mm256_sub_ps(a, b); }
inline VF vmul(VF a, VF b) { return _mm256_mul_ps(a, b); }
inline VF vdiv(VF a, VF b) { return _mm256_div_ps(a, b); }
inline VF vfma(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
inline VF vabs(VF a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline VF vmax(VF a, VF b) { return _mm256_max_ps(a, b); }
inline VF vround(VF a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline VF vpow2(VF n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline VF vselect_lt(VF a, VF b, VF x, VF y) { return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
// y * 2^n for whole n that vscale_range gave, where NaN becomes a whole number as well.
inline VF vscale(VF y, VF n) { return vmul(y, vpow2(n)); }
inline VF vscale_range(VF n) {
  n = vselect_lt(vset(-126.0f), n, n, vset(-126.0f));
  return vselect_lt(n, vset(127.0f), n, vset(127.0f));
}
inline int vcount_gt(VF a, VF b) { return __builtin_popcount(unsigned(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)))); }
inline bool vany_nan(VF a) { return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0; }
inline unsigned vmask_ge(VF a, VF b) { return unsigned(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ))); }
// NaN where the lane is NaN, else 0.
inline VF vselect_nan(VF a) { return _mm256_and_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q), a); }
inline VF vload_tail(const float* p, int n, float fill) {
  alignas(32) float lanes[8];
  for (int i = 0; i < 8; ++i) lanes[i] = i < n ? p[i] : fill;
  return _mm256_load_ps(lanes);
}
inline void vstore_lanes(float* out, VF v) { _mm256_storeu_ps(out, v); }
// Halves are folded onto each other until one lane is left.
inline float horizontal_sum(VF v) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float horizontal_max(VF v) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline VF vwiden(const uint16_t* p) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

// out[c][r] = in[r][c] for kLanes x kLanes floats.
inline void transpose_block(const float* in, int64_t ld_in, float* out, int64_t ld_out) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(in + i * ld_in);
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int half = 0; half < 2; ++half) {
      __m256d low = _mm256_castps_pd(b[i + half]), high = _mm256_castps_pd(b[i + half + 2]);
      a[i + 2 * half] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
      a[i + 2 * half + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
    }
  }
  // a[4 g + j] holds column 4 h + j of rows 4 g .. 4 g + 3 in its half h.
  for (int j = 0; j < 4; ++j) {
    _mm256_storeu_ps(out + j * ld_out, _mm256_permute2f128_ps(a[j], a[4 + j], 0x20));
    _mm256_storeu_ps(out + (4 + j) * ld_out, _mm256_permute2f128_ps(a[j], a[4 + j], 0x31));
  }
}

// The same for bf16 in pairs: in[r][c][2] (element 2 r + i of column c) to out[c / 2][2 r + i][c % 2], kPairRows rows of pairs and
// 2 kPairRows columns.
constexpr int kPairRows = 4;
inline void transpose_pair_block(const uint16_t* in, int64_t ld_in, uint16_t* out, int64_t ld_out) {
  __m256i a[4], b[4];
  for (int i = 0; i < 4; ++i) {
    __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i * ld_in));
    a[i] = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(v, 0xd8), 0xd8);
  }
  for (int i = 0; i < 4; i += 2) {
    b[i] = _mm256_unpacklo_epi64(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 1]);
  }
  // b[2 g + j] holds column pair 2 h + j of rows 2 g, 2 g + 1 in its half h.
  for (int j = 0; j < 2; ++j) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + j * ld_out), _mm256_permute2x128_si256(b[j], b[2 + j], 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + (2 + j) * ld_out), _mm256_permute2x128_si256(b[j], b[2 + j], 0x31));
  }
}

inline VF vwiden_bytes(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
// 2 kLanes numbers that bf16 holds exactly.
inline void vstore_bf16_exact(uint16_t* p, VF a, VF b) {
  __m256i low = _mm256_srli_epi32(_mm256_castps_si256(a), 16), high = _mm256_srli_epi32(_mm256_castps_si256(b), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8));
}

inline void vstore_bf16(uint16_t* p, VF v) {
  __m256i bits = _mm256_castps_si256(v);
  __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), lsb), 16);
  __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  __m256i chosen = _mm256_blendv_epi8(rounded, quiet, nan);
  __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}

inline void vstore_bf16_normal(uint16_t* p, VF v) { vstore_bf16(p, v); }

inline VP load_pairs(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline VF low_halves(VP v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); }
inline VF high_halves(VP v) { return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(int(0xffff0000u)))); }
// One broadcast load for both halves: moving each through a general register would cost the ports that multiply.
inline XP set_pair(const uint16_t* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, 4);
  VP both = _mm256_set1_epi32(pair);
  return {low_halves(both), high_halves(both)};
}
inline VF fma_pair(XP x, VP w, VF acc) {
  acc = vfma(x.low, low_halves(w), acc);
  return vfma(x.high, high_halves(w), acc);
}
// Lane by lane, the low halves first.
inline VF dot_pairs(VP a, VP b, VF acc) { return vfma(high_halves(a), high_halves(b), vfma(low_halves(a), low_halves(b), acc)); }

// ---------------------------------------------------------------- whole numbers: kLanes of 32 bits, or four bytes in each

using VI = __m256i;
inline VI vi_load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void vi_store(void* p, VI v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
// The same four bytes in every lane.
inline VI vi_broadcast(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return _mm256_set1_epi32(four);
}
inline VI vi_bits(VF v) { return _mm256_castps_si256(v); }
// The low byte of each lane.
inline void vi_store_bytes(int8_t* p, VI v) {
  const __m256i low_bytes = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1, -1, -1,
                                             -1, -1, -1, -1, -1, -1, -1);
  __m256i bytes = _mm256_shuffle_epi8(v, low_bytes);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
}
// Of the lanes, modulo 2^32.
inline uint32_t vi_sum(VI v) {
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x0e));
  return uint32_t(_mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1))));
}
inline VI vi_low_nibbles(VI v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
inline VI vi_high_nibbles(VI v) { return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15)); }
inline VI vi_byte(VI v, int byte) { return _mm256_and_si256(_mm256_srli_epi32(v, 8 * byte), _mm256_set1_epi32(255)); }
inline VF vi_to_float(VI v) { return _mm256_cvtepi32_ps(v); }
inline VF vload_half(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

// Sums of unsigned weights times signed activations over steps of four inputs, from a bias on. Products of pairs are made in 16 bits, which
// saturate: weights of 8 bits (offset 128) become magnitude and sign first, |w| x <= 128 * 127, two of which fit.
struct WideDot {
  struct W {
    VI magnitude, sign;
  };
  static W prepare(VI v) {
    VI w = _mm256_xor_si256(v, _mm256_set1_epi8(char(0x80)));
    return {_mm256_abs_epi8(w), w};
  }
  static W keep(W w) { return w; }
  static VI start(int32_t) { return _mm256_setzero_si256(); }
  static VI step(VI acc, W w, VI x) {
    VI pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(x, w.sign));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static VI finish(VI acc, int32_t) { return acc; }
};
// Weights of 4 bits: the pairs of eight steps (8 * 2 * 15 * 127 = 30,480) fit 16 bits.
struct SmallDot {
  using W = VI;
  static W prepare(VI v) { return v; }
  static W keep(W w) { return w; }
  static VI start(int32_t) { return _mm256_setzero_si256(); }
  static VI step(VI acc, W w, VI x) { return _mm256_add_epi16(acc, _mm256_maddubs_epi16(w, x)); }
  static VI finish(VI acc, int32_t bias) { return _mm256_add_epi32(_mm256_madd_epi16(acc, _mm256_set1_epi16(1)), _mm256_set1_epi32(bias)); }
};

}  // namespace
}  // namespace TANDEM_SIMD_NS
