// The thread that runs steps: which are queued behind which, what may still be taken back, and whose failure is told to whom. What a step
// does is played; every wait is for something that the other thread is sure to do.
#include "addon/step_thread.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "test.h"

namespace tandem::test {
namespace {

using addon::StepThread;
using addon::StepWork;

// What happens on the steps' thread, in order; a played step stops at its gates until they are opened.
class Stage {
 public:
  void note(const std::string& what) {
    std::lock_guard<std::mutex> lock(mutex_);
    log_.push_back(what);
    changed_.notify_all();
  }
  void pass(const bool& gate) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return gate; });
  }
  void open(bool& gate) {
    std::lock_guard<std::mutex> lock(mutex_);
    gate = true;
    changed_.notify_all();
  }
  void wait_for(const std::string& what) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return std::find(log_.begin(), log_.end(), what) != log_.end(); });
  }
  bool is_open(const bool& gate) {
    std::lock_guard<std::mutex> lock(mutex_);
    return gate;
  }
  std::string log() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::string all;
    for (const std::string& what : log_) all += (all.empty() ? "" : " ") + what;
    return all;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> log_;
};

struct Played final : StepWork {
  Played(Stage& on, std::string called) : stage(on), name(std::move(called)) {}

  bool queue() override {
    stage.note(name + "?");
    stage.pass(answers);
    if (queue_fails) throw Error(ErrorKind::kRange, name + " is no plan");
    if (queues > 0) stage.note(name + "+");
    return queues-- > 0;
  }
  void run() override { stage.note(name + "!"); }
  void wait_nearly() override { stage.pass(nearly); }
  bool ran() override { return stage.is_open(ended); }
  void finish() override {
    stage.pass(ended);
    stage.note(name + ".");
    if (finish_fails) throw Error(ErrorKind::kState, name + " failed");
  }
  void over(std::exception_ptr how, bool another) override {
    failure = std::move(how);
    another_waited = another;
    stage.open(is_over);
  }
  // Until over() was called; throws how it ended.
  void wait() {
    stage.pass(is_over);
    if (failure) std::rethrow_exception(failure);
  }

  Stage& stage;
  std::string name;
  int queues = 1;  // how often it can be queued when it is asked
  bool answers = true, queue_fails = false, finish_fails = false;
  bool nearly = false, ended = false;
  bool is_over = false, another_waited = false;
  std::exception_ptr failure;
};

TEST_ONCE(step_thread_queues_the_next_when_the_running_one_is_nearly_over) {
  Stage stage;
  Played a(stage, "a"), b(stage, "b"), c(stage, "c");
  StepThread thread;
  thread.give(a);
  stage.wait_for("a+");
  CHECK(thread.retract() == nullptr);
  thread.give(b);
  // It waits: newcomers may join it.
  CHECK(thread.retract() == &b);
  thread.give(c);
  stage.open(a.nearly);
  stage.wait_for("c+");
  CHECK(thread.retract() == nullptr);
  stage.open(a.ended);
  a.wait();
  stage.open(c.nearly);
  stage.open(c.ended);
  c.wait();
  CHECK_EQ(stage.log(), std::string("a? a+ c? c+ a. c."));
}

TEST_ONCE(step_thread_queues_what_comes_late) {
  Stage stage;
  Played a(stage, "a"), b(stage, "b");
  StepThread thread;
  thread.give(a);
  stage.open(a.nearly);
  stage.wait_for("a+");
  thread.give(b);
  stage.wait_for("b+");
  stage.open(a.ended);
  stage.open(b.nearly);
  stage.open(b.ended);
  a.wait();
  b.wait();
  CHECK_EQ(stage.log(), std::string("a? a+ b? b+ a. b."));
}

TEST_ONCE(step_thread_runs_in_turn_what_cannot_be_queued) {
  Stage stage;
  Played a(stage, "a"), b(stage, "b"), c(stage, "c");
  b.queues = c.queues = 0;
  StepThread thread;
  thread.give(a);
  stage.wait_for("a+");
  thread.give(b);
  stage.open(a.nearly);
  stage.wait_for("b?");
  // It has not begun: it can be taken back as soon as it waits again.
  while (thread.retract() != &b) std::this_thread::yield();

  thread.give(c);
  stage.open(a.ended);
  a.wait();
  c.wait();
  CHECK_EQ(stage.log(), std::string("a? a+ b? a. c? c!"));
}

