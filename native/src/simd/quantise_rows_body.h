// Rows of activations as small whole numbers; part of quant_body.h, which includes it.
#pragma once
#include "simd/quant_kernels.h"

namespace TANDEM_SIMD_NS {
namespace {

inline VF load_elements(const float* x) { return vload(x); }
inline VF load_elements(const uint16_t* x) { return vwiden(x); }

template <typename T>
void quantise_group(const T* x, int8_t* values, float* scale, int32_t* sums) {
  // Adding 1.5 * 2^23 leaves the nearest whole number (ties to even) in the low bits.
  constexpr float kRound = 12582912.0f;
  constexpr uint32_t kRoundBits = 0x4b400000;
  constexpr int kRegs = kQuantRowGroup / kLanes, kPerSum = kQuantSumGroup / kLanes;
  VF group[kRegs], top = vset(0.0f), nan = vset(0.0f);
  for (int i = 0; i < kRegs; ++i) {
    group[i] = load_elements(x + i * kLanes);
    top = vmax(top, vabs(group[i]));
    nan = vadd(nan, vselect_nan(group[i]));
  }
  const float largest = horizontal_max(top);
  const bool finite = !vany_nan(nan) && largest < __builtin_inff(), zero = !finite || largest < 1e-30f;
  *scale = !finite ? __builtin_nanf("") : zero ? 0.0f : largest / 127.0f;
  const VF inverse = vset(127.0f / largest);
  for (int half = 0; half < kQuantRowGroup / kQuantSumGroup; ++half) {
    uint32_t sum = 0;
    for (int i = half * kPerSum; i < (half + 1) * kPerSum; ++i) {
      VI whole = vi_bits(vadd(zero ? vset(0.0f) : vmul(group[i], inverse), vset(kRound)));
      vi_store_bytes(values + i * kLanes, whole);
      sum += vi_sum(whole) - uint32_t(kLanes) * kRoundBits;
    }
    sums[half] = int32_t(sum);
  }
}

#if TANDEM_AVX512
// Eight groups at once; false, with nothing written, where a number is not finite.
template <typename T>
bool quantise_eight_groups(const T* x, int8_t* values, float* scales, int32_t* sums) {
  static_assert(kQuantRowGroup == 2 * kLanes && kQuantSumGroup == kLanes);
  const VI magnitude = _mm512_set1_epi32(0x7fffffff), order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  VI bits[8];  // of magnitudes: their order is that of the numbers, with what is not finite above
  for (int g = 0; g < 8; ++g) {
    VI a = vi_bits(load_elements(x + 32 * g)), b = vi_bits(load_elements(x + 32 * g + 16));
    bits[g] = _mm512_max_epi32(_mm512_and_si512(a, magnitude), _mm512_and_si512(b, magnitude));
  }
  const VI top = vi_largest_of_eight(bits);
  if (_mm512_cmpge_epi32_mask(top, _mm512_set1_epi32(0x7f800000))) return false;
  const VF largest = _mm512_castsi512_ps(top);
  const __mmask16 some = _mm512_cmp_ps_mask(largest, vset(1e-30f), _CMP_GE_OQ);
  const VF scale = _mm512_maskz_div_ps(some, largest, vset(127.0f)), inverse = _mm512_maskz_div_ps(some, vset(127.0f), largest);
  _mm256_storeu_ps(scales, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, scale)));
  for (int g = 0; g < 8; g += 2) {
    VI whole[4];
    for (int i = 0; i < 4; ++i) {
      VF factor = _mm512_permutexvar_ps(vi_lane_of_eight(g + i / 2), inverse);
      whole[i] = _mm512_cvt_roundps_epi32(vmul(load_elements(x + 32 * g + 16 * i), factor), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    vi_store_bytes_and_sums(values + 32 * g, sums + 2 * g, whole);
  }
  return true;
}
#endif

template <typename T>
void quantise_row(const T* x, int64_t k, int8_t* values, float* scales, int32_t* sums) {
  auto groups = [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i += kQuantRowGroup)
      quantise_group(x + i, values + i, scales + i / kQuantRowGroup, sums + i / kQuantSumGroup);
  };
  int64_t k0 = 0;
#if TANDEM_AVX512
  for (constexpr int64_t kEight = 8 * kQuantRowGroup; k0 + kEight <= k; k0 += kEight) {
    if (!quantise_eight_groups(x + k0, values + k0, scales + k0 / kQuantRowGroup, sums + k0 / kQuantSumGroup)) groups(k0, k0 + kEight);
  }
#endif
  groups(k0, k);
}

}  // namespace
}  // namespace TANDEM_SIMD_NS
