// JavaScript facts about a model and an engine, as plain structs.
#pragma once
#include "addon/napi_setup.h"
#include "engine/engine.h"
#include "model/spec.h"

namespace tandem::addon {

struct ModelSource {
  model::Spec spec;
  std::vector<std::string> files;
  std::vector<model::Tensor> tensors;
};

struct LoadSettings {
  ops::Element element;
  int threads;
};

ModelSource read_model_source(const Napi::Value& spec, const Napi::Value& files, const Napi::Value& tensors);
LoadSettings read_load_settings(const Napi::Object& options);
engine::Options read_engine_options(const Napi::Value& options);
engine::Plan read_plan(const Napi::Value& plan);

}  // namespace tandem::addon
