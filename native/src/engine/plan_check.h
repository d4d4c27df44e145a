// What an engine refuses: options that no engine can have, and plans that do not follow from what its slots hold.
#pragma once
#include <memory>
#include <vector>

#include "engine/backend.h"
#include "engine/slot.h"

namespace tandem::engine {

// Throws Error(kRange) naming the option.
void check_options(const Options& options, const model::Spec& spec);

// Looks at the whole plan and throws Error(kRange) naming what is wrong with it; nothing has changed then. `options` have been checked,
// `slots` are as the steps before have left them.
void check_plan(const Plan& plan, const std::vector<Slot>& slots, const Options& options, const std::shared_ptr<model::Model>& model);

}  // namespace tandem::engine
