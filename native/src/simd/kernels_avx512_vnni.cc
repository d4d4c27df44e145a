// Products of quantised weights alone: of all else the set has what avx512 has (kernels.cc).
#define TANDEM_SIMD_NS tandem::simd::avx512_vnni
#define TANDEM_SIMD_ISA ::tandem::simd::Isa::kAvx512Vnni
#define TANDEM_DOT_BF16 0
#define TANDEM_DOT_INT8 1
#include "simd/vec_avx512.h"
#include "simd/kernels_body.h"
#include "simd/quant_body.h"
