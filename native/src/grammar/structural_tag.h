// Structural tags: free text in which certain beginnings open constrained parts. Reads both layouts: {format: ...} and
// {structures, triggers}.
#pragma once
#include "grammar/grammar.h"

namespace tandem::grammar {

GrammarRef compile_structural_tag(std::string_view source, const GrammarOptions& options, Budget& budget);

}  // namespace tandem::grammar
