// Bounds of one compilation. Every loop whose length the source decides calls tick(); every automaton counts its states.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"

namespace tandem::grammar {

struct Limits {
  size_t source_bytes = size_t(4) << 20;
  int nesting = 128;                // of the source: JSON depth, regex groups, EBNF groups
  size_t states = 200'000;          // automaton states of one grammar, together
  size_t table_cells = 24'000'000;  // transition cells of one grammar, together (4 bytes each)
  size_t set_items = 32'000'000;    // of the sets of states that automata are made from, together (4 bytes each)
  size_t values = 20'000;           // distinct value nodes of one schema
  size_t alternatives = 512;        // disjuncts of one value of one type
  size_t document_depth = 1024;     // open arrays, objects or rules in the constrained text
  double seconds = 5;
};

// A construct that this engine does not decide. `keyword` names it as the source does.
class Refused : public Error {
 public:
  Refused(std::string keyword, const std::string& why)
      : Error(ErrorKind::kUnsupported, keyword + ": " + why), keyword_(std::move(keyword)) {}
  const std::string& keyword() const { return keyword_; }

 private:
  std::string keyword_;
};

[[noreturn]] inline void malformed(const std::string& message) { throw Error(ErrorKind::kType, message); }

// Bytes that a grammar comes to hold of the texts that it is asked about, beside its tables: for the caches' bounds.
using Remembered = std::shared_ptr<std::atomic<size_t>>;

class Budget {
  using Clock = std::chrono::steady_clock;

 public:
  explicit Budget(Limits limits = {}, std::shared_ptr<std::atomic<bool>> cancelled = nullptr)
      : limits_(limits), cancelled_(std::move(cancelled)),
        deadline_(Clock::now() + std::chrono::microseconds(int64_t(limits.seconds * 1e6))) {}
  const Limits& limits() const { return limits_; }
  // Throws when the compilation was cancelled or took too long; looks at the clock once in 1024 calls.
  void tick() {
    if ((++ticks_ & 1023) == 0) check_clock();
  }
  // The same at once, for pieces of work that are long by themselves.
  void check_clock() const {
    if (cancelled_ && cancelled_->load(std::memory_order_relaxed)) throw Error(ErrorKind::kState, "the compilation was cancelled");
    if (Clock::now() > deadline_) throw Error(ErrorKind::kRange, "the grammar takes too long to compile");
  }
  void add_states(size_t states, size_t cells) {
    states_ += states;
    cells_ += cells;
    if (states_ > limits_.states || cells_ > limits_.table_cells) throw Error(ErrorKind::kRange, "the grammar needs too many states");
    tick();
  }
  // A set of so many states is kept until its automaton is made.
  void add_set(size_t items) {
    set_items_ += items;
    if (set_items_ > limits_.set_items) throw Error(ErrorKind::kRange, "the grammar needs too many states");
  }
  // What is made under this budget counts there what it remembers, as long as it lives.
  const Remembered& remembered() const { return remembered_; }
  // Bytes of all tables built under this budget, for the caches' bounds.
  size_t bytes() const { return cells_ * sizeof(int32_t) + states_ * 16; }

 private:
  Limits limits_;
  Remembered remembered_ = std::make_shared<std::atomic<size_t>>(0);
  std::shared_ptr<std::atomic<bool>> cancelled_;
  Clock::time_point deadline_;
  uint32_t ticks_ = 0;
  size_t states_ = 0, cells_ = 0, set_items_ = 0;
};

}  // namespace tandem::grammar
