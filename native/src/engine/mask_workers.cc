#include "engine/mask_workers.h"

#include <algorithm>
#include <utility>

namespace tandem::engine {

MaskWorkers::~MaskWorkers() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskWorkers::start(size_t count, std::function<void(size_t)> work) {
  while (threads_.size() < std::min(most_, count)) threads_.emplace_back([this] { run(); });
  {
    std::lock_guard<std::mutex> lock(mutex_);
    work_ = std::move(work);
    count_ = left_ = count;
    next_ = 0;
    failure_ = nullptr;
  }
  begun_.notify_all();
}

void MaskWorkers::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (take(lock)) {
  }
  done_.wait(lock, [this] { return left_ == 0; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

bool MaskWorkers::take(std::unique_lock<std::mutex>& lock) {
  if (next_ == count_) return false;
  const size_t index = next_++;
  lock.unlock();
  std::exception_ptr failure;
  try {
    work_(index);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  if (!failure_) failure_ = failure;
  if (--left_ == 0) done_.notify_all();
  return true;
}

void MaskWorkers::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    begun_.wait(lock, [this] { return next_ < count_ || stopping_; });
    while (!stopping_ && take(lock)) {
    }
    if (stopping_) return;
  }
}

}  // namespace tandem::engine
