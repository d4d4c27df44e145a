#include "grammar/values.h"

#include <algorithm>

#include "grammar/regex.h"

namespace tandem::grammar {
namespace {

LexerRef raw(const std::string& space, const std::string& regex, Budget& budget) {
  return std::make_shared<DfaLexer>(compile_regex("(?:" + space + ")(?:" + regex + ")", Anchoring::kWhole, budget));
}

// White space, then a comma (label 0) or a bracket (label 1).
LexerRef separator(const std::string& space, bool comma, bool bracket, char closing, Budget& budget) {
  Nfa nfa(budget);
  auto [start, after] = add_regex(space, nfa);
  int32_t end[2] = {nfa.add_state(), nfa.add_state()};
  if (comma) nfa.add_bytes(after, end[0], ',', ',');
  if (bracket) nfa.add_bytes(after, end[1], uint8_t(closing), uint8_t(closing));
  return std::make_shared<DfaLexer>(determinize(nfa, start, [end](int32_t state) {
    return state == end[0] ? 0 : state == end[1] ? 1 : kNone;
  }));
}

void check_space(const std::string& space, const DfaRef& dfa) {
  for (int byte = 0; byte < 256; ++byte) {
    if (byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r') continue;
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
  if (!space.empty()) {
    DfaRef dfa = compile_regex(space, Anchoring::kWhole, budget);
    check_space(space, dfa);
    out->space = std::make_shared<DfaLexer>(dfa);
  }
  out->open_array = raw("", "\\[", budget);
  out->open_object = raw("", "\\{", budget);
  out->colon = raw(space, ":", budget);
  for (int allowed = 1; allowed < 4; ++allowed) {
    out->array_next[allowed] = separator(space, allowed & 1, allowed & 2, ']', budget);
    out->object_next[allowed] = separator(space, allowed & 1, allowed & 2, '}', budget);
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
