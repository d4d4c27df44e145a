#include "addon/read_training.h"

#include <algorithm>
#include <cmath>

#include "addon/read.h"
#include "addon/read_spec.h"

namespace tandem::addon {
namespace {

// Layers times projections, and then some.
constexpr uint32_t kMostFactors = 100000;

std::vector<float> read_moment(const Napi::Object& half, const char* name) {
  std::vector<float> values = read_float32_array(half, name);
  bool finite = std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
  if (!finite) throw Error(ErrorKind::kRange, std::string("moments.") + name + " holds a number that is not finite");
  return values;
}

train::Moments read_moments(const Napi::Value& value) {
  Napi::Object object = read_object(value, "moments");
  Napi::Object a = read_object(read_property(object, "a"), "moments.a"), b = read_object(read_property(object, "b"), "moments.b");
  train::Moments moments{read_moment(a, "m"), read_moment(a, "v"), read_moment(b, "m"), read_moment(b, "v")};
  for (const std::vector<float>* v : {&moments.a_v, &moments.b_v}) {
    bool ok = std::all_of(v->begin(), v->end(), [](float x) { return x >= 0; });
    if (!ok) throw Error(ErrorKind::kRange, "moments.v must not be negative");
  }
  return moments;
}

Napi::Float32Array floats(Napi::Env env, const std::vector<float>& values) {
  Napi::Float32Array out = Napi::Float32Array::New(env, values.size());
  std::copy(values.begin(), values.end(), out.Data());
  return out;
}

Napi::Object moment_pair(Napi::Env env, const std::vector<float>& m, const std::vector<float>& v) {
  Napi::Object out = Napi::Object::New(env);
  out.Set("m", floats(env, m));
  out.Set("v", floats(env, v));
  return out;
}

}  // namespace

train::Options read_trainer_options(const Napi::Value& value) {
  Napi::Object options = read_object(value, "options");
  return {read_int(options, "maxRowTokens"), read_int(options, "maxRowBytes"), read_bool(options, "recompute")};
}

train::State read_state(const Napi::Value& value) {
  Napi::Object object = read_object(value, "state");
  Napi::Object weights = read_object(read_property(object, "weights"), "state.weights");
  train::State state;
  state.scale = float(read_number(weights, "scale"));
  read_array(read_property(weights, "factors"), "factors", kMostFactors,
             [&](const Napi::Value& f, uint32_t) { state.factors.push_back(read_factors(f, &state.scale)); });
  Napi::Value optimizer = read_property(object, "optimizer");
  if (optimizer.IsNull()) return state;
  Napi::Object o = read_object(optimizer, "state.optimizer");
  state.steps = read_int(o, "steps");
  read_array(read_property(o, "moments"), "moments", kMostFactors,
             [&](const Napi::Value& m, uint32_t) { state.moments.push_back(read_moments(m)); });
  if (state.moments.size() != state.factors.size()) throw Error(ErrorKind::kRange, "moments must be one per factors");
  return state;
}

train::Row read_row(const Napi::Value& value) {
  Napi::Object object = read_object(value, "row");
  train::Row row;
  row.tokens = read_int32_array(object, "tokens");
  row.targets = read_int32_array(object, "targets");
  std::vector<int32_t> segments = read_int32_array(object, "segments");
  if (segments.size() % 4 != 0) throw Error(ErrorKind::kRange, "segments must hold quadruples");
  for (size_t i = 0; i < segments.size(); i += 4) row.segments.push_back({segments[i], segments[i + 1], segments[i + 2], segments[i + 3]});
  return row;
}

train::OptimizerStep read_optimizer_step(const Napi::Value& value) {
  Napi::Object step = read_object(value, "step");
  return {{read_number(step, "learningRate"), read_number(step, "beta1"), read_number(step, "beta2"), read_number(step, "eps"),
           read_number(step, "weightDecay")},
          read_number(step, "maxGradNorm")};
}

Napi::Object to_js(Napi::Env env, const train::State& state) {
  Napi::Object weights = Napi::Object::New(env), optimizer = Napi::Object::New(env), out = Napi::Object::New(env);
  Napi::Array factors = Napi::Array::New(env, state.factors.size()), moments = Napi::Array::New(env, state.moments.size());
  for (size_t i = 0; i < state.factors.size(); ++i) {
    Napi::HandleScope scope(env);
    const model::Factors& f = state.factors[i];
    const train::Moments& m = state.moments[i];
    Napi::Object factor = Napi::Object::New(env), moment = Napi::Object::New(env);
    factor.Set("layer", Napi::Number::New(env, double(f.layer)));
    factor.Set("module", Napi::String::New(env, module_name(f.module)));
    factor.Set("rank", Napi::Number::New(env, double(f.rank)));
    factor.Set("a", floats(env, f.a));
    factor.Set("b", floats(env, f.b));
    moment.Set("a", moment_pair(env, m.a_m, m.a_v));
    moment.Set("b", moment_pair(env, m.b_m, m.b_v));
    factors[uint32_t(i)] = factor;
    moments[uint32_t(i)] = moment;
  }
  weights.Set("scale", Napi::Number::New(env, double(state.scale)));
  weights.Set("factors", factors);
  optimizer.Set("steps", Napi::Number::New(env, double(state.steps)));
  optimizer.Set("moments", moments);
  out.Set("weights", weights);
  out.Set("optimizer", optimizer);
  return out;
}

Napi::Object to_js(Napi::Env env, const train::Scores& scores) {
  Napi::Object out = Napi::Object::New(env);
  out.Set("logprobs", floats(env, scores.logprobs));
  out.Set("entropies", floats(env, scores.entropies));
  return out;
}

Napi::Object to_js(Napi::Env env, const train::StepOutcome& outcome) {
  Napi::Object out = Napi::Object::New(env);
  out.Set("gradNorm", Napi::Number::New(env, outcome.grad_norm));
  out.Set("applied", Napi::Boolean::New(env, outcome.applied));
  return out;
}

}  // namespace tandem::addon
