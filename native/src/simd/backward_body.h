// The kernels of backward_kernels.h; included after kernels_body.h by one .cc per instruction set.
#pragma once
#include <cstring>

#include "simd/backward_kernels.h"

namespace TANDEM_SIMD_NS {
namespace {

void transpose_pairs(const uint16_t* in, int64_t ld_in, int64_t k, int64_t n, uint16_t* out, int64_t ld_out) {
  for (int64_t c = 0; c < n / 2; c += kPairRows) {
    for (int64_t r = 0; r < k / 2; r += kPairRows) transpose_pair_block(in + r * ld_in + 4 * c, ld_in, out + c * ld_out + 4 * r, ld_out);
  }
}

void transpose_floats(const float* in, int64_t ld_in, int64_t rows, int64_t columns, float* out, int64_t ld_out) {
  for (int64_t c = 0; c < columns; c += kLanes) {
    for (int64_t r = 0; r < rows; r += kLanes) transpose_block(in + r * ld_in + c, ld_in, out + c * ld_out + r, ld_out);
  }
}

void widen_row(const uint16_t* x, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) vstore(out + i, vwiden(x + i));
  for (; i < n; ++i) {
    uint32_t bits = uint32_t(x[i]) << 16;
    std::memcpy(out + i, &bits, 4);
  }
}

// ---------------------------------------------------------------- rows

// With r = 1 / sqrt(mean(x^2) + eps) and g = weight * d: dx = r * g - x * r^3 / n * sum(g * x).
void rms_norm_backward(const float* x, const float* weight, const float* d, int64_t n, float eps, float* dx) {
  VF square = vset(0.0f), dot = vset(0.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    int left = lanes_left(i, n);
    VF v = load_row(x + i, left, 0.0f);
    square = vfma(v, v, square);
    dot = vfma(vmul(load_row(weight + i, left, 0.0f), load_row(d + i, left, 0.0f)), v, dot);
  }
  float r = 1.0f / __builtin_sqrtf(horizontal_sum(square) / float(n) + eps);
  float along = horizontal_sum(dot) * r * r * r / float(n);
  for (int64_t i = 0; i < n; i += kLanes) {
    int left = lanes_left(i, n);
    VF g = vmul(load_row(weight + i, left, 0.0f), load_row(d + i, left, 0.0f));
    VF change = vsub(vmul(g, vset(r)), vmul(load_row(x + i, left, 0.0f), vset(along)));
    store_row(dx + i, vadd(load_row(dx + i, left, 0.0f), change), left);
  }
}

inline VF load_elements(const float* p, int n) { return load_row(p, n, 0.0f); }
inline VF load_elements(const uint16_t* p, int n) {
  if (n == kLanes) return vwiden(p);
  uint16_t lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return vwiden(lanes);
}

template <typename T>
void silu_mul_backward(const T* gate, const T* up, const float* d, int64_t n, T* d_gate, T* d_up) {
  for (int64_t i = 0; i < n; i += kLanes) {
    int left = lanes_left(i, n);
    VF g = load_elements(gate + i, left), u = load_elements(up + i, left), v = load_row(d + i, left, 0.0f);
    VF sigmoid = vdiv(vset(1.0f), vadd(vset(1.0f), vexp(vsub(vset(0.0f), g))));
    VF silu = vmul(g, sigmoid);
    // silu' = sigmoid + silu * (1 - sigmoid)
    VF slope = vfma(silu, vsub(vset(1.0f), sigmoid), sigmoid);
    store_row(d_gate + i, vmul(vmul(v, u), slope), left);
    store_row(d_up + i, vmul(v, silu), left);
  }
}

template <typename T>
void tile_softmax(const float* x, int64_t n, float max, T* out, float* sums, float* weighted) {
  for (int64_t start = 0, tile = 0; start < n; start += kRowTileSize, ++tile) {
    int64_t end = n - start < kRowTileSize ? n : start + kRowTileSize;
    VF sum = vset(0.0f), dot = vset(0.0f);
    for (int64_t i = start; i < end; i += kLanes) {
      int left = lanes_left(i, end);
      VF below = vsub(load_row(x + i, left, kNegInf), vset(max));
      VF e = vexp(vmul(below, vset(1.0f)));
      store_row(out + i, e, left);
      sum = vadd(sum, e);
      // A term of 0 counts nothing, even where x is -inf.
      dot = vadd(dot, vselect_lt(vset(0.0f), e, vmul(e, below), vset(0.0f)));
    }
    sums[tile] = horizontal_sum(sum);
    weighted[tile] = horizontal_sum(dot);
  }
}

// ---------------------------------------------------------------- attention

// How elements of one type are turned and paired. A "paired" matrix is [rows/2][columns][2] for bf16 and [rows][columns] for float.
struct Bf16Turn {
  using S = Bf16Step;
  using T = uint16_t;
  // A page of keys [dim/2][16][2] to [8][dim][2], and one of values to [dim/2][16][2].
  static void turn_keys(const T* page, int64_t dim, T* out) { transpose_pairs(page, 2 * kPage, dim, kPage, out, 2 * dim); }
  static void turn_values(const T* page, int64_t dim, T* out) { transpose_pairs(page, 2 * dim, kPage, dim, out, 2 * kPage); }
  // rows x dim to pairs of rows; an odd last row is paired with zeros.
  static void pair_rows(const T* in, int rows, int64_t dim, T* out) {
    for (int r = 0; r < rows; r += 2) {
      const T* low = in + r * dim;
      for (int64_t d = 0; d < dim; ++d) {
        out[r * dim + 2 * d] = low[d];
        out[r * dim + 2 * d + 1] = r + 1 < rows ? low[dim + d] : T(0);
      }
    }
  }
  static void narrow(const float* in, int64_t n, T* out) { to_bf16(in, n, out); }
};

struct F32Turn {
  using S = F32Step;
  using T = float;
  static void turn_keys(const T* page, int64_t dim, T* out) { transpose_floats(page, kPage, dim, kPage, out, dim); }
  static void turn_values(const T* page, int64_t dim, T* out) { transpose_floats(page, dim, kPage, dim, out, kPage); }
  static void pair_rows(const T* in, int rows, int64_t dim, T* out) { std::memcpy(out, in, size_t(rows * dim) * sizeof(T)); }
  static void narrow(const float* in, int64_t n, T* out) { std::memcpy(out, in, size_t(n) * sizeof(T)); }
};

template <typename Turn>
struct AttendBackward {
  using S = typename Turn::S;
  using T = typename Turn::T;
  static constexpr int kU = kAttendTileUnits;
  const AttendBackwardArgs<T>& args;
  int first_page, pages;  // pages that hold a visible key
  int64_t keys;           // columns of the matrices below
  float* p;               // rows x keys: scores, then probabilities
  float* ds;              // rows x keys: d of the probabilities, then of the scores
  float* turned;          // keys x kAttendRows
  T* ds_rows;             // rows x keys
  T* columns;             // keys x kAttendRows: a turned matrix as T
  T* page_space;          // kPagesPerTile pages, turned
  T* paired;              // rows of q or d_out, paired

