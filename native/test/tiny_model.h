// A small random model with every switch on, written to a file and loaded like any other.
#pragma once
#include <memory>

#include "model/forward.h"
#include "temp_folder.h"

namespace tandem::test {

struct TinyModel {
  model::Spec spec;
  // Rows of the embedding that are not finite: [token, value].
  std::vector<std::pair<int64_t, float>> broken_tokens;
  uint64_t seed = 1;

  TinyModel();
  std::shared_ptr<model::Model> load(ops::Element element, int threads) const;
};

// All tensors that the spec asks for, one after the other in one F32 file.
struct TensorList {
  std::vector<model::Tensor> tensors;
  int64_t bytes = 0;
  void add(const std::string& name, std::vector<int64_t> shape);
};
TensorList tensors_of(const model::Spec& spec);

}  // namespace tandem::test
