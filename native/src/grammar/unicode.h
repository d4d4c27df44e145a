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

// The code points of what stands between the braces, by any name that ECMA-262 has for it: a general category, with or without `gc=`, a script
// (`sc=`, `scx=`) or a binary property. Nothing where there is none of that name.
std::vector<CodeRange> unicode_property(std::string_view name);

}  // namespace tandem::grammar
