// A small random model with every switch on, written to a file and loaded like any other.
#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "model/forward.h"
#include "temp_folder.h"

namespace tandem::test {

struct TinyModel {
  model::Spec spec;
  // Rows of the embedding that are not finite: [token, value].
  std::vector<std::pair<int64_t, float>> broken_tokens;
  uint64_t seed = 1;
  // Matrices are quantised while they are loaded.
  std::optional<model::Quantise> quantise;
  bool int8_kv = false;
  // Changes a tensor's values before they are written.
  std::function<void(const std::string& name, std::vector<float>& values)> edit;

  TinyModel();
  // Its first and its last feed-forward are mixtures of experts.
  static TinyModel mixture();
  std::shared_ptr<model::Model> load(ops::Element element, int threads) const;
  // Calls with the files and the tensors in them; they are gone afterwards.
  void with_files(const std::function<void(const std::vector<std::string>& files, const std::vector<model::Tensor>& tensors)>& use) const;
};

// Random factors of that rank for every layer of the given projections; b is zero where `identity`.
std::vector<model::Factors> tiny_factors(const model::Spec& spec, uint64_t seed, int64_t rank, const std::vector<model::Module>& modules,
                                         bool identity = false);
const std::vector<model::Module>& all_modules();
const std::vector<model::Module>& attention_modules();

// All tensors that the spec asks for, one after the other in one F32 file.
struct TensorList {
  std::vector<model::Tensor> tensors;
  int64_t bytes = 0;
  void add(const std::string& name, std::vector<int64_t> shape);
};
TensorList tensors_of(const model::Spec& spec);

}  // namespace tandem::test
