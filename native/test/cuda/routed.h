// Rows that are shared out to experts by the kernels under test.
#pragma once
#include "cuda/experts/experts.h"
#include "gpu_support.h"

namespace tandem::test {

struct Routed {
  // By their logits, rows `ld` apart. `slots`: below 0 where a row is nobody's; empty: all are somebody's.
  Routed(const std::vector<float>& values, int64_t ld, int64_t rows, int64_t experts, int64_t used, bool normalise,
         const std::vector<int32_t>& slot_values = {})
      : ld(ld), rows(rows), experts(experts), used(used), normalise(normalise), logits(values), slots(slot_values),
        chosen(std::vector<int32_t>(size_t(pairs()), -7)), order(std::vector<int32_t>(size_t(pairs()), -7)),
        tiles(std::vector<cuda::ExpertTile>(size_t(tile_count()), {-7, -7, -7})), weights(size_t(pairs())) {
    cuda::route_experts(args(), nullptr);
  }
  // All rows to random experts.
  Routed(Random& random, int64_t rows, int64_t experts, int64_t used)
      : Routed(random.normals(size_t(rows * experts)), experts, rows, experts, used, true) {}

  int64_t pairs() const { return rows * used; }
  int64_t tile_count() const { return cuda::expert_tiles(pairs(), experts); }
  cuda::RouteExperts args() {
    return {logits.data(),
            ld,
            slots.size() > 0 ? slots.data() : nullptr,
            rows,
            experts,
            used,
            normalise,
            chosen.data(),
            weights.data(),
            order.data(),
            tiles.data()};
  }

  int64_t ld, rows, experts, used;
  bool normalise;
  DeviceBuffer<float> logits;
  DeviceBuffer<int32_t> slots, chosen, order;
  DeviceBuffer<cuda::ExpertTile> tiles;
  DeviceBuffer<float> weights;
};

}  // namespace tandem::test
