#include "widen_probe.h"

#include "cuda/common/launch.h"
#include "cuda/gemm/widen.h"

namespace tandem::test {
namespace {

using namespace cuda;

constexpr int kWidenThreads = 128, kBlocks = 16;

__global__ void widen_scales(uint32_t* out) {
  for (int scale = int(blockIdx.x) * kWidenThreads + int(threadIdx.x); scale < kScales; scale += kBlocks * kWidenThreads) {
    const uint32_t both[1] = {uint32_t(scale) | other_scale(uint32_t(scale)) << 16};
    const Scaling<Int4Shape> scaling = scaling_of<Int4Shape>(both);
    uint32_t* to = out + scale * kPerScale;
    for (int i = 0; i < kProbeWords; ++i) {
      uint32_t along[4], across[2][2];
      const uint32_t word[1] = {number_word(i)};
      widen_step<Int4Shape>(along, word, scaling);
      widen_across<Int4Shape>(across, word, scaling);
      for (int j = 0; j < 4; ++j) to[i * 8 + j] = along[j];
      for (int j = 0; j < 4; ++j) to[i * 8 + 4 + j] = across[j / 2][j % 2];
    }
  }
}

}  // namespace

void widen_every_scale(uint32_t* out) {
  GPU_LAUNCH(widen_scales, dim3(kBlocks), dim3(kWidenThreads), 0, nullptr, out);
  check_launch("widen_every_scale");
}

}  // namespace tandem::test
