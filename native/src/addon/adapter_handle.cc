#include "addon/adapter_handle.h"

#include "addon/background_jobs.h"
#include "addon/model_handle.h"
#include "addon/read.h"
#include "addon/read_spec.h"
#include "addon/tagged.h"

namespace tandem::addon {
namespace {

struct AdapterHolder {
  std::shared_ptr<const model::Adapter> adapter;
};
using HeldAdapter = std::shared_ptr<AdapterHolder>;

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
  wrap(object, holder, kAdapterTag);
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
  auto adapter = unwrap<HeldAdapter>(value, kAdapterTag, "adapter must be a loaded adapter")->adapter;
  require(adapter != nullptr, ErrorKind::kState, "the adapter is closed");
  return adapter;
}

}  // namespace tandem::addon
