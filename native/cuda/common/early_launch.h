// Launches that begin while the kernels before them on the stream still run (programmatic dependent launch, compute capability 9.0): in
// decode the time between kernels is as long as many of them, and weights are fetched meanwhile. TANDEM_CUDA_EARLY_LAUNCH=0 turns it off.
//
// What makes it safe: wait_for_inputs() comes first in every thread of every kernel that is launched so (but for begin_beside()), and before
// it is read only what no kernel writes: weights, and a step's inputs, which were sent before its first kernel began, so before any that came
// after it; these not by way of the first-level cache, which may hold an earlier step's. It returns when all kernels before have ended and
// what they wrote is there, as each of them has waited too.
// A kernel begins when every block of the one before it has begun, so it takes nothing that those would need.
// In a kernel that is launched otherwise wait_for_inputs() only lets the next one begin: all before it have ended.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

#ifdef TANDEM_GPU_EMULATION

using gpu_emulation::begin_beside;
using gpu_emulation::end_beside;
using gpu_emulation::let_next_begin;
using gpu_emulation::wait_for_inputs;
using gpu_emulation::wait_for_inputs_first;

#else

#define GPU_LAUNCH_EARLY(kernel, grid, block, shared_bytes, stream, ...) \
  launch_early((kernel), (grid), (block), (shared_bytes), (stream), __VA_ARGS__)
// The same, of a kernel whose other blocks wait for its first ones, which devices place before them.
#define GPU_LAUNCH_EARLY_FIRST(first, ...) GPU_LAUNCH_EARLY(__VA_ARGS__)

// The first half of wait_for_inputs(), by blocks that do much before they wait: the next kernel may begin when every block has come here.
__device__ __forceinline__ void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The next kernel may begin when every block of this one has come here, and waits itself.
__device__ __forceinline__ void wait_for_inputs() {
  let_next_begin();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The same, but the next kernel begins when the inputs of this one are there: it may read what this one reads without waiting, and waits at
// its own end, so that who waits for it has waited for both.
__device__ __forceinline__ void wait_for_inputs_first() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A kernel B that runs beside the one right before it, A, which called wait_for_inputs_first(): every thread begins with the first of these
// instead of wait_for_inputs(), and the threads of one block at least end with the second. Why that is safe:
// - B begins when every block of A has waited, so all kernels before A have ended, and what they wrote is there. Caches of multiprocessors
//   may still hold what was there before: the fence drops that. B reads nothing that A writes, and writes nothing that A uses.
// - The kernels behind B may begin at once, for they wait for B. B ends when all its blocks have, so not before A has: they have waited for
//   both, and what A wrote is there, as at the end of a chain of kernels that all wait.
// - A needs nothing that B holds meanwhile: all its blocks have begun, and none of them waits for B.
// Where launches are not early (a graph keeps them as they were recorded), A has ended before B begins, and nothing here waits.
__device__ __forceinline__ void begin_beside() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}
__device__ __forceinline__ void end_beside() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Unless TANDEM_CUDA_EARLY_LAUNCH=0.
bool early_launches_wanted();
// Whether the device runs what was compiled with the instructions above: code of sm_80 does not wait.
bool waits_for_inputs(const void* kernel);

template <class... Parameters, class... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                  const Arguments&... arguments) {
  // All kernels are compiled for the same targets.
  static const bool early = early_launches_wanted() && waits_for_inputs(reinterpret_cast<const void*>(kernel));
  if (!early) {
    kernel<<<grid, block, shared_bytes, stream>>>(arguments...);
    return;
  }
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  // A failure is what check_launch() finds.
  (void)cudaLaunchKernelEx(&config, kernel, arguments...);
}

#endif

}  // namespace tandem::cuda
