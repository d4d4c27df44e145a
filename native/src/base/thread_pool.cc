#include "base/thread_pool.h"

#include <immintrin.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace tandem {
namespace {

constexpr int kIndexBits = 20;
constexpr uint64_t kIndexMask = (uint64_t(1) << kIndexBits) - 1;
// About 120 microseconds of pauses before a worker sleeps: longer than the gap between two steps, far shorter than a step. Measured with a lone
// stream of 4-bit weights: 1.02x of 30 microseconds, where every step began with a thread asleep.
constexpr int kSpins = 6000;
// About two milliseconds before the caller lets others run.
constexpr int kPatience = 96000;

// One piece of what is fetched while waiting: some 100 ns, so that a new loop is seen in time.
constexpr uintptr_t kFetchPiece = 1024;

uint64_t total_of(uint64_t ticket) { return (ticket >> kIndexBits) & kIndexMask; }
uint64_t next_of(uint64_t ticket) { return ticket & kIndexMask; }

}  // namespace

ThreadPool::ThreadPool(int threads) {
  require(threads >= 1 && threads <= 256, ErrorKind::kRange, "threads must be in 1..256");
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error&) {
    stop();
    throw Error(ErrorKind::kState, "could not start " + std::to_string(threads) + " threads");
  }
}

ThreadPool::~ThreadPool() {
  settle();
  stop();
}

void ThreadPool::stop() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run_erased(int64_t count, Call call, const void* context) {
  if (workers_.empty() || count == 1) {
    for (int64_t i = 0; i < count; ++i) call(context, i);
    return;
  }
  call_ = call;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  uint64_t epoch = (ticket_.load(std::memory_order_relaxed) >> (2 * kIndexBits)) + 1;
  ticket_.store(epoch << (2 * kIndexBits) | uint64_t(count) << kIndexBits, std::memory_order_release);
  wake_.fetch_add(1);
  wake_.notify_all();
  help();
  int spins = 0;
  while (done_.load(std::memory_order_acquire) != uint32_t(count)) {
    wait_a_little(callers_);
    if (++spins > kPatience) {
      std::this_thread::yield();  // a worker lost its core to another process
      spins = 0;
    }
  }
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::help() {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (next_of(ticket) < total_of(ticket)) {
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
    try {
      call_(context_, int64_t(next_of(ticket)));
    } catch (...) {
      std::lock_guard<std::mutex> lock(failure_mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    done_.fetch_add(1, std::memory_order_release);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::leave(Aside call, void* context) {
  std::lock_guard<std::mutex> lock(leaving_);
  settle();
  if (workers_.empty()) return call(context);
  aside_ = call;
  aside_context_ = context;
  left_.store(Left::kWaits, std::memory_order_release);
  wake_.fetch_add(1);
  wake_.notify_all();
}

void ThreadPool::settle() {
  take_aside();
  while (left_.load(std::memory_order_acquire) != Left::kNothing) std::this_thread::yield();
}

void ThreadPool::take_aside() {
  Left waits = Left::kWaits;
  if (left_.load(std::memory_order_relaxed) != waits || !left_.compare_exchange_strong(waits, Left::kTaken, std::memory_order_acquire))
    return;
  aside_(aside_context_);
  left_.store(Left::kNothing, std::memory_order_release);
}

void ThreadPool::fetch_while_waiting(const Shares& shares) {
  fetch_from_.store(reinterpret_cast<uintptr_t>(shares.data), std::memory_order_relaxed);
  fetch_bytes_.store(shares.bytes, std::memory_order_relaxed);
  fetch_share_.store(shares.share, std::memory_order_relaxed);
  fetch_most_.store(shares.most, std::memory_order_relaxed);
  fetch_calls_.fetch_add(1, std::memory_order_release);
}

void ThreadPool::wait_a_little(Fetching& mine) {
  if (uint32_t call = fetch_calls_.load(std::memory_order_acquire); call != mine.call) {
    const size_t bytes = fetch_bytes_.load(std::memory_order_relaxed), share = fetch_share_.load(std::memory_order_relaxed);
    const size_t first = std::min(bytes, size_t(mine.thread) * share);
    mine.call = call;
    mine.at = fetch_from_.load(std::memory_order_relaxed) + first;
    mine.end = mine.at + std::min({bytes - first, share, fetch_most_.load(std::memory_order_relaxed)});
  }
  if (mine.at >= mine.end) return _mm_pause();
  const uintptr_t end = std::min(mine.end, mine.at + kFetchPiece);
  for (; mine.at < end; mine.at += 64) __builtin_prefetch(reinterpret_cast<const void*>(mine.at), 0, 2);
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  Fetching mine{thread};
  while (!stop_.load(std::memory_order_relaxed)) {
    int spins = 0;
    while (wake_.load(std::memory_order_acquire) == seen) {
      if (++spins < kSpins) {
        wait_a_little(mine);
      } else {
        wake_.wait(seen);
      }
    }
    seen = wake_.load(std::memory_order_acquire);
    take_aside();
    help();
  }
}

}  // namespace tandem
