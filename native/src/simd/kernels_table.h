// The table of kernels.h; included after vec_*.h by one .cc per instruction set.
#pragma once
#include "simd/kernels_body.h"

#include "simd/attention_body.h"
#include "simd/lora_body.h"
#include "simd/tiles_body.h"

namespace TANDEM_SIMD_NS {

extern const Kernels table;
const Kernels table = {
    TANDEM_SIMD_ISA,
    kPanel,
#if TANDEM_AMX
    kTileSumRows,
    gemm_tiles,
#elif TANDEM_DOT_BF16
    kRowsInL2,
    gemm<Bf16Step>,
#else
    kSumRows,
    gemm_widened,
#endif
    gemm<F32Step>,
    rms_norm<uint16_t>,
    rms_norm<float>,
    silu_mul<uint16_t>,
    silu_mul<float>,
    to_bf16,
    attend<Bf16Step, false>,
    attend<F32Step, false>,
    attend<Bf16Step, true>,
    attend<F32Step, true>,
    tile_max,
    tile_exp,
    collect_at_least,
    count_greater,
    lora_shrink<PairDot>,
    lora_shrink<FloatDot>,
    lora_expand<PairOuter>,
    lora_expand<FloatOuter>,
    keep_bits,
};

}  // namespace TANDEM_SIMD_NS
