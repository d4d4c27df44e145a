// Unicode general categories, for \p{...} in patterns.
#pragma once
#include <cstdint>
#include <iterator>
#include <string_view>
#include <vector>

namespace tandem::grammar {

struct CodeRange {
  uint32_t low, high;
};

// Appends the ranges of every general category whose two-letter name starts so ("Lu", "L").
void add_category(std::string_view prefix, std::vector<CodeRange>& out);

}  // namespace tandem::grammar
