#include "grammar/unicode.h"

#include <algorithm>

#include "grammar/unicode_tables.h"

namespace tandem::grammar {
namespace {

uint32_t digit_of(char digit) {
  if (digit >= '0' && digit <= '9') return uint32_t(digit - '0');
  if (digit >= 'A' && digit <= 'Z') return uint32_t(digit - 'A') + 10;
  if (digit >= 'a' && digit <= 'z') return uint32_t(digit - 'a') + 36;
  return digit == '-' ? 62 : 63;
}

// Digits above 31 have others behind them.
uint32_t take_number(std::string_view& text) {
  uint32_t value = 0;
  for (uint32_t shift = 0;; shift += 5) {
    const uint32_t digit = digit_of(text.front());
    text.remove_prefix(1);
    value |= (digit & 31) << shift;
    if (digit < 32) return value;
  }
}

std::vector<CodeRange> ranges_of(std::string_view text) {
  std::vector<CodeRange> out;
  for (uint32_t end = 0; !text.empty(); end = out.back().high + 1) {
    const uint32_t low = end + take_number(text);
    out.push_back({low, low + take_number(text)});
  }
  return out;
}

// What lies in one of the two only.
std::vector<CodeRange> difference(const std::vector<CodeRange>& a, const std::vector<CodeRange>& b) {
  std::vector<uint32_t> edges;
  for (const std::vector<CodeRange>* ranges : {&a, &b}) {
    for (const CodeRange& range : *ranges) edges.push_back(range.low), edges.push_back(range.high + 1);
  }
  std::sort(edges.begin(), edges.end());
  std::vector<CodeRange> out;
  for (size_t i = 0; i + 1 < edges.size(); i += 2) {
    if (edges[i] < edges[i + 1]) out.push_back({edges[i], edges[i + 1] - 1});
  }
  return out;
}

bool is_named(std::string_view names, std::string_view name) {
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find('|', at), names.size());
    if (names.substr(at, end - at) == name) return true;
    at = end + 1;
  }
  return false;
}

const UnicodeEntry* find(std::span<const UnicodeEntry> entries, std::string_view name) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const UnicodeEntry& entry) { return is_named(entry.names, name); });
  return found == entries.end() ? nullptr : &*found;
}

std::vector<CodeRange> named(std::span<const UnicodeEntry> entries, std::string_view name) {
  const UnicodeEntry* entry = find(entries, name);
  return entry ? ranges_of(entry->ranges) : std::vector<CodeRange>();
}

std::vector<CodeRange> script_extensions(std::string_view name) {
  const UnicodeEntry* script = find(unicode_scripts(), name);
  return script ? difference(ranges_of(script->ranges), ranges_of(script->extensions)) : std::vector<CodeRange>();
}

bool take(std::string_view& text, std::string_view start) {
  if (text.substr(0, start.size()) != start) return false;
  text.remove_prefix(start.size());
  return true;
}

}  // namespace

std::vector<CodeRange> unicode_property(std::string_view name) {
  if (take(name, "Script=") || take(name, "sc=")) return named(unicode_scripts(), name);
  if (take(name, "Script_Extensions=") || take(name, "scx=")) return script_extensions(name);
  if (take(name, "General_Category=") || take(name, "gc=")) return named(unicode_categories(), name);
  std::vector<CodeRange> category = named(unicode_categories(), name);
  return category.empty() ? named(unicode_properties(), name) : category;
}

}  // namespace tandem::grammar
