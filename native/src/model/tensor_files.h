// Positional reads of tensors from open files, converted to float or unpacked.
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "model/blocks.h"
#include "model/spec.h"

namespace tandem::model {

class TensorFiles {
 public:
  // Opens every file and checks that every tensor lies inside its file. Throws Error(kIo / kRange).
  TensorFiles(const std::vector<std::string>& files, const std::vector<Tensor>& tensors);
  ~TensorFiles();
  TensorFiles(const TensorFiles&) = delete;
  TensorFiles& operator=(const TensorFiles&) = delete;

  // The tensor of that name with that shape; throws Error(kRange) naming it when absent or of another shape.
  const Tensor& find(const std::string& name, const std::vector<int64_t>& shape) const;
  // Elements [first, first + count) of the tensor as floats; false when the file ended early or could not be read. Whole rows where
  // the tensor is stored in blocks or interleaved.
  bool read(const Tensor& tensor, int64_t first, int64_t count, float* out) const;
  // Rows of a tensor stored in blocks, as they are packed; false as above.
  bool read_blocks(const Tensor& tensor, int64_t first_row, int64_t rows, const ops::QuantRows& out) const;

 private:
  // The stored bytes of rows, `bytes` each, in the order of the reader.
  bool read_rows(const Tensor& tensor, int64_t first, int64_t rows, int64_t bytes, uint8_t* out) const;

  std::vector<int> descriptors_;
  std::unordered_map<std::string, Tensor> tensors_;
};

}  // namespace tandem::model
