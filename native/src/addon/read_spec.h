// JavaScript facts about a model and an engine, as plain structs.
#pragma once
#include <optional>

#include "addon/napi_setup.h"
#include "engine/engine.h"
#include "model/adapter.h"
#include "model/weights.h"

namespace tandem::addon {

struct ModelSource {
  model::Spec spec;
  std::vector<std::string> files;
  std::vector<model::Tensor> tensors;
};

// An adapter's factors: in files, or in memory.
struct AdapterSource {
  bool in_files = false;
  std::vector<std::string> files;
  std::vector<model::Tensor> tensors;
  std::vector<model::StoredFactors> stored;
  std::vector<model::Factors> factors;
};

struct LoadSettings {
  ops::Element element;
  int threads;
  std::optional<model::Quantise> quantise;
  bool int8_kv;
  bool cuda;
};

struct EngineSettings {
  engine::Options options;
  size_t reserve;  // bytes of a GPU's memory to leave for adapters
};

ModelSource read_model_source(const Napi::Value& spec, const Napi::Value& files, const Napi::Value& tensors);
AdapterSource read_adapter_source(const Napi::Value& source);
// One of memory: {layer, module, rank, scale, a, b}; the scale is not read where it is given.
model::Factors read_factors(const Napi::Value& factors, const float* scale = nullptr);
// As JavaScript calls it: "q", "gate".
const char* module_name(model::Module module);
LoadSettings read_load_settings(const Napi::Object& options);
EngineSettings read_engine_settings(const Napi::Value& options);
engine::Plan read_plan(const Napi::Value& plan);

}  // namespace tandem::addon
