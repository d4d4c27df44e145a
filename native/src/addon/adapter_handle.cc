#include "addon/adapter_handle.h"

#include "addon/background_jobs.h"
#include "addon/model_handle.h"
#include "addon/read.h"
#include "addon/read_spec.h"

namespace tandem::addon {
namespace {

constexpr napi_type_tag kAdapterTag = {0x2f6b1c0d8a5e4793ull, 0xb81d3e6f90c2a754ull};

struct AdapterHolder {
  std::shared_ptr<const model::Adapter> adapter;
};

class LoadAdapterJob : public BackgroundJob {
 public:
  LoadAdapterJob(Napi::Env env, LoadedModel loaded, AdapterSource source)
      : BackgroundJob(env), loaded_(std::move(loaded)), source_(std::move(source)) {}

 private:
  void execute() override {
    model::Adapter adapter = source_.in_files ? model::Adapter(loaded_.model, source_.files, source_.tensors, source_.stored)
                                              : model::Adapter(loaded_.model, source_.factors);
    if (loaded_.on_device) {
      adapter_ = loaded_.on_device->place(std::move(adapter));
    } else {
      adapter_ = std::make_shared<model::Adapter>(std::move(adapter));
    }
    loaded_ = {};
  }
  Napi::Value result(Napi::Env env) override { return adapter_handle(env, std::move(adapter_)); }

  LoadedModel loaded_;
  AdapterSource source_;
  std::shared_ptr<const model::Adapter> adapter_;
};

}  // namespace

Napi::Value adapter_handle(Napi::Env env, std::shared_ptr<const model::Adapter> adapter) {
  Napi::Object object = Napi::Object::New(env);
  auto holder = std::make_shared<AdapterHolder>(AdapterHolder{std::move(adapter)});
  object.Set("bytes", Napi::Number::New(env, double(holder->adapter->bytes())));
  object.Set("close", Napi::Function::New(env, [holder](const Napi::CallbackInfo& info) -> Napi::Value {
               holder->adapter.reset();
               return info.Env().Undefined();
             }));
  auto* owned = new std::shared_ptr<AdapterHolder>(holder);
  auto finalize = [](napi_env, void* data, void*) { delete static_cast<std::shared_ptr<AdapterHolder>*>(data); };
  if (napi_wrap(env, object, owned, finalize, nullptr, nullptr) != napi_ok) {
    delete owned;
    throw Napi::Error::New(env, "could not create the adapter handle");
  }
  napi_type_tag_object(env, object, &kAdapterTag);
  return object;
}

Napi::Value load_adapter(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    LoadedModel model = model_of(info[0]);
    AdapterSource source = read_adapter_source(info[1]);
    return BackgroundJob::start(load_pool(), std::make_unique<LoadAdapterJob>(info.Env(), std::move(model), std::move(source)));
  });
}

std::shared_ptr<const model::Adapter> adapter_of(const Napi::Value& value) {
  bool tagged = false;
  void* data = nullptr;
  if (!value.IsObject() || napi_check_object_type_tag(value.Env(), value, &kAdapterTag, &tagged) != napi_ok || !tagged ||
      napi_unwrap(value.Env(), value, &data) != napi_ok) {
    throw Error(ErrorKind::kType, "adapter must be a loaded adapter");
  }
  auto adapter = (*static_cast<std::shared_ptr<AdapterHolder>*>(data))->adapter;
  require(adapter != nullptr, ErrorKind::kState, "the adapter is closed");
  return adapter;
}

}  // namespace tandem::addon
