// Which matrices of a model are kept as small whole numbers, and where these come from.
#pragma once
#include <optional>
#include <vector>

#include "model/tensor_files.h"

namespace tandem::model {

// The rows of those tensors, one below the other, where the matrix of them is kept quantised: made anew in the format of `quantise`, or the
// blocks of the files as they are where all tensors are stored in blocks (beside plain elements blocks are widened). Empty: it is not.
// What is returned reads from `files` and the tensors, which must stay.
std::vector<ops::QuantPart> quant_parts(const TensorFiles& files, const std::vector<const Tensor*>& tensors,
                                        std::optional<ops::QuantFormat> quantise);

// Rows of zeros, of that many columns.
ops::QuantPart zero_part(int64_t rows, ops::QuantFormat format, int64_t columns);

}  // namespace tandem::model
