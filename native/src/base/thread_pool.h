// A fixed set of threads for short loops inside one step. The calling thread takes part, so a pool of 1 has no thread of its own.
//
// Work is claimed index by index, so which thread runs an index is chance: results must not depend on it, and do not, because
// every index owns its outputs and no reduction crosses indices.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tandem {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // 1..256, the caller included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return int(workers_.size()) + 1; }

  // Memory that a later loop reads first, in shares: thread i of it the i-th, the caller being thread 0. A thread that waits, for the others of
  // its loop or for the next loop, fetches the first `most` bytes of its share into its cache meanwhile: what would be a pause of the memory is
  // none. Only a hint: nothing is read, so the memory may be gone by then. The last call counts.
  struct Shares {
    const void* data = nullptr;
    size_t bytes = 0, share = 0, most = 0;
  };
  void fetch_while_waiting(const Shares& shares);

  // Something short that is none of the caller's loops: a worker does it when it is between two of them, at once if it waits. (Where threads are
  // as many as cores, whoever wakes another thread may have to give way to it. A worker can, the others take its indices; the caller cannot.)
  // In order: what was left before is done when this returns. A pool without workers does it here. From any thread.
  using Aside = void (*)(void* context);
  void leave(Aside call, void* context);
  // Returns when what was left is done, here if no worker has begun with it.
  void settle();

  // Calls body(index) once for every index in [0, count); returns when all are done. Not re-entrant; one caller at a time.
  // If bodies throw, one of their exceptions is rethrown once no thread is in a body any more.
  template <typename Body>
  void run(int64_t count, const Body& body) {
    for (int64_t base = 0; base < count; base += kMaxIndices) {
      auto shifted = [&](int64_t index) { body(base + index); };
      int64_t part = count - base < kMaxIndices ? count - base : kMaxIndices;
      run_erased(
          part, [](const void* context, int64_t index) { (*static_cast<const decltype(shifted)*>(context))(index); }, &shifted);
    }
  }

 private:
  static constexpr int64_t kMaxIndices = (int64_t(1) << 20) - 1;
  using Call = void (*)(const void* context, int64_t index);
  void run_erased(int64_t count, Call call, const void* context);
  void work(int thread);
  void stop();
  // Claims and runs indices of the job that `ticket_` names until none is left.
  void help();
  // What a thread still has to fetch of its share.
  struct Fetching {
    int thread;
    uint32_t call = 0;
    uintptr_t at = 0, end = 0;
  };
  // What was left, if nobody has taken it.
  void take_aside();
  // A pause, or a piece of what is to be fetched.
  void wait_a_little(Fetching& mine);

  // epoch (24 bits) | total (20) | next (20). A claim is a compare-exchange of the whole word, so a thread that wakes late can
  // never take an index of a job that is over, and while a claimed index is unfinished the job cannot end.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<uint32_t> done_{0};
  std::atomic<uint32_t> wake_{0};
  std::atomic<bool> stop_{false};
  // What fetch_while_waiting was called with, and how often it was. A thread that sees numbers of two calls fetches in vain.
  std::atomic<uintptr_t> fetch_from_{0};
  std::atomic<size_t> fetch_bytes_{0}, fetch_share_{0}, fetch_most_{0};
  std::atomic<uint32_t> fetch_calls_{0};
  Fetching callers_{0};
  enum class Left { kNothing, kWaits, kTaken };
  std::mutex leaving_;
  std::atomic<Left> left_{Left::kNothing};
  Aside aside_ = nullptr;
  void* aside_context_ = nullptr;
  Call call_ = nullptr;
  const void* context_ = nullptr;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;  // the first exception of the running job
  std::vector<std::thread> workers_;
};

}  // namespace tandem
