// What every promise of the addon ends with: the failure of work that ran on another thread, and settling itself.
#pragma once
#include <exception>
#include <string>

#include "addon/read.h"

namespace tandem::addon {

struct Failure {
  ErrorKind kind = ErrorKind::kState;
  std::string message;
};

// What a C++ exception of any kind says.
inline Failure failure_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  } catch (const std::bad_alloc&) {
    return {ErrorKind::kState, "out of memory"};
  } catch (const std::exception& error) {
    return {ErrorKind::kState, error.what()};
  } catch (...) {
    return {ErrorKind::kState, "unknown native failure"};
  }
}

// Runs `body`, which resolves or rejects. A result that cannot be made rejects the promise. When its environment is being torn down (a worker
// thread that is terminated) no call into it succeeds any more: nobody is left to tell.
template <typename Body>
void settle_promise(const Napi::Promise::Deferred& deferred, const Body& body) {
  try {
    try {
      body();
    } catch (const Napi::Error& error) {
      deferred.Reject(error.Value());
    }
  } catch (const Napi::Error&) {
  }
}

}  // namespace tandem::addon
