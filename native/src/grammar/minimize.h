// Merging of states from which an automaton accepts the same texts with the same labels.
#pragma once
#include "grammar/dfa.h"

namespace tandem::grammar {

// `dfa` has no state that reaches no accepting one. Large automata are left as they are: the merging is for speed alone.
void minimize(Dfa& dfa, Budget& budget);

}  // namespace tandem::grammar
