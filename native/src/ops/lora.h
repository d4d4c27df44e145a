// Low-rank adapters: y[m, n] += scale * (x[m, k] . a[r, k]^T) . b[n, r]^T for the rows of a batch that use one, beside the base product.
//
// What a row gets depends on the row and its factors alone: u = scale * (A x) is summed in FP32 over k in a fixed order and stays FP32;
// B u is summed over r ascending, then added to y once. The factors are rounded to the model's element type, nothing else is.
#pragma once
#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "ops/element.h"
#include "ops/matmul.h"
#include "simd/kernels.h"

namespace tandem::ops {

constexpr int64_t kMaxLoraRank = 1024;

// One projection: `rank` x `in` factors a and `out` x `rank` factors b. Its outputs are the columns first_out .. first_out + out - 1 of y
// (several projections share the packed product of their base weights).
struct LoraShape {
  int64_t rank, in, out, first_out;
};

// The packed factors of one projection; immutable.
//   a: [rank_padded][in_padded] elements, in_padded a multiple of 32, rank_padded even; the padding is zero
//   b: one panel per panel of the base product that the outputs touch, laid out as its weights with ranks in place of k; columns of other
//      outputs are zero
class LoraFactors {
 public:
  LoraFactors() = default;  // rank 0: the projection has no adapter
  // a [rank][in] and b [out][rank], row-major. Throws Error(kRange) saying what is wrong where a size is impossible or a number or the
  // scale is not finite in the element type.
  LoraFactors(const simd::Kernels& kernels, Element element, const LoraShape& shape, float scale, const float* a, const float* b);

  int64_t rank() const { return shape_.rank; }
  int64_t rank_padded() const { return round_up(shape_.rank, 2); }
  int64_t in_padded() const { return round_up(shape_.in, 32); }
  const LoraShape& shape() const { return shape_; }
  float scale() const { return scale_; }
  Element element() const { return element_; }
  size_t bytes() const { return a_.size() + b_.size(); }
  const uint8_t* a() const { return a_.data(); }
  // Null for a panel that no output lies in.
  const uint8_t* b_panel(int64_t panel) const;
  // The rounded factors as floats, in the layout of the constructor.
  void copy_a(float* out) const;
  void copy_b(float* out) const;

 private:
  void pack_b(const float* b);

  LoraShape shape_{0, 0, 0, 0};
  float scale_ = 0;
  Element element_ = Element::kF32;
  int64_t panel_ = 1, first_panel_ = 0, panels_ = 0;
  Buffer<uint8_t> a_, b_;
};

// The rows of a batch that one projection's factors apply to, ascending, and where their u is kept: row rows[i] at u + i * ldu, rank_padded floats.
struct LoraTask {
  const LoraFactors* factors;
  const int32_t* rows;
  int64_t count;
  float* u;
  int64_t ldu;
};

// u of every task. x: rows of the factors' element type, ldx apart (>= in_padded, the padding zero).
void lora_shrink(const simd::Kernels& kernels, ThreadPool& pool, const std::vector<LoraTask>& tasks, const void* x, int64_t ldx);

// Adds B u to one panel of y for every task. ldy as for matmul.
void lora_expand_panel(const simd::Kernels& kernels, const std::vector<LoraTask>& tasks, int64_t panel, float* y, int64_t ldy);

// The same of rows first_row .. first_row + rows - 1 alone, of which `out` holds the panel's outputs, ldy apart.
void lora_expand_rows(const simd::Kernels& kernels, const std::vector<LoraTask>& tasks, int64_t panel, int64_t first_row, int64_t rows,
                      float* out, int64_t ldy);

// matmul with the tasks' adapters beside it: u first, then each panel's B u while the panel is hot.
void lora_matmul(const simd::Kernels& kernels, ThreadPool& pool, const std::vector<LoraTask>& tasks, const void* x, int64_t ldx, int64_t m,
                 const PackedMatrix& w, float* y, int64_t ldy, bool accumulate);

// The same for the columns of y that lie in those panels, u being there already.
void lora_matmul_panels(const simd::Kernels& kernels, ThreadPool& pool, const std::vector<LoraTask>& tasks, const void* x, int64_t ldx,
                        int64_t m, const PackedMatrix& w, PanelRange range, float* y, int64_t ldy, bool accumulate);

// The naive truth of what the adapter adds, in double: x as floats, y as for matmul.
void lora_reference(const LoraTask& task, const float* x, int64_t ldx, float* y, int64_t ldy);

}  // namespace tandem::ops
