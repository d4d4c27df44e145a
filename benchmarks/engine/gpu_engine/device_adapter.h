// Adapters of noise that are made on the device: what the host would pack for large ones takes minutes.
#pragma once
#include "bench.h"
#include "device/adapter.h"

namespace tandem::benchmarks {

class DeviceAdapter {
 public:
  // Of that rank on every projection.
  DeviceAdapter(const Bench& bench, int64_t rank);
  const std::shared_ptr<const model::Adapter>& get() const { return adapter_; }

 private:
  cuda::DeviceBuffer<cuda::bf16> memory_;
  std::shared_ptr<const model::Adapter> adapter_;
};

}  // namespace tandem::benchmarks
