// Weights as small whole numbers with a scale per group (simd/quant_format.h), packed in panels.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "simd/quant_format.h"

namespace tandem::ops {

using simd::QuantFormat;

// Rows of a part, row-major, to be filled by its reader. With G = group of the part's format and `groups` = k / G rounded up:
//   values  [count][k]       stored numbers: value + offset, in 0..255 or 0..15; of floating numbers their codes
//   scales  [count][groups]  exactly representable as f16 where the format keeps f16; of floating numbers [count]
//   minima  [count][groups]  null where the format has none
struct QuantRows {
  uint8_t* values;
  float* scales;
  float* minima;
};

// Rows of a matrix that come from one source. `read` fills rows first .. first + count - 1 of the part. It is called from the pool's
// threads in any order and must not throw: false = a failed read.
struct QuantPart {
  int64_t rows;
  QuantFormat format;
  std::function<bool(int64_t first, int64_t count, const QuantRows& out)> read;
};

class QuantisedMatrix {
 public:
  QuantisedMatrix() = default;
  // w[n, k], its rows those of the parts one below the other. A panel in which parts of different formats meet is kept as kInt8FineMin.
  // Throws Error(kIo) when a read fails, Error(kRange) where floating numbers meet others.
  QuantisedMatrix(int64_t panel, int64_t k, const std::vector<QuantPart>& parts, ThreadPool& pool);
  // w[n, k] of one format, its packed bytes (panel_data(0) on) written by `fill`; empty, with bytes() 0, where that returns false.
  QuantisedMatrix(int64_t panel, int64_t n, int64_t k, QuantFormat format, const std::function<bool(uint8_t* data, int64_t bytes)>& fill);

  int64_t rows() const { return n_; }
  int64_t columns() const { return k_; }
  int64_t rows_padded() const { return n_padded_; }
  int64_t columns_padded() const { return k_padded_; }
  int64_t panel() const { return panel_; }
  size_t bytes() const { return data_.size(); }
  QuantFormat format(int64_t panel) const { return formats_[size_t(panel)]; }
  const uint8_t* panel_data(int64_t panel) const { return data_.data() + offsets_[size_t(panel)]; }

  // Row `row` dequantised in f32, columns() floats: scale * (stored - offset), then + minimum; of floating numbers scale * number.
  void copy_row(int64_t row, float* out) const;

 private:
  // `ends`: where each part ends in the matrix.
  void place_panels(const std::vector<QuantPart>& parts, const std::vector<int64_t>& ends);
  bool pack_panel(int64_t panel, const std::vector<QuantPart>& parts, const std::vector<int64_t>& ends, std::vector<uint8_t>& values,
                  std::vector<float>& numbers);

  int64_t n_ = 0, n_padded_ = 0, k_ = 0, k_padded_ = 0, panel_ = 0;
  std::vector<QuantFormat> formats_;  // one per panel
  std::vector<size_t> offsets_;
  Buffer<uint8_t> data_;
};

// One row of activations as the products of quantised weights see it: groups of 32 with a scale each (simd/quant_format.h), values in
// -127..127. A block of 256 with a number that is not finite has scales of NaN and values 0; one whose largest magnitude is below 1e-30 is all
// zeros.
void quantise_activation_reference(const float* x, int64_t k_padded, int8_t* values, float* scales);

// The naive truth of y (+)= x . w^T: rows of x quantised as above, the whole numbers of a group multiplied exactly, groups summed in
// double. x as floats, ldx >= columns_padded, the padding zero.
void quantised_matmul_reference(const float* x, int64_t ldx, int64_t m, const QuantisedMatrix& w, float* y, int64_t ldy, bool accumulate);

}  // namespace tandem::ops
