// What a build without CUDA knows of devices.
#include "device/device.h"

#include "base/error.h"

namespace tandem::device {

Info info() { return {false, 0, "this build has no CUDA"}; }

namespace {

[[noreturn]] void refuse() { throw Error(ErrorKind::kUnsupported, "this build has no CUDA: install nvcc and run `npm run setup`"); }

}  // namespace

std::shared_ptr<Model> load(const model::Spec&, const WeightSource&, int, const model::Progress&) { refuse(); }

std::shared_ptr<Model> load(const model::Spec&, const std::vector<std::string>&, const std::vector<model::Tensor>&, int,
                            const model::Progress&, std::optional<ops::QuantFormat>) {
  refuse();
}

}  // namespace tandem::device
