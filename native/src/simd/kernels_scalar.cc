#define TANDEM_SIMD_NS tandem::simd::scalar
#define TANDEM_SIMD_ISA ::tandem::simd::Isa::kScalar
#define TANDEM_DOT_BF16 0
#include "simd/vec_scalar.h"
#include "simd/kernels_table.h"
#include "simd/backward_body.h"
#include "simd/quant_body.h"
