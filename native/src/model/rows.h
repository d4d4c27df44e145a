// What serving, mixtures of experts and training do row by row.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "ops/matmul.h"

namespace tandem::model {

// Cheap loops over rows: `block` of them per claim of the pool.
template <typename Body>
void for_rows(ThreadPool& pool, int64_t rows, const Body& body, int64_t block = 4) {
  pool.run((rows + block - 1) / block, [&](int64_t index) {
    const int64_t end = std::min(rows, (index + 1) * block);
    for (int64_t r = index * block; r < end; ++r) body(r);
  });
}

// `size` outputs of gate and, behind them, of up, to silu(gate) * up.
inline void gate(const simd::Kernels& kernels, ops::Element element, const float* gate_up, int64_t size, uint8_t* out) {
  if (element == ops::Element::kBf16) {
    kernels.silu_mul_bf16(gate_up, gate_up + size, size, reinterpret_cast<uint16_t*>(out));
  } else {
    kernels.silu_mul_f32(gate_up, gate_up + size, size, reinterpret_cast<float*>(out));
  }
}

// The same of a whole row, and zeros to the next multiple of 32.
inline void activate(const simd::Kernels& kernels, ops::Element element, const float* gate_up, int64_t size, uint8_t* out) {
  gate(kernels, element, gate_up, size, out);
  const size_t bytes = ops::element_size(element);
  std::memset(out + size_t(size) * bytes, 0, size_t(round_up(size, 32) - size) * bytes);
}

}  // namespace tandem::model
