// Expressions that look around themselves: which texts are theirs, told from the automaton alone.
#include "grammar/regex.h"
#include "patient_budget.h"
#include "test.h"

namespace tandem::test {
namespace {

using namespace grammar;

struct Case {
  const char* pattern;
  std::vector<std::string> theirs, others;
};

void check(const Case& c, Anchoring anchoring) {
  Budget budget = patient_budget();
  const DfaRef dfa = compile_regex(c.pattern, anchoring, budget);
  for (const std::string& text : c.theirs) {
    if (dfa->empty() || dfa->match(text) == kNone) fail(__FILE__, __LINE__, std::string(c.pattern) + " refuses " + text);
  }
  for (const std::string& text : c.others) {
    if (!dfa->empty() && dfa->match(text) != kNone) fail(__FILE__, __LINE__, std::string(c.pattern) + " takes " + text);
  }
}

TEST_ONCE(grammar_expressions_look_ahead) {
  check({"(?=a)..", {"ab", "a\xc3\xa9"}, {"bb", "a"}}, Anchoring::kWhole);
  check({"(?!a)..",
         {"bb",
          "\xc3\xa9"
          "a"},
         {"ab", "aa"}},
        Anchoring::kWhole);
  check({"a(?=b)", {"ab", "xabx"}, {"a", "ba", "aab\xc3"}}, Anchoring::kSearch);
  check({"a(?=b)", {}, {"a", "ab"}}, Anchoring::kWhole);
  check({"(?:(?!aa).)*", {"", "a", "aba"}, {"aa", "baab"}}, Anchoring::kWhole);
  // An end and a start within it are those of the text.
  check({"a(?=$)", {"a", "ba"}, {"ab"}}, Anchoring::kSearch);
  check({"b(?=^)|(?=^a)", {"ab"}, {"b", "ba"}}, Anchoring::kSearch);
  check({"(?=a(?!b))a.", {"ac"}, {"ab", "cc"}}, Anchoring::kWhole);
}

TEST_ONCE(grammar_expressions_look_behind) {
  check({"(?<=a)b", {"ab", "xab"}, {"b", "bb", "xb"}}, Anchoring::kSearch);
  check({"(?<!a)b", {"b", "bb", "xb"}, {"ab", "a"}}, Anchoring::kSearch);
  check({"(?<=^a)b", {"ab"}, {"b", "aab"}}, Anchoring::kSearch);
  check({"\\bab\\b",
         {"ab", "-ab",
          "\xc3\xa9"
          "ab-"},
         {"cab", "abc", "_ab"}},
        Anchoring::kSearch);
  check({"a\\B", {"ab", "ca1"}, {"a", "a-", "ba"}}, Anchoring::kSearch);
  check({"^(?!.*\\bab\\b).*$", {"", "cab", "abc"}, {"ab", "c ab"}}, Anchoring::kWhole);
}

}  // namespace
}  // namespace tandem::test
