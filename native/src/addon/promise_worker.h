// Work off the JS thread with a promise as its result. Lifetime rules:
//  - everything that execute() touches is owned by the worker (shared_ptr or copies), never a JS value;
//  - result() and all promise calls run on the JS thread;
//  - a C++ exception of any kind rejects the promise; it never leaves the worker.
#pragma once
#include "addon/promises.h"

namespace tandem::addon {

class PromiseWorker : public Napi::AsyncWorker {
 public:
  explicit PromiseWorker(Napi::Env env) : Napi::AsyncWorker(env), deferred_(Napi::Promise::Deferred::New(env)) {}
  // Queues the work; the worker deletes itself when done.
  Napi::Promise start() {
    Napi::Promise promise = deferred_.Promise();
    Queue();
    return promise;
  }

 protected:
  virtual void execute() = 0;
  virtual Napi::Value result(Napi::Env env) = 0;
  // Called on the JS thread before the promise settles, in every case.
  virtual void settled() {}

 private:
  void Execute() final {
    try {
      execute();
    } catch (...) {
      Failure failure = failure_of(std::current_exception());
      kind_ = failure.kind;
      SetError(failure.message);
    }
  }
  void OnOK() final {
    Napi::HandleScope scope(Env());
    settled();
    settle_promise(deferred_, [&] { deferred_.Resolve(result(Env())); });
  }
  void OnError(const Napi::Error& error) final {
    Napi::HandleScope scope(Env());
    settled();
    settle_promise(deferred_, [&] { deferred_.Reject(js_error(Env(), kind_, error.Message())); });
  }

  Napi::Promise::Deferred deferred_;
  ErrorKind kind_ = ErrorKind::kState;
};

}  // namespace tandem::addon
