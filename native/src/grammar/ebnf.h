// Context-free grammars in GBNF and in Lark's notation.
#pragma once
#include "grammar/grammar.h"

namespace tandem::grammar {

// GBNF (`root ::= ...`) or Lark (`start: ...`), told apart by the first definition.
GrammarRef compile_ebnf(std::string_view source, Budget& budget);
// As rules to be put into a larger grammar; rule 0 is the start.
Rules read_ebnf(std::string_view source, Budget& budget);

}  // namespace tandem::grammar
