#include "grammar/regex.h"

#include <algorithm>
#include <map>

#include "grammar/regex_syntax.h"

namespace tandem::grammar {
namespace {

const std::vector<CodeRange> kAny = {{0, 0x10FFFF}};

// Whether what came before a place is all that it takes to say if a node matches there.
bool looks_back_only(const RegexNode& node) {
  if (node.kind == RegexNode::kEnd || node.kind == RegexNode::kAhead) return false;
  return std::all_of(node.parts.begin(), node.parts.end(), [](const RegexNodeRef& part) { return looks_back_only(*part); });
}

class Emitter {
 public:
  explicit Emitter(Nfa& nfa) : nfa_(nfa) {}
  void emit(const RegexNode& node, int32_t from, int32_t to) {
    nfa_.budget().tick();
    switch (node.kind) {
      case RegexNode::kEmpty: nfa_.add_edge(from, to); return;
      case RegexNode::kClass: add_code_points(nfa_, from, to, node.ranges); return;
      case RegexNode::kStart: nfa_.add_edge(from, to, Nfa::Edge::kAtStart); return;
      case RegexNode::kEnd: nfa_.add_edge(from, to, Nfa::Edge::kAtEnd); return;
      case RegexNode::kAhead:
      case RegexNode::kBehind: nfa_.add_asserted(from, to, assertion_of(node)); return;
      case RegexNode::kEither:
        for (const RegexNodeRef& part : node.parts) emit(*part, from, to);
        return;
      case RegexNode::kSequence: {
        int32_t at = from;
        for (const RegexNodeRef& part : node.parts) {
          int32_t next = nfa_.add_state();
          emit(*part, at, next);
          at = next;
        }
        nfa_.add_edge(at, to);
        return;
      }
      case RegexNode::kRepeat: return repeat(node, from, to);
    }
  }

 private:
  void repeat(const RegexNode& node, int32_t from, int32_t to) {
    int32_t at = from;
    auto copy = [&] {
      int32_t next = nfa_.add_state();
      emit(*node.parts[0], at, next);
      at = next;
    };
    for (int64_t i = 0; i < node.least; ++i) copy();
    if (node.most < 0) {
      int32_t loop = nfa_.add_state(), back = nfa_.add_state();
      nfa_.add_edge(at, loop);
      emit(*node.parts[0], loop, back);
      nfa_.add_edge(back, loop);
      nfa_.add_edge(loop, to);
      return;
    }
    for (int64_t i = node.least; i < node.most; ++i) {
      nfa_.add_edge(at, to);
      copy();
    }
    nfa_.add_edge(at, to);
  }
  // Once for a node, however often it is repeated.
  int32_t assertion_of(const RegexNode& node);

  Nfa& nfa_;
  std::map<const RegexNode*, int32_t> assertions_;
};

// How much of the text around a node's own an automaton takes.
struct Around {
  bool before, after;
};

DfaRef language_of(const RegexNode& node, Around around, bool at_start, Budget& budget) {
  Nfa nfa(budget);
  const int32_t start = nfa.add_state(), from = nfa.add_state(), to = nfa.add_state(), end = nfa.add_state();
  nfa.add_edge(start, from);
  Emitter(nfa).emit(node, from, to);
  nfa.add_edge(to, end);
  if (around.before) {
    const int32_t skip = nfa.add_state();
    nfa.add_edge(start, skip);
    add_code_points(nfa, skip, skip, kAny);
    nfa.add_edge(skip, from);
  }
  if (around.after) add_code_points(nfa, end, end, kAny);
  return determinize(
      nfa, start, [end](int32_t state) { return state == end ? 0 : kNone; }, at_start);
}

int32_t Emitter::assertion_of(const RegexNode& node) {
  const auto known = assertions_.find(&node);
  if (known != assertions_.end()) return known->second;
  const bool ahead = node.kind == RegexNode::kAhead;
  if (!ahead && !looks_back_only(*node.parts[0])) throw Refused("pattern", "look-behind at what follows cannot be decided here");
  Budget& budget = nfa_.budget();
  const auto language = [&node, ahead, &budget](bool at_start) {
    const DfaRef found = language_of(*node.parts[0], {!ahead, ahead}, at_start, budget);
    return node.negative ? complement(found, budget) : found;
  };
  return assertions_[&node] = nfa_.add_assertion({ahead, language});
}

}  // namespace

DfaRef compile_regex(std::string_view pattern, Anchoring anchoring, Budget& budget, bool look_around) {
  const RegexNodeRef tree = parse_regex(pattern, look_around, budget);
  const bool search = anchoring == Anchoring::kSearch;
  return language_of(*tree, {search, search}, true, budget);
}

}  // namespace tandem::grammar
