// JSON numbers whose exact value lies in a set. Accept mode reads every spelling (any zeros, fractions and exponents); generate mode
// plain digits, as many as every reader of doubles keeps apart, and more where the bounds of the set need more.
#pragma once
#include <optional>

#include "grammar/decimal.h"
#include "grammar/lexer.h"

namespace tandem::grammar {

struct Bound {
  Decimal value;
  bool strict = false;
};

// The numbers within the bounds that are multiples of `step` and of none of `avoid`.
struct NumberSet {
  std::optional<Bound> low{}, high{};
  std::optional<Step> step{};
  std::vector<Step> avoid{};
};

// The sets' intersection: nothing when it is empty for certain.
std::optional<NumberSet> intersect(const NumberSet& a, const NumberSet& b);

// The numbers in none of the sets, as at most `most` sets; over that it throws.
std::vector<NumberSet> outside(const std::vector<NumberSet>& sets, size_t most);

constexpr int64_t kGeneratedDigits = 15;  // leading zeros apart
constexpr int64_t kGeneratedPlaces = 16;  // after the point

// Lexers of sets, which know how many members there are.
class NumberLexer : public Lexer {
 public:
  virtual const NumberSet& set() const = 0;
  // Generate mode, whole numbers: how many members at most so many further bytes make, for 0, 1, 2, ... bytes.
  virtual const std::vector<uint64_t>& members(LexState state) const = 0;
};

// Null when no number of the set has a spelling in this mode.
LexerRef make_number_lexer(const NumberSet& set, Mode mode, const Budget& budget);
// All JSON numbers.
LexerRef any_number_lexer(Mode mode);

}  // namespace tandem::grammar
