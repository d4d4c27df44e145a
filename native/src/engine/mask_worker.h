// One thread that makes the masks of a step while the model computes its logits.
#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace tandem::engine {

class MaskWorker {
 public:
  MaskWorker() = default;
  MaskWorker(const MaskWorker&) = delete;
  ~MaskWorker();
  // Runs `work` on the thread, which is made at the first call. One at a time: wait() before the next.
  void start(std::function<void()> work);
  // Returns when the work is done, at once where there is none; rethrows what it threw.
  void wait();

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  std::exception_ptr failure_;
  bool busy_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem::engine
