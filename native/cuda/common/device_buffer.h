// Owned device memory, zero-filled; under the emulation it is host memory.
#pragma once
#include <utility>
#include <vector>

#include "base/error.h"
#include "cuda/common/gpu.h"
#ifdef TANDEM_GPU_EMULATION
#include "emulation/memory_emulation.h"
#endif

namespace tandem::cuda {

#ifdef TANDEM_GPU_EMULATION
inline void* device_allocate(size_t bytes) { return gpu_emulation::allocate(bytes); }
inline void device_free(void* p) { gpu_emulation::release(p); }
inline void device_copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
#else
// Whether it worked. What a call reports is taken back from the runtime, which would report it again for the next launch.
inline bool worked(cudaError_t error) {
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error == cudaSuccess;
}
inline void check_call(cudaError_t error, const char* what) {
  if (!worked(error)) throw Error(ErrorKind::kState, std::string(what) + ": " + cudaGetErrorString(error));
}
inline void* device_allocate(size_t bytes) {
  void* p = nullptr;
  if (!worked(cudaMalloc(&p, bytes))) return nullptr;
  check_call(cudaMemset(p, 0, bytes), "cudaMemset");
  check_call(cudaStreamSynchronize(nullptr), "cudaMemset");
  return p;
}
inline void device_free(void* p) { cudaFree(p); }
// Has arrived on return, whatever stream reads it next.
inline void device_copy(void* to, const void* from, size_t bytes) {
  check_call(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
  check_call(cudaStreamSynchronize(nullptr), "cudaMemcpy");
}
#endif

class OutOfMemory final : public Error {
 public:
  OutOfMemory() : Error(ErrorKind::kState, "the device is out of memory") {}
};

template <typename T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // Throws OutOfMemory when the device has no such memory left.
  explicit DeviceBuffer(size_t count) : count_(count) {
    if (count == 0) return;
    data_ = static_cast<T*>(device_allocate(count * sizeof(T)));
    if (data_ == nullptr) throw OutOfMemory();
  }
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(values.size()) {
    if (count_ > 0) device_copy(data_, values.data(), count_ * sizeof(T));
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() {
    if (data_) device_free(data_);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return count_; }
  std::vector<T> download() const {
    std::vector<T> values(count_);
    if (count_ > 0) device_copy(values.data(), data_, count_ * sizeof(T));
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace tandem::cuda
