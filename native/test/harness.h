// What the programs of tests share (test.h declares what tests themselves call).
#pragma once
#include "test.h"

namespace tandem::test {

// Runs a test; true: nothing failed. Prints its first few messages, and its time if it was slow.
bool run_case(const Case& test);

}  // namespace tandem::test
