// Choosing one of the kernels that compute the same, from the table in which they are.
#pragma once
#include <string>

#include "base/error.h"

namespace tandem::cuda {

// By the name that a setting gives; null or empty: the first. Throws Error(kRange) for a name that is none, Error(kUnsupported) where a
// device of that compute capability lacks the instructions.
template <class Variant, size_t kCount>
const Variant& choose_variant(const std::string& setting, const Variant (&variants)[kCount], const char* name, int major, int minor) {
  if (!name || !*name) return variants[0];
  std::string names;
  for (const Variant& variant : variants) {
    if (variant.name != std::string(name)) {
      names += names.empty() ? variant.name : std::string(" or ") + variant.name;
      continue;
    }
    if (major >= variant.least_major && major <= variant.most_major) return variant;
    throw Error(ErrorKind::kUnsupported, setting + "=" + name + " needs a GPU of compute capability " +
                                             std::to_string(variant.least_major) + ".x, and this one has " + std::to_string(major) + "." +
                                             std::to_string(minor));
  }
  throw Error(ErrorKind::kRange, setting + " must be " + names);
}

}  // namespace tandem::cuda
