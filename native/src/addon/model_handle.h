// The JavaScript side of a loaded model.
#pragma once
#include <memory>

#include "addon/napi_setup.h"
#include "model/forward.h"

namespace tandem::addon {

// loadModel(spec, files, tensors, options) -> Promise<NativeModel>
Napi::Value load_model(const Napi::CallbackInfo& info);

// The model behind a handle; throws TypeError for anything else, Error when it is closed.
std::shared_ptr<model::Model> model_of(const Napi::Value& value);

}  // namespace tandem::addon
