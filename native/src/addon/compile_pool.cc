#include "addon/compile_pool.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#ifdef __linux__
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "addon/read.h"

namespace tandem::addon {
namespace {

constexpr int kThreads = 2;

// Serving goes first: a compilation may wait for a core.
void lower_priority() {
#ifdef __linux__
  setpriority(PRIO_PROCESS, id_t(syscall(SYS_gettid)), 10);
#endif
}

}  // namespace

// One for the process, as long as it lives; its threads are never joined, because a compilation must not hold up the exit.
class CompilePool {
 public:
  static CompilePool& instance() {
    static CompilePool* pool = new CompilePool();
    return *pool;
  }
  void add(std::unique_ptr<CompileJob> job) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (; threads_ < kThreads; ++threads_) std::thread([this] { work(); }).detach();
    jobs_.push_back(std::move(job));
    changed_.notify_one();
  }

 private:
  void work() {
    lower_priority();
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !jobs_.empty(); });
      std::unique_ptr<CompileJob> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job->run();
      Napi::ThreadSafeFunction back = job->back_;
      CompileJob* settled = job.release();
      auto settle = [](Napi::Env env, Napi::Function, CompileJob* done) {
        std::unique_ptr<CompileJob> owned(done);
        if (env != nullptr) owned->settle(env);
      };
      // After a refusal the environment is closing, and the function with it.
      if (back.BlockingCall(settled, settle) != napi_ok) delete settled;
      else back.Release();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<CompileJob>> jobs_;
  int threads_ = 0;
};

CompileJob::CompileJob(Napi::Env env) : deferred_(Napi::Promise::Deferred::New(env)) {
  back_ = Napi::ThreadSafeFunction::New(env, Napi::Function(), "tandem.compile", 0, 1);
}

Napi::Promise CompileJob::start(std::unique_ptr<CompileJob> job) {
  Napi::Promise promise = job->deferred_.Promise();
  CompilePool::instance().add(std::move(job));
  return promise;
}

void CompileJob::run() {
  try {
    execute();
    return;
  } catch (const Error& error) {
    kind_ = error.kind();
    failure_ = error.what();
  } catch (const std::bad_alloc&) {
    failure_ = "out of memory";
  } catch (const std::exception& error) {
    failure_ = error.what();
  } catch (...) {
    failure_ = "unknown native failure";
  }
  failed_ = true;
}

void CompileJob::settle(Napi::Env env) {
  Napi::HandleScope scope(env);
  try {
    try {
      if (failed_) deferred_.Reject(js_error(env, kind_, failure_));
      else deferred_.Resolve(result(env));
    } catch (const Napi::Error& error) {
      deferred_.Reject(error.Value());
    }
  } catch (const Napi::Error&) {
  }
}

}  // namespace tandem::addon
