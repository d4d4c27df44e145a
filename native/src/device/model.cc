#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "cuda/attention/attention_variants.h"
#include "cuda/common/device_info.h"
#include "cuda/experts/expert_variants.h"
#include "cuda/gemm/variants.h"
#include "device/backend.h"
#include "device/train_compute.h"
#include "device/weights.h"
#include "model/quant_parts.h"

namespace tandem::device {
namespace {

// Of the free memory: what the driver and the kernels themselves take later.
constexpr double kUsableShare = 0.97;

std::string mebibytes(size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

void supported(bool ok, const std::string& what) {
  if (!ok) throw Error(ErrorKind::kUnsupported, "a GPU cannot run this model yet: " + what);
}

void check_shape(const model::Spec& s) {
  const bool dim = s.head_dim == 32 || s.head_dim == 64 || s.head_dim == 96 || s.head_dim == 128;
  supported(dim, "its heads have " + std::to_string(s.head_dim) + " dimensions, and kernels are there for 32, 64, 96 and 128");
  supported(s.heads / s.kv_heads <= cuda::kTileRows, "more than 16 heads share one KV head");
  supported(s.hidden_size % 8 == 0 && s.dense_size() % 8 == 0 && s.experts.size % 8 == 0, "its hidden sizes are no multiples of 8");
  supported(s.vocab_size <= 1 << 18, "its vocabulary has more than 262,144 tokens");
}

// No device has run them yet, so they are asked for.
bool asks_for_fused() {
  const char* value = std::getenv("TANDEM_CUDA_FUSED");
  const std::string asked = value != nullptr ? value : "";
  require(asked.empty() || asked == "0" || asked == "1", ErrorKind::kRange, "TANDEM_CUDA_FUSED must be 0 or 1");
  return asked == "1";
}

// Bytes of weights that a multiprocessor may have asked for, from KiB; 0 where none are given.
int most_under_way() {
  const char* value = std::getenv("TANDEM_CUDA_UNDER_WAY");
  if (value == nullptr || *value == 0) return 0;
  int kib = 0;
  const char* end = value + std::strlen(value);
  const auto [stopped, error] = std::from_chars(value, end, kib);
  require(error == std::errc() && stopped == end && kib >= 0 && kib <= 1024, ErrorKind::kRange,
          "TANDEM_CUDA_UNDER_WAY must be a number of KiB from 0 to 1024");
  return kib << 10;
}

// Throws as each of the choices does, and Error(kUnsupported) where one needs another.
Kernels chosen_kernels(const cuda::DeviceInfo& found) {
  const char* adapters = std::getenv("TANDEM_CUDA_ADAPTERS");
  const Kernels kernels = {cuda::matmul_kernel(std::getenv("TANDEM_CUDA_MATMUL"), found.major, found.minor),
                           cuda::attention_kernel(std::getenv("TANDEM_CUDA_ATTENTION"), found.major, found.minor),
                           cuda::adapter_kernel(adapters, found.major, found.minor),
                           cuda::expert_kernel(std::getenv("TANDEM_CUDA_EXPERTS"), found.major, found.minor),
                           asks_for_fused(),
                           most_under_way()};
  const bool asked = adapters != nullptr && *adapters != 0 && kernels.adapters != cuda::AdapterKernel::kBehind;
  if (asked && kernels.matmul != cuda::MatMulKernel::kWgmma) {
    throw Error(ErrorKind::kUnsupported, "TANDEM_CUDA_ADAPTERS=" + std::string(adapters) + " needs TANDEM_CUDA_MATMUL=wgmma");
  }
  if (kernels.fused && kernels.matmul != cuda::MatMulKernel::kWgmma && kernels.attention != cuda::AttentionKernel::kWgmma) {
    throw Error(ErrorKind::kUnsupported, "TANDEM_CUDA_FUSED=1 needs TANDEM_CUDA_MATMUL=wgmma or TANDEM_CUDA_ATTENTION=wgmma");
  }
  if (kernels.under_way > 0 && kernels.matmul != cuda::MatMulKernel::kWgmma) {
    throw Error(ErrorKind::kUnsupported, "TANDEM_CUDA_UNDER_WAY needs TANDEM_CUDA_MATMUL=wgmma");
  }
  return kernels;
}

class FileSource final : public WeightSource {
 public:
  FileSource(const std::vector<std::string>& files, const std::vector<model::Tensor>& tensors, std::optional<ops::QuantFormat> quantise)
      : files_(files, tensors), quantise_(quantise) {}

  void read(const std::string& name, const std::vector<int64_t>& shape, int64_t first, int64_t count, float* out) const override {
    const model::Tensor& tensor = files_.find(name, shape);
    if (count > 0 && !files_.read(tensor, first, count, out)) throw Error(ErrorKind::kIo, "could not read " + name);
  }
  std::vector<ops::QuantPart> quantised(const std::vector<std::pair<std::string, int64_t>>& names_and_rows,
                                        int64_t columns) const override {
    std::vector<const model::Tensor*> tensors;
    for (const auto& [name, rows] : names_and_rows) tensors.push_back(&files_.find(name, {rows, columns}));
    return model::quant_parts(files_, tensors, quantise_);
  }

 private:
  model::TensorFiles files_;
  std::optional<ops::QuantFormat> quantise_;
};

class LoadedModel final : public Model {
 public:
  LoadedModel(const model::Spec& spec, const WeightSource& source, const cuda::DeviceInfo& found, int threads,
              const model::Progress& progress)
      : facts_(std::make_shared<model::Model>(spec, ops::Element::kBf16, threads)), major_(found.major), minor_(found.minor) {
    const Kernels kernels = chosen_kernels(found);
    Weights weights = load_weights(spec, source, facts_->pool, progress);
    weights.kernels = kernels;
    weights_ = std::make_shared<const Weights>(std::move(weights));
  }

  const std::shared_ptr<model::Model>& facts() const override { return facts_; }
  size_t weight_bytes() const override { return weights_->bytes(); }
  std::string kernels() const override {
    const Kernels& k = weights_->kernels;
    const std::string experts = facts_->spec.experts.count > 0 ? std::string(", ") + cuda::variant_of(k.experts).name + " experts" : "";
    // Nothing promises that tensor cores of two generations round alike.
    const std::string device = "cuda " + std::to_string(major_) + "." + std::to_string(minor_);
    return device + ", " + cuda::variant_of(k.matmul).name + " products, " + cuda::variant_of(k.attention).name + " attention" + experts;
  }

  int64_t most_pages(const engine::Options& options, size_t reserve) const override {
    engine::Options one = options;
    one.pages = 1;
    const Sizes sizes(facts_->spec, one);
    const int64_t left = int64_t(usable_bytes()) - int64_t(sizes.fixed_bytes() + reserve);
    return std::max<int64_t>(0, left / sizes.page_bytes);
  }

  std::vector<MemoryPart> memory_plan(const engine::Options& options, size_t reserve) const override {
    std::vector<MemoryPart> parts = Sizes(facts_->spec, options).parts();
    parts.insert(parts.begin(), {"weights", weight_bytes()});
    parts.push_back({"room for adapters and training", reserve});
    return parts;
  }

  std::unique_ptr<engine::Backend> make_backend(const engine::Options& options, size_t reserve) const override {
    const Sizes sizes(facts_->spec, options);
    const size_t needed = sizes.fixed_bytes() + size_t(sizes.pages) * size_t(sizes.page_bytes) + reserve;
    if (needed > usable_bytes()) {
      throw Error(ErrorKind::kState, "the GPU has " + mebibytes(usable_bytes()) + " left beside the weights, and the engine needs " +
                                         mebibytes(needed) + ", " + mebibytes(reserve) +
                                         " of them for adapters and training: lower --kv-cache-memory, --max-num-batched-tokens, " +
                                         "--training-memory or --max-adapter-memory");
    }
    return std::make_unique<DeviceBackend>(weights_, facts_, sizes);
  }

  std::shared_ptr<const model::Adapter> place(model::Adapter adapter) const override {
    return std::make_shared<const Adapter>(std::move(adapter), facts_->spec.layers);
  }

  std::unique_ptr<train::Trainer> make_trainer(const train::Options& options, const train::State& state) const override {
    train::check(options);
    return std::make_unique<train::Trainer>(facts_, options, std::make_unique<TrainCompute>(weights_, facts_, options, state));
  }

 private:
  static size_t usable_bytes() { return size_t(double(cuda::device_free_bytes()) * kUsableShare); }

  std::shared_ptr<model::Model> facts_;
  std::shared_ptr<const Weights> weights_;
  int major_, minor_;  // the compute capability
};

}  // namespace

Info info() {
  const cuda::DeviceInfo found = cuda::device_info();
  return {true, found.devices, found.message};
}

std::shared_ptr<Model> load(const model::Spec& spec, const WeightSource& source, int threads, const model::Progress& progress) {
  model::check(spec);
  const cuda::DeviceInfo found = cuda::device_info();
  if (found.devices == 0) throw Error(ErrorKind::kUnsupported, "no GPU can be used: " + found.message);
  check_shape(spec);
  const size_t free = cuda::device_free_bytes();
  try {
    return std::make_shared<LoadedModel>(spec, source, found, threads, progress);
  } catch (const cuda::OutOfMemory&) {
    throw Error(ErrorKind::kState,
                "the model's weights do not fit the GPU, of whose memory " + mebibytes(free) + " were free: --quantize makes them smaller");
  }
}

std::shared_ptr<Model> load(const model::Spec& spec, const std::vector<std::string>& files, const std::vector<model::Tensor>& tensors,
                            int threads, const model::Progress& progress, std::optional<ops::QuantFormat> quantise) {
  return load(spec, FileSource(files, tensors, quantise), threads, progress);
}

}  // namespace tandem::device
