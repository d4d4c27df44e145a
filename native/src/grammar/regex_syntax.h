// What regular expressions are read into.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "grammar/budget.h"
#include "grammar/unicode.h"

namespace tandem::grammar {

struct RegexNode;
using RegexNodeRef = std::unique_ptr<RegexNode>;
struct RegexNode {
  enum Kind { kEmpty, kClass, kSequence, kEither, kRepeat, kStart, kEnd, kAhead, kBehind } kind = kEmpty;
  bool negative = false;  // of look-around
  bool asserts = false;   // says what is around a place, and takes nothing
  std::vector<CodeRange> ranges;
  std::vector<RegexNodeRef> parts;
  int64_t least = 0, most = -1;
};

// `look_around` false: it is refused, and word boundaries are.
RegexNodeRef parse_regex(std::string_view pattern, bool look_around, Budget& budget);

}  // namespace tandem::grammar
