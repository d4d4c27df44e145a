// What a grammar says about one sequence: which tokens may come next, whether the answer can still be ended in time, and when it has
// ended.
//
// A sequence that is fed again (after a preemption or a restart) gets to the same state by its tokens alone, so what may come at an
// output index depends on the tokens before it and on the limit, and on nothing else.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "grammar/matcher.h"

namespace tandem::engine {

// A grammar over the engine's vocabulary, shared by all sequences that it constrains.
struct Program {
  std::shared_ptr<grammar::GrammarMasks> masks;
  // A shortest text as tokens; empty where it is too long to be looked for.
  std::vector<int32_t> shortest;
  // Its lexers remember so much that further sequences should get one that is made anew. Set by its constraints.
  mutable std::atomic<bool> worn{false};
};
// Throws as a compilation does when the budget's time is over.
std::shared_ptr<const Program> make_program(grammar::GrammarRef grammar, std::shared_ptr<const grammar::SharedMasks> shared,
                                            const grammar::Budget& budget);

// One sequence's. It outlives its slots; the scheduler's thread and the step's may both call it.
class Constraint {
 public:
  // The tokens among `stop_ids` that have no text are ends: they may come exactly where the text may end. `jumps`: forced text may be
  // given by jump() instead of being sampled.
  Constraint(std::shared_ptr<const Program> program, const std::vector<int32_t>& stop_ids, int64_t max_tokens, bool jumps = false);
  size_t vocabulary_size() const { return matcher_.vocabulary().size(); }
  bool jumps() const { return jumps_; }

  // Output number `index` is known. Those taken before are skipped.
  void take(int64_t index, int32_t token);
  // The text that must come next, at most kForcedBytes of it.
  std::string forced();
  // Whether there is such a text.
  bool is_forced();
  // Takes the first of `tokens`, which spell a beginning of forced(), as the next outputs and returns how many: not those that a token
  // reaching beyond the forced text could replace, not the last one of a text that can only end then, and none that leaves too little
  // room for an ending. At least one output is left to be sampled. The rest follows from the tokens alone, so a sequence that is fed
  // again jumps the same way.
  size_t jump(const std::vector<int32_t>& tokens);
  // Makes the mask of the next token, output number `index`.
  void prepare(int64_t index);
  const uint32_t* mask() const { return mask_.data(); }
  // A token did not fit the grammar, or the matcher gave up on it (too many threads, memory): the sequence cannot go on.
  bool failed() const { return failed_; }

  enum class Verdict {
    kGoesOn,
    kEnded,     // an end token
    kComplete,  // the text can only end now
    kTooLong,   // not taken: no ending would fit any more. It is gone from the mask, or only a shortest ending is left there
    kFailed,
  };
  // A token sampled under the mask, as output number `index`.
  Verdict accept(int64_t index, int32_t token);

 private:
  enum class Room { kEnough, kAlongPlan, kNone };
  // Whether the text can be ended with so many more tokens.
  Room room(int64_t tokens) const;
  // Of a text that may end already: its end tokens.
  void leave_only_ending();
  void allow_ends();
  bool advance(int32_t token);
  Verdict judge(int32_t token);
  void fill(int64_t index);
  const std::string& forced_text();
  size_t settled(const std::vector<int32_t>& tokens);
  size_t leap(const std::vector<int32_t>& tokens);
  void retreat(bool on_plan);
  // Whatever goes wrong in a matcher ends its own sequence, never the step.
  template <typename Body>
  void guarded(const Body& body);

  std::shared_ptr<const Program> program_;
  grammar::Matcher matcher_;
  std::vector<int32_t> ends_;
  std::vector<uint32_t> mask_;
  int64_t max_tokens_;
  int64_t taken_ = 0;
  bool steers_ = false;
  bool jumps_;
  std::atomic<bool> failed_{false};  // written under the mutex, read by anyone
  std::mutex mutex_;
  // The sequence follows the grammar's shortest text so far.
  bool on_plan_ = true;
  int refused_ = 0;  // tokens of this position
  // matcher_.forced(), where it is known: all bytes are tried for each of its own, so it is looked for once.
  std::string forced_;
  bool forced_known_ = false;
};

}  // namespace tandem::engine
