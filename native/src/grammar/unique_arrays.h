// Arrays that hold no item twice, once all values are known.
#pragma once
#include "grammar/values.h"

namespace tandem::grammar {

struct UniqueArray {
  ValueId value;  // of which it is a kind: that of its `nested` with this place
  size_t place;
  size_t prefix;  // items of their own
  bool counted;   // contains
  int64_t least, most;
  ValueId rest;
};

// Throws Refused for an array in which several items are possible that cannot be told apart while they are written. Costs have been found, and are
// found again where the arrays have fewer texts for it.
void keep_unique(const std::vector<UniqueArray>& arrays, ValueId root, Mode mode, Budget& budget, ValueTable& table);

}  // namespace tandem::grammar
