// The thread that runs an engine's steps: one runs, and one may wait for it. It is always the same thread: a step that another one would
// begin while the pool's workers still spin could find itself on a worker's core, and both would lose milliseconds to each other.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"

namespace tandem::addon {

class StepThread {
 public:
  struct Task {
    std::function<void()> work;
    std::exception_ptr failure;
    bool over = false, retracted = false;
  };
  using Ticket = std::shared_ptr<Task>;

  StepThread() = default;
  StepThread(const StepThread&) = delete;
  ~StepThread() {
    if (!thread_.joinable()) return;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Runs the work after what was given before. The thread is made at the first call.
  Ticket give(std::function<void()> work) {
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    auto task = std::make_shared<Task>();
    task->work = std::move(work);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      waiting_.push_back(task);
    }
    changed_.notify_all();
    return task;
  }

  // Takes back what waits for something else to end; false: nothing does.
  bool retract() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (given() < 2) return false;
    Task& last = *waiting_.back();
    last.failure = std::make_exception_ptr(Error(ErrorKind::kState, "the step was taken back"));
    last.over = last.retracted = true;
    waiting_.pop_back();
    changed_.notify_all();
    return true;
  }

  // Returns when the work is done, and throws what it threw.
  void wait(const Ticket& task) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return task->over; });
    if (task->failure) std::rethrow_exception(task->failure);
  }

  // The work is not done after this, nor goes on.
  void drop(const Ticket& task) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (std::erase(waiting_, task) == 0) changed_.wait(lock, [&] { return task->over; });
  }

 private:
  size_t given() const { return waiting_.size() + (running_ ? 1 : 0); }

  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      Ticket task = std::move(waiting_.front());
      waiting_.pop_front();
      running_ = true;
      lock.unlock();
      std::exception_ptr failure;
      try {
        task->work();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      running_ = false;
      task->failure = failure;
      task->over = true;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Ticket> waiting_;
  bool running_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem::addon
