// What kernels that may run at the same time do to the same memory: where a launch may begin early (common/early_launch.h), what its threads
// touch before they wait is not what the kernels ahead of it write, and what they write not what those read. It remembers which launch
// touched eight bytes last, of kernels that are compiled as shared_races.h says; so it finds what no order of blocks here would show.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

namespace tandem::gpu_emulation {

class LaunchOverlaps;

// Of a stream's launches, numbered in their order, those from which on some may still run, or are not yet seen by who has not waited.
struct Ahead {
  uint32_t launches = 0;  // run so far
  uint32_t running = 0, unseen = 0;
  LaunchOverlaps* overlaps = nullptr;  // the stream's; null: the launch is on none, and no other runs beside it
};

class LaunchOverlaps {
 public:
  // Whether a launch before `launch`, from `oldest` on, wrote any of it, or, where this one writes, read it.
  bool touch(const void* p, size_t bytes, bool writes, uint32_t launch, uint32_t oldest);

 private:
  static constexpr size_t kPage = 4096, kPlace = 8;
  struct Page {
    uint32_t wrote[kPage / kPlace], read[kPage / kPlace];
  };
  Page& page_of(size_t number);

  static constexpr size_t kNear = 256;
  struct Near {
    size_t number = 0;
    Page* page = nullptr;
  };
  Near near_[kNear];
  std::unordered_map<size_t, std::unique_ptr<Page>> pages_;
};

}  // namespace tandem::gpu_emulation
