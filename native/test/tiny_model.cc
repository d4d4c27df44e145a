#include "tiny_model.h"

#include "support.h"

namespace tandem::test {
namespace {

float element_of(Random& random, const std::string& name, int64_t columns) {
  if (name.ends_with("norm.weight")) return 1.0f + 0.2f * random.normal();
  if (name.ends_with("bias")) return 0.3f * random.normal();
  if (name == "model.embed_tokens.weight") return random.normal();
  // Logits with a spread of about 3: far from uniform, far from certain.
  float scale = name == "lm_head.weight" ? 3.0f : 1.0f;
  return random.normal() * scale / std::sqrt(float(columns));
}

}  // namespace

TinyModel::TinyModel() {
  spec.vocab_size = 103;
  spec.hidden_size = 40;
  spec.intermediate_size = 72;
  spec.layers = 3;
  spec.heads = 6;
  spec.kv_heads = 2;
  spec.head_dim = 10;  // no multiple of a page's 16 columns
  spec.rope.theta = 1000;
  spec.rope.scaling = ops::RopeScaling::kLlama3;
  spec.rope.factor = 4;
  spec.rope.original_max_position = 64;
  spec.max_position = 512;
  spec.sliding_window = 40;
  spec.window_layers = {0, 1, 0};
  spec.qkv_bias = spec.output_bias = spec.mlp_bias = spec.qk_norm = true;
}

TinyModel TinyModel::mixture() {
  TinyModel tiny;
  tiny.spec.mlp_bias = false;
  tiny.spec.experts = {7, 3, 44, true};
  tiny.spec.expert_layers = {1, 0, 1};
  return tiny;
}

const std::vector<model::Module>& attention_modules() {
  using model::Module;
  static const std::vector<Module> some = {Module::kQ, Module::kK, Module::kV, Module::kO};
  return some;
}

const std::vector<model::Module>& all_modules() {
  using model::Module;
  static const std::vector<Module> all = {Module::kQ, Module::kK, Module::kV, Module::kO, Module::kGate, Module::kUp, Module::kDown};
  return all;
}

std::vector<model::Factors> tiny_factors(const model::Spec& spec, uint64_t seed, int64_t rank, const std::vector<model::Module>& modules,
                                         bool identity) {
  Random random(seed);
  std::vector<model::Factors> all;
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    for (model::Module module : modules) {
      if (!model::has(spec, layer, module)) continue;
      ops::LoraShape shape = model::shape_of(spec, module);
      std::vector<float> a = random.normals(size_t(rank * shape.in), 1 / std::sqrt(float(shape.in)));
      std::vector<float> b = identity ? std::vector<float>(size_t(shape.out * rank)) : random.normals(size_t(shape.out * rank));
      all.push_back({layer, module, rank, 2.0f / float(rank), std::move(a), std::move(b)});
    }
  }
  return all;
}

void TensorList::add(const std::string& name, std::vector<int64_t> shape) {
  int64_t count = 1;
  for (int64_t d : shape) count *= d;
  tensors.push_back({name, model::Stored::kF32, std::move(shape), 0, bytes});
  bytes += count * 4;
}

TensorList tensors_of(const model::Spec& spec) {
  TensorList list;
  int64_t h = spec.hidden_size, q = spec.query_size(), kv = spec.kv_size(), f = spec.intermediate_size;
  list.add("model.embed_tokens.weight", {spec.vocab_size, h});
  if (!spec.tied_embeddings) list.add("lm_head.weight", {spec.vocab_size, h});
  list.add("model.norm.weight", {h});
  auto linear = [&](const std::string& name, int64_t rows, int64_t columns, bool bias) {
    list.add(name + ".weight", {rows, columns});
    if (bias) list.add(name + ".bias", {rows});
  };
  for (int64_t i = 0; i < spec.layers; ++i) {
    std::string layer = "model.layers." + std::to_string(i) + ".";
    list.add(layer + "input_layernorm.weight", {h});
    list.add(layer + "post_attention_layernorm.weight", {h});
    linear(layer + "self_attn.q_proj", q, h, spec.qkv_bias);
    linear(layer + "self_attn.k_proj", kv, h, spec.qkv_bias);
    linear(layer + "self_attn.v_proj", kv, h, spec.qkv_bias);
    linear(layer + "self_attn.o_proj", h, q, spec.output_bias);
    if (spec.qk_norm) list.add(layer + "self_attn.q_norm.weight", {spec.head_dim});
    if (spec.qk_norm) list.add(layer + "self_attn.k_norm.weight", {spec.head_dim});
    auto feed_forward = [&](const std::string& name, int64_t size) {
      linear(name + "gate_proj", size, h, spec.mlp_bias);
      linear(name + "up_proj", size, h, spec.mlp_bias);
      linear(name + "down_proj", h, size, spec.mlp_bias);
    };
    if (!spec.mixes(i)) {
      feed_forward(layer + "mlp.", f);
      continue;
    }
    linear(layer + "mlp.gate", spec.experts.count, h, false);
    for (int64_t e = 0; e < spec.experts.count; ++e) feed_forward(layer + "mlp.experts." + std::to_string(e) + ".", spec.experts.size);
  }
  return list;
}

void TinyModel::with_files(
    const std::function<void(const std::vector<std::string>& files, const std::vector<model::Tensor>& tensors)>& use) const {
  TensorList list = tensors_of(spec);
  std::vector<float> values;
  Random random(seed);
  for (const model::Tensor& tensor : list.tensors) {
    size_t start = values.size(), count = 1;
    for (int64_t d : tensor.shape) count *= size_t(d);
    std::vector<float> made(count);
    for (float& value : made) value = element_of(random, tensor.name, tensor.shape.back());
    if (edit) edit(tensor.name, made);
    values.insert(values.end(), made.begin(), made.end());
    if (tensor.name != "model.embed_tokens.weight") continue;
    for (auto [token, value] : broken_tokens) values[start + size_t(token * spec.hidden_size + 3)] = value;
  }
  TempFolder folder;
  std::string file = folder.write("weights", values.data(), values.size() * sizeof(float));
  use({file}, list.tensors);
}

std::shared_ptr<model::Model> TinyModel::load(ops::Element element, int threads) const {
  std::shared_ptr<model::Model> model;
  with_files([&](const auto& files, const auto& tensors) {
    model = std::make_shared<model::Model>(spec, files, tensors, element, threads, model::Progress(), quantise, int8_kv);
  });
  return model;
}

}  // namespace tandem::test
