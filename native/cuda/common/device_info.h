// What of the machine's GPUs can be used.
#pragma once
#include <cstddef>
#include <string>

namespace tandem::cuda {

struct DeviceInfo {
  int devices;          // that the kernels run on
  std::string message;  // the first one's name, or why there is none
  size_t total_bytes;   // of its memory
  int major, minor;     // its compute capability
};
// Never throws: also where there is no driver.
DeviceInfo device_info();

// Memory of the device that is free now. Throws Error(kState).
size_t device_free_bytes();

// Of the device that is used, asked for once. Throws Error(kState).
int device_multiprocessors();

}  // namespace tandem::cuda
