// The small model on which the device's engine and its trainer are tested.
#pragma once
#include <cstdlib>

#include "device/device.h"
#include "tiny_model.h"

namespace tandem::test {

// Every switch on, in shapes that the kernels have; the second layer sees a window.
inline TinyModel tiny_for_device(int64_t window = 40) {
  TinyModel model;
  model.spec.layers = 2;
  model.spec.window_layers = {0, 1};
  model.spec.sliding_window = window;
  model.spec.head_dim = 32;
  model.spec.heads = 4;
  model.spec.kv_heads = 2;
  return model;
}

inline std::shared_ptr<device::Model> load_on_device(const TinyModel& source) {
  std::shared_ptr<device::Model> model;
  source.with_files([&](const auto& files, const auto& tensors) { model = device::load(source.spec, files, tensors, 1, {}); });
  return model;
}

// With Hopper's own kernels for what the settings choose.
inline std::shared_ptr<device::Model> load_with_wgmma(const TinyModel& source, const std::vector<const char*>& settings) {
  std::vector<std::string> before;
  for (const char* setting : settings) {
    const char* value = std::getenv(setting);
    before.push_back(value ? value : "");
    setenv(setting, "wgmma", 1);
  }
  auto model = load_on_device(source);
  for (size_t i = 0; i < settings.size(); ++i) setenv(settings[i], before[i].c_str(), 1);
  return model;
}

}  // namespace tandem::test
