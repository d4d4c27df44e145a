#include "model/tensor_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/bf16.h"
#include "base/error.h"

namespace tandem::model {
namespace {

int64_t stored_size(Stored stored) { return stored == Stored::kF32 ? 4 : 2; }

int64_t element_count(const Tensor& tensor) {
  int64_t count = 1;
  for (int64_t d : tensor.shape) {
    if (d <= 0 || count > (int64_t(1) << 46) / d) throw Error(ErrorKind::kRange, "tensor " + tensor.name + " has an impossible shape");
    count *= d;
  }
  return count;
}

bool read_exactly(int fd, int64_t offset, int64_t bytes, uint8_t* out) {
  while (bytes > 0) {
    ssize_t got = pread(fd, out, size_t(bytes), off_t(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    offset += got;
    out += got;
    bytes -= got;
  }
  return true;
}

}  // namespace

TensorFiles::TensorFiles(const std::vector<std::string>& files, const std::vector<Tensor>& tensors) {
  std::vector<int64_t> sizes;
  try {
    for (const std::string& file : files) {
      int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a named pipe must not block
      if (fd < 0) throw Error(ErrorKind::kIo, "cannot open weight file " + std::to_string(descriptors_.size()));
      descriptors_.push_back(fd);
      struct stat info;
      require(fstat(fd, &info) == 0 && S_ISREG(info.st_mode), ErrorKind::kIo, "a weight file is not a regular file");
      sizes.push_back(int64_t(info.st_size));
    }
    for (const Tensor& tensor : tensors) {
      if (tensor.file < 0 || tensor.file >= int64_t(sizes.size()))
        throw Error(ErrorKind::kRange, "tensor " + tensor.name + " names no file");
      int64_t bytes = element_count(tensor) * stored_size(tensor.stored), size = sizes[size_t(tensor.file)];
      if (tensor.offset < 0 || bytes > size || tensor.offset > size - bytes) {
        throw Error(ErrorKind::kRange, "tensor " + tensor.name + " lies outside its file");
      }
      if (!tensors_.emplace(tensor.name, tensor).second) throw Error(ErrorKind::kRange, "tensor " + tensor.name + " is listed twice");
    }
  } catch (...) {
    for (int fd : descriptors_) close(fd);
    throw;
  }
}

TensorFiles::~TensorFiles() {
  for (int fd : descriptors_) close(fd);
}

const Tensor& TensorFiles::find(const std::string& name, const std::vector<int64_t>& shape) const {
  auto found = tensors_.find(name);
  if (found == tensors_.end()) throw Error(ErrorKind::kRange, "tensor " + name + " is missing");
  if (found->second.shape != shape) throw Error(ErrorKind::kRange, "tensor " + name + " has the wrong shape");
  return found->second;
}

bool TensorFiles::read(const Tensor& tensor, int64_t first, int64_t count, float* out) const {
  int64_t size = stored_size(tensor.stored);
  int fd = descriptors_[size_t(tensor.file)];
  // Half-width elements are read into the upper half of the output and widened in place, front to back.
  auto* raw = reinterpret_cast<uint8_t*>(out) + count * (4 - size);
  if (!read_exactly(fd, tensor.offset + first * size, count * size, raw)) return false;
  if (size == 4) return true;
  bool half = tensor.stored == Stored::kF16;
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, raw + i * 2, 2);
    out[i] = half ? half_to_float(bits) : bf16_to_float(bits);
  }
  return true;
}

}  // namespace tandem::model
