// The JavaScript side of a loaded adapter.
#pragma once
#include <memory>

#include "addon/napi_setup.h"
#include "model/adapter.h"

namespace tandem::addon {

// loadAdapter(model, source) -> Promise<NativeAdapter>; the source names tensors in files or brings the factors themselves.
Napi::Value load_adapter(const Napi::CallbackInfo& info);

// A NativeAdapter.
Napi::Value adapter_handle(Napi::Env env, std::shared_ptr<const model::Adapter> adapter);

// The adapter behind a handle; throws TypeError for anything else, Error when it is closed.
std::shared_ptr<const model::Adapter> adapter_of(const Napi::Value& value);

}  // namespace tandem::addon
