#include "grammar/counted_lexer.h"

#include <functional>
#include <queue>
#include <tuple>

namespace tandem::grammar {

CountedLexer::CountedLexer(DfaRef dfa, int64_t most) : dfa_(std::move(dfa)), most_(most), missing_(dfa_->size()) {
  require(most < (int64_t(1) << kCountBits), ErrorKind::kRange, "maxLength is too large");
  // A character is counted by its first byte.
  struct Way {
    int32_t from;
    bool begins;
  };
  std::vector<std::vector<Way>> back(dfa_->size());
  std::vector<uint8_t> begins(size_t(dfa_->classes), 0);
  for (int byte = 0; byte < 256; ++byte) begins[dfa_->byte_class[size_t(byte)]] |= uint8_t((byte & 0xC0) != 0x80);
  // The nearest first.
  using Place = std::tuple<int64_t, int64_t, int32_t>;
  std::priority_queue<Place, std::vector<Place>, std::greater<>> open;
  for (size_t state = 0; state < dfa_->size(); ++state) {
    if (dfa_->label[state] != kNone) open.emplace(0, 0, int32_t(state));
    for (int32_t symbol = 0; symbol < dfa_->classes; ++symbol) {
      int32_t target = dfa_->table[state * size_t(dfa_->classes) + size_t(symbol)];
      if (target != kNone) back[size_t(target)].push_back({int32_t(state), begins[size_t(symbol)] != 0});
    }
  }
  while (!open.empty()) {
    auto [characters, bytes, state] = open.top();
    open.pop();
    if (missing_[size_t(state)].characters != kNever) continue;
    missing_[size_t(state)] = {characters, bytes};
    for (const Way& way : back[size_t(state)]) {
      if (missing_[size_t(way.from)].characters == kNever) open.emplace(characters + way.begins, bytes + 1, way.from);
    }
  }
}

LexState CountedLexer::start() const {
  return dfa_->empty() || missing_[size_t(dfa_->start)].characters > most_ ? kDead : LexState(dfa_->start) << kCountBits;
}

LexState CountedLexer::next(LexState state, uint8_t byte) const {
  int32_t target = dfa_->next(int32_t(state >> kCountBits), byte);
  int64_t count = int64_t(state & ((LexState(1) << kCountBits) - 1)) + ((byte & 0xC0) != 0x80);
  if (target == kNone || count + missing_[size_t(target)].characters > most_) return kDead;
  return LexState(target) << kCountBits | LexState(count);
}

int64_t CountedLexer::distance(LexState state, int32_t label) const {
  return label == 0 ? missing_[size_t(state >> kCountBits)].bytes : kNever;
}

}  // namespace tandem::grammar
