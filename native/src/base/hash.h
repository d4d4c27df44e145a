// A fast 64-bit hash of bytes, to find torn or altered files. Not a defence against somebody who can compute it too.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tandem {

inline uint64_t hash_bytes(const uint8_t* data, size_t bytes, uint64_t seed = 0) {
  constexpr uint64_t kMix = 0x9e3779b97f4a7c15ull;
  uint64_t lanes[4] = {seed ^ kMix, seed + 1, seed + 2, seed + 3};
  size_t at = 0;
  for (; at + 32 <= bytes; at += 32) {
    uint64_t words[4];
    std::memcpy(words, data + at, 32);
    for (int i = 0; i < 4; ++i) lanes[i] = std::rotl((lanes[i] ^ words[i]) * kMix, 29);
  }
  uint64_t rest[4] = {};
  if (at < bytes) std::memcpy(rest, data + at, bytes - at);
  uint64_t hash = uint64_t(bytes) * kMix;
  for (int i = 0; i < 4; ++i) {
    hash = std::rotl((hash ^ lanes[i] ^ rest[i]) * kMix, 31);
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace tandem
