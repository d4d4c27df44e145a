#include "addon/engine_handle.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "addon/js_thread.h"
#include "addon/model_handle.h"
#include "addon/promise_worker.h"
#include "addon/read.h"
#include "addon/read_spec.h"
#include "addon/step_thread.h"

namespace tandem::addon {
namespace {

// Shared by the handle's functions and a running step. The functions are closures over it, so no `this` is ever unwrapped. It ends on the JS
// thread: so do the closures and, once settled, the steps.
struct EngineHolder : std::enable_shared_from_this<EngineHolder> {
  using Clock = std::chrono::steady_clock;
  explicit EngineHolder(Napi::Env env);
  ~EngineHolder();
  void tear_down();

  JsThread js;
  std::mutex running;  // held by what works with the engine: a step, or the beginning or the end of a queued one
  std::unique_ptr<engine::Engine> engine;
  int queued = 0;  // steps that are not finished; close waits for them
  std::condition_variable landed;
  Clock::time_point last_end{};  // of a queued step
  StepThread steps;
  // On the JS thread only: steps whose promises have not settled, and those of them that were not taken back.
  int unsettled = 0, outstanding = 0;

 private:
  napi_env env_;  // null once it was torn down
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

// One step, from its plan to its promise; owned by itself until it is settled.
class StepCall final : public JsThread::Job, public StepWork {
  using Clock = EngineHolder::Clock;

 public:
  StepCall(Napi::Env env, std::shared_ptr<EngineHolder> holder, engine::Plan plan)
      : holder_(std::move(holder)), deferred_(Napi::Promise::Deferred::New(env)), plan_(std::move(plan)) {}

  static Napi::Promise start(Napi::Env env, std::unique_ptr<StepCall> call) {
    EngineHolder& holder = *call->holder_;
    Napi::Promise promise = call->deferred_.Promise();
    holder.steps.give(*call);
    call.release();
    ++holder.outstanding;
    if (holder.unsettled++ == 0) holder.js.hold(env);
    return promise;
  }
  // It was the thread's and is not any more.
  void taken_back() {
    retracted_ = true;
    --holder_->outstanding;
    failure_ = std::make_exception_ptr(Error(ErrorKind::kState, "the step was taken back"));
    holder_->js.post(this);
  }

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
  void wait_nearly() override {
    {
      std::lock_guard<std::mutex> lock(holder_->running);
      holder_->engine->draw();
    }
    holder_->engine->wait_nearly();
  }
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
  // The JS thread is woken by whom the next step can spare. Measured with two threads on two cores and a lone stream of 4-bit weights: woken
  // from here it took the core from the step that was to begin, for 0.1 to 0.4 ms of 8.
  void over(std::exception_ptr failure, bool another_waits) override {
    failure_ = std::move(failure);
    EngineHolder& holder = *holder_;  // its thread is joined before it goes
    std::lock_guard<std::mutex> lock(holder.running);
    auto post = [](void* call) { static_cast<StepCall*>(call)->holder_->js.post(static_cast<StepCall*>(call)); };
    if (another_waits && holder.engine) return holder.engine->leave(post, this);
    if (holder.engine) holder.engine->settle();  // what was left comes first
    post(this);
  }

  void settle(Napi::Env env) override {
    if (!retracted_) --holder_->outstanding;
    if (--holder_->unsettled == 0) holder_->js.let_go(env);
    settle_promise(deferred_, [&] {
      if (!failure_) return deferred_.Resolve(to_js(env, step_, micros_));
      const Failure failure = failure_of(failure_);
      deferred_.Reject(js_error(env, failure.kind, failure.message));
    });
  }

 private:
  void measure() { micros_ = std::chrono::duration<double, std::micro>(Clock::now() - start_).count(); }

  std::shared_ptr<EngineHolder> holder_;
  Napi::Promise::Deferred deferred_;
  engine::Plan plan_;
  engine::StepResult step_;
  std::exception_ptr failure_;
  Clock::time_point start_{};
  double micros_ = 0;
  bool retracted_ = false;
};

void tear_down_holder(void* holder) { static_cast<EngineHolder*>(holder)->tear_down(); }

// Hooks are called last one first: this one comes before the way to the JS thread is taken down.
EngineHolder::EngineHolder(Napi::Env env) : js(env, "tandem.step"), env_(env) { napi_add_env_cleanup_hook(env_, tear_down_holder, this); }

// No step is left: each keeps the holder.
EngineHolder::~EngineHolder() {
  if (env_) napi_remove_env_cleanup_hook(env_, tear_down_holder, this);
}

// What runs ends, what waits does not begin; nobody is left to tell.
void EngineHolder::tear_down() {
  const std::shared_ptr<EngineHolder> kept = shared_from_this();
  env_ = nullptr;
  for (StepWork* waiting : steps.close()) delete waiting;
  steps.join();
  std::lock_guard<std::mutex> lock(running);
  if (engine) engine->settle();
}

Napi::Value rejected(Napi::Env env, ErrorKind kind, const char* message) {
  auto deferred = Napi::Promise::Deferred::New(env);
  deferred.Reject(js_error(env, kind, message));
  return deferred.Promise();
}

Napi::Value step(const std::shared_ptr<EngineHolder>& holder, const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    engine::Plan plan = read_plan(info[0]);
    // Behind the plan: a getter in it may have given steps.
    if (holder->outstanding >= 2) return rejected(info.Env(), ErrorKind::kState, "a step runs and another one waits for it");
    return StepCall::start(info.Env(), std::make_unique<StepCall>(info.Env(), holder, std::move(plan)));
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
    std::vector<int32_t> pages = as_int32_array(info[0], "pages");
    std::vector<uint8_t> bytes = write ? as_uint8_array(info[1], "bytes") : std::vector<uint8_t>();
    return (new PagesWorker(info.Env(), holder, std::move(pages), std::move(bytes), write))->start();
  });
}

}  // namespace

Napi::Value create_engine(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    auto holder = std::make_shared<EngineHolder>(info.Env());
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
                 StepWork* work = holder->steps.retract();
                 if (work) static_cast<StepCall*>(work)->taken_back();
                 return Napi::Boolean::New(call.Env(), work != nullptr);
               }));
    object.Set("readPages",
               Napi::Function::New(info.Env(), [holder](const Napi::CallbackInfo& call) { return move_pages(holder, call, false); }));
    object.Set("writePages",
               Napi::Function::New(info.Env(), [holder](const Napi::CallbackInfo& call) { return move_pages(holder, call, true); }));
    object.Set("close", Napi::Function::New(info.Env(), [holder](const Napi::CallbackInfo& call) -> Napi::Value {
                 std::unique_lock<std::mutex> lock(holder->running);
                 holder->landed.wait(lock, [&] { return holder->queued == 0; });
                 // What a step left to the pool comes before the answers of those that find no engine any more.
                 if (holder->engine) holder->engine->settle();
                 holder->engine.reset();
                 return call.Env().Undefined();
               }));
    return object;
  });
}

}  // namespace tandem::addon
