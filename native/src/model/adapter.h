// A low-rank adapter of a model: immutable once made, shared by the sequences that use it.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "model/spec.h"
#include "ops/lora.h"

namespace tandem::model {

struct Model;

// The projections that an adapter may change, and the packed products of the base weights that they lie in.
enum class Module { kQ, kK, kV, kO, kGate, kUp, kDown };
constexpr int kModules = 7;
enum class Product { kQkv, kOutput, kGateUp, kDown };

// Whether a layer has that projection: where its feed-forward is a mixture it has those of attention alone.
bool has(const Spec& spec, int64_t layer, Module module);
// Sizes of a projection: its inputs, its outputs and where these begin in its product. The rank is left 0.
ops::LoraShape shape_of(const Spec& spec, Module module);
// As in a checkpoint: "self_attn.q_proj" and so on.
const char* name_of(Module module);

// The factors of one projection of one layer in memory: a [rank][in], b [out][rank], y += scale * b (a x).
struct Factors {
  int64_t layer;
  Module module;
  int64_t rank;
  float scale;
  std::vector<float> a, b;
};

// The same in files: names of two tensors of [rank, in] and [out, rank].
struct StoredFactors {
  int64_t layer;
  Module module;
  int64_t rank;
  float scale;
  std::string a, b;
};

class Adapter {
 public:
  // How many there are in this process: what has been closed and is not used is gone.
  static int64_t alive();

  virtual ~Adapter() = default;
  Adapter(Adapter&&) = default;
  // Throws Error(kRange) naming the layer and the projection whose sizes or numbers do not fit, or that comes twice.
  Adapter(const std::shared_ptr<Model>& model, const std::vector<Factors>& factors);
  // Reads the factors from files with positional reads; every bound is checked. Also throws Error(kIo).
  Adapter(const std::shared_ptr<Model>& model, const std::vector<std::string>& files, const std::vector<Tensor>& tensors,
          const std::vector<StoredFactors>& factors);
  // Takes factors that were packed for this model, one set per layer.
  Adapter(const std::shared_ptr<Model>& model, std::vector<std::array<ops::LoraFactors, kModules>> layers);

  // Rank 0 where the adapter leaves the projection as it is.
  const ops::LoraFactors& factors(int64_t layer, Module module) const { return layers_[size_t(layer)][size_t(module)]; }
  bool fits(const std::shared_ptr<Model>& model) const { return model_.lock() == model; }
  virtual size_t bytes() const { return bytes_; }
  // Most padded ranks of one product of one layer: floats of u per row.
  int64_t widest() const { return widest_; }

 private:
  // Counts itself.
  struct Life {
    Life();
    ~Life();
    Life(Life&&) noexcept : Life() {}
    Life(const Life&) = delete;
    Life& operator=(const Life&) = delete;
  };
  void add(const Model& model, const Factors& factors);
  void measure();

  Life life_;
  std::weak_ptr<Model> model_;
  std::vector<std::array<ops::LoraFactors, kModules>> layers_;
  size_t bytes_ = 0;
  int64_t widest_ = 0;
};

// The adapters of one batch: its rows grouped by adapter, with room for their u.
class AdapterBatch {
 public:
  // One adapter per row of the batch, null = none; they must live until the next call. An empty list: no row has one.
  void assign(const std::vector<const Adapter*>& row_adapters);
  // Of one product of a layer, valid until the next call; empty where no row's adapter changes it.
  const std::vector<ops::LoraTask>& tasks(int64_t layer, Product product);

 private:
  struct Group {
    const Adapter* adapter;
    std::vector<int32_t> rows;
  };
  Group& group_of(const Adapter* adapter);
  // The first `used_` are of the batch; the others keep their memory.
  std::vector<Group> groups_;
  size_t used_ = 0;
  std::vector<ops::LoraTask> tasks_;
  std::vector<float> u_;
};

}  // namespace tandem::model
