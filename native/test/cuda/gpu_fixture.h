// The small model on which the device's engine and its trainer are tested.
#pragma once
#include <cstdlib>
#include <deque>
#include <optional>
#include <string>

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

// A variable's value for as long as this lives.
class SettingTo {
 public:
  SettingTo(const char* name, const char* value) : name_(name) {
    const char* before = std::getenv(name);
    if (before) before_ = before;
    setenv(name, value, 1);
  }
  SettingTo(const SettingTo&) = delete;
  ~SettingTo() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// With Hopper's own kernels for what the settings choose.
inline std::shared_ptr<device::Model> load_with_wgmma(const TinyModel& source, const std::vector<const char*>& settings) {
  std::deque<SettingTo> set;
  for (const char* setting : settings) set.emplace_back(setting, "wgmma");
  return load_on_device(source);
}

}  // namespace tandem::test
