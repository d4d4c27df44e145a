// Unicode's properties, for \p{...} in patterns.
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
// Appends those of a binary property, by its long or short name; nothing where there is none of that name.
void add_property(std::string_view name, std::vector<CodeRange>& out);
// The same of a script, or of what Script_Extensions gives it.
void add_script(std::string_view name, bool extensions, std::vector<CodeRange>& out);

}  // namespace tandem::grammar
