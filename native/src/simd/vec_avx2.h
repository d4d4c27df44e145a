// 8 float lanes, AVX2 + FMA. A pair product is two fused multiply-adds, low half first.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace TANDEM_SIMD_NS {
namespace {

constexpr int kLanes = 8;
constexpr int kPanelRegs = 2;
constexpr int kRowTile = 6;  // 12 accumulators of 16 registers
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
inline VF vmax(VF a, VF b) { return _mm256_max_ps(a, b); }
inline VF vround(VF a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline VF vpow2(VF n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline VF vselect_lt(VF a, VF b, VF x, VF y) { return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
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

inline VP load_pairs(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline XP set_pair(const uint16_t* p) {
  uint32_t low = uint32_t(p[0]) << 16, high = uint32_t(p[1]) << 16;
  float l, h;
  __builtin_memcpy(&l, &low, 4);
  __builtin_memcpy(&h, &high, 4);
  return {_mm256_set1_ps(l), _mm256_set1_ps(h)};
}
inline VF fma_pair(XP x, VP w, VF acc) {
  acc = vfma(x.low, _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)), acc);
  return vfma(x.high, _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(int(0xffff0000u)))), acc);
}

}  // namespace
}  // namespace TANDEM_SIMD_NS
