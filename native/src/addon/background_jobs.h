// Threads of low priority for what goes on beside steps: compilations, and adapters that are loaded. The few threads of
// Node's own pool have full priority: slow compilations there would hold up what else waits for it, and take cores from a step's threads.
//
// Lifetime: a job is owned by its pool until it has run, then by the call that settles it on the JS thread. When the environment is torn
// down before that, the job is only deleted: nobody is left to tell. The way back goes with the environment, whoever still has it: the pool
// asks under a lock whether it is there.
#pragma once
#include <memory>
#include <mutex>

#include "addon/promises.h"

namespace tandem::addon {

class BackgroundPool;

// Pools of the process. Each has threads of its own: a load does not wait for a slow compilation.
BackgroundPool& compile_pool();
BackgroundPool& load_pool();

class BackgroundJob {
 public:
  explicit BackgroundJob(Napi::Env env);
  BackgroundJob(const BackgroundJob&) = delete;
  virtual ~BackgroundJob();
  // Queues the job, which belongs to the pool from here on.
  static Napi::Promise start(BackgroundPool& pool, std::unique_ptr<BackgroundJob> job);

 protected:
  // On a thread of the pool; touches no JS value. An exception of any kind rejects the promise.
  virtual void execute() = 0;
  // On the JS thread.
  virtual Napi::Value result(Napi::Env env) = 0;

 private:
  friend class BackgroundPool;
  // To the JS thread.
  struct Way {
    std::mutex mutex;
    napi_threadsafe_function function = nullptr;  // null once the environment has taken it down
  };
  void run();
  // From a thread of the pool: the job is settled, or deleted where nobody is left to tell.
  static void give_back(std::unique_ptr<BackgroundJob> job);
  void settle(Napi::Env env);

  Napi::Promise::Deferred deferred_;
  std::shared_ptr<Way> way_;
  Failure failure_;
  bool failed_ = false;
};

}  // namespace tandem::addon
