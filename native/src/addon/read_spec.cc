#include "addon/read_spec.h"

#include <cmath>
#include <set>

#include "addon/adapter_handle.h"
#include "addon/grammar_handle.h"
#include "addon/read.h"

namespace tandem::addon {
namespace {

ops::RopeSpec read_rope(const Napi::Object& spec) {
  ops::RopeSpec rope;
  rope.theta = read_number(spec, "ropeTheta");
  Napi::Object scaling = read_object(read_property(spec, "ropeScaling"), "ropeScaling");
  std::string type = read_string(scaling, "type");
  if (type == "none") return rope;
  if (type == "factors") {
    rope.scaling = ops::RopeScaling::kFactors;
    rope.factors = read_float32_array(scaling, "factors");
    return rope;
  }
  rope.factor = read_number(scaling, "factor");
  if (type == "linear") {
    rope.scaling = ops::RopeScaling::kLinear;
    return rope;
  }
  if (type == "yarn") {
    rope.scaling = ops::RopeScaling::kYarn;
    rope.beta_fast = read_number(scaling, "betaFast");
    rope.beta_slow = read_number(scaling, "betaSlow");
    rope.truncate = read_bool(scaling, "truncate");
    rope.attention_factor = read_number(scaling, "attentionFactor");
  } else if (type == "llama3") {
    rope.scaling = ops::RopeScaling::kLlama3;
    rope.low_freq_factor = read_number(scaling, "lowFreqFactor");
    rope.high_freq_factor = read_number(scaling, "highFreqFactor");
  } else {
    throw Error(ErrorKind::kRange, "ropeScaling.type must be none, linear, llama3, yarn or factors");
  }
  rope.original_max_position = read_int(scaling, "originalMaxPosition");
  return rope;
}

bool given(const Napi::Object& object, const char* field) { return !read_property(object, field).IsUndefined(); }

void read_experts(const Napi::Object& object, model::Spec& spec) {
  spec.experts.count = read_int(object, "count");
  spec.experts.used = read_int(object, "used");
  spec.experts.size = read_int(object, "size");
  spec.experts.normalise = read_bool(object, "normalise");
  spec.expert_layers = read_uint8_array(object, "layers");
}

model::Spec read_spec(const Napi::Object& object) {
  model::Spec spec;
  std::string architecture = read_string(object, "architecture");
  static const std::set<std::string> kArchitectures = {"llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"};
  if (!kArchitectures.contains(architecture)) {
    throw Error(ErrorKind::kRange, "architecture must be llama, mistral, mixtral, qwen2, qwen3 or qwen3_moe");
  }
  spec.vocab_size = read_int(object, "vocabSize");
  spec.hidden_size = read_int(object, "hiddenSize");
  spec.intermediate_size = read_int(object, "intermediateSize");
  spec.layers = read_int(object, "layers");
  spec.heads = read_int(object, "heads");
  spec.kv_heads = read_int(object, "kvHeads");
  spec.head_dim = read_int(object, "headDim");
  spec.rms_norm_eps = read_number(object, "rmsNormEps");
  spec.rope = read_rope(object);
  spec.max_position = read_int(object, "maxPosition");
  spec.sliding_window = read_int(object, "slidingWindow");
  spec.window_layers = read_uint8_array(object, "windowLayers");
  spec.qkv_bias = read_bool(object, "qkvBias");
  spec.output_bias = read_bool(object, "outputBias");
  spec.mlp_bias = read_bool(object, "mlpBias");
  spec.qk_norm = read_bool(object, "qkNorm");
  spec.tied_embeddings = read_bool(object, "tiedEmbeddings");
  if (given(object, "experts")) read_experts(read_object(read_property(object, "experts"), "experts"), spec);
  model::check(spec);
  return spec;
}

model::Stored read_stored(const Napi::Object& tensor) {
  static const std::pair<const char*, model::Stored> kNames[] = {
      {"F32", model::Stored::kF32},   {"F16", model::Stored::kF16},  {"BF16", model::Stored::kBf16}, {"Q8_0", model::Stored::kQ8_0},
      {"Q4_0", model::Stored::kQ4_0}, {"Q4_K", model::Stored::kQ4K}, {"Q6_K", model::Stored::kQ6K}};
  std::string dtype = read_string(tensor, "dtype");
  for (const auto& [name, stored] : kNames) {
    if (dtype == name) return stored;
  }
  throw Error(ErrorKind::kRange, "tensor dtype must be F32, F16, BF16, Q8_0, Q4_0, Q4_K or Q6_K");
}

model::Tensor read_tensor(const Napi::Value& value) {
  Napi::Object object = read_object(value, "tensor");
  model::Tensor tensor;
  tensor.name = read_string(object, "name");
  tensor.stored = read_stored(object);
  read_array(read_property(object, "shape"), "tensor.shape", 8, [&](const Napi::Value& dim, uint32_t) {
    if (!dim.IsNumber()) throw Error(ErrorKind::kType, "tensor.shape must hold numbers");
    double size = dim.As<Napi::Number>().DoubleValue();
    if (!(size >= 1 && size <= 9007199254740991.0) || size != double(int64_t(size))) {
      throw Error(ErrorKind::kRange, "tensor.shape must hold positive whole numbers");
    }
    tensor.shape.push_back(int64_t(size));
  });
  tensor.file = read_int(object, "file");
  tensor.offset = read_int(object, "offset");
  if (!read_property(object, "interleaved").IsUndefined()) tensor.interleaved = read_int(object, "interleaved");
  return tensor;
}

std::vector<std::vector<int32_t>> read_words(const Napi::Object& sampling) {
  std::vector<std::vector<int32_t>> words;
  Napi::Value value = read_property(sampling, "badWords");
  if (value.IsUndefined()) return words;
  read_array(value, "badWords", 100000, [&](const Napi::Value& word, uint32_t) { words.push_back(as_int32_array(word, "badWords")); });
  return words;
}

std::vector<std::pair<int32_t, float>> read_bias(const Napi::Object& object) {
  std::vector<std::pair<int32_t, float>> bias;
  if (!given(object, "biasIds")) return bias;
  std::vector<int32_t> ids = read_int32_array(object, "biasIds");
  std::vector<float> values = read_float32_array(object, "biasValues");
  if (ids.size() != values.size()) throw Error(ErrorKind::kRange, "biasIds and biasValues must have the same length");
  for (size_t i = 0; i < ids.size(); ++i) bias.emplace_back(ids[i], values[i]);
  return bias;
}

engine::StepControl read_control(const Napi::Value& value) {
  Napi::Object object = read_object(value, "control");
  engine::StepControl control{read_int(object, "slot"), {}};
  control.controls.bias = read_bias(object);
  if (given(object, "allowedIds")) control.controls.allowed = read_int32_array(object, "allowedIds");
  return control;
}

// The optional controls of SamplingSpec; each absent one keeps its neutral value.
void read_controls(const Napi::Object& sampling, ops::SamplingParams& s) {
  if (given(sampling, "frequencyPenalty")) s.frequency_penalty = read_number(sampling, "frequencyPenalty");
  if (given(sampling, "presencePenalty")) s.presence_penalty = read_number(sampling, "presencePenalty");
  if (given(sampling, "repetitionPenalty")) s.repetition_penalty = read_number(sampling, "repetitionPenalty");
  if (given(sampling, "allowedIds")) s.allowed = read_int32_array(sampling, "allowedIds");
  s.bad_words = read_words(sampling);
  s.bias = read_bias(sampling);
  if (!given(sampling, "logprobsMode")) return;
  std::string mode = read_string(sampling, "logprobsMode");
  if (mode != "raw" && mode != "temperature" && mode != "processed") {
    throw Error(ErrorKind::kRange, "logprobsMode must be raw, temperature or processed");
  }
  s.mode = mode == "raw" ? ops::LogprobMode::kRaw : mode == "temperature" ? ops::LogprobMode::kTemperature : ops::LogprobMode::kProcessed;
}

engine::Open read_open(const Napi::Value& value) {
  Napi::Object object = read_object(value, "open");
  Napi::Object sampling = read_object(read_property(object, "sampling"), "open.sampling");
  engine::Open open;
  open.slot = read_int(object, "slot");
  open.prompt_length = read_int(object, "promptLength");
  ops::SamplingParams& s = open.params.sampling;
  s.temperature = read_number(sampling, "temperature");
  s.top_p = read_number(sampling, "topP");
  s.top_k = read_int(sampling, "topK");
  s.min_p = read_number(sampling, "minP");
  s.seed = read_bits64(sampling, "seed");
  s.choice = read_int(sampling, "choice");
  s.logprobs = read_int(sampling, "logprobs");
  read_controls(sampling, s);
  if (!read_property(object, "promptLogprobs").IsUndefined()) open.prompt_logprobs = read_int(object, "promptLogprobs");
  if (given(object, "constraint")) open.constraint = constraint_of(read_property(object, "constraint"));
  if (!read_property(object, "cached").IsUndefined()) open.cached = read_int32_array(object, "cached");
  if (given(object, "adapter")) open.adapter = adapter_of(read_property(object, "adapter"));
  open.params.max_tokens = read_int(sampling, "maxTokens");
  open.params.min_tokens = read_int(sampling, "minTokens");
  open.params.stop_ids = read_int32_array(sampling, "stopIds");
  if (given(sampling, "barredIds")) open.params.barred_ids = read_int32_array(sampling, "barredIds");
  return open;
}

void read_files(const Napi::Value& files, std::vector<std::string>& list) {
  read_array(files, "files", 10000, [&](const Napi::Value& file, uint32_t) {
    if (!file.IsString()) throw Error(ErrorKind::kType, "files must hold strings");
    list.push_back(file.As<Napi::String>().Utf8Value());
  });
}

void read_tensor_table(const Napi::Value& files, const Napi::Value& tensors, std::vector<std::string>& file_list,
                       std::vector<model::Tensor>& tensor_list) {
  read_files(files, file_list);
  read_array(tensors, "tensors", 100000, [&](const Napi::Value& tensor, uint32_t) { tensor_list.push_back(read_tensor(tensor)); });
}

model::Module read_module(const Napi::Object& factors) {
  std::string name = read_string(factors, "module");
  for (int i = 0; i < model::kModules; ++i) {
    if (name == module_name(model::Module(i))) return model::Module(i);
  }
  throw Error(ErrorKind::kRange, "module must be q, k, v, o, gate, up or down");
}

constexpr size_t kPlaceNumbers = 5, kPairNumbers = 4 + 2 * kPlaceNumbers;

int64_t whole(double value) {
  if (!(std::fabs(value) <= 9007199254740992.0) || value != std::trunc(value))
    throw Error(ErrorKind::kRange, "table must hold whole numbers");
  return int64_t(value);
}

int index_below(double value, int count, const char* name) {
  int64_t index = whole(value);
  if (index < 0 || index >= count) throw Error(ErrorKind::kRange, std::string(name) + " must be in 0.." + std::to_string(count - 1));
  return int(index);
}

// File, type, rows, columns, offset.
model::Tensor read_place(const double* numbers, std::string name) {
  static constexpr model::Stored kStored[] = {model::Stored::kF32, model::Stored::kF16, model::Stored::kBf16};
  model::Stored stored = kStored[index_below(numbers[1], 3, "dtype")];
  return {std::move(name), stored, {whole(numbers[2]), whole(numbers[3])}, whole(numbers[0]), whole(numbers[4])};
}

// See src/control/engine/adapter-table.ts.
void read_adapter_table(const Napi::Object& object, AdapterSource& source) {
  read_files(read_property(object, "files"), source.files);
  std::vector<double> table = read_float64_array(object, "table");
  if (table.size() % kPairNumbers != 0) throw Error(ErrorKind::kRange, "table must hold 14 numbers per pair of factors");
  for (const double* pair = table.data(); pair != table.data() + table.size(); pair += kPairNumbers) {
    model::StoredFactors f;
    f.layer = whole(pair[0]);
    f.module = model::Module(index_below(pair[1], model::kModules, "module"));
    f.rank = whole(pair[2]);
    f.scale = float(pair[3]);
    std::string name = std::string(module_name(f.module)) + " of layer " + std::to_string(f.layer);
    f.a = "A of " + name;
    f.b = "B of " + name;
    source.tensors.push_back(read_place(pair + 4, f.a));
    source.tensors.push_back(read_place(pair + 4 + kPlaceNumbers, f.b));
    source.stored.push_back(std::move(f));
  }
}

ops::QuantFormat quantise_format(const std::string& name) {
  if (name == "int8") return ops::QuantFormat::kInt8;
  if (name == "int4") return ops::QuantFormat::kInt4;
  if (name != "fp8") throw Error(ErrorKind::kRange, "quantize must be int8, int4 or fp8");
  return ops::QuantFormat::kFp8;
}

std::optional<model::Quantise> read_quantise(const Napi::Object& options) {
  if (!given(options, "quantize")) return {};
  std::string name = read_string(options, "quantize");
  model::Quantise quantise{quantise_format(name)};
  if (given(options, "cache")) {
    Napi::Object cache = read_object(read_property(options, "cache"), "cache");
    quantise.cache = model::CachePlace{read_string(cache, "path"), read_string(cache, "key")};
    if (quantise.cache->path.find('\0') != std::string::npos) throw Error(ErrorKind::kRange, "cache: path must not hold NUL");
  }
  return quantise;
}

}  // namespace

const char* module_name(model::Module module) {
  static const char* const kNames[model::kModules] = {"q", "k", "v", "o", "gate", "up", "down"};
  return kNames[size_t(module)];
}

model::Factors read_factors(const Napi::Value& value, const float* scale) {
  Napi::Object object = read_object(value, "factors");
  model::Factors f;
  f.layer = read_int(object, "layer");
  f.module = read_module(object);
  f.rank = read_int(object, "rank");
  f.scale = scale ? *scale : float(read_number(object, "scale"));
  f.a = read_float32_array(object, "a");
  f.b = read_float32_array(object, "b");
  return f;
}

AdapterSource read_adapter_source(const Napi::Value& value) {
  Napi::Object object = read_object(value, "source");
  AdapterSource source;
  source.in_files = given(object, "files");
  if (source.in_files) {
    read_adapter_table(object, source);
  } else {
    read_array(read_property(object, "factors"), "factors", 100000,
               [&](const Napi::Value& f, uint32_t) { source.factors.push_back(read_factors(f)); });
  }
  return source;
}

ModelSource read_model_source(const Napi::Value& spec, const Napi::Value& files, const Napi::Value& tensors) {
  ModelSource source;
  source.spec = read_spec(read_object(spec, "spec"));
  read_tensor_table(files, tensors, source.files, source.tensors);
  return source;
}

LoadSettings read_load_settings(const Napi::Object& options) {
  std::string dtype = read_string(options, "dtype");
  if (dtype != "float32" && dtype != "bfloat16") throw Error(ErrorKind::kRange, "dtype must be float32 or bfloat16");
  int64_t threads = read_int(options, "threads");
  if (threads < 1 || threads > 256) throw Error(ErrorKind::kRange, "threads must be in 1..256");
  bool int8_kv = given(options, "kvCacheDtype");
  if (int8_kv && read_string(options, "kvCacheDtype") != "int8") throw Error(ErrorKind::kRange, "kvCacheDtype must be int8");
  std::string device = given(options, "device") ? read_string(options, "device") : "cpu";
  if (device != "cpu" && device != "cuda") throw Error(ErrorKind::kRange, "device must be cpu or cuda");
  bool cuda = device == "cuda";
  if (cuda && dtype != "bfloat16") throw Error(ErrorKind::kRange, "dtype must be bfloat16 on cuda");
  if (cuda && int8_kv) throw Error(ErrorKind::kUnsupported, "kvCacheDtype int8 on cuda is not built yet");
  const std::optional<model::Quantise> quantise = read_quantise(options);
  if (!cuda && quantise && quantise->format == ops::QuantFormat::kFp8)
    throw Error(ErrorKind::kUnsupported, "quantize: fp8 needs device cuda");
  if (cuda && quantise && quantise->cache)
    throw Error(ErrorKind::kUnsupported, "cache: quantised weights on cuda are not kept in files yet");
  return {dtype == "float32" ? ops::Element::kF32 : ops::Element::kBf16, int(threads), quantise, int8_kv, cuda};
}

EngineSettings read_engine_settings(const Napi::Value& value) {
  Napi::Object options = read_object(value, "options");
  engine::Options o;
  o.max_sequences = read_int(options, "maxSequences");
  o.max_batch_tokens = read_int(options, "maxBatchTokens");
  o.pages = read_int(options, "pages");
  o.max_model_len = read_int(options, "maxModelLen");
  o.samplable_vocab = read_int(options, "samplableVocab");
  o.max_logprobs = read_int(options, "maxLogprobs");
  int64_t reserve = given(options, "reserveBytes") ? read_int(options, "reserveBytes") : 0;
  if (reserve < 0) throw Error(ErrorKind::kRange, "reserveBytes must not be negative");
  return {o, size_t(reserve)};
}

engine::Plan read_plan(const Napi::Value& value) {
  Napi::Object object = read_object(value, "plan");
  engine::Plan plan;
  read_array(read_property(object, "opens"), "opens", 4096,
             [&](const Napi::Value& open, uint32_t) { plan.opens.push_back(read_open(open)); });
  plan.closes = read_int32_array(object, "closes");
  plan.tokens = read_int32_array(object, "tokens");
  std::vector<int32_t> pages = read_int32_array(object, "pages"), rows = read_int32_array(object, "rows");
  if (given(object, "controls")) {
    read_array(read_property(object, "controls"), "controls", 4096,
               [&](const Napi::Value& control, uint32_t) { plan.controls.push_back(read_control(control)); });
  }
  if (pages.size() % 3 != 0) throw Error(ErrorKind::kRange, "pages must hold triples");
  if (rows.size() % 4 != 0) throw Error(ErrorKind::kRange, "rows must hold quadruples");
  for (size_t i = 0; i < pages.size(); i += 3) plan.pages.push_back({pages[i], pages[i + 1], pages[i + 2]});
  for (size_t i = 0; i < rows.size(); i += 4) {
    plan.rows.push_back({rows[i], rows[i + 1], rows[i + 2], rows[i + 3]});
  }
  if (given(object, "scored")) {
    std::vector<int32_t> scored = read_int32_array(object, "scored");
    if (scored.size() != plan.rows.size()) throw Error(ErrorKind::kRange, "scored must hold a number per row");
    for (size_t i = 0; i < scored.size(); ++i) plan.rows[i].scored = scored[i];
  }
  if (given(object, "ahead")) plan.ahead = read_bool(object, "ahead");
  return plan;
}

}  // namespace tandem::addon
