// One kernel source for two compilers: nvcc for devices, any C++20 compiler for tests (TANDEM_GPU_EMULATION), where every CUDA thread
// is a fiber (native/test/emulation). Device code includes this and nothing of CUDA itself.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef TANDEM_GPU_EMULATION
#include "emulation/gpu_emulation.h"
#else
#include <cuda_runtime.h>
#define GPU_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
#ifdef __CUDACC__
#define GPU_UNROLL _Pragma("unroll")
// Of a loop of any length: so many of its loads are under way at a time.
#define GPU_UNROLL_1 _Pragma("unroll 1")
#define GPU_UNROLL_2 _Pragma("unroll 2")
#define GPU_UNROLL_4 _Pragma("unroll 4")
#define GPU_UNROLL_8 _Pragma("unroll 8")
// Of a loop that would only make code longer.
#define GPU_NO_UNROLL _Pragma("unroll 1")
// A function that is called, not made part of each place that does: code that runs once per launch is fetched from the L2 cache, and takes as
// long to come as to run.
#define GPU_CALLED __noinline__ inline
#else
#define GPU_UNROLL
#define GPU_UNROLL_1
#define GPU_UNROLL_2
#define GPU_UNROLL_4
#define GPU_UNROLL_8
#define GPU_NO_UNROLL
#define GPU_CALLED inline
#endif
#define GPU_SHARED_BYTES(name) extern __shared__ __align__(1024) unsigned char name[]
// A variable of the block: GPU_SHARED(parts, float[kWarps]).
#define GPU_SHARED(name, ...) __shared__ __align__(16) tandem::cuda::Is<__VA_ARGS__> name
#endif

namespace tandem::cuda {

template <class T>
using Is = T;

// bfloat16 as its 16 bits, so that host code and the emulation read it too.
struct bf16 {
  uint16_t bits;
};

__host__ __device__ inline float to_float(bf16 x) {
  uint32_t u = uint32_t(x.bits) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

// Round to nearest even; NaN stays NaN.
__host__ __device__ inline bf16 to_bf16(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {uint16_t((u >> 16) | 0x40)};
  u += 0x7fff + ((u >> 16) & 1);
  return {uint16_t(u >> 16)};
}

__host__ __device__ inline uint32_t pack(bf16 low, bf16 high) { return uint32_t(low.bits) | uint32_t(high.bits) << 16; }

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kWarp = 32;

}  // namespace tandem::cuda
