// The JavaScript side of an engine.
#pragma once
#include "addon/napi_setup.h"

namespace tandem::addon {

// createEngine(model, options) -> NativeEngine
Napi::Value create_engine(const Napi::CallbackInfo& info);

}  // namespace tandem::addon
