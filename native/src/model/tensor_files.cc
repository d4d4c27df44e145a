#include "model/tensor_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/bf16.h"
#include "base/error.h"
#include "base/file.h"

namespace tandem::model {
namespace {

int64_t stored_size(Stored stored) { return stored == Stored::kF32 ? 4 : 2; }

// Elements of a row: 1 for a vector, whose elements are its rows.
int64_t columns_of(const Tensor& tensor) { return tensor.shape.size() == 2 ? tensor.shape[1] : 1; }

int64_t stored_bytes(const Tensor& tensor, int64_t elements) {
  if (!is_blocks(tensor.stored)) return elements * stored_size(tensor.stored);
  BlockTraits block = block_traits(tensor.stored);
  return elements / block.elements * block.bytes;
}

// Throws unless rows are whole blocks, and heads whole and even where they are interleaved.
void check_rows(const Tensor& tensor) {
  if (is_blocks(tensor.stored) && columns_of(tensor) % block_traits(tensor.stored).elements != 0) {
    throw Error(ErrorKind::kRange, "tensor " + tensor.name + " has rows that are not whole blocks");
  }
  if (tensor.interleaved != 0 &&
      (tensor.interleaved < 0 || tensor.interleaved % 2 != 0 || tensor.shape.empty() || tensor.shape[0] % tensor.interleaved != 0)) {
    throw Error(ErrorKind::kRange, "tensor " + tensor.name + " has rows that are not whole interleaved heads");
  }
}

// Where a row of the reader's order lies in the file.
int64_t stored_row(const Tensor& tensor, int64_t row) {
  if (tensor.interleaved == 0) return row;
  int64_t half = tensor.interleaved / 2, head = row / tensor.interleaved, within = row % tensor.interleaved;
  return head * tensor.interleaved + (within < half ? 2 * within : 2 * (within - half) + 1);
}

void widen(Stored stored, const uint8_t* raw, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, raw + i * 2, 2);
    out[i] = stored == Stored::kF16 ? half_to_float(bits) : bf16_to_float(bits);
  }
}

int64_t element_count(const Tensor& tensor) {
  int64_t count = 1;
  for (int64_t d : tensor.shape) {
    if (d <= 0 || count > (int64_t(1) << 46) / d) throw Error(ErrorKind::kRange, "tensor " + tensor.name + " has an impossible shape");
    count *= d;
  }
  return count;
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
      int64_t elements = element_count(tensor), size = sizes[size_t(tensor.file)];
      check_rows(tensor);
      int64_t bytes = stored_bytes(tensor, elements);
      if (tensor.offset < 0 || tensor.offset > size - bytes) {
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
  int64_t columns = columns_of(tensor);
  if (!is_blocks(tensor.stored) && tensor.interleaved == 0) {
    int64_t size = stored_size(tensor.stored);
    // Half-width elements are read into the upper half of the output and widened in place, front to back.
    auto* raw = reinterpret_cast<uint8_t*>(out) + count * (4 - size);
    if (!read_exactly(descriptors_[size_t(tensor.file)], tensor.offset + first * size, count * size, raw)) return false;
    if (size == 2) widen(tensor.stored, raw, count, out);
    return true;
  }
  int64_t rows = count / columns, bytes = stored_bytes(tensor, columns);
  std::vector<uint8_t> raw(size_t(rows * bytes));
  if (!read_rows(tensor, first / columns, rows, bytes, raw.data())) return false;
  if (tensor.stored == Stored::kF32) {
    std::memcpy(out, raw.data(), raw.size());
  } else if (!is_blocks(tensor.stored)) {
    widen(tensor.stored, raw.data(), count, out);
  } else {
    for (int64_t i = 0; i < rows; ++i) dequantise_row(tensor.stored, raw.data() + i * bytes, columns, out + i * columns);
  }
  return true;
}

bool TensorFiles::read_blocks(const Tensor& tensor, int64_t first_row, int64_t rows, const ops::QuantRows& out) const {
  int64_t columns = columns_of(tensor), groups = columns / simd::traits_of(block_traits(tensor.stored).format).group;
  int64_t bytes = stored_bytes(tensor, columns);
  std::vector<uint8_t> raw(size_t(rows * bytes));
  if (!read_rows(tensor, first_row, rows, bytes, raw.data())) return false;
  for (int64_t i = 0; i < rows; ++i) {
    float* minima = out.minima ? out.minima + i * groups : nullptr;
    unpack_row(tensor.stored, raw.data() + i * bytes, columns, out.values + i * columns, out.scales + i * groups, minima);
  }
  return true;
}

bool TensorFiles::read_rows(const Tensor& tensor, int64_t first, int64_t rows, int64_t bytes, uint8_t* out) const {
  int fd = descriptors_[size_t(tensor.file)];
  if (tensor.interleaved == 0) return read_exactly(fd, tensor.offset + first * bytes, rows * bytes, out);
  for (int64_t i = 0; i < rows; ++i) {
    if (!read_exactly(fd, tensor.offset + stored_row(tensor, first + i) * bytes, bytes, out + i * bytes)) return false;
  }
  return true;
}

}  // namespace tandem::model
