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
      BackgroundJob::give_back(std::move(job));
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

BackgroundJob::BackgroundJob(Napi::Env env) : deferred_(Napi::Promise::Deferred::New(env)), way_(std::make_shared<Way>()) {
  auto* kept = new std::shared_ptr<Way>(way_);
  auto gone = [](napi_env, void* data, void*) {
    std::unique_ptr<std::shared_ptr<Way>> way(static_cast<std::shared_ptr<Way>*>(data));
    std::lock_guard<std::mutex> lock((*way)->mutex);
    (*way)->function = nullptr;
  };
  auto settle = [](napi_env env, napi_value, void*, void* data) {
    std::unique_ptr<BackgroundJob> job(static_cast<BackgroundJob*>(data));
    if (env != nullptr) job->settle(env);
  };
  const napi_status status = napi_create_threadsafe_function(env, nullptr, nullptr, Napi::String::New(env, "tandem.background"), 0, 1, kept,
                                                             gone, nullptr, settle, &way_->function);
  if (status == napi_ok) return;
  delete kept;
  throw Error(ErrorKind::kState, "could not make a way to the JavaScript thread");
}

BackgroundJob::~BackgroundJob() {
  std::lock_guard<std::mutex> lock(way_->mutex);
  if (way_->function) napi_release_threadsafe_function(way_->function, napi_tsfn_release);
}

void BackgroundJob::give_back(std::unique_ptr<BackgroundJob> job) {
  const std::shared_ptr<Way> way = job->way_;  // once it is handed over the job may be gone at any time
  std::lock_guard<std::mutex> lock(way->mutex);
  if (!way->function) return;
  BackgroundJob* settled = job.release();
  if (napi_call_threadsafe_function(way->function, settled, napi_tsfn_nonblocking) == napi_ok) return;
  // The environment is closing: the refusal has taken this thread's share of the function.
  way->function = nullptr;
  job.reset(settled);
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
