// A language of raw text with a bound on its characters, which are counted: as states of an automaton they would be too many.
#pragma once
#include "grammar/lexer.h"

namespace tandem::grammar {

class CountedLexer final : public Lexer {
 public:
  // The texts of `dfa`, whose labels are all 0, with at most `most` code points.
  CountedLexer(DfaRef dfa, int64_t most);
  LexState start() const override;
  LexState next(LexState state, uint8_t byte) const override;
  int32_t label(LexState state) const override { return dfa_->label[size_t(state >> kCountBits)]; }
  // Of the ends that take the fewest characters.
  int64_t distance(LexState state, int32_t label) const override;

 private:
  static constexpr uint32_t kCountBits = 24;
  DfaRef dfa_;
  int64_t most_;
  // Per state of the automaton: what is missing to an end, characters first.
  struct Missing {
    int64_t characters = kNever, bytes = kNever;
  };
  std::vector<Missing> missing_;
};

}  // namespace tandem::grammar
