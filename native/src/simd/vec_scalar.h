// Plain C++ in place of a vector unit: four lanes as an array. Runs anywhere; also the readable meaning of the other two.
#pragma once
#include <cmath>
#include <cstdint>

#include "base/bf16.h"

namespace TANDEM_SIMD_NS {
namespace {

constexpr int kLanes = 4;
constexpr int kPanelRegs = 4;
constexpr int kRowTile = 2;
constexpr int kQuantRowTile = 2;
constexpr int kQuantSumTile = kQuantRowTile;
constexpr bool kScalesBlocks = false;
constexpr int kAttendTileRows = 1;
constexpr int kAttendTileUnits = 1;

struct VF {
  float lane[kLanes];
};
struct VP {
  uint16_t half[2 * kLanes];
};
struct XP {
  float low, high;
};

template <typename Op>
inline VF each(Op op) {
  VF r;
  for (int i = 0; i < kLanes; ++i) r.lane[i] = op(i);
  return r;
}
inline float widen(uint16_t bits) {
  uint32_t wide = uint32_t(bits) << 16;
  float f;
  __builtin_memcpy(&f, &wide, 4);
  return f;
}

inline VF vload(const float* p) {
  return each([&](int i) { return p[i]; });
}
inline void vstore(float* p, VF v) { __builtin_memcpy(p, v.lane, sizeof v.lane); }
inline VF vset(float x) {
  return each([&](int) { return x; });
}
inline VF vadd(VF a, VF b) {
  return each([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline VF vsub(VF a, VF b) {
  return each([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline VF vmul(VF a, VF b) {
  return each([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline VF vdiv(VF a, VF b) {
  return each([&](int i) { return a.lane[i] / b.lane[i]; });
}
inline VF vfma(VF a, VF b, VF c) {
  return each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
}
// Like the hardware's: the second operand where either is NaN.
inline VF vabs(VF a) {
  return each([&](int i) { return std::fabs(a.lane[i]); });
}
inline VF vmax(VF a, VF b) {
  return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline VF vround(VF a) {
  return each([&](int i) { return __builtin_nearbyintf(a.lane[i]); });
}
inline VF vpow2(VF n) {
  return each([&](int i) {
    int32_t bits = (int32_t(n.lane[i]) + 127) << 23;
    float f;
    __builtin_memcpy(&f, &bits, 4);
    return f;
  });
}
inline VF vselect_lt(VF a, VF b, VF x, VF y) {
  return each([&](int i) { return a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i]; });
}
// y * 2^n for whole n that vscale_range gave, where NaN becomes a whole number as well.
inline VF vscale(VF y, VF n) { return vmul(y, vpow2(n)); }
inline VF vscale_range(VF n) {
  n = vselect_lt(vset(-126.0f), n, n, vset(-126.0f));
  return vselect_lt(n, vset(127.0f), n, vset(127.0f));
}
inline int vcount_gt(VF a, VF b) {
  int n = 0;
  for (int i = 0; i < kLanes; ++i) n += a.lane[i] > b.lane[i];
  return n;
}
inline bool vany_nan(VF a) {
  for (int i = 0; i < kLanes; ++i) {
    if (a.lane[i] != a.lane[i]) return true;
  }
  return false;
}
inline unsigned vmask_ge(VF a, VF b) {
  unsigned mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= unsigned(a.lane[i] >= b.lane[i]) << i;
  return mask;
}
// NaN where the lane is NaN, else 0.
inline VF vselect_nan(VF a) {
  return each([&](int i) { return a.lane[i] != a.lane[i] ? a.lane[i] : 0.0f; });
}
inline VF vload_tail(const float* p, int n, float fill) {
  return each([&](int i) { return i < n ? p[i] : fill; });
}
inline void vstore_lanes(float* out, VF v) { vstore(out, v); }
// Halves are folded onto each other until one lane is left.
inline float horizontal_sum(VF v) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v.lane[i] += v.lane[i + width];
  }
  return v.lane[0];
}
inline float horizontal_max(VF v) {
  for (int i = 1; i < kLanes; ++i) v.lane[0] = v.lane[i] > v.lane[0] ? v.lane[i] : v.lane[0];
  return v.lane[0];
}
inline VF vwiden(const uint16_t* p) {
  return each([&](int i) { return widen(p[i]); });
}

// out[c][r] = in[r][c] for kLanes x kLanes floats.
inline void transpose_block(const float* in, int64_t ld_in, float* out, int64_t ld_out) {
  for (int r = 0; r < kLanes; ++r) {
    for (int c = 0; c < kLanes; ++c) out[c * ld_out + r] = in[r * ld_in + c];
  }
}

// The same for bf16 in pairs: in[r][c][2] (element 2 r + i of column c) to out[c / 2][2 r + i][c % 2], kPairRows rows of pairs and
// 2 kPairRows columns.
constexpr int kPairRows = 2;
inline void transpose_pair_block(const uint16_t* in, int64_t ld_in, uint16_t* out, int64_t ld_out) {
  for (int r = 0; r < 2 * kPairRows; ++r) {
    for (int c = 0; c < 2 * kPairRows; ++c) out[c / 2 * ld_out + 2 * r + c % 2] = in[r / 2 * ld_in + 2 * c + r % 2];
  }
}

inline VF vwiden_bytes(const int8_t* p) {
  return each([&](int i) { return float(p[i]); });
}
// 2 kLanes numbers that bf16 holds exactly.
inline void vstore_bf16_exact(uint16_t* p, VF a, VF b) {
  for (int i = 0; i < 2 * kLanes; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, i < kLanes ? &a.lane[i] : &b.lane[i - kLanes], 4);
    p[i] = uint16_t(bits >> 16);
  }
}

inline void vstore_bf16(uint16_t* p, VF v) {
  for (int i = 0; i < kLanes; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, &v.lane[i], 4);
    bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    p[i] = nan ? uint16_t((bits >> 16) | 0x40u) : uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
}

inline void vstore_bf16_normal(uint16_t* p, VF v) { vstore_bf16(p, v); }

inline VP load_pairs(const uint16_t* p) {
  VP v;
  __builtin_memcpy(v.half, p, sizeof v.half);
  return v;
}
inline VF low_halves(VP v) {
  return each([&](int i) { return widen(v.half[2 * i]); });
}
inline VF high_halves(VP v) {
  return each([&](int i) { return widen(v.half[2 * i + 1]); });
}
inline XP set_pair(const uint16_t* p) { return {widen(p[0]), widen(p[1])}; }
inline VF fma_pair(XP x, VP w, VF acc) {
  return each([&](int i) { return x.high * widen(w.half[2 * i + 1]) + (x.low * widen(w.half[2 * i]) + acc.lane[i]); });
}
// Lane by lane, the low halves first.
inline VF dot_pairs(VP a, VP b, VF acc) { return vfma(high_halves(a), high_halves(b), vfma(low_halves(a), low_halves(b), acc)); }

// ---------------------------------------------------------------- whole numbers: kLanes of 32 bits, or four bytes in each

struct VI {
  int32_t lane[kLanes];
};
template <typename Op>
inline VI each_whole(Op op) {
  VI r;
  for (int i = 0; i < kLanes; ++i) r.lane[i] = op(i);
  return r;
}
inline VI vi_load(const void* p) {
  VI v;
  __builtin_memcpy(v.lane, p, sizeof v.lane);
  return v;
}
inline void vi_store(void* p, VI v) { __builtin_memcpy(p, v.lane, sizeof v.lane); }
// The same four bytes in every lane.
inline VI vi_broadcast(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return each_whole([&](int) { return four; });
}
inline VI vi_bits(VF v) {
  VI r;
  __builtin_memcpy(r.lane, v.lane, sizeof r.lane);
  return r;
}
// The low byte of each lane.
inline void vi_store_bytes(int8_t* p, VI v) {
  for (int i = 0; i < kLanes; ++i) p[i] = int8_t(uint32_t(v.lane[i]) & 255u);
}
// Of the lanes, modulo 2^32.
inline uint32_t vi_sum(VI v) {
  uint32_t sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += uint32_t(v.lane[i]);
  return sum;
}
inline VI vi_low_nibbles(VI v) {
  return each_whole([&](int i) { return v.lane[i] & 0x0f0f0f0f; });
}
inline VI vi_high_nibbles(VI v) {
  return each_whole([&](int i) { return int32_t(uint32_t(v.lane[i]) >> 4) & 0x0f0f0f0f; });
}
inline VI vi_byte(VI v, int byte) {
  return each_whole([&](int i) { return int32_t(uint32_t(v.lane[i]) >> (8 * byte) & 255u); });
}
inline VF vi_to_float(VI v) {
  return each([&](int i) { return float(v.lane[i]); });
}
inline VF vload_half(const uint16_t* p) {
  return each([&](int i) { return half_to_float(p[i]); });
}

// Sums of unsigned weights times signed activations over steps of four inputs, from a bias on.
struct WideDot {
  using W = VI;
  static W prepare(VI v) { return v; }
  static W keep(W w) { return w; }
  static VI start(int32_t bias) {
    return each_whole([&](int) { return bias; });
  }
  static VI step(VI acc, W w, VI x) {
    for (int byte = 0; byte < 4; ++byte) {
      for (int i = 0; i < kLanes; ++i) acc.lane[i] += vi_byte(w, byte).lane[i] * int8_t(uint32_t(x.lane[i]) >> (8 * byte));
    }
    return acc;
  }
  static VI finish(VI acc, int32_t) { return acc; }
};
using SmallDot = WideDot;

}  // namespace
}  // namespace TANDEM_SIMD_NS
