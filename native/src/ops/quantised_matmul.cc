#include "ops/quantised_matmul.h"

#include <algorithm>

#include "ops/row_blocks.h"
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
};

// The rows of one product among them, from element `base` on.
struct JobRows {
  Rows* rows;
  int64_t base;
  Layout layout;

  // From a row on.
  simd::QuantRowsView from(int64_t row) const {
    const int64_t at = base + row * layout.block;
    return {rows->values.data() + at, rows->scales.data() + at / simd::kQuantRowGroup, rows->sums.data() + at / simd::kQuantSumGroup,
            layout.block, layout.rows};
  }
  // Rows first .. end - 1 of x become numbers.
  void quantise(const simd::QuantKernels& kernels, Element element, const void* x, int64_t ldx, int64_t first, int64_t end) const {
    for (int64_t r = first; r < end; ++r) {
      for (int64_t at = 0; at < layout.k; at += layout.block) {
        quantise_part(kernels, element, x, r * ldx + at, r, at, std::min(layout.block, layout.k - at));
      }
    }
  }
  // Some panels of the outputs of all rows; y begins with those of the first.
  void multiply(const simd::QuantKernels& kernels, const QuantisedMatrix& w, PanelRange panels, float* y, int64_t ldy, bool accumulate,
                const AfterPanel& after) const {
    for_row_blocks(layout.rows, kernels.row_block, [&](int64_t row, int64_t count) {
      const simd::QuantRowsView view = from(row);
      for (int64_t p = panels.first; p < panels.end; ++p) {
        float* to = y + row * ldy + (p - panels.first) * w.panel();
        kernels.gemm({view, count, w.format(p), w.panel_data(p), layout.k, to, ldy, accumulate});
        if (after && row + count == layout.rows) after(p);
      }
    });
  }
  // The same panels of both halves of the outputs.
  void multiply_gated(const simd::QuantKernels& kernels, const QuantisedMatrix& w, PanelRange panels, const AfterGate& after) const {
    const int64_t panel = w.panel(), half = w.rows() / panel / 2;
    PairedSums y;
    for_row_blocks(layout.rows, y.rows(kernels.row_block, panel), [&](int64_t row, int64_t count) {
      const simd::QuantRowsView view = from(row);
      for (int64_t p = panels.first; p < panels.end; ++p) {
        kernels.gemm({view, count, w.format(p), w.panel_data(p), layout.k, y.values, 2 * panel, false});
        kernels.gemm({view, count, w.format(half + p), w.panel_data(half + p), layout.k, y.values + panel, 2 * panel, false});
        after(row, count, y.values, 2 * panel, p * panel, panel);
      }
    });
  }

 private:
  void quantise_part(const simd::QuantKernels& kernels, Element element, const void* x, int64_t from, int64_t row, int64_t first,
                     int64_t count) const {
    const int64_t at = base + this->from(0).place(row, first);
    int8_t* values = rows->values.data() + at;
    float* scales = rows->scales.data() + at / simd::kQuantRowGroup;
    int32_t* sums = rows->sums.data() + at / simd::kQuantSumGroup;
    if (element == Element::kBf16) {
      kernels.quantise_bf16(static_cast<const uint16_t*>(x) + from, count, values, scales, sums);
    } else {
      kernels.quantise_f32(static_cast<const float*>(x) + from, count, values, scales, sums);
    }
  }
};

Rows& rows_of_thread(int64_t elements) {
  thread_local Rows rows;
  rows.reserve(elements);
  return rows;
}

// Rows that one claim quantises.
int64_t claimed_rows(int64_t k) { return std::max<int64_t>(1, kRowWork / k); }

// All rows of x as numbers, in memory of the calling thread.
JobRows quantise_rows(const simd::QuantKernels& quant, ThreadPool& pool, const void* x, int64_t ldx, int64_t m, const PackedMatrix& w) {
  const Layout layout(quant, m, w.columns_padded());
  const JobRows rows{&rows_of_thread(layout.elements()), 0, layout};
  const int64_t step = claimed_rows(layout.k), row_claims = (m + step - 1) / step;
  auto quantise = [&](int64_t claim) { rows.quantise(quant, w.element(), x, ldx, claim * step, std::min(m, (claim + 1) * step)); };
  if (row_claims == 1) quantise(0);
  else pool.run(row_claims, quantise);
  return rows;
}

}  // namespace

void quantised_matmul_panels(const simd::Kernels& kernels, ThreadPool& pool, const void* x, int64_t ldx, int64_t m, const PackedMatrix& w,
                             PanelRange range, float* y, int64_t ldy, bool accumulate, const AfterPanel& after) {
  const simd::QuantKernels& quant = simd::quant_kernels_for(kernels.isa);
  const JobRows rows = quantise_rows(quant, pool, x, ldx, m, w);
  const PanelClaims claims(range, pool.threads());
  pool.run(claims.count(), [&](int64_t claim) {
    const PanelRange mine = claims[claim];
    rows.multiply(quant, *w.quantised(), mine, y + mine.first * w.panel(), ldy, accumulate, after);
  });
}

void quantised_matmul_gated(const simd::Kernels& kernels, ThreadPool& pool, const void* x, int64_t ldx, int64_t m, const PackedMatrix& w,
                            const AfterGate& after) {
  const simd::QuantKernels& quant = simd::quant_kernels_for(kernels.isa);
  const JobRows rows = quantise_rows(quant, pool, x, ldx, m, w);
  const PanelClaims claims({0, w.rows() / w.panel() / 2}, pool.threads());
  pool.run(claims.count(), [&](int64_t claim) { rows.multiply_gated(quant, *w.quantised(), claims[claim], after); });
}

void quantised_matmul_all(const simd::Kernels& kernels, ThreadPool& pool, const std::vector<MatmulJob>& jobs, const PackedMatrix& w,
                          int64_t ldx, int64_t ldy) {
  struct Scratch {
    std::vector<JobRows> rows;
    std::vector<std::pair<size_t, int64_t>> row_claims;  // a job and the first of its rows
    JobClaims claims;
  };
  thread_local Scratch scratch;
  auto& [rows, row_claims, claims] = scratch;
  const simd::QuantKernels& quant = simd::quant_kernels_for(kernels.isa);
  const int64_t k = w.columns_padded(), step = claimed_rows(k);
  int64_t elements = 0;
  for (const MatmulJob& job : jobs) elements += Layout(quant, job.m, k).elements();
  Rows& space = rows_of_thread(elements);
  rows.clear();
  row_claims.clear();
  elements = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    rows.push_back({&space, elements, Layout(quant, jobs[i].m, k)});
    elements += rows.back().layout.elements();
    for (int64_t first = 0; first < jobs[i].m; first += step) row_claims.emplace_back(i, first);
  }
  claims.assign(jobs, pool.threads());
  const Scratch& mine = scratch;  // the calling thread's
  pool.run(int64_t(row_claims.size()), [&](int64_t claim) {
    const auto [job, first] = mine.row_claims[size_t(claim)];
    mine.rows[job].quantise(quant, w.element(), jobs[job].x, ldx, first, std::min(jobs[job].m, first + step));
  });
  pool.run(claims.count(), [&](int64_t index) {
    const JobClaims::Claim claim = mine.claims[index];
    const MatmulJob& job = jobs[claim.job];
    float* y = job.y + (claim.panels.first - job.panels.first) * w.panel();
    mine.rows[claim.job].multiply(quant, *w.quantised(), claim.panels, y, ldy, false, {});
  });
}

}  // namespace tandem::ops
