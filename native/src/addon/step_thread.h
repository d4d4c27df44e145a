// The thread that runs an engine's steps: one runs, and one may wait for it. It is always the same thread: a step that another one would
// begin while the pool's workers still spin could find itself on a worker's core, and both would lose milliseconds to each other.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

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
  // The last call, on the thread: how it ended; nothing refers to the work when this is called. With another one waiting, whoever is told
  // should not take the thread's core.
  virtual void over(std::exception_ptr failure, bool another_waits) = 0;
};

class StepThread {
 public:
  StepThread() = default;
  StepThread(const StepThread&) = delete;
  ~StepThread() {
    close();
    join();
  }

  // Runs the work after what was given before. The thread is made at the first call.
  void give(StepWork& work) {
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    {
      std::lock_guard<std::mutex> lock(mutex_);
      // Only what waits is the thread's: where memory for either is refused the caller keeps its work.
      const auto unfinished = unfinished_.insert(unfinished_.end(), given_ + 1);
      try {
        waiting_.push_back({&work, given_ + 1});
      } catch (...) {
        unfinished_.erase(unfinished);
        throw;
      }
      ++given_;
    }
    changed_.notify_one();
  }

  // How many have been given so far.
  int64_t given() {
    std::lock_guard<std::mutex> lock(mutex_);
    return given_;
  }

  // Returns when none of the first `given` runs or waits any more: they are over or taken back.
  void wait_for_given(int64_t given) {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [&] { return unfinished_.empty() || *unfinished_.begin() > given; });
  }

  // Takes back what waits for something else to end; it is the caller's again, and over() is not called. Null: nothing does. What is queued has
  // begun, though nothing of it may have run.
  StepWork* retract() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (waiting_.empty() || int(waiting_.size()) + begun_ < 2) return nullptr;
    return take_back();
  }

  // Begins nothing any more; gives back what waited.
  std::vector<StepWork*> close() {
    std::vector<StepWork*> left;
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    while (!waiting_.empty()) left.push_back(take_back());
    changed_.notify_one();
    return left;
  }
  // After close(): returns when what had begun is over, and the thread with it.
  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct Task {
    StepWork* work = nullptr;
    int64_t number = 0;  // in the order in which they were given, from 1
    explicit operator bool() const { return work != nullptr; }
  };

  void run() {
    while (const Task task = next()) {
      Task queued = begin(task);
      while (queued) {
        const Task behind = queue_behind(*queued.work);
        end(queued, failure_of([&] { queued.work->finish(); }));
        queued = behind;
      }
    }
  }

  // The next that is to begin, when there is one; none: the thread ends.
  Task next() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
    return closed_ ? Task() : take();
  }

  Task take() {
    const Task task = waiting_.front();
    waiting_.pop_front();
    ++begun_;
    return task;
  }

  // The last that waits.
  StepWork* take_back() {
    const Task last = waiting_.back();
    waiting_.pop_back();
    unfinished_.erase(last.number);
    ended_.notify_all();
    return last.work;
  }

  // The task, if it is queued now; none: it is over.
  Task begin(const Task& task) {
    bool queued = false;
    const std::exception_ptr failure = failure_of([&] {
      queued = task.work->queue();
      if (!queued) task.work->run();
    });
    if (queued) return task;
    end(task, failure);
    return {};
  }

  // The one that waits, queued behind that step as soon as that has little left to do: newcomers may join until then. None where none has
  // come before its end, or one that cannot be queued: it is the next to begin.
  Task queue_behind(StepWork& running) {
    Task queued;
    // What goes wrong with the running step its finish() tells.
    failure_of([&] {
      running.wait_nearly();
      for (;;) {
        if (const Task task = take_for_queue()) {
          if (try_queue(task)) queued = task;
          return;
        }
        if (running.ran()) return;
        std::this_thread::yield();
      }
    });
    return queued;
  }

  Task take_for_queue() {
    std::lock_guard<std::mutex> lock(mutex_);
    return waiting_.empty() ? Task() : take();
  }

  // Where it cannot be queued now it waits again, and may be taken back.
  bool try_queue(const Task& task) {
    bool queued = false;
    const std::exception_ptr failure = failure_of([&] { queued = task.work->queue(); });
    if (failure) end(task, failure);
    if (failure || queued) return queued;
    if (!wait_again(task)) end(task, std::make_exception_ptr(Error(ErrorKind::kState, "no step begins any more")));
    return false;
  }

  // False after close(), which would not give it back.
  bool wait_again(const Task& task) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return false;
    waiting_.push_front(task);
    --begun_;
    return true;
  }

  void end(const Task& task, const std::exception_ptr& failure) {
    bool another_waits;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      --begun_;
      unfinished_.erase(task.number);
      another_waits = !waiting_.empty();
      ended_.notify_all();
    }
    task.work->over(failure, another_waits);
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
  std::condition_variable changed_;  // something waits, or the thread is to end
  std::condition_variable ended_;    // one is over or taken back
  std::deque<Task> waiting_;
  int begun_ = 0;  // and not over
  int64_t given_ = 0;
  std::set<int64_t> unfinished_;  // numbers of those that are not over
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace tandem::addon
