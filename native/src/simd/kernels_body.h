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
constexpr int kUnit = 16 / kLanes;  // registers per 16 columns
constexpr int kPagesPerTile = kKeyTile / kPage;
constexpr float kNegInf = -__builtin_inff();

// ---------------------------------------------------------------- elementary functions
// exp with a relative error below 2 ulp up to 88.37 (1e-4 above); 0 below -87.3, +inf above 88.7. Polynomial after reduction by ln 2 in two parts (Cody-Waite).
inline VF vexp(VF x) {
  VF n = vround(vmul(x, vset(1.44269504088896341f)));
  // Clamped so that NaN becomes -126, a whole number; r carries the NaN on.
  n = vselect_lt(vset(-126.0f), n, n, vset(-126.0f));
  n = vselect_lt(n, vset(127.0f), n, vset(127.0f));
  VF r = vfma(n, vset(-0.693359375f), x);
  r = vfma(n, vset(2.12194440e-4f), r);
  VF p = vset(1.9875691500e-4f);
  p = vfma(p, r, vset(1.3981999507e-3f));
  p = vfma(p, r, vset(8.3334519073e-3f));
  p = vfma(p, r, vset(4.1665795894e-2f));
  p = vfma(p, r, vset(1.6666665459e-1f));
  p = vfma(p, r, vset(5.0000001201e-1f));
  VF y = vfma(vmul(p, r), r, vadd(r, vset(1.0f)));
  y = vmul(y, vpow2(n));
  y = vselect_lt(x, vset(-87.3f), vset(0.0f), y);
  return vselect_lt(vset(88.7f), x, vset(__builtin_inff()), y);
}

