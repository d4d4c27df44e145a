// What a build without CUDA knows of devices.
#include "device/device.h"

#include "base/error.h"

namespace tandem::device {

Info info() { return {false, 0, "this build has no CUDA"}; }

std::shared_ptr<Model> load(const model::Spec&, const WeightSource&, int, const model::Progress&) {
  throw Error(ErrorKind::kUnsupported, "this build has no CUDA: install nvcc and run `npm run setup`");
}

std::shared_ptr<Model> load(const model::Spec& spec, const std::vector<std::string>&, const std::vector<model::Tensor>&, int threads,
                            const model::Progress& progress) {
  return load(spec, WeightSource(), threads, progress);
}

}  // namespace tandem::device
