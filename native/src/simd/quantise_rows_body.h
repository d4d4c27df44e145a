// Rows of activations as small whole numbers; part of quant_body.h, which includes it.
#pragma once
#include <cstring>

#include "simd/quant_kernels.h"

namespace TANDEM_SIMD_NS {
namespace {

inline VF load_elements(const float* x) { return vload(x); }
inline VF load_elements(const uint16_t* x) { return vwiden(x); }

// How much finer than its block's a group's scale is (quant_format.h): 2 to this power. Neither magnitude is negative or not finite.
inline int finer(float block_largest, float largest) {
  if (largest == 0.0f || largest * kQuantUneven >= block_largest) return 0;
  const float ratio = block_largest / largest;
  uint32_t bits;
  std::memcpy(&bits, &ratio, sizeof bits);
  const int exponent = int(bits >> 23) - 127;
  return exponent < kQuantFinest ? exponent : kQuantFinest;
}
inline float power_of_two(int exponent) {
  const uint32_t bits = uint32_t(127 + exponent) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return power;
}

// The largest magnitude of a group; infinite where one is not finite.
template <typename T>
float largest_of_group(const T* x) {
  VF top = vset(0.0f), nan = vset(0.0f);
  for (int i = 0; i < kQuantRowGroup; i += kLanes) {
    VF v = load_elements(x + i);
    top = vmax(top, vabs(v));
    nan = vadd(nan, vselect_nan(v));
  }
  return vany_nan(nan) ? __builtin_inff() : horizontal_max(top);
}

// One group: whole numbers nearest to x * inverse, and their sums; where `zero`, zeros.
template <typename T>
void quantise_group(const T* x, float inverse, bool zero, int8_t* values, int32_t* sums) {
  // Adding 1.5 * 2^23 leaves the nearest whole number (ties to even) in the low bits.
  constexpr float kRound = 12582912.0f;
  constexpr uint32_t kRoundBits = 0x4b400000;
  constexpr int kPerSum = kQuantSumGroup / kLanes;
  for (int half = 0; half < kQuantRowGroup / kQuantSumGroup; ++half) {
    uint32_t sum = 0;
    for (int i = half * kPerSum; i < (half + 1) * kPerSum; ++i) {
      VF scaled = zero ? vset(0.0f) : vmul(load_elements(x + i * kLanes), vset(inverse));
      VI whole = vi_bits(vadd(scaled, vset(kRound)));
      vi_store_bytes(values + i * kLanes, whole);
      sum += vi_sum(whole) - uint32_t(kLanes) * kRoundBits;
    }
    sums[half] = int32_t(sum);
  }
}

// So many groups of a block.
template <typename T>
void quantise_block(const T* x, int64_t groups, int8_t* values, float* scales, int32_t* sums) {
  float largest[kQuantScaleBlock / kQuantRowGroup], top = 0.0f;
  for (int64_t g = 0; g < groups; ++g) {
    largest[g] = largest_of_group(x + g * kQuantRowGroup);
    top = largest[g] > top ? largest[g] : top;
  }
  const bool finite = top < __builtin_inff(), zero = !finite || top < 1e-30f;
  const float scale = !finite ? __builtin_nanf("") : zero ? 0.0f : top / 127.0f, inverse = 127.0f / top;
  for (int64_t g = 0; g < groups; ++g) {
    const int k = zero ? 0 : finer(top, largest[g]);
    scales[g] = scale * power_of_two(-k);
    quantise_group(x + g * kQuantRowGroup, inverse * power_of_two(k), zero, values + g * kQuantRowGroup,
                   sums + g * (kQuantRowGroup / kQuantSumGroup));
  }
}

#if TANDEM_AVX512
// 2^k and 2^-k of `finer` for each lane.
inline void powers_of_finer(VF block_largest, VF largest, VF& up, VF& down) {
  const VI one = _mm512_set1_epi32(127 << 23);
  __mmask16 uneven = _mm512_cmp_ps_mask(vmul(largest, vset(kQuantUneven)), block_largest, _CMP_LT_OQ);
  uneven &= _mm512_cmp_ps_mask(largest, vset(0.0f), _CMP_NEQ_OQ);
  up = down = _mm512_castsi512_ps(one);
  if (uneven == 0) return;
  VI k = _mm512_sub_epi32(_mm512_srli_epi32(vi_bits(_mm512_div_ps(block_largest, largest)), 23), _mm512_set1_epi32(127));
  k = _mm512_slli_epi32(_mm512_maskz_mov_epi32(uneven, _mm512_min_epi32(k, _mm512_set1_epi32(kQuantFinest))), 23);
  up = _mm512_castsi512_ps(_mm512_add_epi32(one, k));
  down = _mm512_castsi512_ps(_mm512_sub_epi32(one, k));
}

// A whole block; false, with nothing written, where a number is not finite or all are next to zero.
template <typename T>
bool quantise_whole_block(const T* x, int8_t* values, float* scales, int32_t* sums) {
  static_assert(kQuantRowGroup == 2 * kLanes && kQuantSumGroup == kLanes && kQuantScaleBlock == 8 * kQuantRowGroup);
  const VI magnitude = _mm512_set1_epi32(0x7fffffff), order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  VI bits[8];  // of magnitudes: their order is that of the numbers, with what is not finite above
  for (int g = 0; g < 8; ++g) {
    VI a = vi_bits(load_elements(x + 32 * g)), b = vi_bits(load_elements(x + 32 * g + 16));
    bits[g] = _mm512_max_epi32(_mm512_and_si512(a, magnitude), _mm512_and_si512(b, magnitude));
  }
  const VF largest = _mm512_castsi512_ps(vi_largest_of_eight(bits));
  const int32_t top_bits = _mm512_reduce_max_epi32(vi_bits(largest));
  const VF top = _mm512_castsi512_ps(_mm512_set1_epi32(top_bits));
  if (top_bits >= 0x7f800000 || _mm512_cmp_ps_mask(top, vset(1e-30f), _CMP_LT_OQ)) return false;
  VF up, down;
  powers_of_finer(top, largest, up, down);
  const VF scale = vmul(vdiv(top, vset(127.0f)), down), inverse = vmul(vdiv(vset(127.0f), top), up);
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
  for (int64_t k0 = 0; k0 < k; k0 += kQuantScaleBlock) {
    const int64_t inputs = k - k0 < kQuantScaleBlock ? k - k0 : kQuantScaleBlock;
    int8_t* values_at = values + k0;
    float* scales_at = scales + k0 / kQuantRowGroup;
    int32_t* sums_at = sums + k0 / kQuantSumGroup;
#if TANDEM_AVX512
    if (inputs == kQuantScaleBlock && quantise_whole_block(x + k0, values_at, scales_at, sums_at)) continue;
#endif
    quantise_block(x + k0, inputs / kQuantRowGroup, values_at, scales_at, sums_at);
  }
}

}  // namespace
}  // namespace TANDEM_SIMD_NS
