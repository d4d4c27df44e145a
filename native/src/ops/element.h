// The arithmetic of a model: what weights, activations between operations and KV pages are stored as.
#pragma once
#include <cstddef>

namespace tandem::ops {

enum class Element { kF32, kBf16 };

inline size_t element_size(Element e) { return e == Element::kF32 ? 4 : 2; }

}  // namespace tandem::ops
