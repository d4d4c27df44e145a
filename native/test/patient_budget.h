// A budget for tests: everything but time is bounded as in serving, because sanitizers and busy machines are slow.
#pragma once
#include "grammar/budget.h"

namespace tandem::grammar {

inline Budget patient_budget() { return Budget({.seconds = 600}); }

}  // namespace tandem::grammar
