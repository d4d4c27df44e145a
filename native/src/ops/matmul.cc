#include "ops/matmul.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/bf16.h"
#include "base/error.h"
#include "ops/quantised_matmul.h"
#include "ops/row_blocks.h"

namespace tandem::ops {
namespace {

// Panels of one claim at most, and how many fewer they are at the end.
constexpr int64_t kPanelRun = 8;
constexpr int64_t kSmallerAtEnd = 4;

void pack_bf16(const float* rows, int64_t count, int64_t k, int64_t panel, uint16_t* out) {
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t c = 0; c < k; ++c) out[(c / 2) * panel * 2 + r * 2 + c % 2] = float_to_bf16(rows[r * k + c]);
  }
}

void pack_f32(const float* rows, int64_t count, int64_t k, int64_t panel, float* out) {
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t c = 0; c < k; ++c) out[c * panel + r] = rows[r * k + c];
  }
}

void multiply(const simd::Kernels& kernels, const void* x, int64_t ldx, int64_t m, const PackedMatrix& w, int64_t p, float* y, int64_t ldy,
              bool accumulate) {
  if (w.element() == Element::kBf16) {
    auto* panel = reinterpret_cast<const uint16_t*>(w.panel_data(p));
    kernels.gemm_bf16(static_cast<const uint16_t*>(x), ldx, m, panel, w.columns_padded(), y, ldy, accumulate);
  } else {
    auto* panel = reinterpret_cast<const float*>(w.panel_data(p));
    kernels.gemm_f32(static_cast<const float*>(x), ldx, m, panel, w.columns_padded(), y, ldy, accumulate);
  }
}

// Some panels of the outputs of all rows; y begins with those of the first.
void multiply_blocks(const simd::Kernels& kernels, const void* x, int64_t ldx, int64_t m, const PackedMatrix& w, PanelRange panels,
                     float* y, int64_t ldy, bool accumulate, const AfterPanel& after) {
  for_row_blocks(m, kernels.row_block, [&](int64_t row, int64_t rows) {
    const uint8_t* from = static_cast<const uint8_t*>(x) + row * ldx * int64_t(element_size(w.element()));
    for (int64_t p = panels.first; p < panels.end; ++p) {
      multiply(kernels, from, ldx, rows, w, p, y + row * ldy + (p - panels.first) * w.panel(), ldy, accumulate);
      if (after && row + rows == m) after(p);
    }
  });
}

}  // namespace

PackedMatrix::PackedMatrix(const simd::Kernels& kernels, Element element, int64_t n, int64_t k, ThreadPool& pool, const ReadRows& read_rows)
    : n_(n), n_padded_(round_up(n, kernels.panel)), k_(k), k_padded_(round_up(k, 32)), panel_(kernels.panel), element_(element) {
  require(n > 0 && k > 0, ErrorKind::kRange, "matrix dimensions must be positive");
  data_ = Buffer<uint8_t>(size_t(n_padded_) * size_t(k_padded_) * element_size(element_));
  std::atomic<bool> ok{true};
  std::vector<std::vector<float>> staging(size_t(pool.threads()));
  std::atomic<int> next_stage{0};
  int64_t panels = n_padded_ / panel_;
  // One index per thread's share keeps one staging buffer each; panels are claimed inside.
  std::atomic<int64_t> next_panel{0};
  for (auto& stage : staging) stage.resize(size_t(panel_ * k));
  pool.run(pool.threads(), [&](int64_t) {
    float* stage = staging[size_t(next_stage.fetch_add(1))].data();
    for (int64_t p = next_panel.fetch_add(1); p < panels; p = next_panel.fetch_add(1)) {
      int64_t first = p * panel_, count = std::min(panel_, n_ - first);
      if (!read_rows(first, count, stage)) {
        ok = false;
        return;
      }
      uint8_t* out = data_.data() + p * panel_ * k_padded_ * int64_t(element_size(element_));
      if (element_ == Element::kBf16) {
        pack_bf16(stage, count, k_, panel_, reinterpret_cast<uint16_t*>(out));
      } else {
        pack_f32(stage, count, k_, panel_, reinterpret_cast<float*>(out));
      }
    }
  });
  require(ok, ErrorKind::kIo, "could not read the weights");
}

PackedMatrix::PackedMatrix(Element element, QuantisedMatrix quantised)
    : n_(quantised.rows()), n_padded_(quantised.rows_padded()), k_(quantised.columns()), k_padded_(quantised.columns_padded()),
      panel_(quantised.panel()), element_(element), quantised_(std::move(quantised)) {}

void PackedMatrix::copy_row(int64_t row, float* out) const {
  if (quantised()) return quantised_.copy_row(row, out);
  const uint8_t* data = panel_data(row / panel_);
  int64_t r = row % panel_;
  if (element_ == Element::kBf16) {
    auto* p = reinterpret_cast<const uint16_t*>(data) + r * 2;
    for (int64_t c = 0; c < k_; ++c) out[c] = bf16_to_float(p[(c / 2) * panel_ * 2 + c % 2]);
  } else {
    auto* p = reinterpret_cast<const float*>(data) + r;
    for (int64_t c = 0; c < k_; ++c) out[c] = p[c * panel_];
  }
}

