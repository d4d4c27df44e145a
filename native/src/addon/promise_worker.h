// Work off the JS thread with a promise as its result. Lifetime rules:
//  - everything that execute() touches is owned by the worker (shared_ptr or copies), never a JS value;
//  - result() and all promise calls run on the JS thread;
//  - a C++ exception of any kind rejects the promise; it never leaves the worker.
#pragma once
#include <string>

#include "addon/napi_setup.h"
#include "addon/read.h"
#include "base/error.h"

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
    } catch (const Error& error) {
      kind_ = error.kind();
      SetError(error.what());
    } catch (const std::bad_alloc&) {
      SetError("out of memory");
    } catch (const std::exception& error) {
      SetError(error.what());
    } catch (...) {
      SetError("unknown native failure");
    }
  }
  void OnOK() final {
    Napi::HandleScope scope(Env());
    settled();
    settle([&] { deferred_.Resolve(result(Env())); });
  }
  void OnError(const Napi::Error& error) final {
    Napi::HandleScope scope(Env());
    settled();
    settle([&] { deferred_.Reject(js_error(Env(), kind_, error.Message())); });
  }
  // A result that cannot be made rejects the promise. When its environment is being torn down (a worker thread that is terminated) no
  // call into it succeeds any more: nobody is left to tell.
  template <typename Body>
  void settle(const Body& body) {
    try {
      try {
        body();
      } catch (const Napi::Error& error) {
        deferred_.Reject(error.Value());
      }
    } catch (const Napi::Error&) {
    }
  }

  Napi::Promise::Deferred deferred_;
  ErrorKind kind_ = ErrorKind::kState;
};

}  // namespace tandem::addon