inline float horizontal_sum(VF v) {
  float lanes[kLanes];
  vstore_lanes(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

inline float horizontal_max(VF v) {
  float lanes[kLanes];
  vstore_lanes(lanes, v);
  float best = lanes[0];
  for (int i = 1; i < kLanes; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

// ---------------------------------------------------------------- products

// The two element types behind one name: a "step" is one k for float, a pair of k for bf16.
struct Bf16Step {
  using T = uint16_t;
  using X = XP;
  static constexpr int kDepth = 2;
  static X broadcast(const T* x) { return set_pair(x); }
  static VF fma(X x, const T* w, VF acc) { return fma_pair(x, load_pairs(w), acc); }
};
struct F32Step {
  using T = float;
  using X = VF;
  static constexpr int kDepth = 1;
  static X broadcast(const T* x) { return vset(*x); }
  static VF fma(X x, const T* w, VF acc) { return vfma(x, vload(w), acc); }
};

// Bytes ahead of the reader that a stream of weights is fetched: hardware prefetchers stop at the end of each 4 KiB page.
constexpr int64_t kStreamAhead = 8192;

// R rows x one panel, `steps` steps from the running values in y.
template <typename S, int R, bool Stream>
inline void gemm_tile(const typename S::T* x, int64_t ldx, const typename S::T* w, int64_t steps, float* y, int64_t ldy, bool accumulate,
                      const char* prefetch) {
  constexpr int64_t kStepBytes = kPanel * S::kDepth * int64_t(sizeof(typename S::T));
  VF acc[R][kPanelRegs];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < kPanelRegs; ++c) acc[r][c] = accumulate ? vload(y + r * ldy + c * kLanes) : vset(0.0f);
  }
  for (int64_t s = 0; s < steps; ++s) {
    const typename S::T* row = w + s * kPanel * S::kDepth;
    if constexpr (Stream) {
      const char* ahead = reinterpret_cast<const char*>(row) + kStreamAhead;
      for (int64_t line = 0; line < kStepBytes; line += 64) __builtin_prefetch(ahead + line, 0, 3);
    } else {
      __builtin_prefetch(prefetch + s * 64, 0, 2);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      typename S::X b = S::broadcast(x + r * ldx + s * S::kDepth);
#pragma GCC unroll 4
      for (int c = 0; c < kPanelRegs; ++c) acc[r][c] = S::fma(b, row + c * kLanes * S::kDepth, acc[r][c]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < kPanelRegs; ++c) vstore(y + r * ldy + c * kLanes, acc[r][c]);
  }
}

template <typename S, bool Stream>
inline void gemm_rows(int rows, const typename S::T* x, int64_t ldx, const typename S::T* w, int64_t steps, float* y, int64_t ldy,
                      bool accumulate, const char* prefetch) {
  switch (rows) {
    case 1: return gemm_tile<S, 1, Stream>(x, ldx, w, steps, y, ldy, accumulate, prefetch);
    case 2: return gemm_tile<S, 2, Stream>(x, ldx, w, steps, y, ldy, accumulate, prefetch);
    case 3: return gemm_tile<S, 3, Stream>(x, ldx, w, steps, y, ldy, accumulate, prefetch);
    case 4: return gemm_tile<S, 4, Stream>(x, ldx, w, steps, y, ldy, accumulate, prefetch);
    case 5: return gemm_tile<S, 5, Stream>(x, ldx, w, steps, y, ldy, accumulate, prefetch);
    default: return gemm_tile<S, 6, Stream>(x, ldx, w, steps, y, ldy, accumulate, prefetch);
  }
}

// One panel, all rows. With more than one row tile the inner dimension is cut in blocks, the running sums going through y:
// stores and loads of a float are exact, so the chain of additions is the same as without the cut.
template <typename S>
void gemm(const typename S::T* x, int64_t ldx, int64_t m, const typename S::T* w, int64_t k, float* y, int64_t ldy, bool accumulate) {
  // A lone row tile is bound by memory: it fetches its own weights further on.
  if (m <= kRowTile) return gemm_rows<S, true>(int(m), x, ldx, w, k / S::kDepth, y, ldy, accumulate, nullptr);
  int64_t block = kInnerBlock, tiles = (m + kRowTile - 1) / kRowTile;
  for (int64_t k0 = 0; k0 < k; k0 += block) {
    int64_t inner = k - k0 < block ? k - k0 : block;
    const typename S::T* wb = w + k0 * kPanel;
    const char* after = reinterpret_cast<const char*>(wb + inner * kPanel);
    int64_t steps = inner / S::kDepth;
    // Tiles of nearly equal height: a low one would wait for its own sums.
    for (int64_t tile = 0, i = 0; tile < tiles; ++tile) {
      int rows = int((tile + 1) * m / tiles - i);
      // The next block of weights is fetched while this one is used, one line per step, the row tiles taking turns.
      int64_t turn = tile % (kPanel * int64_t(sizeof(typename S::T)) * S::kDepth / 64);
      gemm_rows<S, false>(rows, x + i * ldx + k0, ldx, wb, steps, y + i * ldy, ldy, accumulate || k0 > 0, after + turn * steps * 64);
      i += rows;
    }
  }
}

// Rows whose sums lie side by side while a panel is multiplied: rows of y, often a power of two apart, would push each other out of every
// cache.
constexpr int64_t kSumRows = 96;

inline void copy_rows(const float* from, int64_t ld_from, float* to, int64_t ld_to, int64_t m) {
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < kPanel; c += kLanes) vstore(to + r * ld_to + c, vload(from + r * ld_from + c));
  }
}

#if !TANDEM_DOT_BF16
// Without a product of bf16 pairs a step would spend more instructions on widening its operands than on products. Here both sides are
// widened once per block, and row tiles only load and multiply: the chain of an element is the same, k by k. A block of weights as floats
// (16 KiB at 64 columns) and the rows of a tile stay in L1; the sums of a block of rows lie side by side in L2, where rows of y, often a
// power of two apart, would push each other out.
constexpr int64_t kWideBlock = 64;

inline void widen_weights(const uint16_t* block, int64_t inner, float* weights) {
  for (int64_t i = 0; i < inner * kPanel; i += 2 * kLanes) {
    VP pairs = load_pairs(block + i);
    float* out = weights + i / (2 * kPanel) * (2 * kPanel) + i % (2 * kPanel) / 2;
    vstore(out, low_halves(pairs));
    vstore(out + kPanel, high_halves(pairs));
  }
}

// At most kSumRows rows.
void gemm_wide_rows(const uint16_t* x, int64_t ldx, int64_t m, const uint16_t* w, int64_t k, float* y, int64_t ldy, bool accumulate) {
  alignas(64) float weights[kWideBlock * kPanel];
  alignas(64) float rows[kRowTile * kWideBlock];
  alignas(64) float sums[kSumRows * kPanel];
  if (accumulate) copy_rows(y, ldy, sums, kPanel, m);
  const int64_t tiles = (m + kRowTile - 1) / kRowTile, line_turns = kPanel / 32 > 1 ? kPanel / 32 : 1;
  for (int64_t start = 0; start < k; start += kWideBlock) {
    int64_t inner = k - start < kWideBlock ? k - start : kWideBlock;
    const uint16_t* block = w + start * kPanel;
    const char* after = reinterpret_cast<const char*>(block + inner * kPanel);
    widen_weights(block, inner, weights);
    for (int64_t tile = 0, first = 0; tile < tiles; ++tile) {
      int64_t end = (tile + 1) * m / tiles;
      for (int64_t r = first; r < end; ++r) {
        const uint16_t* from = x + r * ldx + start;
        float* to = rows + (r - first) * kWideBlock;
        for (int64_t i = 0; i < inner; i += kLanes) vstore(to + i, vwiden(from + i));
      }
      const char* ahead = after + tile % line_turns * inner * 64;
      float* to_sums = sums + first * kPanel;
      gemm_rows<F32Step, false>(int(end - first), rows, kWideBlock, weights, inner, to_sums, kPanel, accumulate || start > 0, ahead);
      first = end;
    }
  }
  copy_rows(sums, kPanel, y, ldy, m);
}

void gemm_widened(const uint16_t* x, int64_t ldx, int64_t m, const uint16_t* w, int64_t k, float* y, int64_t ldy, bool accumulate) {
  // Measured: it pays from three row tiles on.
  if (m <= 2 * kRowTile) return gemm<Bf16Step>(x, ldx, m, w, k, y, ldy, accumulate);
  const int64_t blocks = (m + kSumRows - 1) / kSumRows;
  for (int64_t block = 0, first = 0; block < blocks; ++block) {
    int64_t end = (block + 1) * m / blocks;
    gemm_wide_rows(x + first * ldx, ldx, end - first, w, k, y + first * ldy, ldy, accumulate);
    first = end;
  }
}
#endif

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

void to_bf16(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; i += kLanes) store_row(out + i, load_row(x + i, lanes_left(i, n), 0.0f), lanes_left(i, n));
}

}  // namespace
}  // namespace TANDEM_SIMD_NS

