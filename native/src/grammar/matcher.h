// One constrained text in progress. What the engine and the addon use.
#pragma once
#include <deque>

#include "grammar/budget.h"
#include "grammar/mask.h"

namespace tandem::grammar {

class Matcher {
 public:
  explicit Matcher(std::shared_ptr<GrammarMasks> masks);
  // Takes a token; false, with nothing changed, where it may not come. An end token is taken where the text may end.
  bool advance(int32_t token);
  bool advance_bytes(std::string_view bytes);
  // Undoes the last `count` advances; the last 256 are kept.
  void rollback(size_t count);
  // Sets the bit of every token that may come next, end tokens included.
  void fill_mask(uint32_t* mask, size_t words) const;
  // The text may end here.
  bool can_end() const { return current().state.can_end; }
  // Nothing but an end token may come.
  bool complete() const;
  // An end token was taken.
  bool ended() const { return current().ended; }
  // Fewest bytes to a place where the text may end; kNever where there is none.
  int64_t bytes_to_end() const { return distance(current().state); }
  const Vocabulary& vocabulary() const { return masks_->vocabulary(); }
  const State& state() const { return current().state; }
  // Bytes that must come next whatever is chosen, at most `most`.
  std::string forced(size_t most = 256) const;
  // A shortest way to a place where the text may end, as bytes and as tokens; false where none is found within `most` bytes. Meant for
  // generate mode: accept mode does not measure numbers.
  // `budget`: of the compilation that this is a part of; null: only steps bound the search.
  bool completion(std::string& bytes, size_t most = 1 << 16, const Budget* budget = nullptr) const;
  bool completion_tokens(std::vector<int32_t>& tokens) const;

 private:
  struct Point {
    State state;
    bool ended = false;
  };
  const Point& current() const { return points_.back(); }
  void push(Point point);
  std::shared_ptr<GrammarMasks> masks_;
  std::deque<Point> points_;
};

}  // namespace tandem::grammar
