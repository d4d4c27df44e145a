#define TANDEM_SIMD_NS tandem::simd::avx2
#define TANDEM_SIMD_ISA ::tandem::simd::Isa::kAvx2
#define TANDEM_DOT_BF16 0
#include "simd/vec_avx2.h"
#include "simd/kernels_table.h"
#include "simd/backward_body.h"
#include "simd/quant_body.h"