#include "simd/tiles_body.h"

namespace TANDEM_SIMD_NS {
namespace {

// ---------------------------------------------------------------- attention

// acc[R][U units of 16 columns] += a (R rows, `steps` steps) . b; unit u's columns start at b[u], its steps are `stride` elements apart.
template <typename S, int R, int U>
inline void small_gemm(const typename S::T* a, int64_t lda, const typename S::T* const* b, int64_t stride, int64_t steps, float* out,
                       int64_t ldo) {
  constexpr int C = U * kUnit;
  VF acc[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) acc[r][c] = vload(out + r * ldo + c * kLanes);
  }
  for (int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      typename S::X x = S::broadcast(a + r * lda + s * S::kDepth);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        acc[r][c] = S::fma(x, b[c / kUnit] + s * stride + (c % kUnit) * kLanes * S::kDepth, acc[r][c]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) vstore(out + r * ldo + c * kLanes, acc[r][c]);
  }
}

template <typename S, int U>
inline void small_gemm_rows(int rows, const typename S::T* a, int64_t lda, const typename S::T* const* b, int64_t stride, int64_t steps,
                            float* out, int64_t ldo) {
  int r = 0;
  for (; r + kAttendTileRows <= rows; r += kAttendTileRows) {
    small_gemm<S, kAttendTileRows, U>(a + r * lda, lda, b, stride, steps, out + r * ldo, ldo);
  }
  for (; r < rows; ++r) small_gemm<S, 1, U>(a + r * lda, lda, b, stride, steps, out + r * ldo, ldo);
}

// Bytes as elements, exactly: n of them, a multiple of 256 (a page of a head).
inline void widen_bytes(const int8_t* in, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; i += 2 * kLanes) vstore_bf16_exact(out + i, vwiden_bytes(in + i), vwiden_bytes(in + i + kLanes));
}
inline void widen_bytes(const int8_t* in, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) vstore(out + i, vwiden_bytes(in + i));
}

