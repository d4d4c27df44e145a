#include "addon/background_jobs.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace tandem::addon {
namespace {

constexpr int kCompileThreads = 2;
// Loads come one at a time.
constexpr int kLoadThreads = 1;

// Serving goes first: what is done here may wait for a core.
void lower_priority() { setpriority(PRIO_PROCESS, id_t(syscall(SYS_gettid)), 10); }

}  // namespace

// Lives as long as the process; its threads are never joined, because a job must not hold up the exit.
class BackgroundPool {
 public:
  explicit BackgroundPool(int threads) : most_(threads) {}
  void add(std::unique_ptr<BackgroundJob> job) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (; threads_ < most_; ++threads_) std::thread([this] { work(); }).detach();
    jobs_.push_back(std::move(job));
    changed_.notify_one();
  }

 private:
  void work() {
    lower_priority();
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !jobs_.empty(); });
      std::unique_ptr<BackgroundJob> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job->run();
      Napi::ThreadSafeFunction back = job->back_;
      BackgroundJob* settled = job.release();
      auto settle = [](Napi::Env env, Napi::Function, BackgroundJob* done) {
        std::unique_ptr<BackgroundJob> owned(done);
        if (env != nullptr) owned->settle(env);
      };
      // After a refusal the environment is closing, and the function with it.
      if (back.BlockingCall(settled, settle) != napi_ok) delete settled;
      else back.Release();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<BackgroundJob>> jobs_;
  const int most_;
  int threads_ = 0;
};

BackgroundPool& compile_pool() {
  static BackgroundPool* pool = new BackgroundPool(kCompileThreads);
  return *pool;
}

BackgroundPool& load_pool() {
  static BackgroundPool* pool = new BackgroundPool(kLoadThreads);
  return *pool;
}

BackgroundJob::BackgroundJob(Napi::Env env) : deferred_(Napi::Promise::Deferred::New(env)) {
  back_ = Napi::ThreadSafeFunction::New(env, Napi::Function(), "tandem.background", 0, 1);
}

Napi::Promise BackgroundJob::start(BackgroundPool& pool, std::unique_ptr<BackgroundJob> job) {
  Napi::Promise promise = job->deferred_.Promise();
  pool.add(std::move(job));
  return promise;
}

void BackgroundJob::run() {
  try {
    execute();
  } catch (...) {
    failure_ = failure_of(std::current_exception());
    failed_ = true;
  }
}

void BackgroundJob::settle(Napi::Env env) {
  Napi::HandleScope scope(env);
  settle_promise(deferred_, [&] {
    if (failed_) deferred_.Reject(js_error(env, failure_.kind, failure_.message));
    else deferred_.Resolve(result(env));
  });
}

}  // namespace tandem::addon
