#define TANDEM_SIMD_NS tandem::simd::avx512
#define TANDEM_SIMD_ISA ::tandem::simd::Isa::kAvx512
#define TANDEM_DOT_BF16 0
#define TANDEM_DOT_INT8 0
#include "simd/vec_avx512.h"
#include "simd/kernels_table.h"
#include "simd/backward_body.h"
#include "simd/quant_body.h"