TEST_ONCE(step_thread_tells_each_step_its_own_failure) {
  Stage stage;
  Played a(stage, "a"), b(stage, "b"), c(stage, "c"), d(stage, "d");
  a.finish_fails = b.queue_fails = true;
  for (Played* step : {&a, &c}) step->nearly = step->ended = true;
  a.ended = false;
  StepThread thread;
  thread.give(a);
  stage.wait_for("a+");
  thread.give(b);
  CHECK_ERROR(kRange, "b is no plan", b.wait());
  stage.open(a.ended);
  CHECK_ERROR(kState, "a failed", a.wait());
  thread.give(c);
  c.wait();
  d.queues = 0;
  thread.give(d);
  d.wait();
  CHECK_EQ(stage.log(), std::string("a? a+ b? a. c? c+ c. d? d!"));
}

TEST_ONCE(step_thread_tells_when_what_was_given_is_over) {
  Stage stage;
  Played a(stage, "a"), b(stage, "b"), c(stage, "c");
  b.queues = c.queues = 0;
  StepThread thread;
  thread.wait_for_given(thread.given());
  thread.give(a);
  stage.wait_for("a+");
  std::atomic<bool> told{false};
  std::thread waiter([&, given = thread.given()] {
    thread.wait_for_given(given);
    told = true;
    CHECK(stage.log().find("a.") != std::string::npos);
  });
  // What is given and taken back later counts for nothing.
  thread.give(b);
  CHECK(thread.retract() == &b);
  CHECK(!told);
  thread.give(c);
  stage.open(a.nearly);
  stage.open(a.ended);
  waiter.join();
  thread.wait_for_given(thread.given());
  CHECK(stage.log().ends_with("c!"));
}

TEST_ONCE(step_thread_closed_gives_back_what_waits_and_ends_what_has_begun) {
  Stage stage;
  Played a(stage, "a"), b(stage, "b");
  StepThread thread;
  thread.give(a);
  stage.wait_for("a+");
  thread.give(b);
  const std::vector<StepWork*> left = thread.close();
  CHECK_EQ(left.size(), size_t(1));
  CHECK(left.front() == &b);
  CHECK_EQ(thread.close().size(), size_t(0));
  stage.open(a.nearly);
  stage.open(a.ended);
  thread.join();
  CHECK(a.is_over);
  CHECK(!b.is_over);
  CHECK_EQ(stage.log(), std::string("a? a+ a."));
}

// It is asked whether it can be queued while close() is called: it waits no more then, and is not given back either.
TEST_ONCE(step_thread_closed_tells_the_end_of_what_it_could_not_queue) {
  Stage stage;
  Played a(stage, "a"), b(stage, "b");
  b.queues = 0;
  b.answers = false;
  StepThread thread;
  thread.give(a);
  stage.wait_for("a+");
  thread.give(b);
  stage.open(a.nearly);
  stage.wait_for("b?");
  CHECK_EQ(thread.close().size(), size_t(0));
  stage.open(b.answers);
  stage.open(a.ended);
  thread.join();
  CHECK(a.is_over && a.failure == nullptr);
  CHECK(b.is_over && b.failure != nullptr);
  CHECK_EQ(stage.log(), std::string("a? a+ b? a."));
}

TEST_ONCE(step_thread_says_whether_another_step_waits) {
  Stage stage;
  Played a(stage, "a"), b(stage, "b"), c(stage, "c");
  b.queues = c.queues = 0;
  for (Played* step : {&a, &b, &c}) step->nearly = true;
  StepThread thread;
  thread.give(a);
  stage.wait_for("a+");
  thread.give(b);
  thread.give(c);
  stage.open(a.ended);
  c.wait();
  CHECK(a.another_waited);
  CHECK(b.another_waited);
  CHECK(!c.another_waited);
}

}  // namespace
}  // namespace tandem::test
