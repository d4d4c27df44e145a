#include "ops/matmul_backward.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/bf16.h"
#include "simd/backward_kernels.h"
#include "simd/quant_kernels.h"

namespace tandem::ops {
namespace {

// Outputs of w that are turned at a time: 256 x 64 bf16 = 32 KiB, which the forward kernel then reads from L1.
constexpr int64_t kInnerBlock = 256;
// Rows that one claim handles at least, where there are more threads than panels: a turned tile must pay for itself.
constexpr int64_t kGradientRows = 96;
// Rows of x that are gathered into a panel at a time.
constexpr int64_t kOuterRows = 256;

template <typename T>
Buffer<T>& scratch(size_t count) {
  thread_local Buffer<T> space;
  if (space.size() < count) space = Buffer<T>(count);
  return space;
}

template <typename T>
Buffer<T>& quantised_scratch(size_t count) {
  thread_local Buffer<T> space;
  if (space.size() < count) space = Buffer<T>(count);
  return space;
}

struct Turn {
  const simd::Kernels& kernels;
  const simd::BackwardKernels& backward;
  const simd::QuantKernels& quant;
  const PackedMatrix& w;

  // w[n0 .. n0 + panels * panel)[k0 .. k0 + columns) as a panel of the forward product: bf16 [n/2][panel][2], f32 [n][panel].
  void tile(int64_t first_panel, int64_t panels, int64_t k0, int64_t columns, uint16_t* out) const {
    int64_t panel = w.panel();
    for (int64_t p = 0; p < panels; ++p) {
      const uint16_t* in = columns_of_panel<uint16_t>(first_panel + p, k0, columns);
      backward.transpose_pairs(in, 2 * panel, columns, panel, out + p * panel * panel, 2 * panel);
    }
  }
  void tile(int64_t first_panel, int64_t panels, int64_t k0, int64_t columns, float* out) const {
    int64_t panel = w.panel();
    for (int64_t p = 0; p < panels; ++p) {
      const float* in = columns_of_panel<float>(first_panel + p, k0, columns);
      backward.transpose_floats(in, panel, columns, panel, out + p * panel * panel, panel);
    }
  }
  // Columns of a panel as T: where they lie or, dequantised, until the next call on this thread.
  template <typename T>
  const T* columns_of_panel(int64_t p, int64_t k0, int64_t columns) const {
    const QuantisedMatrix* quantised = w.quantised();
    if (!quantised) return reinterpret_cast<const T*>(w.panel_data(p)) + k0 * w.panel();
    T* out = quantised_scratch<T>(size_t(w.panel() * w.panel())).data();
    if constexpr (sizeof(T) == sizeof(float)) {
      quant.dequantise_f32(quantised->format(p), quantised->panel_data(p), k0, columns, out);
    } else {
      quant.dequantise_bf16(quantised->format(p), quantised->panel_data(p), k0, columns, out);
    }
    return out;
  }
  void gemm(const uint16_t* x, int64_t ldx, int64_t m, const uint16_t* tile, int64_t n, float* y, int64_t ldy, bool accumulate) const {
    kernels.gemm_bf16(x, ldx, m, tile, n, y, ldy, accumulate);
  }
  void gemm(const float* x, int64_t ldx, int64_t m, const float* tile, int64_t n, float* y, int64_t ldy, bool accumulate) const {
    kernels.gemm_f32(x, ldx, m, tile, n, y, ldy, accumulate);
  }
};

// One panel of columns of dx, some rows of it.
template <typename T>
void columns_of(const Turn& turn, const T* dy, int64_t ld_dy, int64_t m, PanelRange range, int64_t k0, float* dx, int64_t ld_dx,
                bool accumulate, int64_t dy_panel) {
  int64_t panel = turn.w.panel(), columns = std::min(panel, turn.w.columns_padded() - k0), step = std::max<int64_t>(1, kInnerBlock / panel);
  Buffer<T>& space = scratch<T>(size_t(step * panel * panel));
  // Columns past the weights are not turned: they stay zero.
  if (columns < panel) std::memset(space.data(), 0, space.size() * sizeof(T));
  for (int64_t p = range.first; p < range.end; p += step) {
    int64_t count = std::min(step, range.end - p);
    turn.tile(p, count, k0, columns, space.data());
    turn.gemm(dy + (p - dy_panel) * panel, ld_dy, m, space.data(), count * panel, dx, ld_dx, accumulate || p > range.first);
  }
}

template <typename T>
void gather(const simd::BackwardKernels& backward, const T* x, int64_t ldx, int64_t rows, int64_t columns, int64_t panel, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    if constexpr (sizeof(T) == sizeof(float)) {
      std::memcpy(out + r * panel, x + r * ldx, size_t(columns) * sizeof(float));
    } else {
      backward.widen(x + r * ldx, columns, out + r * panel);
    }
  }
}

}  // namespace

