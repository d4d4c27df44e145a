// The way from other threads to the JS thread of one environment. (Napi::AsyncWorker keeps a thread of Node's pool waiting for what it tells:
// one more thread that is woken, and where a step's threads have all cores, one more that takes one of them from a step.)
#pragma once
#include <memory>

#include "addon/napi_setup.h"

namespace tandem::addon {

class JsThread {
 public:
  // What is to be done there; it owns itself once it is posted.
  class Job {
   public:
    virtual ~Job() = default;
    // On the JS thread; an exception ends the process. Not called when the environment is closing: then the job is only deleted.
    virtual void settle(Napi::Env env) = 0;
  };

  // On the JS thread, as everything here but post().
  JsThread(Napi::Env env, const char* name);
  ~JsThread();
  JsThread(const JsThread&) = delete;
  JsThread& operator=(const JsThread&) = delete;

  // From any thread, until the environment is torn down. Jobs are settled in the order in which they are posted; the job may be gone when this
  // returns.
  void post(Job* job);
  // The event loop does not end while it is held.
  void hold(Napi::Env env);
  void let_go(Napi::Env env);

 private:
  struct Function {
    napi_threadsafe_function handle;  // null once the environment has taken it down
  };
  std::shared_ptr<Function> function_;
};

}  // namespace tandem::addon
