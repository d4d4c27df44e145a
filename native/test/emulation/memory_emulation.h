// The memory of the emulated device: the host's, of which there is so much as a small device has, and what is taken counts byte by byte.
#pragma once
#include <cstddef>

namespace tandem::gpu_emulation {

inline constexpr size_t kDeviceBytes = size_t(1) << 30;

// Zero-filled; null where the device has no such memory left.
void* allocate(size_t bytes);
void release(void* p);
size_t free_bytes();

}  // namespace tandem::gpu_emulation
