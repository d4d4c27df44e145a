#include "addon/js_thread.h"

#include "base/error.h"

namespace tandem::addon {
namespace {

void settle_job(napi_env env, napi_value, void*, void* data) {
  std::unique_ptr<JsThread::Job> job(static_cast<JsThread::Job*>(data));
  if (env == nullptr) return;
  Napi::HandleScope scope(env);
  job->settle(env);
}

}  // namespace

JsThread::JsThread(Napi::Env env, const char* name) : function_(std::make_shared<Function>()) {
  auto* kept = new std::shared_ptr<Function>(function_);
  auto gone = [](napi_env, void* data, void*) {
    std::unique_ptr<std::shared_ptr<Function>> function(static_cast<std::shared_ptr<Function>*>(data));
    (*function)->handle = nullptr;
  };
  const napi_status status = napi_create_threadsafe_function(env, nullptr, nullptr, Napi::String::New(env, name), 0, 1, kept, gone, nullptr,
                                                             settle_job, &function_->handle);
  if (status != napi_ok) {
    delete kept;
    throw Error(ErrorKind::kState, "could not make a way to the JavaScript thread");
  }
  let_go(env);
}

JsThread::~JsThread() {
  if (function_->handle) napi_release_threadsafe_function(function_->handle, napi_tsfn_release);
}

void JsThread::post(Job* job) {
  // Refused only when the environment is torn down, which its owner waits for. The job would be lost then, not deleted: that is the JS thread's.
  napi_call_threadsafe_function(function_->handle, job, napi_tsfn_nonblocking);
}

void JsThread::hold(Napi::Env env) { napi_ref_threadsafe_function(env, function_->handle); }

void JsThread::let_go(Napi::Env env) { napi_unref_threadsafe_function(env, function_->handle); }

}  // namespace tandem::addon
