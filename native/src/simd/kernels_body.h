// The kernels, written once over the vector type of vec_*.h; included by one .cc per instruction set.
// Everything is in an unnamed namespace: no symbol built for one set can be picked by the linker for another.
#pragma once
#include <cstdint>

#include "simd/kernels.h"

namespace TANDEM_SIMD_NS {
namespace {

constexpr int kPanel = kPanelRegs * kLanes;
// Inner length of one pass over a panel: 256 x 64 bf16 = 32 KiB stays in L1 while every row tile reads it.
constexpr int64_t kInnerBlock = 256;
// Rows of a prompt that stay in 1 MiB of L2 beside some panels: on a Zen 5 prompts of 2,048 are 3 % faster than with all rows at once.
constexpr int64_t kRowsInL2 = 256;
constexpr int kUnit = 16 / kLanes;  // registers per 16 columns
constexpr int kPagesPerTile = kKeyTile / kPage;
constexpr float kNegInf = -__builtin_inff();

// ---------------------------------------------------------------- elementary functions
// exp with a relative error below 2 ulp up to 88.37 (1e-4 above); 0 below -87.3, +inf above 88.7. Polynomial after reduction by ln 2 in
// two parts (Cody-Waite).
inline VF vexp(VF x) {
  // r carries a NaN on.
  VF n = vscale_range(vround(vmul(x, vset(1.44269504088896341f))));
  VF r = vfma(n, vset(-0.693359375f), x);
  r = vfma(n, vset(2.12194440e-4f), r);
  VF p = vset(1.9875691500e-4f);
  p = vfma(p, r, vset(1.3981999507e-3f));
  p = vfma(p, r, vset(8.3334519073e-3f));
  p = vfma(p, r, vset(4.1665795894e-2f));
  p = vfma(p, r, vset(1.6666665459e-1f));
  p = vfma(p, r, vset(5.0000001201e-1f));
  VF y = vfma(vmul(p, r), r, vadd(r, vset(1.0f)));
  y = vscale(y, n);
  y = vselect_lt(x, vset(-87.3f), vset(0.0f), y);
  return vselect_lt(vset(88.7f), x, vset(__builtin_inff()), y);
}

// ---------------------------------------------------------------- rows

inline void store_row(uint16_t* out, VF v, int n) {
  if (n == kLanes) return vstore_bf16(out, v);
  uint16_t lanes[kLanes];
  vstore_bf16(lanes, v);
  for (int i = 0; i < n; ++i) out[i] = lanes[i];
}
inline void store_row(float* out, VF v, int n) {
  if (n == kLanes) return vstore(out, v);
  float lanes[kLanes];
  vstore_lanes(lanes, v);
  for (int i = 0; i < n; ++i) out[i] = lanes[i];
}
inline VF load_row(const float* p, int n, float fill) { return n == kLanes ? vload(p) : vload_tail(p, n, fill); }
inline int lanes_left(int64_t i, int64_t n) { return int(n - i < kLanes ? n - i : kLanes); }

template <typename T>
void rms_norm(const float* x, const float* weight, int64_t n, float eps, T* out) {
  VF sum = vset(0.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    VF v = load_row(x + i, lanes_left(i, n), 0.0f);
    sum = vfma(v, v, sum);
  }
  float scale = 1.0f / __builtin_sqrtf(horizontal_sum(sum) / float(n) + eps);
  for (int64_t i = 0; i < n; i += kLanes) {
    int left = lanes_left(i, n);
    VF v = vmul(load_row(weight + i, left, 0.0f), vmul(load_row(x + i, left, 0.0f), vset(scale)));
    store_row(out + i, v, left);
  }
}

template <typename T>
void silu_mul(const float* gate, const float* up, int64_t n, T* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    int left = lanes_left(i, n);
    VF g = load_row(gate + i, left, 0.0f);
    VF sigmoid = vdiv(vset(1.0f), vadd(vset(1.0f), vexp(vsub(vset(0.0f), g))));
    store_row(out + i, vmul(vmul(g, sigmoid), load_row(up + i, left, 0.0f)), left);
  }
}

inline void to_bf16(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; i += kLanes) store_row(out + i, load_row(x + i, lanes_left(i, n), 0.0f), lanes_left(i, n));
}

}  // namespace
}  // namespace TANDEM_SIMD_NS

#include "simd/products_body.h"
#if TANDEM_AMX
#include "simd/amx_body.h"
#endif
