#include "addon/engine_handle.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "addon/model_handle.h"
#include "addon/promise_worker.h"
#include "addon/read.h"
#include "addon/read_spec.h"
#include "addon/step_thread.h"

namespace tandem::addon {
namespace {

// Shared by the handle's functions and a running step. The functions are closures over it, so no `this` is ever unwrapped.
struct EngineHolder {
  using Clock = std::chrono::steady_clock;
  std::mutex running;  // held by what works with the engine: a step, or the beginning or the end of a queued one
  std::unique_ptr<engine::Engine> engine;
  int queued = 0;  // steps that are not finished; close waits for them
  std::condition_variable landed;
  Clock::time_point last_end{};  // of a queued step
  StepThread steps;
  int outstanding = 0;  // steps whose promises have not settled and that were not taken back; JS thread only
};

template <typename Array, typename Get>
Array column(Napi::Env env, size_t count, const Get& get) {
  Array array = Array::New(env, count);
  for (size_t i = 0; i < count; ++i) array[i] = get(i);
  return array;
}

Napi::Object to_js(Napi::Env env, const engine::StepResult& step, double micros) {
  Napi::Object out = Napi::Object::New(env);
  const auto& s = step.samples;
  const auto& top = step.top;
  out.Set("slots", column<Napi::Int32Array>(env, s.size(), [&](size_t i) { return s[i].slot; }));
  out.Set("tokens", column<Napi::Int32Array>(env, s.size(), [&](size_t i) { return s[i].token; }));
  out.Set("finish", column<Napi::Uint8Array>(env, s.size(), [&](size_t i) { return uint8_t(s[i].finish); }));
  out.Set("forced", column<Napi::Uint8Array>(env, s.size(), [&](size_t i) { return s[i].forced ? 1 : 0; }));
  out.Set("logprobs", column<Napi::Float32Array>(env, s.size(), [&](size_t i) { return s[i].logprob; }));
  out.Set("ranks", column<Napi::Int32Array>(env, s.size(), [&](size_t i) { return s[i].rank; }));
  out.Set("topRanges",
          column<Napi::Int32Array>(env, 2 * s.size(), [&](size_t i) { return i % 2 ? s[i / 2].top_count : s[i / 2].top_offset; }));
  out.Set("topIds", column<Napi::Int32Array>(env, top.size(), [&](size_t i) { return top[i].id; }));
  out.Set("topLogprobs", column<Napi::Float32Array>(env, top.size(), [&](size_t i) { return top[i].logprob; }));
  const auto& p = step.fed;
  out.Set("promptSlots", column<Napi::Int32Array>(env, p.size(), [&](size_t i) { return p[i].slot; }));
  out.Set("promptPositions", column<Napi::Int32Array>(env, p.size(), [&](size_t i) { return p[i].position; }));
  out.Set("promptLogprobs", column<Napi::Float32Array>(env, p.size(), [&](size_t i) { return p[i].logprob; }));
  out.Set("promptRanks", column<Napi::Int32Array>(env, p.size(), [&](size_t i) { return p[i].rank; }));
  out.Set("promptTopRanges",
          column<Napi::Int32Array>(env, 2 * p.size(), [&](size_t i) { return i % 2 ? p[i / 2].top_count : p[i / 2].top_offset; }));
  out.Set("micros", Napi::Number::New(env, micros));
  return out;
}

class StepWorker final : public PromiseWorker, private StepWork {
  using Clock = EngineHolder::Clock;

 public:
  StepWorker(Napi::Env env, std::shared_ptr<EngineHolder> holder, engine::Plan plan)
      : PromiseWorker(env), holder_(std::move(holder)), plan_(std::move(plan)), task_(holder_->steps.give(*this)) {
    ++holder_->outstanding;
  }
  ~StepWorker() override { holder_->steps.drop(task_); }

 private:
  bool queue() override {
    std::lock_guard<std::mutex> lock(holder_->running);
    require(holder_->engine != nullptr, ErrorKind::kState, "the engine is closed");
    start_ = Clock::now();
    const bool queued = holder_->engine->queue(plan_);
    if (queued) ++holder_->queued;
    return queued;
  }
  void run() override {
    std::lock_guard<std::mutex> lock(holder_->running);
    require(holder_->engine != nullptr, ErrorKind::kState, "the engine is closed");
    start_ = Clock::now();
    step_ = holder_->engine->step(plan_);
    measure();
  }
  // The engine stays while a step is queued.
  void wait_nearly() override { holder_->engine->wait_nearly(); }
  bool ran() override { return holder_->engine->ran(); }
  void finish() override {
    std::lock_guard<std::mutex> lock(holder_->running);
    struct Landing {
      EngineHolder& holder;
      ~Landing() {
        --holder.queued;
        holder.landed.notify_all();
      }
    } landing{*holder_};
    step_ = holder_->engine->finish();
    // It had the device to itself when the one before it had ended.
    start_ = std::max(start_, holder_->last_end);
    measure();
    holder_->last_end = Clock::now();
  }
  void measure() { micros_ = std::chrono::duration<double, std::micro>(Clock::now() - start_).count(); }
  void execute() override { holder_->steps.wait(task_); }
  void settled() override {
    if (!task_->retracted) --holder_->outstanding;
  }
  Napi::Value result(Napi::Env env) override { return to_js(env, step_, micros_); }