template <typename S, bool kInt8>
struct Attend {
  using T = typename S::T;
  static constexpr int kU = kAttendTileUnits;
  const AttendArgs<T>& args;
  float max[kAttendRows];
  float sum[kAttendRows];
  // One row of probabilities as the element type of the values.
  alignas(64) T weights[kAttendRows * kKeyTile];
  // Of the tile's positions, with int8; args.scale is part of the keys'.
  alignas(64) float key_scales[kKeyTile], value_scales[kKeyTile];

  explicit Attend(const AttendArgs<T>& a) : args(a) {
    for (int r = 0; r < a.rows; ++r) {
      max[r] = a.begins ? kNegInf : a.state[2 * r];
      sum[r] = a.begins ? 0.0f : a.state[2 * r + 1];
    }
  }

  int first_key() const {
    int first = args.first[0];
    for (int r = 1; r < args.rows; ++r) first = args.first[r] < first ? args.first[r] : first;
    return first;
  }
  int last_key() const {
    int last = args.last[0];
    for (int r = 1; r < args.rows; ++r) last = args.last[r] > last ? args.last[r] : last;
    return last;
  }

  const uint8_t* keys_of(int page) const { return args.keys + int64_t(args.pages[page]) * args.page_stride; }
  const uint8_t* values_of(int page) const { return keys_of(page) + args.value_offset; }

  // The elements of a block; bytes are widened to one of the places in `wide`.
  const T* elements(const uint8_t* block, int place) const {
    if constexpr (kInt8) {
      int64_t numbers = int64_t(args.dim) * kPage;
      T* out = args.wide + place * numbers;
      widen_bytes(reinterpret_cast<const int8_t*>(block), numbers, out);
      return out;
    } else {
      return reinterpret_cast<const T*>(block);
    }
  }

  // Positions of pages that are not read have a scale of 0.
  void load_scales(int tile, int pages) {
    auto scales_of = [&](const uint8_t* block) { return reinterpret_cast<const float*>(block + int64_t(args.dim) * kPage); };
    for (int i = 0; i < kKeyTile; ++i) {
      int page = tile * kPagesPerTile + i / kPage;
      bool read = i / kPage < pages;
      key_scales[i] = read ? args.scale * scales_of(keys_of(page))[i % kPage] : 0.0f;
      value_scales[i] = read ? scales_of(values_of(page))[i % kPage] : 0.0f;
    }
  }

  // scores[rows][kKeyTile] = q . k for the pages of the tile that hold visible keys.
  void score(int tile, int pages) {
    float* scores = args.scratch;
    for (int i = 0; i < args.rows * kKeyTile; ++i) scores[i] = 0.0f;
    for (int page = 0; page < pages; page += kU) {
      const T* keys[kU];
      int units = pages - page < kU ? pages - page : kU;
      for (int u = 0; u < units; ++u) keys[u] = elements(keys_of(tile * kPagesPerTile + page + u), page + u);
      int64_t steps = args.dim / S::kDepth;
      float* out = scores + page * kPage;
      if (units == kU) {
        small_gemm_rows<S, kU>(args.rows, args.q, args.dim, keys, kPage * S::kDepth, steps, out, kKeyTile);
      } else {
        for (int u = 0; u < units; ++u) {
          small_gemm_rows<S, 1>(args.rows, args.q, args.dim, keys + u, kPage * S::kDepth, steps, out + u * kPage, kKeyTile);
        }
      }
    }
  }

