// Engines on an NVIDIA GPU, over the kernels of native/cuda. A build without CUDA has the same functions (no_cuda/device.cc), which say so.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "model/adapter.h"
#include "model/tensor_files.h"
#include "model/weights.h"
#include "ops/quantised_matrix.h"
#include "train/trainer.h"

namespace tandem::device {

struct Info {
  bool built;  // with CUDA
  int devices;
  std::string message;  // the device's name, or why there is none
};
// Never throws, also without a driver.
Info info();

// One part of an engine's device memory.
struct MemoryPart {
  std::string name;
  size_t bytes;
};

// Where weights come from.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Elements [first, first + count) of a tensor of that shape as floats, whole rows of it. Called by several threads at once; count 0 only
  // checks that the tensor is there. Throws Error naming the tensor.
  virtual void read(const std::string& name, const std::vector<int64_t>& shape, int64_t first, int64_t count, float* out) const = 0;
  // The rows of tensors of that many columns, one below the other, where their matrix is kept quantised; empty: it is not. Every tensor has
  // been checked before.
  virtual std::vector<ops::QuantPart> quantised(const std::vector<std::pair<std::string, int64_t>>& names_and_rows,
                                                int64_t columns) const = 0;
};

// A model whose weights are in a device's memory.
class Model {
 public:
  virtual ~Model() = default;
  // Its facts, for the engine: the weights in there are empty.
  virtual const std::shared_ptr<model::Model>& facts() const = 0;
  virtual size_t weight_bytes() const = 0;
  // What rounds as others need not: the device's generation, and which of several kernels compute: "cuda 9.0, wgmma products, mma attention".
  virtual std::string kernels() const = 0;
  // Pages for which there is memory beside everything else that an engine with these options needs. `reserve`: bytes to leave for adapters and
  // training.
  virtual int64_t most_pages(const engine::Options& options, size_t reserve) const = 0;
  virtual std::vector<MemoryPart> memory_plan(const engine::Options& options, size_t reserve) const = 0;
  // Takes all of the engine's memory now. Throws Error(kState) when it does not fit beside the reserve.
  virtual std::unique_ptr<engine::Backend> make_backend(const engine::Options& options, size_t reserve) const = 0;
  // Copies a loaded adapter's factors to the device; what it returns is for engines of this model only.
  virtual std::shared_ptr<const model::Adapter> place(model::Adapter adapter) const = 0;
  // Its memory, that of rows included, stays below options.max_row_bytes. Throws Error(kRange) as train::Trainer, and where that is too little.
  virtual std::unique_ptr<train::Trainer> make_trainer(const train::Options& options, const train::State& state) const = 0;
};

// Throws Error(kUnsupported) where no device can be used, or for a shape that the kernels do not have; Error(kRange / kIo) as model::load.
std::shared_ptr<Model> load(const model::Spec& spec, const WeightSource& source, int threads, const model::Progress& progress);
// With `quantise` every matrix is quantised to that format; blocks of files are kept as model::load keeps them.
std::shared_ptr<Model> load(const model::Spec& spec, const std::vector<std::string>& files, const std::vector<model::Tensor>& tensors,
                            int threads, const model::Progress& progress, std::optional<ops::QuantFormat> quantise = {});

}  // namespace tandem::device
