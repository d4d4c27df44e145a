// The order of steps: one runs, and one may wait for it. Workers of a thread pool begin in any order; their tickets do not.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "base/error.h"

namespace tandem::addon {

class StepQueue {
 public:
  // Of a step that has joined: its number, and whether it has been taken back.
  struct Place {
    uint64_t number;
    bool retracted = false;
  };
  using Ticket = std::shared_ptr<Place>;

  // One runs or is about to, and one waits.
  bool full() {
    std::lock_guard<std::mutex> lock(mutex_);
    return joined_ - ended_ >= 2;
  }

  Ticket join() {
    std::lock_guard<std::mutex> lock(mutex_);
    last_ = std::make_shared<Place>(Place{joined_++});
    return last_;
  }

  // Takes the last one back; false: nothing runs that it would have to wait for, or it has begun.
  bool retract() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!last_ || last_->retracted || last_->number <= ended_) return false;
    last_->retracted = true;
    --joined_;
    changed_.notify_all();
    return true;
  }

  // Waits for all that joined before; over with its scope. Throws Error(kState) where the step was taken back.
  class Turn {
   public:
    Turn(StepQueue& queue, Ticket ticket) : queue_(queue), ticket_(std::move(ticket)) {
      std::unique_lock<std::mutex> lock(queue_.mutex_);
      queue_.changed_.wait(lock, [&] { return ticket_->retracted || ticket_->number == queue_.ended_; });
      require(!ticket_->retracted, ErrorKind::kState, "the step was taken back");
    }
    ~Turn() {
      std::lock_guard<std::mutex> lock(queue_.mutex_);
      ++queue_.ended_;
      queue_.changed_.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    StepQueue& queue_;
    Ticket ticket_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t joined_ = 0, ended_ = 0;
  Ticket last_;
};

}  // namespace tandem::addon
