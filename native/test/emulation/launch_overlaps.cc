#include "emulation/launch_overlaps.h"

namespace tandem::gpu_emulation {

LaunchOverlaps::Page& LaunchOverlaps::page_of(size_t number) {
  Near& near = near_[number % kNear];
  if (near.page != nullptr && near.number == number) return *near.page;
  std::unique_ptr<Page>& page = pages_[number];
  if (!page) page = std::make_unique<Page>();
  near = {number, page.get()};
  return *page;
}

bool LaunchOverlaps::touch(const void* p, size_t bytes, bool writes, uint32_t launch, uint32_t oldest) {
  const size_t first = reinterpret_cast<uintptr_t>(p) / kPlace, end = (reinterpret_cast<uintptr_t>(p) + bytes + kPlace - 1) / kPlace;
  constexpr size_t kPlaces = kPage / kPlace;
  bool overlaps = false;
  for (size_t place = first; place < end; ++place) {
    Page& page = page_of(place / kPlaces);
    uint32_t &wrote = page.wrote[place % kPlaces], &read = page.read[place % kPlaces];
    overlaps = overlaps || (wrote >= oldest && wrote < launch) || (writes && read >= oldest && read < launch);
    (writes ? wrote : read) = launch;
  }
  return overlaps;
}

}  // namespace tandem::gpu_emulation
