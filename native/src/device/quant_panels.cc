#include "device/quant_panels.h"

#include <algorithm>
#include <cstring>

namespace tandem::device {
namespace {

using cuda::kQuantPairs;
using cuda::kQuantPanel;
using cuda::kQuantTile;
using cuda::QuantPanel;

// A group of the CPU's panel.
struct Group {
  const simd::QuantTraits& traits;
  const uint8_t* data;

  const uint8_t* minima() const { return data + traits.scale_bytes(kQuantPanel); }
  uint32_t stored(int64_t output, int64_t input) const {
    const uint8_t* numbers = minima() + traits.minimum_bytes(kQuantPanel);
    const bool narrow = traits.bits == 4;
    const int64_t within = narrow ? input % (traits.group / 2) : input;
    const uint8_t byte = numbers[(within / 4 * kQuantPanel + output) * 4 + within % 4];
    if (!narrow) return byte;
    return within == input ? byte & 15u : uint32_t(byte) >> 4;
  }
};

// Group `index` of a tile: scales and minima of each pair of outputs.
void reorder_heads(const QuantPanel& panel, const Group& group, int64_t index, uint8_t* tile) {
  const int64_t scale = panel.wide_scales ? 8 : 4;  // bytes of a pair's
  for (int64_t pair = 0; pair < kQuantPairs; ++pair) {
    uint8_t* to = tile + pair * panel.pair_bytes();
    if (!panel.floating) std::memcpy(to + index * scale, group.data + pair * scale, size_t(scale));
    if (panel.minima) std::memcpy(to + panel.scale_bytes() + index * 8, group.minima() + pair * 8, 8);
  }
}

void reorder_numbers(const QuantPanel& panel, const Group& group, int64_t index, uint8_t* tile) {
  uint8_t* numbers = tile + kQuantPairs * panel.pair_bytes();
  for (int input = 0; input < panel.group; ++input) {
    for (int output = 0; output < kQuantPanel; ++output) {
      const cuda::NumberPlace place = cuda::number_place(panel.bits, output, int(index) * panel.group + input);
      // Words are little-endian, as on the device.
      numbers[place.word + place.bit / 8] |= uint8_t(group.stored(output, input) << place.bit % 8);
    }
  }
}

}  // namespace

QuantPanel panel_of(ops::QuantFormat format) {
  const simd::QuantTraits t = simd::traits_of(format);
  return {0, t.bits, t.group, t.offset, t.wide_scales, t.minima, t.floating};
}

void reorder_panel(const ops::QuantisedMatrix& packed, int64_t panel, uint8_t* to) {
  const simd::QuantTraits traits = simd::traits_of(packed.format(panel));
  const QuantPanel order = panel_of(packed.format(panel));
  // Inputs that pad the last tile have scales and minima of 0.
  std::fill_n(to, order.bytes(packed.columns()), uint8_t(0));
  const uint8_t* from = packed.panel_data(panel);
  std::memcpy(to, from, size_t(order.head_bytes()));
  const int64_t groups = packed.columns_padded() / traits.group, in_tile = kQuantTile / traits.group;
  for (int64_t g = 0; g < groups; ++g) {
    const Group group{traits, from + traits.head_bytes(kQuantPanel) + g * traits.group_bytes(kQuantPanel)};
    uint8_t* tile = to + order.head_bytes() + g / in_tile * order.tile_bytes();
    reorder_heads(order, group, g % in_tile, tile);
    reorder_numbers(order, group, g % in_tile, tile);
  }
}

}  // namespace tandem::device
