#include "model/adapter.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "model/forward.h"
#include "model/tensor_files.h"

namespace tandem::model {
namespace {

std::atomic<int64_t> alive_adapters{0};

struct ModuleRange {
  int first, count;
};

ModuleRange modules_of(Product product) {
  switch (product) {
    case Product::kQkv: return {int(Module::kQ), 3};
    case Product::kOutput: return {int(Module::kO), 1};
    case Product::kGateUp: return {int(Module::kGate), 2};
    case Product::kDown: return {int(Module::kDown), 1};
  }
  return {0, 0};
}

std::string label(int64_t layer, Module module) { return "layers." + std::to_string(layer) + "." + name_of(module); }

void check_place(const Spec& spec, int64_t layer, Module module, int64_t rank) {
  if (layer < 0 || layer >= spec.layers || !has(spec, layer, module))
    throw Error(ErrorKind::kRange, "the model has no " + label(layer, module));
  if (rank < 1 || rank > ops::kMaxLoraRank) throw Error(ErrorKind::kRange, label(layer, module) + ": the rank must be in 1..1024");
}

}  // namespace

bool has(const Spec& spec, int64_t layer, Module module) { return int(module) <= int(Module::kO) || !spec.mixes(layer); }

ops::LoraShape shape_of(const Spec& spec, Module module) {
  int64_t h = spec.hidden_size, q = spec.query_size(), kv = spec.kv_size(), f = spec.intermediate_size;
  switch (module) {
    case Module::kQ: return {0, h, q, 0};
    case Module::kK: return {0, h, kv, q};
    case Module::kV: return {0, h, kv, q + kv};
    case Module::kO: return {0, q, h, 0};
    case Module::kGate: return {0, h, f, 0};
    case Module::kUp: return {0, h, f, f};
    case Module::kDown: return {0, f, h, 0};
  }
  return {0, 0, 0, 0};
}

const char* name_of(Module module) {
  static const char* const kNames[kModules] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                               "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
  return kNames[size_t(module)];
}

Adapter::Life::Life() { alive_adapters.fetch_add(1); }
Adapter::Life::~Life() { alive_adapters.fetch_sub(1); }
int64_t Adapter::alive() { return alive_adapters.load(); }

Adapter::Adapter(const std::shared_ptr<Model>& model, const std::vector<Factors>& factors)
    : model_(model), layers_(size_t(model->spec.layers)) {
  for (const Factors& f : factors) add(*model, f);
  measure();
}

Adapter::Adapter(const std::shared_ptr<Model>& model, const std::vector<std::string>& files, const std::vector<Tensor>& tensors,
                 const std::vector<StoredFactors>& factors)
    : model_(model), layers_(size_t(model->spec.layers)) {
  TensorFiles open_files(files, tensors);
  for (const StoredFactors& stored : factors) {
    check_place(model->spec, stored.layer, stored.module, stored.rank);
    ops::LoraShape s = shape_of(model->spec, stored.module);
    const Tensor& a = open_files.find(stored.a, {stored.rank, s.in});
    const Tensor& b = open_files.find(stored.b, {s.out, stored.rank});
    Factors f{stored.layer, stored.module, stored.rank, stored.scale, {}, {}};
    f.a.resize(size_t(stored.rank * s.in));
    f.b.resize(size_t(s.out * stored.rank));
    if (!open_files.read(a, 0, int64_t(f.a.size()), f.a.data())) throw Error(ErrorKind::kIo, "could not read " + stored.a);
    if (!open_files.read(b, 0, int64_t(f.b.size()), f.b.data())) throw Error(ErrorKind::kIo, "could not read " + stored.b);
    add(*model, f);
  }
  measure();
}

Adapter::Adapter(const std::shared_ptr<Model>& model, std::vector<std::array<ops::LoraFactors, kModules>> layers)
    : model_(model), layers_(std::move(layers)) {
  require(int64_t(layers_.size()) == model->spec.layers, ErrorKind::kRange, "an adapter has one set of factors per layer");
  measure();
}

void Adapter::add(const Model& model, const Factors& f) {
  check_place(model.spec, f.layer, f.module, f.rank);
  ops::LoraShape shape = shape_of(model.spec, f.module);
  shape.rank = f.rank;
  std::string name = label(f.layer, f.module);
  if (int64_t(f.a.size()) != shape.rank * shape.in) throw Error(ErrorKind::kRange, name + ": lora_A has the wrong size");
  if (int64_t(f.b.size()) != shape.out * shape.rank) throw Error(ErrorKind::kRange, name + ": lora_B has the wrong size");
  ops::LoraFactors& place = layers_[size_t(f.layer)][size_t(f.module)];
  if (place.rank() != 0) throw Error(ErrorKind::kRange, name + " comes twice");
  try {
    place = ops::LoraFactors(model.kernels, model.element, shape, f.scale, f.a.data(), f.b.data());
  } catch (const Error& error) {
    throw Error(error.kind(), name + ": " + error.what());
  }
}

void Adapter::measure() {
  for (const auto& layer : layers_) {
    for (Product product : {Product::kQkv, Product::kOutput, Product::kGateUp, Product::kDown}) {
      ModuleRange range = modules_of(product);
      int64_t width = 0;
      for (int m = range.first; m < range.first + range.count; ++m) width += layer[size_t(m)].rank_padded();
      widest_ = std::max(widest_, width);
    }
    for (const ops::LoraFactors& f : layer) bytes_ += f.bytes();
  }
}

// Looked for one by one: a batch has few adapters, and rows of one sequence follow each other.
AdapterBatch::Group& AdapterBatch::group_of(const Adapter* adapter) {
  for (size_t i = 0; i < used_; ++i) {
    if (groups_[i].adapter == adapter) return groups_[i];
  }
  if (used_ == groups_.size()) groups_.emplace_back();
  Group& group = groups_[used_++];
  group.adapter = adapter;
  group.rows.clear();
  return group;
}

void AdapterBatch::assign(const std::vector<const Adapter*>& row_adapters) {
  used_ = 0;
  Group* group = nullptr;
  for (size_t row = 0; row < row_adapters.size(); ++row) {
    const Adapter* adapter = row_adapters[row];
    if (!adapter) continue;
    if (!group || group->adapter != adapter) group = &group_of(adapter);
    group->rows.push_back(int32_t(row));
  }
  size_t floats = 0;
  for (size_t i = 0; i < used_; ++i) floats += groups_[i].rows.size() * size_t(groups_[i].adapter->widest());
  if (u_.size() < floats) u_.resize(floats);
}

const std::vector<ops::LoraTask>& AdapterBatch::tasks(int64_t layer, Product product) {
  tasks_.clear();
  ModuleRange range = modules_of(product);
  float* u = u_.data();
  for (size_t i = 0; i < used_; ++i) {
    const Group& group = groups_[i];
    int64_t width = 0, count = int64_t(group.rows.size());
    for (int m = range.first; m < range.first + range.count; ++m) width += group.adapter->factors(layer, Module(m)).rank_padded();
    int64_t at = 0;
    for (int m = range.first; m < range.first + range.count; ++m) {
      const ops::LoraFactors& factors = group.adapter->factors(layer, Module(m));
      if (factors.rank() > 0) tasks_.push_back({&factors, group.rows.data(), count, u + at, width});
      at += factors.rank_padded();
    }
    u += count * width;
  }
  return tasks_;
}

}  // namespace tandem::model
