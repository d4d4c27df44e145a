// Deterministic automata on bytes with labelled accepting states. Every state of a finished Dfa can reach an accepting one, so
// "not dead" means "some completion is in the language". Languages over text are sets of valid UTF-8 strings.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/budget.h"

namespace tandem::grammar {

constexpr int32_t kNone = -1;

struct Dfa {
  std::array<uint8_t, 256> byte_class{};
  int32_t classes = 1;
  int32_t start = kNone;       // kNone: the language is empty
  std::vector<int32_t> table;  // [state][class] -> state or kNone
  std::vector<int32_t> label;  // kNone where not accepting

  size_t size() const { return label.size(); }
  bool empty() const { return start == kNone; }
  int32_t next(int32_t state, uint8_t byte) const { return table[size_t(state) * size_t(classes) + byte_class[byte]]; }
  // The label of a whole text, kNone where it is not in the language.
  int32_t match(std::string_view text) const;
};
using DfaRef = std::shared_ptr<const Dfa>;

// What holds at a place of the text by what is around it: all that follows, or all that came before, is in a language.
struct Assertion {
  bool ahead;
  // The language as seen from the start of the text, or from elsewhere. Of what came before there is one.
  std::function<DfaRef(bool at_start)> language;
};

// A nondeterministic automaton under construction: byte-range edges, empty edges, and empty edges that hold only at one end of the text or
// where an assertion does.
class Nfa {
 public:
  // kAsserted: `low` is the assertion's number.
  enum class Edge : uint8_t { kBytes, kEmpty, kAtStart, kAtEnd, kAsserted };
  struct Arc {
    Edge kind;
    uint8_t low, high;
    int32_t target;
  };
  explicit Nfa(Budget& budget) : budget_(&budget) {}
  int32_t add_state();
  void add_bytes(int32_t from, int32_t to, uint8_t low, uint8_t high) { states_[size_t(from)].push_back({Edge::kBytes, low, high, to}); }
  void add_edge(int32_t from, int32_t to, Edge kind = Edge::kEmpty) { states_[size_t(from)].push_back({kind, 0, 0, to}); }
  // Gives its number.
  int32_t add_assertion(Assertion assertion);
  void add_asserted(int32_t from, int32_t to, int32_t assertion) {
    states_[size_t(from)].push_back({Edge::kAsserted, uint8_t(assertion), 0, to});
  }
  const std::vector<Assertion>& assertions() const { return assertions_; }
  const std::vector<Arc>& arcs(int32_t state) const { return states_[size_t(state)]; }
  size_t size() const { return states_.size(); }
  Budget& budget() const { return *budget_; }

 private:
  Budget* budget_;
  std::vector<std::vector<Arc>> states_;
  std::vector<Assertion> assertions_;
};

// Subset construction; `accept` maps NFA states to labels (the smallest of a set wins). `at_start`: whether it begins where the text does.
DfaRef determinize(const Nfa& nfa, int32_t start, const std::function<int32_t(int32_t)>& accept, bool at_start = true);

// Runs automata side by side; `combine` maps their labels (kNone: not accepting) to the label of the whole.
using Combine = std::function<int32_t(const std::vector<int32_t>&)>;
DfaRef product(const std::vector<DfaRef>& parts, const Combine& combine, Budget& budget);

// All valid UTF-8 strings whose number of code points lies in [least, most]; most < 0: no bound.
DfaRef utf8_strings(int64_t least, int64_t most, Budget& budget);
DfaRef any_string();
DfaRef empty_language();
// Finite sets: word i has label i (equal words: the first).
DfaRef words(const std::vector<std::string>& list, Budget& budget);
DfaRef intersect(const DfaRef& a, const DfaRef& b, Budget& budget);
DfaRef unite(const DfaRef& a, const DfaRef& b, Budget& budget);
// The strings of a language whose number of code points lies in [least, most]; most < 0: no bound.
DfaRef with_lengths(const DfaRef& a, int64_t least, int64_t most, Budget& budget);
// All valid UTF-8 strings outside the language.
DfaRef complement(const DfaRef& a, Budget& budget);
// The bytes that lead from a state to itself.
struct ByteLoops {
  uint64_t ascii[2] = {0, 0};
  bool others = false;  // every character beyond ASCII leads back to the state
};
ByteLoops loops_of(const Dfa& dfa, int32_t state);
bool is_infinite(const Dfa& dfa);
// No text of the language has another character than ASCII's.
bool is_ascii(const Dfa& dfa);
// Appends the words of a finite language, from `state` on and behind `text`; false where there are more than `most` in all.
bool list_words(const Dfa& dfa, int32_t state, const std::string& text, std::vector<std::string>& out, size_t most = 64);
// Fewest bytes from each state to an accepting one.
std::vector<int32_t> distances(const Dfa& dfa);

}  // namespace tandem::grammar
