// Engines on an NVIDIA GPU, over the kernels of native/cuda. A build without CUDA has the same functions (no_cuda/device.cc), which say so.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "model/adapter.h"
#include "model/tensor_files.h"
#include "model/weights.h"

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

// Where weights come from: elements [first, first + count) of a tensor of that shape as floats, whole rows of it. Called by several threads
// at once; count 0 only checks that the tensor is there. Throws Error naming the tensor.
using WeightSource =
    std::function<void(const std::string& name, const std::vector<int64_t>& shape, int64_t first, int64_t count, float* out)>;

// A model whose weights are in a device's memory.
class Model {
 public:
  virtual ~Model() = default;
  // Its facts, for the engine: the weights in there are empty.
  virtual const std::shared_ptr<model::Model>& facts() const = 0;
  virtual size_t weight_bytes() const = 0;
  // Pages for which there is memory beside everything else that an engine with these options needs. `reserve`: bytes to leave for adapters.
  virtual int64_t most_pages(const engine::Options& options, size_t reserve) const = 0;
  virtual std::vector<MemoryPart> memory_plan(const engine::Options& options, size_t reserve) const = 0;
  // Takes all of the engine's memory now. Throws Error(kState) when it does not fit beside the reserve.
  virtual std::unique_ptr<engine::Backend> make_backend(const engine::Options& options, size_t reserve) const = 0;
  // Copies a loaded adapter's factors to the device; what it returns is for engines of this model only.
  virtual std::shared_ptr<const model::Adapter> place(model::Adapter adapter) const = 0;
};

// Throws Error(kUnsupported) where no device can be used, or for a shape that the kernels do not have; Error(kRange / kIo) as model::load.
std::shared_ptr<Model> load(const model::Spec& spec, const WeightSource& source, int threads, const model::Progress& progress);
std::shared_ptr<Model> load(const model::Spec& spec, const std::vector<std::string>& files, const std::vector<model::Tensor>& tensors,
                            int threads, const model::Progress& progress);

}  // namespace tandem::device
