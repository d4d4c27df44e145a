// The module. See src/control/engine/native.ts and native-grammar.ts for the contract of its functions.
#include "addon/adapter_handle.h"
#include "addon/engine_handle.h"
#include "addon/grammar_handle.h"
#include "addon/model_handle.h"
#include "addon/napi_setup.h"
#include "addon/read.h"
#include "addon/trainer_handle.h"
#include "device/device.h"
#include "model/adapter.h"
#include "simd/isa.h"

namespace tandem::addon {
namespace {

Napi::Value info(const Napi::CallbackInfo& call) {
  return guarded(call.Env(), [&]() -> Napi::Value {
    Napi::Env env = call.Env();
    Napi::Object out = Napi::Object::New(env);
    out.Set("version", TANDEM_VERSION);
    out.Set("isa", simd::isa_name(simd::selected_isa()));
    Napi::Array isas = Napi::Array::New(env);
    uint32_t i = 0;
    for (simd::Isa isa : simd::supported_isas()) isas[i++] = Napi::String::New(env, simd::isa_name(isa));
    out.Set("isas", isas);
    device::Info found = device::info();
    Napi::Object cuda = Napi::Object::New(env);
    cuda.Set("built", Napi::Boolean::New(env, found.built));
    cuda.Set("devices", Napi::Number::New(env, found.devices));
    cuda.Set("message", found.message);
    out.Set("cuda", cuda);
    return out;
  });
}

Napi::Value live_adapters(const Napi::CallbackInfo& call) { return Napi::Number::New(call.Env(), double(model::Adapter::alive())); }

Napi::Object init(Napi::Env env, Napi::Object exports) {
  exports.Set("info", Napi::Function::New(env, info));
  exports.Set("loadModel", Napi::Function::New(env, load_model));
  exports.Set("loadAdapter", Napi::Function::New(env, load_adapter));
  exports.Set("liveAdapters", Napi::Function::New(env, live_adapters));
  exports.Set("createEngine", Napi::Function::New(env, create_engine));
  exports.Set("createTrainer", Napi::Function::New(env, create_trainer));
  exports.Set("createVocabulary", Napi::Function::New(env, create_vocabulary));
  exports.Set("compileGrammar", Napi::Function::New(env, compile_grammar));
  exports.Set("compileProgram", Napi::Function::New(env, compile_program));
  exports.Set("grammarBytes", Napi::Function::New(env, grammar_bytes));
  return exports;
}

}  // namespace
}  // namespace tandem::addon

static Napi::Object tandem_init(Napi::Env env, Napi::Object exports) { return tandem::addon::init(env, exports); }
NODE_API_MODULE(tandem, tandem_init)
