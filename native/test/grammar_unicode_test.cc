// Unicode's properties in expressions: by every kind of name, and at the edges of some of their ranges.
#include "grammar/regex.h"
#include "patient_budget.h"
#include "test.h"

namespace tandem::test {
namespace {

using namespace grammar;

bool holds(const std::string& property, uint32_t code) {
  Budget budget = patient_budget();
  std::string text;
  append_utf8(code, text);
  const DfaRef dfa = compile_regex("\\p{" + property + "}", Anchoring::kWhole, budget);
  return !dfa->empty() && dfa->match(text) != kNone;
}

TEST_ONCE(grammar_unicode_properties_have_their_edges) {
  struct Edge {
    const char* property;
    uint32_t inside, outside;
  };
  for (const Edge& edge : std::vector<Edge>{{"Script=Greek", 0x3B1, 'a'},
                                            {"sc=Grek", 0x1D245, 0x1D246},
                                            {"Script_Extensions=Hiragana", 0x30FC, 0x4E00},
                                            {"scx=Deva", 0x964, 0x41},
                                            {"Alphabetic", 0x2160, 0x30},
                                            {"White_Space", 0x3000, 0x200B},
                                            {"space", 0x85, 0x84},
                                            {"ID_Start", 0x2118, 0x5F},
                                            {"XIDC", 0xB7, 0xB8},
                                            {"Uppercase", 0x24B6, 0x24D0},
                                            {"CI", 0x27, 0x28},
                                            {"Assigned", 0x10FFFD, 0x10FFFF},
                                            {"Emoji", 0x1F600, 0x40},
                                            {"gc=Lu", 0xC0, 0xE0},
                                            {"General_Category=Cased_Letter", 0x1C5, 0x2B0},
                                            {"L", 0x2B0, '1'},
                                            {"gc=Letter", 0x1C5, '1'},
                                            {"punct", '!', '+'},
                                            {"Combining_Mark", 0x300, 'a'},
                                            {"C", 0xE000, ' '},
                                            {"ASCII", 0x7F, 0x80},
                                            {"Cn", 0x10FFFF, 0x10FFFD}}) {
    if (!holds(edge.property, edge.inside)) fail(__FILE__, __LINE__, std::string(edge.property) + " lacks " + show(edge.inside));
    if (holds(edge.property, edge.outside)) fail(__FILE__, __LINE__, std::string(edge.property) + " holds " + show(edge.outside));
  }
  // Script_Extensions also takes away.
  CHECK(holds("sc=Common", 0x30FC) && !holds("scx=Common", 0x30FC));
}

TEST_ONCE(grammar_unicode_properties_that_are_none_are_refused) {
  for (const char* name : {"", "gc=", "gc=Emoji", "sc=", "sc=Lu", "Script=greek", "Greek", "Lx", "Alphabetic=Yes", "|", "Alphabetic|Alpha"})
    CHECK_ERROR(kUnsupported, "is not known", holds(name, 'a'));
}

}  // namespace
}  // namespace tandem::test
