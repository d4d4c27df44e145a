#define TANDEM_SIMD_NS tandem::simd::amx
#define TANDEM_SIMD_ISA ::tandem::simd::Isa::kAmx
#define TANDEM_DOT_BF16 1
#define TANDEM_DOT_INT8 1
#define TANDEM_AMX 1
#include "simd/vec_avx512.h"
#include "simd/kernels_table.h"
#include "simd/backward_body.h"
#include "simd/quant_body.h"
