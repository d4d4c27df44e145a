// The JavaScript side of a loaded model.
#pragma once
#include <memory>

#include "addon/napi_setup.h"
#include "device/device.h"
#include "model/forward.h"

namespace tandem::addon {

// loadModel(spec, files, tensors, options) -> Promise<NativeModel>
Napi::Value load_model(const Napi::CallbackInfo& info);

struct LoadedModel {
  std::shared_ptr<model::Model> model;
  std::shared_ptr<device::Model> on_device;  // holds the weights where it is not null: `model` has only the facts then
};
// The model behind a handle; throws TypeError for anything else, Error when it is closed.
LoadedModel model_of(const Napi::Value& value);

}  // namespace tandem::addon
