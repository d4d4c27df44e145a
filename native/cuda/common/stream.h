// Work in order on the device, and the memory that it is fed from. Under the emulation a stream does its work at once, or not before it is
// waited for.
#pragma once
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "cuda/common/device_buffer.h"

namespace tandem::cuda {

// Kernels of a low priority begin when no block of the others waits for room.
enum class Priority { kNormal, kLow };

#ifdef TANDEM_GPU_EMULATION
class Event;
class Stream {
 public:
  explicit Stream(Priority = Priority::kNormal) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return &queue_; }
  void copy(void* to, const void* from, size_t bytes) {
    queue_.add([=] { std::memcpy(to, from, bytes); });
  }
  void clear(void* memory, size_t bytes) {
    queue_.add([=] { std::memset(memory, 0, bytes); });
  }
  void upload(void* to, const void* from, size_t bytes) { copy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) { copy(to, from, bytes); }
  void follow(const Event& event);
  void wait() { queue_.run_to(queue_.end()); }

 private:
  mutable gpu_emulation::Queue queue_;
};

class Event {
 public:
  void record(Stream& stream) {
    queue_ = static_cast<gpu_emulation::Queue*>(stream.get());
    end_ = queue_->end();
  }
  void wait() const {
    if (queue_) queue_->run_to(end_);
  }
  // Time passes with every question.
  bool passed() const { return !queue_ || queue_->run_one(end_); }

 private:
  gpu_emulation::Queue* queue_ = nullptr;
  int64_t end_ = 0;
};
inline void Stream::follow(const Event& event) {
  queue_.add([event] { event.wait(); });
}
inline void* pinned_allocate(size_t bytes) { return std::calloc(1, bytes); }
inline void pinned_free(void* p) { std::free(p); }
#else
class Event;
// Does not wait for the default stream, nor that for it.
class Stream {
 public:
  explicit Stream(Priority priority = Priority::kNormal) {
    int least = 0, greatest = 0;
    check_call(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    const int wanted = priority == Priority::kLow ? least : greatest;
    check_call(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, wanted), "cudaStreamCreate");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  // Within the device's memory.
  void copy(void* to, const void* from, size_t bytes) {
    check_call(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "cudaMemcpyAsync");
  }
  void clear(void* memory, size_t bytes) { check_call(cudaMemsetAsync(memory, 0, bytes, stream_), "cudaMemsetAsync"); }
  // Host memory must be pinned and stay as it is until wait().
  void upload(void* to, const void* from, size_t bytes) {
    check_call(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
  }
  void download(void* to, const void* from, size_t bytes) {
    check_call(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
  }
  // What comes next waits for the event as it was recorded last; the host does not.
  void follow(const Event& event);
  // Until all of it is done; throws Error(kState) for a fault in any kernel before.
  void wait() { check_call(cudaStreamSynchronize(stream_), "the GPU failed"); }

 private:
  cudaStream_t stream_ = nullptr;
};

// A place in a stream.
class Event {
 public:
  Event() { check_call(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(Stream& stream) { check_call(cudaEventRecord(event_, stream.get()), "cudaEventRecord"); }
  // Until the stream has come there; throws as Stream::wait().
  void wait() const { check_call(cudaEventSynchronize(event_), "the GPU failed"); }
  bool passed() const {
    const cudaError_t state = cudaEventQuery(event_);
    if (state != cudaErrorNotReady) check_call(state, "the GPU failed");
    return worked(state);
  }

 private:
  friend class Stream;
  cudaEvent_t event_ = nullptr;
};
inline void Stream::follow(const Event& event) { check_call(cudaStreamWaitEvent(stream_, event.event_, 0), "cudaStreamWaitEvent"); }

inline void* pinned_allocate(size_t bytes) {
  void* p = nullptr;
  return worked(cudaMallocHost(&p, bytes)) ? p : nullptr;
}
inline void pinned_free(void* p) { cudaFreeHost(p); }
#endif

// Host memory that the device copies from and to.
template <typename T>
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(size_t count) : count_(count) {
    if (count == 0) return;
    data_ = static_cast<T*>(pinned_allocate(count * sizeof(T)));
    require(data_ != nullptr, ErrorKind::kState, "no pinned memory is left");
  }
  PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer() {
    if (data_) pinned_free(data_);
  }
  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return count_; }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

// The inputs of a step: put() one after the other, sent with one copy. A pointer from put() is valid on the device after send().
class Inputs {
 public:
  Inputs() = default;
  explicit Inputs(size_t bytes) : host_(bytes), device_(bytes) {}

  // What was sent before must have arrived.
  void begin() { used_ = 0; }
  template <typename T>
  const T* put(const std::vector<T>& values) {
    return put<T>(values.size(), [&](T* to) {
      if (!values.empty()) std::memcpy(to, values.data(), values.size() * sizeof(T));
    });
  }
  // The same of so many values that `write` writes where they are sent from.
  template <typename T, typename Write>
  const T* put(size_t count, const Write& write) {
    static_assert(std::is_trivially_copyable_v<T>);
    const size_t bytes = count * sizeof(T), at = used_;
    require(at <= host_.size() && bytes <= host_.size() - at, ErrorKind::kState, "the inputs of a step are larger than planned");
    write(reinterpret_cast<T*>(host_.data() + at));
    used_ = padded(at + bytes);
    return reinterpret_cast<const T*>(device_.data() + at);
  }
  void send(Stream& stream) {
    if (used_ > 0) stream.upload(device_.data(), host_.data(), used_);
  }
  // Room that `count` values take.
  template <typename T>
  static size_t bytes_of(int64_t count) {
    return padded(size_t(count) * sizeof(T)) + kAlign;
  }

 private:
  static constexpr size_t kAlign = 64;
  static size_t padded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
  PinnedBuffer<unsigned char> host_;
  DeviceBuffer<unsigned char> device_;
  size_t used_ = 0;
};

}  // namespace tandem::cuda
