// The JavaScript side of a trainer.
#pragma once
#include "addon/napi_setup.h"

namespace tandem::addon {

// createTrainer(model, options, state) -> Promise<NativeTrainer>
Napi::Value create_trainer(const Napi::CallbackInfo& info);

}  // namespace tandem::addon
