#include "simd/kernels.h"

#include "simd/backward_kernels.h"
#include "simd/quant_kernels.h"

namespace tandem::simd {

namespace scalar {
extern const Kernels table;
extern const BackwardKernels backward_table;
extern const QuantKernels quant_table;
}  // namespace scalar
namespace avx2 {
extern const Kernels table;
extern const BackwardKernels backward_table;
extern const QuantKernels quant_table;
}  // namespace avx2
namespace avx512 {
extern const Kernels table;
extern const BackwardKernels backward_table;
extern const QuantKernels quant_table;
}  // namespace avx512
namespace avx512_vnni {
extern const QuantKernels quant_table;
}  // namespace avx512_vnni
namespace avx512_bf16 {
extern const Kernels table;
extern const BackwardKernels backward_table;
extern const QuantKernels quant_table;
}  // namespace avx512_bf16
namespace amx {
extern const Kernels table;
extern const BackwardKernels backward_table;
extern const QuantKernels quant_table;
}  // namespace amx

namespace {

// What the kernels of avx512 are called where those of quantised weights are of another set.
const Kernels& avx512_called(Isa isa) {
  static const Kernels table = [isa] {
    Kernels same = avx512::table;
    same.isa = isa;
    return same;
  }();
  return table;
}

}  // namespace

const Kernels& kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kScalar: break;
    case Isa::kAvx2: return avx2::table;
    case Isa::kAvx512: return avx512::table;
    case Isa::kAvx512Vnni: return avx512_called(isa);
    case Isa::kAvx512Bf16: return avx512_bf16::table;
    case Isa::kAmx: return amx::table;
  }
  return scalar::table;
}

const BackwardKernels& backward_kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kScalar: break;
    case Isa::kAvx2: return avx2::backward_table;
    case Isa::kAvx512: return avx512::backward_table;
    case Isa::kAvx512Vnni: return avx512::backward_table;
    case Isa::kAvx512Bf16: return avx512_bf16::backward_table;
    case Isa::kAmx: return amx::backward_table;
  }
  return scalar::backward_table;
}

const QuantKernels& quant_kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kScalar: break;
    case Isa::kAvx2: return avx2::quant_table;
    case Isa::kAvx512: return avx512::quant_table;
    case Isa::kAvx512Vnni: return avx512_vnni::quant_table;
    case Isa::kAvx512Bf16: return avx512_bf16::quant_table;
    case Isa::kAmx: return amx::quant_table;
  }
  return scalar::quant_table;
}

}  // namespace tandem::simd