void matmul_backward(const simd::Kernels& kernels, ThreadPool& pool, const void* dy, int64_t ld_dy, int64_t m, const PackedMatrix& w,
                     PanelRange range, PanelRange columns, float* dx, int64_t ld_dx, bool accumulate, int64_t dy_panel) {
  if (m == 0 || columns.first == columns.end) return;
  Turn turn{kernels, simd::backward_kernels_for(kernels.isa), simd::quant_kernels_for(kernels.isa), w};
  int64_t panels = columns.end - columns.first;
  int64_t wanted = std::max<int64_t>(1, 4 * pool.threads() / panels), row_blocks = std::clamp<int64_t>(m / kGradientRows, 1, wanted);
  int64_t rows = (m + row_blocks - 1) / row_blocks;
  pool.run(panels * row_blocks, [&](int64_t claim) {
    int64_t k0 = (columns.first + claim / row_blocks) * w.panel(), first = claim % row_blocks * rows, count = std::min(rows, m - first);
    if (count <= 0) return;
    float* out = dx + first * ld_dx + k0;
    if (w.element() == Element::kBf16) {
      columns_of(turn, static_cast<const uint16_t*>(dy) + first * ld_dy, ld_dy, count, range, k0, out, ld_dx, accumulate, dy_panel);
    } else {
      columns_of(turn, static_cast<const float*>(dy) + first * ld_dy, ld_dy, count, range, k0, out, ld_dx, accumulate, dy_panel);
    }
  });
}

void matmul_backward_reference(const float* dy, int64_t ld_dy, int64_t m, const PackedMatrix& w, PanelRange range, float* dx, int64_t ld_dx,
                               bool accumulate) {
  std::vector<float> row(size_t(w.columns()));
  std::vector<double> sum(size_t(m * w.columns()));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t k = 0; k < w.columns(); ++k) sum[size_t(i * w.columns() + k)] = accumulate ? double(dx[i * ld_dx + k]) : 0.0;
  }
  for (int64_t n = range.first * w.panel(); n < std::min(range.end * w.panel(), w.rows()); ++n) {
    w.copy_row(n, row.data());
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t k = 0; k < w.columns(); ++k) sum[size_t(i * w.columns() + k)] += double(dy[i * ld_dy + n]) * double(row[size_t(k)]);
    }
  }
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t k = 0; k < w.columns(); ++k) dx[i * ld_dx + k] = float(sum[size_t(i * w.columns() + k)]);
  }
}

void accumulate_outer(const simd::Kernels& kernels, ThreadPool& pool, const float* u, int64_t ldu, int64_t ranks, const void* x,
                      int64_t ldx, Element element, int64_t m, int64_t n, PanelRange range, float* grad, int64_t ld_grad) {
  if (m == 0) return;
  const simd::BackwardKernels& backward = simd::backward_kernels_for(kernels.isa);
  std::vector<float> turned(size_t(ranks * m));
  for (int64_t t = 0; t < m; ++t) {
    for (int64_t r = 0; r < ranks; ++r) turned[size_t(r * m + t)] = u[t * ldu + r];
  }
  int64_t panel = kernels.panel;
  pool.run(range.end - range.first, [&](int64_t claim) {
    int64_t p = range.first + claim, columns = std::min(panel, n - p * panel);
    Buffer<float>& space = scratch<float>(size_t(kOuterRows * panel));
    if (columns < panel) std::memset(space.data(), 0, space.size() * sizeof(float));
    for (int64_t first = 0; first < m; first += kOuterRows) {
      int64_t rows = std::min(kOuterRows, m - first);
      if (element == Element::kBf16) {
        gather(backward, static_cast<const uint16_t*>(x) + first * ldx + p * panel, ldx, rows, columns, panel, space.data());
      } else {
        gather(backward, static_cast<const float*>(x) + first * ldx + p * panel, ldx, rows, columns, panel, space.data());
      }
      kernels.gemm_f32(turned.data() + first, m, ranks, space.data(), rows, grad + p * panel, ld_grad, true);
    }
  });
}

}  // namespace tandem::ops
