#include "grammar/values.h"

#include <algorithm>
#include <array>

#include "grammar/regex.h"

namespace tandem::grammar {
namespace {

constexpr char kSpaces[] = {' ', '\t', '\n', '\r'};

LexerRef raw(const std::string& regex, Budget& budget) {
  return std::make_shared<DfaLexer>(compile_regex(regex, Anchoring::kWhole, budget));
}

// White space, then one of the marks, whose place is the label; a mark of 0 never comes. The space is an automaton of its own: what its
// expression says of a text's start and end holds for it alone.
LexerRef separator(const Dfa& space, std::array<char, 2> marks, Budget& budget) {
  Nfa nfa(budget);
  for (size_t state = 0; state < space.size(); ++state) nfa.add_state();
  int32_t end[2] = {nfa.add_state(), nfa.add_state()};
  for (int32_t state = 0; size_t(state) < space.size(); ++state) {
    for (char byte : kSpaces) {
      int32_t next = space.next(state, uint8_t(byte));
      if (next != kNone) nfa.add_bytes(state, next, uint8_t(byte), uint8_t(byte));
    }
    for (size_t i = 0; i < 2 && space.label[size_t(state)] != kNone; ++i) {
      if (marks[i] != 0) nfa.add_bytes(state, end[i], uint8_t(marks[i]), uint8_t(marks[i]));
    }
  }
  return std::make_shared<DfaLexer>(determinize(nfa, space.start, [end](int32_t state) {
    return state == end[0] ? 0 : state == end[1] ? 1 : kNone;
  }));
}

void check_space(const std::string& space, const DfaRef& dfa) {
  for (int byte = 0; byte < 256; ++byte) {
    if (std::find(std::begin(kSpaces), std::end(kSpaces), char(byte)) != std::end(kSpaces)) continue;
    for (size_t state = 0; state < dfa->size(); ++state) {
      if (dfa->next(int32_t(state), uint8_t(byte)) != kNone)
        malformed("whitespace_pattern: \"" + space + "\" matches more than JSON white space");
    }
  }
  if (dfa->empty() || dfa->label[size_t(dfa->start)] == kNone) malformed("whitespace_pattern: it must match the empty text");
}

}  // namespace

std::shared_ptr<const Punctuation> make_punctuation(const std::string& space, Budget& budget) {
  auto out = std::make_shared<Punctuation>();
  DfaRef dfa = compile_regex(space, Anchoring::kWhole, budget, false);
  if (!space.empty()) {
    check_space(space, dfa);
    out->space = std::make_shared<DfaLexer>(dfa);
  }
  out->open_array = raw("\\[", budget);
  out->open_object = raw("\\{", budget);
  out->colon = separator(*dfa, {':', '\0'}, budget);
  for (int allowed = 1; allowed < 4; ++allowed) {
    char comma = allowed & 1 ? ',' : '\0';
    out->array_next[allowed] = separator(*dfa, {comma, allowed & 2 ? ']' : '\0'}, budget);
    out->object_next[allowed] = separator(*dfa, {comma, allowed & 2 ? '}' : '\0'}, budget);
  }
  return out;
}

void ValueTable::begin(ValueId id, const NodeRef& parent, Sink& sink) const {
  const Value& value = at(id);
  if (value.cost >= kNever) return;
  for (const LexerRef& scalar : value.scalars) sink.add(*scalar, parent);
  if (parent->depth >= most_depth) return;
  for (const std::unique_ptr<Frame>& nested : value.nested) {
    const auto* frame = static_cast<const NestedFrame*>(nested.get());
    if (frame->shortest() < kNever) sink.add(frame->opening(), make_node(frame, parent));
  }
}

void ValueTable::find_costs(Budget& budget) {
  for (Value& value : values) {
    value.cost = kNever;
    for (const LexerRef& scalar : value.scalars) {
      budget.tick();
      if (scalar->start() != kDead) value.cost = std::min(value.cost, scalar->distance(scalar->start(), 0));
    }
  }
  for (bool changed = true; changed;) {
    changed = false;
    // What a value is made of was mostly found after it.
    for (size_t i = values.size(); i-- > 0;) {
      budget.tick();
      int64_t cost = values[i].cost;
      for (const auto& nested : values[i].nested) cost = std::min(cost, static_cast<const NestedFrame*>(nested.get())->shortest());
      if (cost < values[i].cost) values[i].cost = cost, changed = true;
    }
  }
}

void ValueTable::settle_frames() {
  for (Value& value : values) {
    for (const auto& nested : value.nested) static_cast<NestedFrame*>(nested.get())->settle();
  }
}

}  // namespace tandem::grammar