  explicit AttendBackward(const AttendBackwardArgs<T>& a) : args(a) {
    int first = a.first[0], last = a.last[0];
    for (int r = 1; r < a.rows; ++r) {
      first = a.first[r] < first ? a.first[r] : first;
      last = a.last[r] > last ? a.last[r] : last;
    }
    first_page = first / kPage;
    pages = last / kPage + 1 - first_page;
    keys = int64_t(pages) * kPage;
    int64_t matrix = kAttendRows * ((keys + kKeyTile - 1) / kKeyTile * kKeyTile);
    p = a.scratch;
    ds = p + matrix;
    turned = ds + matrix;
    // The T copies share the fourth matrix: for float they take turns, as each is used up before the next is made.
    ds_rows = reinterpret_cast<T*>(turned + matrix);
    columns = sizeof(T) == sizeof(float) ? reinterpret_cast<T*>(turned) : ds_rows + matrix;
    page_space = reinterpret_cast<T*>(turned + 2 * matrix);
    paired = page_space + kKeyTile * a.dim;
  }

  // out[rows][keys] = a . (pages turned so that lanes are keys)
  template <typename Page>
  void over_pages(const T* a, float* out, const Page& page_of) {
    std::memset(out, 0, size_t(args.rows * keys) * sizeof(float));
    int64_t steps = args.dim / S::kDepth;
    for (int page = 0; page < pages; page += kU) {
      const T* units[kU];
      int count = pages - page < kU ? pages - page : kU;
      for (int u = 0; u < count; ++u) units[u] = page_of(first_page + page + u, u);
      small_gemm_units<S, kU>(count, args.rows, a, args.dim, units, kPage * S::kDepth, steps, out + page * kPage, keys);
    }
  }

