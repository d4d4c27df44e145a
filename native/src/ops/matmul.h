// y[m, n] (+)= x[m, k] . w[n, k]^T with weights packed once into panels.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "ops/element.h"
#include "ops/quantised_matrix.h"
#include "simd/kernels.h"

namespace tandem::ops {

// Weights w[n, k] (rows are outputs), cut in panels of kernels.panel rows; the last panel is padded with zeros.
// bf16: panel p is [k_padded/2][panel][2]; f32: [k_padded][panel]. k_padded is k rounded up to 32, the padding is zero.
// Or quantised: then `element` is only the type of the rows that they are multiplied with.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  // `read_rows(first, count, out)` writes rows first..first+count-1 as floats, k per row, row-major; called from the pool's threads,
  // in any order. It must not throw: it returns false for a failed read, and then this throws Error(kIo) when all threads are done.
  using ReadRows = std::function<bool(int64_t first, int64_t count, float* out)>;
  PackedMatrix(const simd::Kernels& kernels, Element element, int64_t n, int64_t k, ThreadPool& pool, const ReadRows& read_rows);
  PackedMatrix(Element element, QuantisedMatrix quantised);

  int64_t rows() const { return n_; }
  int64_t rows_padded() const { return n_padded_; }
  int64_t columns() const { return k_; }
  int64_t columns_padded() const { return k_padded_; }
  Element element() const { return element_; }
  int64_t panel() const { return panel_; }
  size_t bytes() const { return quantised() ? quantised_.bytes() : data_.size(); }
  // Null where the weights are stored as elements; then panel_data has them.
  const QuantisedMatrix* quantised() const { return quantised_.bytes() > 0 ? &quantised_ : nullptr; }
  // All bytes() of them, in the order of the panels.
  const uint8_t* data() const { return quantised() ? quantised_.panel_data(0) : data_.data(); }
  const uint8_t* panel_data(int64_t index) const { return data_.data() + index * panel_ * k_padded_ * int64_t(element_size(element_)); }

  // Row `row` as floats, columns() of them: the embedding lookup of a tied model. 0 <= row < rows().
  void copy_row(int64_t row, float* out) const;

 private:
  int64_t n_ = 0, n_padded_ = 0, k_ = 0, k_padded_ = 0, panel_ = 0;
  Element element_ = Element::kF32;
  Buffer<uint8_t> data_;
  QuantisedMatrix quantised_;
};

// x: m rows of element(w) type, ldx elements apart (>= columns_padded, the padding zero). y: m rows of floats, ldy apart
// (>= rows_padded; the padded columns are written). With accumulate the old y is the start of each sum.
// Each y[i][j] is one chain over k: independent of m, of the pool and of the other rows. Quantised weights: see ops/quantised_matmul.h.
// `after`, if given, is called once per panel of outputs by the thread that has just written it, while it lies in that thread's cache.
using AfterPanel = std::function<void(int64_t panel)>;
void matmul(const simd::Kernels& kernels, ThreadPool& pool, const void* x, int64_t ldx, int64_t m, const PackedMatrix& w, float* y,
            int64_t ldy, bool accumulate, const AfterPanel& after = {});

// Some of the outputs of w, in whole panels.
struct PanelRange {
  int64_t first, end;
};
inline PanelRange all_panels(const PackedMatrix& w) { return {0, w.rows_padded() / w.panel()}; }

// How the panels of a product are shared out: some in a row per claim, so that the weights that a thread fetches ahead are its own; towards
// the end fewer, so that no thread waits long for the last one.
class PanelClaims {
 public:
  PanelClaims(PanelRange range, int threads);
  int64_t count() const { return large_ + (range_.end - tail_ + small_ - 1) / small_; }
  PanelRange operator[](int64_t claim) const;

 private:
  PanelRange range_;
  int64_t run_, small_, large_, tail_;  // panels of a large and of a small claim; large claims; where the small ones begin
};

// One of several products with parts of the same weights: rows of x, m >= 1 of them, and the outputs in some panels, y beginning with those of
// the first.
struct MatmulJob {
  const void* x;
  int64_t m;
  PanelRange panels;
  float* y;
};
// All of them in one loop of the pool, so that none waits for the last panels of another; rows as for matmul. The bits are those of matmul.
void matmul_all(const simd::Kernels& kernels, ThreadPool& pool, const std::vector<MatmulJob>& jobs, const PackedMatrix& w, int64_t ldx,
                int64_t ldy);

// The claims of several products, one behind the other. Asks for no memory where it was assigned as many before.
class JobClaims {
 public:
  void assign(const std::vector<MatmulJob>& jobs, int threads);
  int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }
  struct Claim {
    size_t job;
    PanelRange panels;
  };
  Claim operator[](int64_t claim) const;

 private:
  std::vector<PanelClaims> jobs_;
  std::vector<int64_t> ends_;  // claims of a job and of those before it
};

// The columns of y that lie in those panels.
void matmul_panels(const simd::Kernels& kernels, ThreadPool& pool, const void* x, int64_t ldx, int64_t m, const PackedMatrix& w,
                   PanelRange range, float* y, int64_t ldy, bool accumulate, const AfterPanel& after = {});

// What follows a product whose outputs are two halves, gate and up: `rows` rows of them, `ld` floats apart, `count` of gate and behind them as
// many of up, which are outputs first .. first + count - 1 of each half. `row` is the first one's number.
using AfterGate = std::function<void(int64_t row, int64_t rows, float* gate_up, int64_t ld, int64_t first, int64_t count)>;
// Whether the halves of w are whole panels.
bool has_whole_halves(const PackedMatrix& w);
// The product of m >= 1 rows with such weights, handed on two panels at a time by the thread that has just computed them, from several at once, and
// never stored: for many rows memory would be busy with it for a tenth of a prompt's time and more. The bits are those of matmul. Throws kRange for
// other weights.
void matmul_gated(const simd::Kernels& kernels, ThreadPool& pool, const void* x, int64_t ldx, int64_t m, const PackedMatrix& w,
                  const AfterGate& after);

// The naive truth: plain loops over k with a double accumulator. x as floats; quantised weights are dequantised, x is taken as it is.
void matmul_reference(const float* x, int64_t ldx, int64_t m, const PackedMatrix& w, float* y, int64_t ldy, bool accumulate);

}  // namespace tandem::ops
