#include "ops/lora.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/bf16.h"
#include "base/error.h"

namespace tandem::ops {
namespace {

// One claim of lora_shrink: so many ranks of so many rows.
constexpr int64_t kRankBlock = 8, kRowBlock = 32;

// Writes the rounded value; false where it is not finite.
inline bool put(float* out, float value) {
  *out = value;
  return std::isfinite(value);
}
inline bool put(uint16_t* out, float value) {
  *out = float_to_bf16(value);
  return std::isfinite(bf16_to_float(*out));
}

float get(Element element, const uint8_t* in, int64_t index) {
  if (element == Element::kF32) return reinterpret_cast<const float*>(in)[index];
  return bf16_to_float(reinterpret_cast<const uint16_t*>(in)[index]);
}

// Where b[column][rank] lies in a panel.
inline int64_t b_index(Element element, int64_t panel, int64_t column, int64_t rank) {
  if (element == Element::kF32) return rank * panel + column;
  return (rank / 2 * panel + column) * 2 + rank % 2;
}

template <typename T>
bool pack_row(const float* a, int64_t n, T* out) {
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) finite &= put(out + i, a[i]);
  return finite;
}

// All ranks of a column.
template <typename T>
bool pack_column(const float* b, int64_t ranks, int64_t panel, int64_t column, T* out) {
  constexpr Element kElement = sizeof(T) == 4 ? Element::kF32 : Element::kBf16;
  bool finite = true;
  for (int64_t r = 0; r < ranks; ++r) finite &= put(out + b_index(kElement, panel, column, r), b[r]);
  return finite;
}

struct Claim {
  const LoraTask* task;
  int64_t rank, row;
};

template <typename T>
void shrink_claim(void (*kernel)(const simd::LoraShrinkArgs<T>&), const Claim& claim, const void* x, int64_t ldx) {
  const LoraTask& task = *claim.task;
  const LoraFactors& f = *task.factors;
  int64_t rows = std::min(kRowBlock, task.count - claim.row), ranks = std::min(kRankBlock, f.rank_padded() - claim.rank);
  const T* a = reinterpret_cast<const T*>(f.a()) + claim.rank * f.in_padded();
  float* u = task.u + claim.row * task.ldu + claim.rank;
  kernel({static_cast<const T*>(x), ldx, task.rows + claim.row, rows, a, ranks, f.in_padded(), f.scale(), u, task.ldu});
}

}  // namespace

LoraFactors::LoraFactors(const simd::Kernels& kernels, Element element, const LoraShape& shape, float scale, const float* a, const float* b)
    : shape_(shape), scale_(scale), element_(element), panel_(kernels.panel) {
  require(shape.rank >= 1 && shape.rank <= kMaxLoraRank, ErrorKind::kRange, "the rank must be in 1..1024");
  require(shape.in >= 1 && shape.out >= 1 && shape.first_out >= 0, ErrorKind::kRange, "the sizes must be positive");
  require(std::isfinite(scale), ErrorKind::kRange, "the scale is not finite");
  first_panel_ = shape.first_out / panel_;
  panels_ = (shape.first_out + shape.out + panel_ - 1) / panel_ - first_panel_;
  size_t size = element_size(element);
  a_ = Buffer<uint8_t>(size_t(rank_padded() * in_padded()) * size);
  b_ = Buffer<uint8_t>(size_t(panels_ * rank_padded() * panel_) * size);
  bool finite = true;
  for (int64_t r = 0; r < shape.rank; ++r) {
    uint8_t* out = a_.data() + size_t(r * in_padded()) * size;
    finite &= element == Element::kF32 ? pack_row(a + r * shape.in, shape.in, reinterpret_cast<float*>(out))
                                       : pack_row(a + r * shape.in, shape.in, reinterpret_cast<uint16_t*>(out));
  }
  require(finite, ErrorKind::kRange, "lora_A holds a number that is not finite");
  pack_b(b);
}

void LoraFactors::pack_b(const float* b) {
  bool finite = true;
  for (int64_t n = 0; n < shape_.out; ++n) {
    int64_t column = shape_.first_out + n, panel = column / panel_ - first_panel_;
    uint8_t* out = b_.data() + size_t(panel * rank_padded() * panel_) * element_size(element_);
    const float* ranks = b + n * shape_.rank;
    finite &= element_ == Element::kF32 ? pack_column(ranks, shape_.rank, panel_, column % panel_, reinterpret_cast<float*>(out))
                                        : pack_column(ranks, shape_.rank, panel_, column % panel_, reinterpret_cast<uint16_t*>(out));
  }
  require(finite, ErrorKind::kRange, "lora_B holds a number that is not finite");
}

const uint8_t* LoraFactors::b_panel(int64_t panel) const {
  if (panel < first_panel_ || panel >= first_panel_ + panels_) return nullptr;
  return b_.data() + size_t((panel - first_panel_) * rank_padded() * panel_) * element_size(element_);
}

void LoraFactors::copy_a(float* out) const {
  for (int64_t r = 0; r < shape_.rank; ++r) {
    for (int64_t i = 0; i < shape_.in; ++i) out[r * shape_.in + i] = get(element_, a_.data(), r * in_padded() + i);
  }
}