PanelClaims::PanelClaims(PanelRange range, int threads) : range_(range) {
  int64_t panels = range.end - range.first;
  run_ = std::clamp<int64_t>(panels / (2 * threads), 1, kPanelRun);
  small_ = std::max<int64_t>(1, run_ / kSmallerAtEnd);
  large_ = std::max<int64_t>(0, panels / run_ - threads);
  tail_ = range.first + large_ * run_;
}

PanelRange PanelClaims::operator[](int64_t claim) const {
  if (claim < large_) return {range_.first + claim * run_, range_.first + (claim + 1) * run_};
  int64_t first = tail_ + (claim - large_) * small_;
  return {first, std::min(range_.end, first + small_)};
}

void JobClaims::assign(const std::vector<MatmulJob>& jobs, int threads) {
  jobs_.clear();
  ends_.clear();
  for (const MatmulJob& job : jobs) {
    jobs_.emplace_back(job.panels, threads);
    ends_.push_back(count() + jobs_.back().count());
  }
}

JobClaims::Claim JobClaims::operator[](int64_t claim) const {
  const size_t job = size_t(std::upper_bound(ends_.begin(), ends_.end(), claim) - ends_.begin());
  return {job, jobs_[job][job == 0 ? claim : claim - ends_[job - 1]]};
}

void matmul_all(const simd::Kernels& kernels, ThreadPool& pool, const std::vector<MatmulJob>& jobs, const PackedMatrix& w, int64_t ldx,
                int64_t ldy) {
  if (w.quantised()) return quantised_matmul_all(kernels, pool, jobs, w, ldx, ldy);
  thread_local JobClaims claims;
  claims.assign(jobs, pool.threads());
  const JobClaims& all = claims;  // the calling thread's
  pool.run(all.count(), [&](int64_t index) {
    const JobClaims::Claim claim = all[index];
    const MatmulJob& job = jobs[claim.job];
    float* y = job.y + (claim.panels.first - job.panels.first) * w.panel();
    multiply_blocks(kernels, job.x, ldx, job.m, w, claim.panels, y, ldy, false, {});
  });
}

void matmul(const simd::Kernels& kernels, ThreadPool& pool, const void* x, int64_t ldx, int64_t m, const PackedMatrix& w, float* y,
            int64_t ldy, bool accumulate, const AfterPanel& after) {
  matmul_panels(kernels, pool, x, ldx, m, w, all_panels(w), y, ldy, accumulate, after);
}

void matmul_panels(const simd::Kernels& kernels, ThreadPool& pool, const void* x, int64_t ldx, int64_t m, const PackedMatrix& w,
                   PanelRange range, float* y, int64_t ldy, bool accumulate, const AfterPanel& after) {
  if (m == 0) return;
  if (w.quantised()) return quantised_matmul_panels(kernels, pool, x, ldx, m, w, range, y, ldy, accumulate, after);
  const PanelClaims claims(range, pool.threads());
  pool.run(claims.count(), [&](int64_t claim) {
    const PanelRange mine = claims[claim];
    multiply_blocks(kernels, x, ldx, m, w, mine, y + mine.first * w.panel(), ldy, accumulate, after);
  });
}

bool has_whole_halves(const PackedMatrix& w) { return w.rows() == w.rows_padded() && w.rows() % (2 * w.panel()) == 0; }

void matmul_gated(const simd::Kernels& kernels, ThreadPool& pool, const void* x, int64_t ldx, int64_t m, const PackedMatrix& w,
                  const AfterGate& after) {
  require(has_whole_halves(w), ErrorKind::kRange, "the halves of the outputs must be whole panels");
  if (w.quantised()) return quantised_matmul_gated(kernels, pool, x, ldx, m, w, after);
  const int64_t half = w.rows() / w.panel() / 2;
  const PanelClaims claims({0, half}, pool.threads());
  pool.run(claims.count(), [&](int64_t claim) {
    const PanelRange mine = claims[claim];
    PairedSums y;
    for_row_blocks(m, y.rows(kernels.row_block, w.panel()), [&](int64_t row, int64_t rows) {
      const uint8_t* from = static_cast<const uint8_t*>(x) + row * ldx * int64_t(element_size(w.element()));
      for (int64_t p = mine.first; p < mine.end; ++p) {
        multiply(kernels, from, ldx, rows, w, p, y.values, 2 * w.panel(), false);
        multiply(kernels, from, ldx, rows, w, half + p, y.values + w.panel(), 2 * w.panel(), false);
        after(row, rows, y.values, 2 * w.panel(), p * w.panel(), w.panel());
      }
    });
  });
}

void matmul_reference(const float* x, int64_t ldx, int64_t m, const PackedMatrix& w, float* y, int64_t ldy, bool accumulate) {
  std::vector<float> row(size_t(w.columns()));
  for (int64_t n = 0; n < w.rows(); ++n) {
    w.copy_row(n, row.data());
    for (int64_t i = 0; i < m; ++i) {
      double sum = accumulate ? double(y[i * ldy + n]) : 0.0;
      for (int64_t k = 0; k < w.columns(); ++k) sum += double(x[i * ldx + k]) * double(row[size_t(k)]);
      y[i * ldy + n] = float(sum);
    }
  }
}

}  // namespace tandem::ops