  std::shared_ptr<EngineHolder> holder_;
  engine::Plan plan_;
  engine::StepResult step_;
  Clock::time_point start_{};
  double micros_ = 0;
  StepThread::Ticket task_;  // the last to begin, and the first to end
};

Napi::Value rejected(Napi::Env env, ErrorKind kind, const char* message) {
  auto deferred = Napi::Promise::Deferred::New(env);
  deferred.Reject(js_error(env, kind, message));
  return deferred.Promise();
}

Napi::Value step(const std::shared_ptr<EngineHolder>& holder, const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    if (holder->outstanding >= 2) return rejected(info.Env(), ErrorKind::kState, "a step runs and another one waits for it");
    engine::Plan plan = read_plan(info[0]);
    return (new StepWorker(info.Env(), holder, std::move(plan)))->start();
  });
}

// Copies pages out of or into the pool, off the JS thread, once the steps that were given before have ended: the pages may have been those of
// a sequence that was aborted meanwhile and still has a row in one of them.
class PagesWorker : public PromiseWorker {
 public:
  PagesWorker(Napi::Env env, std::shared_ptr<EngineHolder> holder, std::vector<int32_t> pages, std::vector<uint8_t> bytes, bool write)
      : PromiseWorker(env), holder_(std::move(holder)), pages_(std::move(pages)), bytes_(std::move(bytes)), write_(write),
        given_(holder_->steps.given()) {}

 private:
  void execute() override {
    holder_->steps.wait_for_given(given_);
    std::lock_guard<std::mutex> lock(holder_->running);
    require(holder_->engine != nullptr, ErrorKind::kState, "the engine is closed");
    if (write_) {
      holder_->engine->write_pages(pages_, bytes_);
    } else {
      bytes_ = holder_->engine->read_pages(pages_);
    }
  }
  Napi::Value result(Napi::Env env) override {
    if (write_) return env.Undefined();
    Napi::Uint8Array out = Napi::Uint8Array::New(env, bytes_.size());
    std::copy(bytes_.begin(), bytes_.end(), out.Data());
    return out;
  }

  std::shared_ptr<EngineHolder> holder_;
  std::vector<int32_t> pages_;
  std::vector<uint8_t> bytes_;
  bool write_;
  int64_t given_;
};

Napi::Value move_pages(const std::shared_ptr<EngineHolder>& holder, const Napi::CallbackInfo& info, bool write) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    Napi::Object arguments = Napi::Object::New(info.Env());
    arguments.Set("pages", info[0]);
    arguments.Set("bytes", info[1]);
    std::vector<int32_t> pages = read_int32_array(arguments, "pages");
    std::vector<uint8_t> bytes = write ? read_uint8_array(arguments, "bytes") : std::vector<uint8_t>();
    return (new PagesWorker(info.Env(), holder, std::move(pages), std::move(bytes), write))->start();
  });
}

}  // namespace

Napi::Value create_engine(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    auto holder = std::make_shared<EngineHolder>();
    LoadedModel loaded = model_of(info[0]);
    EngineSettings settings = read_engine_settings(info[1]);
    if (loaded.on_device) {
      auto make = [&](const engine::Options& options) { return loaded.on_device->make_backend(options, settings.reserve); };
      holder->engine = std::make_unique<engine::Engine>(loaded.model, settings.options, make);
    } else {
      holder->engine = std::make_unique<engine::Engine>(loaded.model, settings.options);
    }
    Napi::Object object = Napi::Object::New(info.Env());
    object.Set("step", Napi::Function::New(info.Env(), [holder](const Napi::CallbackInfo& call) { return step(holder, call); }));
    object.Set("retract", Napi::Function::New(info.Env(), [holder](const Napi::CallbackInfo& call) -> Napi::Value {
                 const bool retracted = holder->steps.retract();
                 if (retracted) --holder->outstanding;
                 return Napi::Boolean::New(call.Env(), retracted);
               }));
    object.Set("readPages",
               Napi::Function::New(info.Env(), [holder](const Napi::CallbackInfo& call) { return move_pages(holder, call, false); }));
    object.Set("writePages",
               Napi::Function::New(info.Env(), [holder](const Napi::CallbackInfo& call) { return move_pages(holder, call, true); }));
    object.Set("close", Napi::Function::New(info.Env(), [holder](const Napi::CallbackInfo& call) -> Napi::Value {
                 std::unique_lock<std::mutex> lock(holder->running);
                 holder->landed.wait(lock, [&] { return holder->queued == 0; });
                 holder->engine.reset();
                 return call.Env().Undefined();
               }));
    return object;
  });
}

}  // namespace tandem::addon