void LoraFactors::copy_b(float* out) const {
  for (int64_t n = 0; n < shape_.out; ++n) {
    int64_t column = shape_.first_out + n;
    const uint8_t* panel = b_panel(column / panel_);
    for (int64_t r = 0; r < shape_.rank; ++r)
      out[n * shape_.rank + r] = get(element_, panel, b_index(element_, panel_, column % panel_, r));
  }
}

void lora_shrink(const simd::Kernels& kernels, ThreadPool& pool, const std::vector<LoraTask>& tasks, const void* x, int64_t ldx) {
  // The calling thread's, kept between calls; the pool reads them while it waits.
  thread_local std::vector<Claim> kept;
  std::vector<Claim>& claims = kept;
  claims.clear();
  for (const LoraTask& task : tasks) {
    for (int64_t rank = 0; rank < task.factors->rank_padded(); rank += kRankBlock) {
      for (int64_t row = 0; row < task.count; row += kRowBlock) claims.push_back({&task, rank, row});
    }
  }
  pool.run(int64_t(claims.size()), [&](int64_t i) {
    const Claim& claim = claims[size_t(i)];
    if (claim.task->factors->element() == Element::kBf16) {
      shrink_claim<uint16_t>(kernels.lora_shrink_bf16, claim, x, ldx);
    } else {
      shrink_claim<float>(kernels.lora_shrink_f32, claim, x, ldx);
    }
  });
}

void lora_expand_panel(const simd::Kernels& kernels, const std::vector<LoraTask>& tasks, int64_t panel, float* y, int64_t ldy) {
  lora_expand_rows(kernels, tasks, panel, 0, std::numeric_limits<int32_t>::max(), y + panel * kernels.panel, ldy);
}

void lora_expand_rows(const simd::Kernels& kernels, const std::vector<LoraTask>& tasks, int64_t panel, int64_t first_row, int64_t rows,
                      float* out, int64_t ldy) {
  for (const LoraTask& task : tasks) {
    const uint8_t* b = task.factors->b_panel(panel);
    if (!b) continue;
    const int32_t *end = task.rows + task.count, *from = std::lower_bound(task.rows, end, first_row);
    const int64_t count = std::lower_bound(from, end, first_row + rows) - from, ranks = task.factors->rank_padded();
    const float* u = task.u + (from - task.rows) * task.ldu;
    if (task.factors->element() == Element::kBf16) {
      kernels.lora_expand_bf16({u, task.ldu, from, count, reinterpret_cast<const uint16_t*>(b), ranks, out, ldy, first_row});
    } else {
      kernels.lora_expand_f32({u, task.ldu, from, count, reinterpret_cast<const float*>(b), ranks, out, ldy, first_row});
    }
  }
}

void lora_matmul(const simd::Kernels& kernels, ThreadPool& pool, const std::vector<LoraTask>& tasks, const void* x, int64_t ldx, int64_t m,
                 const PackedMatrix& w, float* y, int64_t ldy, bool accumulate) {
  lora_shrink(kernels, pool, tasks, x, ldx);
  lora_matmul_panels(kernels, pool, tasks, x, ldx, m, w, all_panels(w), y, ldy, accumulate);
}

void lora_matmul_panels(const simd::Kernels& kernels, ThreadPool& pool, const std::vector<LoraTask>& tasks, const void* x, int64_t ldx,
                        int64_t m, const PackedMatrix& w, PanelRange range, float* y, int64_t ldy, bool accumulate) {
  auto expand_panel = [&](int64_t panel) { lora_expand_panel(kernels, tasks, panel, y, ldy); };
  AfterPanel expand;
  // By reference: a copy would be too large to be held without allocating.
  if (!tasks.empty()) expand = std::ref(expand_panel);
  matmul_panels(kernels, pool, x, ldx, m, w, range, y, ldy, accumulate, expand);
}

void lora_reference(const LoraTask& task, const float* x, int64_t ldx, float* y, int64_t ldy) {
  const LoraFactors& f = *task.factors;
  const LoraShape& s = f.shape();
  std::vector<float> a(size_t(s.rank * s.in)), b(size_t(s.out * s.rank));
  f.copy_a(a.data());
  f.copy_b(b.data());
  std::vector<double> u(size_t(s.rank));
  for (int64_t i = 0; i < task.count; ++i) {
    const float* row = x + task.rows[i] * ldx;
    for (int64_t r = 0; r < s.rank; ++r) {
      u[size_t(r)] = 0;
      for (int64_t k = 0; k < s.in; ++k) u[size_t(r)] += double(a[size_t(r * s.in + k)]) * double(row[k]);
    }
    for (int64_t n = 0; n < s.out; ++n) {
      double sum = 0;
      for (int64_t r = 0; r < s.rank; ++r) sum += double(b[size_t(n * s.rank + r)]) * u[size_t(r)];
      float* out = y + task.rows[i] * ldy + s.first_out + n;
      *out = float(double(*out) + double(f.scale()) * sum);
    }
  }
}

}  // namespace tandem::ops
