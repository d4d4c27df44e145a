// The thread that runs an engine's steps: one runs, and one may wait for it. It is always the same thread: a step that another one would
// begin while the pool's workers still spin could find itself on a worker's core, and both would lose milliseconds to each other.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "base/error.h"

namespace tandem::addon {

// A step as the thread takes it: run() does all of it. Where queue() says so, it runs by itself, behind the one that was queued before, and
// the other calls see it to its end. Steps are queued and finished in the order in which they were given.
class StepWork {
 public:
  virtual ~StepWork() = default;
  // False: nothing has happened, it is to be run when no other one is queued.
  virtual bool queue() = 0;
  virtual void run() = 0;
  // Of the oldest that is queued: until it has little left to do; whether it has nothing left; its end.
  virtual void wait_nearly() = 0;
  virtual bool ran() = 0;
  virtual void finish() = 0;
};

class StepThread {
 public:
  struct Task {
    StepWork& work;
    std::exception_ptr failure = nullptr;
    bool over = false, retracted = false;
    bool in_turn = false;  // cannot be queued behind the one that runs
    int64_t number = 0;    // in the order in which they were given, from 1
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
  Ticket give(StepWork& work) {
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    auto task = std::make_shared<Task>(Task{work});
    {
      std::lock_guard<std::mutex> lock(mutex_);
      task->number = ++given_;
      unfinished_.insert(given_);
      waiting_.push_back(task);
    }
    changed_.notify_all();
    return task;
  }

  // How many have been given so far.
  int64_t given() {
    std::lock_guard<std::mutex> lock(mutex_);
    return given_;
  }

  // Returns when none of the first `given` runs or waits any more: they are over, taken back or dropped.
  void wait_for_given(int64_t given) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return unfinished_.empty() || *unfinished_.begin() > given; });
  }

  // Takes back what waits for something else to end; false: nothing does. What is queued has begun, though nothing of it may have run.
  bool retract() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (waiting_.empty() || int(waiting_.size()) + begun_ < 2) return false;
    Task& last = *waiting_.back();
    last.failure = std::make_exception_ptr(Error(ErrorKind::kState, "the step was taken back"));
    last.over = last.retracted = true;
    unfinished_.erase(last.number);
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
    if (std::erase(waiting_, task) == 0) return changed_.wait(lock, [&] { return task->over; });
    unfinished_.erase(task->number);
    changed_.notify_all();
  }

 private:
  void run() {
    while (Ticket task = next()) {
      Ticket queued = begin(task);
      while (queued) {
        Ticket behind = queue_behind(queued->work);
        end(queued, failure_of([&] { queued->work.finish(); }));
        queued = std::move(behind);
      }
    }
  }

  // The next that is to begin, when there is one; null: the thread ends.
  Ticket next() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    return stopping_ ? nullptr : take();
  }

  Ticket take() {
    Ticket task = std::move(waiting_.front());
    waiting_.pop_front();
    ++begun_;
    return task;
  }

  // The task, if it is queued now; null: it is over.
  Ticket begin(const Ticket& task) {
    bool queued = false;
    const std::exception_ptr failure = failure_of([&] {
      queued = task->work.queue();
      if (!queued) task->work.run();
    });
    if (queued) return task;
    end(task, failure);
    return nullptr;
  }

  // The one that waits, queued behind that step as soon as that has little left to do: newcomers may join until then. Null where none has
  // come before its end, or one that is run in its turn.
  Ticket queue_behind(StepWork& running) {
    Ticket queued;
    // What goes wrong with the running step its finish() tells.
    failure_of([&] {
      running.wait_nearly();
      for (;;) {
        if (const Ticket task = take_for_queue()) {
          if (try_queue(task)) queued = task;
          return;
        }
        if (waits_in_turn() || running.ran()) return;
        std::this_thread::yield();
      }
    });
    return queued;
  }

  Ticket take_for_queue() {
    std::lock_guard<std::mutex> lock(mutex_);
    return waiting_.empty() || waiting_.front()->in_turn ? nullptr : take();
  }

  bool waits_in_turn() {
    std::lock_guard<std::mutex> lock(mutex_);
    return !waiting_.empty() && waiting_.front()->in_turn;
  }

  // Where it cannot be queued now it waits again, and may be taken back.
  bool try_queue(const Ticket& task) {
    bool queued = false;
    const std::exception_ptr failure = failure_of([&] { queued = task->work.queue(); });
    if (failure) end(task, failure);
    if (failure || queued) return queued;
    std::lock_guard<std::mutex> lock(mutex_);
    task->in_turn = true;
    waiting_.push_front(task);
    --begun_;
    return false;
  }

  void end(const Ticket& task, const std::exception_ptr& failure) {
    std::lock_guard<std::mutex> lock(mutex_);
    --begun_;
    unfinished_.erase(task->number);
    task->failure = failure;
    task->over = true;
    changed_.notify_all();
  }

  template <typename Body>
  static std::exception_ptr failure_of(const Body& body) {
    try {
      body();
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Ticket> waiting_;
  int begun_ = 0;  // and not over
  int64_t given_ = 0;
  std::set<int64_t> unfinished_;  // numbers of those that are not over
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem::addon
