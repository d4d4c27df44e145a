// Choosing one of the kernels that compute the same, from the table in which they are.
#pragma once
#include <cstdint>
#include <string>

#include "base/error.h"

namespace tandem::cuda {

// One of which there is nothing to know but its name and the compute capabilities that it runs on.
template <class Kernel>
struct NamedVariant {
  Kernel kernel;
  const char* name;
  int least_major, most_major;
};

template <class Variant>
bool runs_on(const Variant& variant, int major) {
  return major >= variant.least_major && major <= variant.most_major;
}

template <class Variant, size_t kCount, class Kernel>
const Variant& variant_with(const Variant (&variants)[kCount], Kernel kernel) {
  for (const Variant& variant : variants) {
    if (variant.kernel == kernel) return variant;
  }
  throw Error(ErrorKind::kRange, "no kernel of that number");
}

// By the name that a setting gives; null or empty: the first that runs on a device of that compute capability. Throws Error(kRange) for a name
// that is none, Error(kUnsupported) where the device lacks the instructions.
template <class Variant, size_t kCount>
const Variant& choose_variant(const std::string& setting, const Variant (&variants)[kCount], const char* name, int major, int minor) {
  const std::string asked = name ? name : "";
  std::string names;
  for (const Variant& variant : variants) {
    if (asked.empty() && runs_on(variant, major)) return variant;
    if (variant.name != asked) {
      names += names.empty() ? variant.name : std::string(" or ") + variant.name;
      continue;
    }
    if (runs_on(variant, major)) return variant;
    throw Error(ErrorKind::kUnsupported, setting + "=" + asked + " needs a GPU of compute capability " +
                                             std::to_string(variant.least_major) + ".x, and this one has " + std::to_string(major) + "." +
                                             std::to_string(minor));
  }
  throw Error(ErrorKind::kRange, setting + " must be " + names);
}

}  // namespace tandem::cuda
