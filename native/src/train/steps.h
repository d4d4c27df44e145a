// Work cut into units: a coroutine that stands still after each. Whoever drives it may stop between any two units for as long as it likes;
// what it computes cannot depend on that.
#pragma once
#include <coroutine>
#include <cstdint>
#include <exception>
#include <utility>

namespace tandem::train {

class Steps {
 public:
  struct promise_type {
    std::exception_ptr failure;
    int64_t work = 0;
    Steps get_return_object() { return Steps(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    // A unit is done, of so many multiply-adds.
    std::suspend_always yield_value(int64_t done) noexcept {
      work = done;
      return {};
    }
    void return_void() {}
    void unhandled_exception() { failure = std::current_exception(); }
  };

  Steps() = default;
  Steps(Steps&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Steps& operator=(Steps&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Steps() {
    if (handle_) handle_.destroy();
  }

  bool finished() const { return !handle_ || handle_.done(); }
  // Runs one unit. Rethrows what it threw, after which the work is finished.
  void next() {
    handle_.promise().work = 0;
    handle_.resume();
    if (handle_.done() && handle_.promise().failure) std::rethrow_exception(std::exchange(handle_.promise().failure, nullptr));
  }
  // Multiply-adds of that unit; 0 for what is left over at the end.
  int64_t work() const { return handle_.promise().work; }

 private:
  explicit Steps(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace tandem::train
