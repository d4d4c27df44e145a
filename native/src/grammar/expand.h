// From formulas to values: each value node is a set of formulas that hold together; for each type they are multiplied out to
// alternatives, each of which is one frame or lexer.
#pragma once
#include "grammar/schema.h"
#include "grammar/values.h"

namespace tandem::grammar {

// Fills the table and returns the root value. The table must not move afterwards.
ValueId expand(const SchemaFormulas& schema, Mode mode, Budget& budget, ValueTable& table);

}  // namespace tandem::grammar
