// Batches of work on threads, which whoever waits helps with.
#include "engine/mask_workers.h"

#include <array>
#include <atomic>
#include <chrono>

#include "test.h"

namespace tandem::test {
namespace {

using engine::MaskWorkers;

TEST_ONCE(mask_workers_do_each_piece_once) {
  for (int threads : {1, 2, 5}) {
    MaskWorkers workers(threads);
    workers.wait();  // there is nothing yet
    for (size_t count : {size_t(1), size_t(2), size_t(64), size_t(3)}) {
      std::array<std::atomic<int>, 64> done{};
      workers.start(count, [&](size_t i) { ++done[i]; });
      workers.wait();
      for (size_t i = 0; i < done.size(); ++i) CHECK_EQ(done[i].load(), int(i < count));
    }
  }
}

// Two pieces that wait for each other: by two threads, or by one and who waits.
TEST_ONCE(mask_workers_work_beside_each_other) {
  for (int threads : {1, 2}) {
    MaskWorkers workers(threads);
    std::atomic<int> begun{0};
    workers.start(2, [&](size_t) {
      ++begun;
      while (begun < 2) std::this_thread::yield();
    });
    workers.wait();
    CHECK_EQ(begun.load(), 2);
  }
}

TEST_ONCE(mask_workers_tell_what_was_thrown) {
  MaskWorkers workers(2);
  std::atomic<int> done{0};
  workers.start(9, [&](size_t i) {
    ++done;
    if (i == 4) throw Error(ErrorKind::kState, "the fifth");
  });
  CHECK_ERROR(kState, "the fifth", workers.wait());
  CHECK_EQ(done.load(), 9);
  workers.start(1, [&](size_t) { ++done; });
  workers.wait();
  CHECK_EQ(done.load(), 10);
}

// What has not begun is left; what has begun ends first.
TEST_ONCE(mask_workers_may_go_before_all_is_done) {
  std::atomic<int> begun{0}, ended{0};
  {
    MaskWorkers workers(2);
    workers.start(1000, [&](size_t) {
      ++begun;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ++ended;
    });
    while (begun == 0) std::this_thread::yield();
  }
  CHECK_EQ(begun.load(), ended.load());
  CHECK(begun < 1000);
}

}  // namespace
}  // namespace tandem::test
