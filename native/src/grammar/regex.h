// Regular expressions over code points: the syntax of ECMA-262 with Unicode classes, look-around and word boundaries too. Back-references are
// refused.
#pragma once
#include <string_view>

#include "grammar/dfa.h"
#include "grammar/unicode.h"

namespace tandem::grammar {

enum class Anchoring { kSearch, kWhole };

// kSearch: the texts in which the expression matches somewhere (JSON Schema's pattern). kWhole: the texts that it matches entirely.
// `look_around` false: refused, for texts that are a part of another one, at which it would look.
DfaRef compile_regex(std::string_view pattern, Anchoring anchoring, Budget& budget, bool look_around = true);
// Adds the UTF-8 spellings of all code points of the ranges.
void add_code_points(Nfa& nfa, int32_t from, int32_t to, const std::vector<CodeRange>& ranges);
// Sorted, disjoint, without surrogates.
std::vector<CodeRange> normalised(std::vector<CodeRange> ranges);
std::vector<CodeRange> negated(const std::vector<CodeRange>& ranges);
void append_utf8(uint32_t code, std::string& out);
// Reads one code point at `at` and moves on; throws on malformed UTF-8.
uint32_t read_utf8(std::string_view text, size_t& at);

}  // namespace tandem::grammar
