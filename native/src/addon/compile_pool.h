// A few threads of low priority for compilations. Node's own pool runs the engine's steps, and four slow compilations would stop them.
//
// Lifetime: a job is owned by the pool until it has run, then by the call that settles it on the JS thread. When the environment is torn
// down before that, the job is only deleted: nobody is left to tell.
#pragma once
#include <memory>

#include "addon/napi_setup.h"
#include "base/error.h"

namespace tandem::addon {

class CompileJob {
 public:
  explicit CompileJob(Napi::Env env);
  virtual ~CompileJob() = default;
  // Queues the job, which belongs to the pool from here on.
  static Napi::Promise start(std::unique_ptr<CompileJob> job);

 protected:
  // On a thread of the pool; touches no JS value. An exception of any kind rejects the promise.
  virtual void execute() = 0;
  // On the JS thread.
  virtual Napi::Value result(Napi::Env env) = 0;

 private:
  friend class CompilePool;
  void run();
  void settle(Napi::Env env);

  Napi::Promise::Deferred deferred_;
  Napi::ThreadSafeFunction back_;  // to the JS thread
  ErrorKind kind_ = ErrorKind::kState;
  std::string failure_;
  bool failed_ = false;
};

}  // namespace tandem::addon
