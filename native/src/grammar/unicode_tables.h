// Unicode properties as they are kept: texts from which unicode.cc reads ranges of code points.
#pragma once
#include <span>
#include <string_view>

namespace tandem::grammar {

struct UnicodeEntry {
  std::string_view names;       // all of them, by |
  std::string_view ranges;      // per range the gap before it and its length less one, in digits of five bits, the lowest first
  std::string_view extensions;  // of scripts: where Script_Extensions says otherwise
};

std::span<const UnicodeEntry> unicode_categories();
std::span<const UnicodeEntry> unicode_properties();
std::span<const UnicodeEntry> unicode_scripts();

}  // namespace tandem::grammar
