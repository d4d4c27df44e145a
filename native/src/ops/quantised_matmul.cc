#include "ops/quantised_matmul.h"

#include <algorithm>

#include "simd/quant_kernels.h"

namespace tandem::ops {
namespace {

// Elements of x that one claim quantises at least: about 10 microseconds.
constexpr int64_t kRowWork = 16384;

// How rows lie (QuantRowsView).
struct Layout {
  int64_t rows, k, block;

  Layout(const simd::QuantKernels& kernels, int64_t m, int64_t k_padded)
      : rows(m), k(k_padded), block(m <= kernels.few_rows ? k_padded : std::min(k_padded, kernels.input_block)) {}
  int64_t elements() const { return rows * block * ((k - 1) / block + 1); }
};

// The calling thread's; the pool reads it while the caller waits.
struct Rows {
  Buffer<int8_t> values;
  Buffer<float> scales;
  Buffer<int32_t> sums;

  void reserve(int64_t elements) {
    if (int64_t(values.size()) >= elements) return;
    scales = Buffer<float>(size_t(elements / simd::kQuantRowGroup));
    sums = Buffer<int32_t>(size_t(elements / simd::kQuantSumGroup));
    // What is asked above comes last: where memory for one of them is refused, the next call makes all anew.
    values = Buffer<int8_t>(size_t(elements));
  }
  // From a row on.
  simd::QuantRowsView from(int64_t row, const Layout& layout) const {
    int64_t at = row * layout.block;
    return {values.data() + at, scales.data() + at / simd::kQuantRowGroup, sums.data() + at / simd::kQuantSumGroup, layout.block,
            layout.rows};
  }
};

void quantise_rows(const simd::QuantKernels& kernels, ThreadPool& pool, Element element, const void* x, int64_t ldx, const Layout& layout,
                   Rows& rows) {
  auto part = [&](int64_t r, int64_t first, int64_t count) {
    int64_t at = rows.from(0, layout).place(r, first);
    int8_t* values = rows.values.data() + at;
    float* scales = rows.scales.data() + at / simd::kQuantRowGroup;
    int32_t* sums = rows.sums.data() + at / simd::kQuantSumGroup;
    if (element == Element::kBf16) {
      kernels.quantise_bf16(static_cast<const uint16_t*>(x) + r * ldx + first, count, values, scales, sums);
    } else {
      kernels.quantise_f32(static_cast<const float*>(x) + r * ldx + first, count, values, scales, sums);
    }
  };
  const int64_t m = layout.rows, k = layout.k;
  int64_t step = std::max<int64_t>(1, kRowWork / k), claims = (m + step - 1) / step;
  auto claim = [&](int64_t index) {
    for (int64_t r = index * step; r < std::min(m, (index + 1) * step); ++r) {
      for (int64_t first = 0; first < k; first += layout.block) part(r, first, std::min(layout.block, k - first));
    }
  };
  if (claims == 1) return claim(0);
  pool.run(claims, claim);
}

}  // namespace

void quantised_matmul_panels(const simd::Kernels& kernels, ThreadPool& pool, const void* x, int64_t ldx, int64_t m, const PackedMatrix& w,
                             PanelRange range, float* y, int64_t ldy, bool accumulate, const AfterPanel& after) {
  thread_local Rows rows;
  const simd::QuantKernels& quant = simd::quant_kernels_for(kernels.isa);
  const QuantisedMatrix& q = *w.quantised();
  const int64_t k = w.columns_padded();
  const Layout layout(quant, m, k);
  rows.reserve(layout.elements());
  quantise_rows(quant, pool, w.element(), x, ldx, layout, rows);
  const Rows& quantised = rows;  // the calling thread's
  const int64_t blocks = (m - 1) / quant.row_block + 1;
  const PanelClaims claims(range, pool.threads());
  pool.run(claims.count(), [&](int64_t claim) {
    const PanelRange mine = claims[claim];
    for (int64_t block = 0; block < blocks; ++block) {
      int64_t row = block * m / blocks, count = (block + 1) * m / blocks - row;
      simd::QuantRowsView view = quantised.from(row, layout);
      for (int64_t p = mine.first; p < mine.end; ++p) {
        quant.gemm({view, count, q.format(p), q.panel_data(p), k, y + row * ldy + p * w.panel(), ldy, accumulate});
        if (after && block == blocks - 1) after(p);
      }
    }
  });
}

}  // namespace tandem::ops