  // One row: scores to probabilities, and their gradients to those of the unscaled scores.
  void soften(int row) {
    float* s = p + row * keys;
    float* d = ds + row * keys;
    int low = args.first[row] - first_page * kPage, high = args.last[row] - first_page * kPage;
    for (int i = 0; i < keys; ++i) s[i] = i >= low && i <= high ? s[i] * args.scale : kNegInf;
    VF top = vload(s);
    for (int64_t i = kLanes; i < keys; i += kLanes) top = vmax(top, vload(s + i));
    float max = horizontal_max(top);
    VF total = vset(0.0f), dot = vset(0.0f);
    for (int64_t i = 0; i < keys; i += kLanes) {
      VF e = vexp(vsub(vload(s + i), vset(max)));
      vstore(s + i, e);
      total = vadd(total, e);
      dot = vfma(e, vload(d + i), dot);
    }
    float inverse = 1.0f / horizontal_sum(total), mean = horizontal_sum(dot) * inverse;
    for (int64_t i = 0; i < keys; i += kLanes) {
      VF probability = vmul(vload(s + i), vset(inverse));
      vstore(s + i, probability);
      vstore(d + i, vmul(vmul(probability, vsub(vload(d + i), vset(mean))), vset(args.scale)));
    }
  }

  void gather_dq() {
    std::memset(args.dq, 0, size_t(args.rows * args.dim) * sizeof(float));
    int64_t stride = int64_t(args.dim) * S::kDepth, steps = kPage / S::kDepth;
    for (int page = 0; page < pages; ++page) {
      Turn::turn_keys(args.key_pages[first_page + page], args.dim, page_space);
      across(args.rows, ds_rows + page * kPage, keys, page_space, stride, steps, args.dq, args.dim);
    }
  }

  // out[m][dim] += a . b, the columns of b in units of 16.
  void across(int64_t m, const T* a, int64_t lda, const T* b, int64_t stride, int64_t steps, float* out, int64_t ldo) {
    int d = 0;
    for (; d + 16 * kU <= args.dim; d += 16 * kU) {
      const T* units[kU];
      for (int u = 0; u < kU; ++u) units[u] = b + int64_t(d + 16 * u) * S::kDepth;
      small_gemm_rows<S, kU>(int(m), a, lda, units, stride, steps, out + d, ldo);
    }
    for (; d < args.dim; d += 16) {
      const T* unit = b + int64_t(d) * S::kDepth;
      small_gemm_rows<S, 1>(int(m), a, lda, &unit, stride, steps, out + d, ldo);
    }
  }

  // The gradients of all visible keys (or values) += matrix^T . rows.
  void spread(const float* matrix, const T* rows, bool to_values) {
    transpose_floats(matrix, keys, kAttendRows, keys, turned, kAttendRows);
    if (reinterpret_cast<const void*>(columns) != reinterpret_cast<const void*>(turned)) Turn::narrow(turned, keys * kAttendRows, columns);
    Turn::pair_rows(rows, args.rows, args.dim, paired);
    int64_t steps = (args.rows + S::kDepth - 1) / S::kDepth, stride = int64_t(args.dim) * S::kDepth;
    int64_t begin = int64_t(first_page) * kPage;
    for (int i = 0; i < args.span_count; ++i) {
      const KeySpan& span = args.spans[i];
      int64_t from = span.first > begin ? span.first : begin;
      int64_t end = int64_t(span.first) + span.count < begin + keys ? int64_t(span.first) + span.count : begin + keys;
      if (from >= end) continue;
      float* out = (to_values ? span.dv : span.dk) + (from - span.first) * span.ld;
      across(end - from, columns + (from - begin) * kAttendRows, kAttendRows, paired, stride, steps, out, span.ld);
    }
  }

  void run() {
    over_pages(args.q, p, [&](int page, int) { return args.key_pages[page]; });
    over_pages(args.d_out, ds, [&](int page, int u) {
      T* out = page_space + int64_t(u) * kPage * args.dim;
      Turn::turn_values(args.value_pages[page], args.dim, out);
      return const_cast<const T*>(out);
    });
    for (int r = 0; r < args.rows; ++r) soften(r);
    // What lies below the last row is turned along.
    for (float* matrix : {p, ds}) {
      std::memset(matrix + args.rows * keys, 0, size_t((kAttendRows - args.rows) * keys) * sizeof(float));
    }
    for (int r = 0; r < args.rows; ++r) Turn::narrow(ds + r * keys, keys, ds_rows + r * keys);
    gather_dq();
    spread(ds, args.q, false);
    spread(p, args.d_out, true);
  }
};

template <typename Turn>
void attend_backward(const AttendBackwardArgs<typename Turn::T>& args) {
#if TANDEM_AMX
  TileUse use;
#endif
  AttendBackward<Turn>(args).run();
}

}  // namespace

extern const BackwardKernels backward_table;
const BackwardKernels backward_table = {
    transpose_pairs,          transpose_floats,       widen_row,           rms_norm_backward,         silu_mul_backward<uint16_t>,
    silu_mul_backward<float>, tile_softmax<uint16_t>, tile_softmax<float>, attend_backward<Bf16Turn>, attend_backward<F32Turn>,
};

}  // namespace TANDEM_SIMD_NS
