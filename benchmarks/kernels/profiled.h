// A benchmark's case under a profiler: with TANDEM_GPU_PROFILE=1 it runs once to warm up and once for the profiler.
#pragma once
#ifndef TANDEM_GPU_EMULATION
#include <cuda_profiler_api.h>
#endif

#include <cstdlib>
#include <functional>

#include "cuda/common/launch.h"

namespace tandem::benchmarks {

#ifdef TANDEM_GPU_EMULATION
inline bool profiling() { return false; }
inline bool profiled(const std::function<void()>&) { return false; }
#else
// Whether a profiler is meant to watch.
inline bool profiling() {
  const char* asked = std::getenv("TANDEM_GPU_PROFILE");
  return asked && *asked == '1';
}

// False: none is, and nothing ran.
inline bool profiled(const std::function<void()>& call) {
  if (!profiling()) return false;
  call();
  cuda::check_call(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  cuda::check_call(cudaProfilerStart(), "cudaProfilerStart");
  call();
  cuda::check_call(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  cuda::check_call(cudaProfilerStop(), "cudaProfilerStop");
  return true;
}
#endif

}  // namespace tandem::benchmarks
