#include "addon/trainer_handle.h"

#include <atomic>
#include <mutex>

#include "addon/adapter_handle.h"
#include "addon/model_handle.h"
#include "addon/promise_worker.h"
#include "addon/read.h"
#include "addon/read_training.h"

namespace tandem::addon {
namespace {

// Shared by the handle's functions and a running slice.
struct TrainerHolder {
  std::mutex running;  // held while a worker uses the trainer; close waits for it
  std::unique_ptr<train::Trainer> trainer;
  bool busy = false;  // JS thread only
  // Set on the JS thread, read between the units of a running slice.
  std::atomic<bool> interrupted{false};

  // For calls on the JS thread, once all arguments are read: a getter among them may close the trainer, or begin a slice.
  train::Trainer& idle() {
    require(!busy, ErrorKind::kState, "the trainer is busy");
    require(trainer != nullptr, ErrorKind::kState, "the trainer is closed");
    return *trainer;
  }
};

using Holder = std::shared_ptr<TrainerHolder>;

class TrainerWorker : public PromiseWorker {
 public:
  TrainerWorker(Napi::Env env, Holder holder) : PromiseWorker(env), holder_(std::move(holder)) { holder_->busy = true; }

 protected:
  virtual void use(train::Trainer& trainer) = 0;

 private:
  void execute() override {
    std::lock_guard<std::mutex> lock(holder_->running);
    require(holder_->trainer != nullptr, ErrorKind::kState, "the trainer is closed");
    use(*holder_->trainer);
  }
  void settled() override { holder_->busy = false; }

 protected:
  Holder holder_;
};

class SliceWorker : public TrainerWorker {
 public:
  SliceWorker(Napi::Env env, Holder holder, int64_t micros) : TrainerWorker(env, std::move(holder)), micros_(micros) {
    holder_->interrupted = false;
  }

 private:
  void use(train::Trainer& trainer) override { done_ = trainer.slice(micros_, &holder_->interrupted); }
  Napi::Value result(Napi::Env env) override { return Napi::Boolean::New(env, done_); }

  int64_t micros_;
  bool done_ = false;
};

class StateWorker : public TrainerWorker {
 public:
  StateWorker(Napi::Env env, Holder holder, int64_t first, int64_t count)
      : TrainerWorker(env, std::move(holder)), first_(first), count_(count) {}

 private:
  void use(train::Trainer& trainer) override { state_ = trainer.state(first_, count_); }
  Napi::Value result(Napi::Env env) override { return to_js(env, state_); }

  int64_t first_, count_;
  train::State state_;
};

// Two whole numbers, or neither: everything.
Napi::Value state(const Holder& holder, const Napi::CallbackInfo& info) {
  int64_t first = 0, count = INT64_MAX;
  if (!info[0].IsUndefined()) {
    first = as_int(info[0], "first");
    count = as_int(info[1], "count");
  }
  holder->idle();
  return (new StateWorker(info.Env(), holder, first, count))->start();
}

template <typename Body>
void method(Napi::Object& object, const char* name, const Holder& holder, const Body& body) {
  object.Set(name, Napi::Function::New(object.Env(), [holder, body](const Napi::CallbackInfo& info) {
               return guarded(info.Env(), [&]() -> Napi::Value { return body(holder, info); });
             }));
}

Napi::Value forward(const Holder& holder, const Napi::CallbackInfo& info) {
  train::Row row = read_row(info[0]);
  if (info[1].IsString()) {
    std::string under = info[1].As<Napi::String>().Utf8Value();
    require(under == "current" || under == "base", ErrorKind::kRange, "weights must be 'current', 'base' or an adapter");
    holder->idle().forward(std::move(row), under == "current" ? train::Under::kCurrent : train::Under::kBase);
  } else {
    std::shared_ptr<const model::Adapter> adapter = adapter_of(info[1]);
    holder->idle().forward(std::move(row), train::Under::kOther, std::move(adapter));
  }
  return info.Env().Undefined();
}

Napi::Value backward(const Holder& holder, const Napi::CallbackInfo& info) {
  std::vector<float> gradients = as_float32_array(info[0], "gradients");
  holder->idle().backward(std::move(gradients));
  return info.Env().Undefined();
}

Napi::Value optimize(const Holder& holder, const Napi::CallbackInfo& info) {
  train::OptimizerStep step = read_optimizer_step(info[0]);
  holder->idle().optimize(step);
  return info.Env().Undefined();
}

Napi::Value slice(const Holder& holder, const Napi::CallbackInfo& info) {
  int64_t micros = as_int(info[0], "micros");
  holder->idle();
  require(micros >= 0 && micros <= 60'000'000, ErrorKind::kRange, "micros must be in 0..60000000");
  return (new SliceWorker(info.Env(), holder, micros))->start();
}

Napi::Value make_handle(Napi::Env env, std::unique_ptr<train::Trainer> trainer) {
  auto holder = std::make_shared<TrainerHolder>();
  holder->trainer = std::move(trainer);
  Napi::Object object = Napi::Object::New(env);
  method(object, "forward", holder, forward);
  method(object, "backward", holder, backward);
  method(object, "optimize", holder, optimize);
  method(object, "slice", holder, slice);
  method(object, "interrupt", holder, [](const Holder& h, const Napi::CallbackInfo& i) {
    h->interrupted = true;
    return i.Env().Undefined();
  });
  method(object, "scores", holder, [](const Holder& h, const Napi::CallbackInfo& i) { return to_js(i.Env(), h->idle().scores()); });
  method(object, "outcome", holder, [](const Holder& h, const Napi::CallbackInfo& i) { return to_js(i.Env(), h->idle().outcome()); });
  method(object, "rowBytes", holder, [](const Holder& h, const Napi::CallbackInfo& i) {
    int64_t tokens = as_int(i[0], "tokens");
    require(tokens >= 1 && tokens <= (int64_t(1) << 20), ErrorKind::kRange, "tokens must be in 1..1048576");
    return Napi::Number::New(i.Env(), double(h->idle().row_bytes(tokens)));
  });
  method(object, "adapter", holder,
         [](const Holder& h, const Napi::CallbackInfo& i) { return adapter_handle(i.Env(), h->idle().adapter()); });
  method(object, "state", holder, state);
  method(object, "close", holder, [](const Holder& h, const Napi::CallbackInfo& i) {
    std::lock_guard<std::mutex> lock(h->running);
    h->trainer.reset();
    return i.Env().Undefined();
  });
  return object;
}

// Packing the factors takes a while: off the JS thread.
class CreateWorker : public PromiseWorker {
 public:
  CreateWorker(Napi::Env env, LoadedModel loaded, train::Options options, train::State state)
      : PromiseWorker(env), loaded_(std::move(loaded)), options_(options), state_(std::move(state)) {}

 private:
  void execute() override {
    trainer_ = loaded_.on_device ? loaded_.on_device->make_trainer(options_, state_)
                                 : std::make_unique<train::Trainer>(loaded_.model, options_, state_);
    loaded_ = {};
    state_ = {};
  }
  Napi::Value result(Napi::Env env) override { return make_handle(env, std::move(trainer_)); }

  LoadedModel loaded_;
  train::Options options_;
  train::State state_;
  std::unique_ptr<train::Trainer> trainer_;
};

}  // namespace

Napi::Value create_trainer(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    LoadedModel loaded = model_of(info[0]);
    train::Options options = read_trainer_options(info[1]);
    train::State state = read_state(info[2]);
    return (new CreateWorker(info.Env(), std::move(loaded), options, std::move(state)))->start();
  });
}

}  // namespace tandem::addon
