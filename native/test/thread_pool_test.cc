// The pool runs every index once, whatever the counts, the number of pools and the moment of their end.
#include "base/thread_pool.h"

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>

#include "support.h"
#include "test.h"

namespace tandem::test {
namespace {

TEST_ONCE(pool_runs_every_index_once) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK_EQ(pool.threads(), threads);
    for (int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      pool.run(count, [&](int64_t i) { seen[size_t(i)].fetch_add(1, std::memory_order_relaxed); });
      for (auto& times : seen) CHECK_EQ(times.load(), 1);
    }
  }
}

TEST_ONCE(pool_runs_more_indices_than_one_ticket_holds) {
  ThreadPool pool(2);
  int64_t count = (int64_t(1) << 20) + 12345;
  std::vector<uint8_t> seen(size_t(count), 0);
  pool.run(count, [&](int64_t i) { ++seen[size_t(i)]; });
  int64_t wrong = 0;
  for (uint8_t times : seen) wrong += times != 1;
  CHECK_EQ(wrong, 0);
}

TEST_ONCE(pool_makes_writes_visible_between_jobs) {
  ThreadPool pool(3);
  std::vector<int64_t> values(16, 0);
  for (int round = 0; round < 3000; ++round) {
    pool.run(16, [&](int64_t i) { ++values[size_t(i)]; });
    // Each job reads what another thread may have written in the one before.
    pool.run(15, [&](int64_t i) {
      if (values[size_t(i)] != round + 1) values[size_t(i)] = -1000000;
    });
  }
  for (int64_t value : values) CHECK_EQ(value, 3000);
}

TEST_ONCE(pool_does_once_and_in_order_what_is_left_to_it) {
  struct Note {
    std::vector<int>* order;
    int number;
  };
  for (int threads : {1, 2, 3}) {
    std::vector<int> order;
    std::vector<Note> notes;
    for (int i = 0; i < 500; ++i) notes.push_back({&order, i});
    {
      ThreadPool pool(threads);
      std::atomic<int64_t> total{0};
      for (Note& note : notes) {
        pool.leave([](void* what) { static_cast<Note*>(what)->order->push_back(static_cast<Note*>(what)->number); }, &note);
        // With loops behind it, that workers take part in or not, with a pause that sends them to sleep, and with nothing.
        if (note.number % 3 == 0) pool.run(note.number % 2 ? 7 : 1, [&](int64_t i) { total += i; });
        if (note.number % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (note.number % 7 == 0) {
          pool.settle();
          CHECK_EQ(int64_t(order.size()), int64_t(note.number) + 1);
        }
      }
    }
    // The last one, too, before the pool is gone.
    CHECK_EQ(int64_t(order.size()), int64_t(notes.size()));
    for (int i = 0; i < 500; ++i) CHECK_EQ(order[size_t(i)], i);
  }
}

TEST_ONCE(pool_has_a_worker_do_what_is_left_to_it) {
  ThreadPool pool(2);
  struct Seen {
    std::atomic<bool> done{false};
    std::thread::id thread;
  } seen;
  pool.leave(
      [](void* what) {
        static_cast<Seen*>(what)->thread = std::this_thread::get_id();
        static_cast<Seen*>(what)->done = true;
      },
      &seen);
  // No loop, and nobody settles it: the worker does it by itself.
  while (!seen.done) std::this_thread::yield();
  CHECK(seen.thread != std::this_thread::get_id());
}

TEST_ONCE(pool_does_not_mind_what_it_is_to_fetch) {
  ThreadPool pool(3);
  std::vector<uint8_t> memory(1 << 16);
  int64_t total = 0;
  for (int round = 0; round < 300; ++round) {
    // Memory that is there, memory that is gone, and none.
    if (round % 3 == 0) pool.fetch_while_waiting({memory.data(), memory.size(), memory.size() / 3, 1 << 12});
    if (round % 3 == 1) pool.fetch_while_waiting({std::make_unique<uint8_t[]>(1 << 20).get(), 1 << 20, 1 << 19, 1 << 20});
    if (round % 3 == 2) pool.fetch_while_waiting({});
    std::vector<int64_t> values(7, 0);
    pool.run(7, [&](int64_t i) { values[size_t(i)] = i; });
    for (int64_t value : values) total += value;
  }
  CHECK_EQ(total, 300 * 21);
}

TEST_ONCE(pools_of_several_callers_do_not_meet) {
  std::vector<std::thread> callers;
  std::atomic<int64_t> total{0};
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&, c] {
      ThreadPool pool(1 + c);
      for (int job = 0; job < 500; ++job) {
        int64_t mine[5] = {0, 0, 0, 0, 0};
        pool.run(5, [&](int64_t i) { mine[i] = i; });
        total += mine[0] + mine[1] + mine[2] + mine[3] + mine[4];
      }
    });
  }
  for (auto& caller : callers) caller.join();
  CHECK_EQ(total.load(), int64_t(3 * 500 * 10));
}

TEST_ONCE(pool_ends_while_idle_busy_or_never_used) {
  for (int i = 0; i < 40; ++i) {
    ThreadPool pool(1 + i % 4);
    std::atomic<int> ran{0};
    if (i % 3 != 0) pool.run(i % 7, [&](int64_t) { ++ran; });
    if (i % 10 == 9) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // its workers are asleep by then
    CHECK_EQ(ran.load(), i % 3 != 0 ? i % 7 : 0);
  }
}

TEST_ONCE(pool_passes_an_exception_on_after_all_threads_are_out) {
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 200; ++round) {
      auto job = std::make_unique<std::atomic<int>>(0);
      bool caught = false;
      try {
        pool.run(20, [&](int64_t i) {
          job->fetch_add(1);
          if (i % 5 == round % 5) throw std::runtime_error("index");
        });
      } catch (const std::runtime_error&) {
        caught = true;
      }
      CHECK(caught);
      job.reset();  // a thread that still ran the body would touch freed memory
    }
    std::atomic<int> ran{0};
    pool.run(20, [&](int64_t) { ++ran; });
    CHECK_EQ(ran.load(), 20);
  }
}

TEST_ONCE(pool_refuses_impossible_sizes) {
  CHECK_ERROR(kRange, "threads", ThreadPool(0));
  CHECK_ERROR(kRange, "threads", ThreadPool(-3));
  CHECK_ERROR(kRange, "threads", ThreadPool(257));
}

TEST_ONCE(pool_reports_that_threads_could_not_start) {
  if (sanitized()) return;  // sanitizers reserve more address space than any limit allows
  rlimit before;
  CHECK_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = rlim_t(256) << 20;  // stacks of 8 MiB each
  CHECK_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  CHECK_ERROR(kState, "thread", ThreadPool(256));
  CHECK_EQ(setrlimit(RLIMIT_AS, &before), 0);
}

}  // namespace
}  // namespace tandem::test
