// Files by their descriptors.
#pragma once
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace tandem {

// False where the file ends before, or cannot be read.
inline bool read_exactly(int file, int64_t offset, int64_t bytes, void* out) {
  auto* to = static_cast<uint8_t*>(out);
  while (bytes > 0) {
    ssize_t got = pread(file, to, size_t(bytes), off_t(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    offset += got;
    to += got;
    bytes -= got;
  }
  return true;
}

}  // namespace tandem
