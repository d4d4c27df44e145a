// The texts that an automaton leads to: names that the further properties of an object may have, or different items of a list. How many there are,
// and how long a fresh one may have to be.
#pragma once
#include <vector>

#include "grammar/dfa.h"

namespace tandem::grammar {

class NameSpace {
 public:
  // So many names and more are as good as endless: no object has as many properties, and no list as many items.
  static constexpr uint64_t kMany = uint64_t(1) << 24;

  // Counts the texts of `keys` whose label is `first + j` with possible[j]. Keeps a pointer to the automaton.
  NameSpace(const Dfa& keys, int32_t first, std::vector<bool> possible);
  const std::vector<bool>& possible() const { return possible_; }
  // Names that go on from a state; kMany where there are so many or more.
  uint64_t from(int32_t state) const { return names_[size_t(state)]; }
  uint64_t all() const { return keys_->empty() ? 0 : from(keys_->start); }
  // Bytes of the shortest name; 0 where there is none.
  int64_t shortest() const { return shortest_; }
  // Whether the names that begin alike may be used up.
  bool bounded() const { return bounded_; }
  // The least number of bytes within which more than `used` names end, from a state; at most kMostReach.
  int64_t reach(int32_t state, uint64_t used) const { return int64_t(within(state, used).size()) - 1; }
  // How many names at most 0, 1, 2, ... further bytes make, of bytes that need no escape: up to the first that is more than `enough`.
  std::vector<uint64_t> within(int32_t state, uint64_t enough) const;
  static constexpr int64_t kMostReach = 64;

 private:
  bool ends(int32_t state) const;
  void count();

  const Dfa* keys_;
  int32_t first_;
  std::vector<bool> possible_;
  std::vector<uint64_t> names_;          // per state
  std::vector<uint32_t> bytes_, plain_;  // per symbol: its bytes, and those of them that no string has to escape
  bool bounded_ = false;
  int64_t shortest_ = 0;
};

}  // namespace tandem::grammar