  // Turns a row of scores into weights and rescales what the row has gathered so far.
  void soften(int row, int base) {
    float* scores = args.scratch + row * kKeyTile;
    int low = args.first[row] - base, high = args.last[row] - base;
    for (int i = 0; i < kKeyTile; ++i) scores[i] = i >= low && i <= high ? scores[i] * (kInt8 ? key_scales[i] : args.scale) : kNegInf;
    VF top = vload(scores);
    for (int i = kLanes; i < kKeyTile; i += kLanes) top = vmax(top, vload(scores + i));
    float best = horizontal_max(top);
    best = best > max[row] ? best : max[row];
    float shift = best == kNegInf ? 0.0f : best;
    float keep[kLanes];
    vstore_lanes(keep, vexp(vset(max[row] - shift)));
    T* w = weights + row * kKeyTile;
    VF total = vset(0.0f);
    for (int i = 0; i < kKeyTile; i += kLanes) {
      VF e = vexp(vsub(vload(scores + i), vset(shift)));
      store_row(w + i, kInt8 ? vmul(e, vload(value_scales + i)) : e, kLanes);
      total = vadd(total, e);
    }
    sum[row] = sum[row] * keep[0] + horizontal_sum(total);
    if (best != max[row]) {
      float* out = args.out + int64_t(row) * args.dim;
      for (int d = 0; d < args.dim; d += kLanes) vstore(out + d, vmul(vload(out + d), vset(keep[0])));
    }
    max[row] = best;
  }

  // out[rows][dim] += weights . v, page by page. Keys that no row sees have weight 0; their pages hold finite numbers.
  void gather(int tile, int pages) {
    for (int page = 0; page < pages; ++page) {
      const T* values = elements(values_of(tile * kPagesPerTile + page), page);
      const T* w = weights + page * kPage;
      int64_t stride = int64_t(args.dim) * S::kDepth, steps = kPage / S::kDepth;
      int d = 0;
      for (; d + 16 * kU <= args.dim; d += 16 * kU) {
        const T* columns[kU];
        for (int u = 0; u < kU; ++u) columns[u] = values + int64_t(d + 16 * u) * S::kDepth;
        small_gemm_rows<S, kU>(args.rows, w, kKeyTile, columns, stride, steps, args.out + d, args.dim);
      }
      for (; d < args.dim; d += 16) {
        const T* column = values + int64_t(d) * S::kDepth;
        small_gemm_rows<S, 1>(args.rows, w, kKeyTile, &column, stride, steps, args.out + d, args.dim);
      }
    }
  }

  void run() {
    for (int i = 0; args.begins && i < args.rows * args.dim; ++i) args.out[i] = 0.0f;
    int last = last_key(), tile = first_key() / kKeyTile, end = last / kKeyTile + 1;
    if (args.state) {
      tile = tile < args.first_tile ? args.first_tile : tile;
      end = args.end_tile;
    }
    for (; tile < end; ++tile) {
      int base = tile * kKeyTile;
      int pages = (last - base) / kPage + 1;
      if (pages > kPagesPerTile) pages = kPagesPerTile;
      if constexpr (kInt8) load_scales(tile, pages);
      score(tile, pages);
      for (int r = 0; r < args.rows; ++r) soften(r, base);
      gather(tile, pages);
    }
    for (int r = 0; !args.finishes && r < args.rows; ++r) {
      args.state[2 * r] = max[r];
      args.state[2 * r + 1] = sum[r];
    }
    for (int r = 0; args.finishes && r < args.rows; ++r) {
      float* out = args.out + int64_t(r) * args.dim;
      VF inverse = vset(1.0f / sum[r]);
      for (int d = 0; d < args.dim; d += kLanes) vstore(out + d, vmul(vload(out + d), inverse));
    }
  }
};

template <typename S, bool kInt8>
void attend(const AttendArgs<typename S::T>& args) {
  Attend<S, kInt8>(args).run();
}

}  // namespace
}  // namespace TANDEM_SIMD_NS

#include "simd/lora_body.h"

namespace TANDEM_SIMD_NS {

extern const Kernels table;
const Kernels table = {
    TANDEM_SIMD_ISA,
    kPanel,
#if TANDEM_DOT_BF16
    INT64_MAX,
    gemm<Bf16Step>,
#else
    kSumRows,
    gemm_widened,
#endif
    gemm<F32Step>,
    rms_norm<uint16_t>,
    rms_norm<float>,
    silu_mul<uint16_t>,
    silu_mul<float>,
    to_bf16,
    attend<Bf16Step, false>,
    attend<F32Step, false>,
    attend<Bf16Step, true>,
    attend<F32Step, true>,
    tile_max,
    tile_exp,
    collect_at_least,
    count_greater,
    lora_shrink<PairDot>,
    lora_shrink<FloatDot>,
    lora_expand<PairOuter>,
    lora_expand<FloatOuter>,
    keep_bits,
};

}  // namespace TANDEM_SIMD_NS
