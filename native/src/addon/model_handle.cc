#include "addon/model_handle.h"

#include <chrono>

#include "addon/promise_worker.h"
#include "addon/read.h"
#include "addon/read_spec.h"
#include "addon/tagged.h"

namespace tandem::addon {
namespace {

using Holder = std::shared_ptr<LoadedModel>;

std::string cache_text(const model::Weights& weights) {
  switch (weights.cache) {
    case model::CacheOutcome::kUnused: return "unused";
    case model::CacheOutcome::kRead: return "read";
    case model::CacheOutcome::kWritten: return "written";
    case model::CacheOutcome::kFailed: break;
  }
  return weights.cache_error;
}

device::Model& on_device(const Holder& holder) {
  require(holder->on_device != nullptr, ErrorKind::kState, "the model is closed");
  return *holder->on_device;
}

// What a model on a GPU says of its memory.
Napi::Object gpu_handle(Napi::Env env, const Holder& holder) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("kernels", on_device(holder).kernels());
  object.Set("mostPages", Napi::Function::New(env, [holder](const Napi::CallbackInfo& info) {
               return guarded(info.Env(), [&]() -> Napi::Value {
                 EngineSettings settings = read_engine_settings(info[0]);
                 return Napi::Number::New(info.Env(), double(on_device(holder).most_pages(settings.options, settings.reserve)));
               });
             }));
  object.Set("memoryPlan", Napi::Function::New(env, [holder](const Napi::CallbackInfo& info) {
               return guarded(info.Env(), [&]() -> Napi::Value {
                 EngineSettings settings = read_engine_settings(info[0]);
                 Napi::Array parts = Napi::Array::New(info.Env());
                 for (const device::MemoryPart& part : on_device(holder).memory_plan(settings.options, settings.reserve)) {
                   Napi::Object entry = Napi::Object::New(info.Env());
                   entry.Set("name", part.name);
                   entry.Set("bytes", Napi::Number::New(info.Env(), double(part.bytes)));
                   parts[parts.Length()] = entry;
                 }
                 return parts;
               });
             }));
  return object;
}

Napi::Value make_handle(Napi::Env env, LoadedModel model) {
  Napi::Object object = Napi::Object::New(env);
  auto holder = std::make_shared<LoadedModel>(std::move(model));
  size_t weight_bytes = holder->on_device ? holder->on_device->weight_bytes() : holder->model->weights.bytes();
  object.Set("weightBytes", Napi::Number::New(env, double(weight_bytes)));
  object.Set("pageBytes", Napi::Number::New(env, double(holder->model->kv_shape().page_bytes())));
  object.Set("weightCache", Napi::String::New(env, cache_text(holder->model->weights)));
  object.Set("gpu", holder->on_device ? Napi::Value(gpu_handle(env, holder)) : env.Null());
  object.Set("close", Napi::Function::New(env, [holder](const Napi::CallbackInfo& info) -> Napi::Value {
               *holder = {};
               return info.Env().Undefined();
             }));
  wrap(object, holder, kModelTag);
  return object;
}

class LoadWorker : public PromiseWorker {
 public:
  LoadWorker(Napi::Env env, ModelSource source, LoadSettings settings)
      : PromiseWorker(env), source_(std::move(source)), settings_(settings) {}

  void report_to(Napi::Function callback) {
    progress_ = Napi::ThreadSafeFunction::New(Env(), callback, "tandem load progress", 0, 1);
    progress_.Unref(Env());
    reports_ = true;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void execute() override {
    auto progress = [this](int64_t done, int64_t total) { report(done, total); };
    const auto& [spec, files, tensors] = source_;
    if (settings_.cuda) {
      const auto format = settings_.quantise ? std::optional(settings_.quantise->format) : std::nullopt;
      model_.on_device = device::load(spec, files, tensors, settings_.threads, progress, format);
      model_.model = model_.on_device->facts();
    } else {
      model_.model = std::make_shared<model::Model>(spec, files, tensors, settings_.element, settings_.threads, progress,
                                                    settings_.quantise, settings_.int8_kv);
    }
  }

  void report(int64_t done, int64_t total) {
    if (!reports_) return;
    auto now = Clock::now();
    if (done < total && now - last_report_ < std::chrono::milliseconds(100)) return;
    last_report_ = now;
    progress_.NonBlockingCall([done, total](Napi::Env env, Napi::Function callback) {
      if (env == nullptr) return;
      try {
        callback.Call({Napi::Number::New(env, double(done)), Napi::Number::New(env, double(total))});
      } catch (const Napi::Error&) {
        // A failing progress callback must not end the load.
      }
    });
  }

  Napi::Value result(Napi::Env env) override { return make_handle(env, std::move(model_)); }
  void settled() override {
    if (reports_) progress_.Release();
  }

  ModelSource source_;
  LoadSettings settings_;
  LoadedModel model_;
  Napi::ThreadSafeFunction progress_;
  bool reports_ = false;
  Clock::time_point last_report_{};
};

}  // namespace

Napi::Value load_model(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    ModelSource source = read_model_source(info[0], info[1], info[2]);
    Napi::Object options = read_object(info[3], "options");
    LoadSettings settings = read_load_settings(options);
    Napi::Value callback = read_property(options, "onProgress");
    if (!callback.IsUndefined() && !callback.IsFunction()) throw Error(ErrorKind::kType, "onProgress must be a function");
    auto* worker = new LoadWorker(info.Env(), std::move(source), settings);
    if (callback.IsFunction()) worker->report_to(callback.As<Napi::Function>());
    return worker->start();
  });
}

LoadedModel model_of(const Napi::Value& value) {
  LoadedModel loaded = *unwrap<Holder>(value, kModelTag, "model must be a loaded model");
  require(loaded.model != nullptr, ErrorKind::kState, "the model is closed");
  return loaded;
}

}  // namespace tandem::addon
