// A value that the first who asks for it makes.
#pragma once
#include <atomic>
#include <mutex>

namespace tandem::grammar {

// What making it throws reaches the one who asked, and the next one tries again. std::call_once says so too, but it calls through the C library, whose
// frames no error passes where a library has its own unwinder linked in: the process ends.
template <typename T>
class MadeOnce {
 public:
  template <typename Make>
  const T& get(const Make& make) {
    if (ready_.load(std::memory_order_acquire)) return value_;
    std::lock_guard<std::mutex> lock(mutex_);
    if (!ready_.load(std::memory_order_relaxed)) {
      value_ = make();
      ready_.store(true, std::memory_order_release);
    }
    return value_;
  }

 private:
  std::atomic<bool> ready_{false};
  std::mutex mutex_;
  T value_;
};

}  // namespace tandem::grammar
