// The one exception type of native code. The addon turns it into a JavaScript error by its kind.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace tandem {

enum class ErrorKind {
  kType,         // wrong type or shape of an argument -> TypeError
  kRange,        // value out of range -> RangeError
  kState,        // handle closed, step already running -> Error
  kIo,           // file missing, short read -> Error
  kUnsupported,  // a valid request that this build or machine cannot serve -> Error
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

inline void require(bool ok, ErrorKind kind, const char* message) {
  if (!ok) throw Error(kind, message);
}

// Throws Error(kRange) naming what must lie in low..high and does not.
inline void in_range(const char* what, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    throw Error(ErrorKind::kRange, std::string(what) + " must be in " + std::to_string(low) + ".." + std::to_string(high));
  }
}

}  // namespace tandem
