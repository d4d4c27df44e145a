// Threads that make the masks of a step while the model computes its logits.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tandem::engine {

class MaskWorkers {
 public:
  // At most so many threads, which are made when they are first needed.
  explicit MaskWorkers(int threads) : most_(size_t(threads)) {}
  MaskWorkers(const MaskWorkers&) = delete;
  ~MaskWorkers();
  // work(i) for each i below `count`, on the threads. One batch at a time: wait() before the next.
  void start(size_t count, std::function<void(size_t)> work);
  // Helps, and returns when all is done, at once where there is nothing; rethrows what was thrown first.
  void wait();

 private:
  void run();
  // Does one more; false: there is none. The lock is held before and after.
  bool take(std::unique_lock<std::mutex>& lock);

  const size_t most_;
  std::mutex mutex_;
  std::condition_variable begun_, done_;  // for the threads, and for who waits
  std::function<void(size_t)> work_;      // not changed while anything is left
  size_t count_ = 0, next_ = 0, left_ = 0;
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tandem::engine
