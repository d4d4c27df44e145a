// What the halves of lora_add share: the arguments of a launch.
#pragma once
#include "cuda/common/launch.h"
#include "cuda/lora/lora_sums.h"

namespace tandem::cuda::lora {

// Of one launch, a layer of the grid each.
struct Loras {
  Lora each[Lora::kMost];
};

// The adapters of a tile's rows, at most kWarp - 1 of them, one lane each: which of them follow each other under the same one.
struct TileAdapters {
  int32_t own;
  int rows;

  __device__ __forceinline__ TileAdapters(const int32_t* row_adapters, int count) : own(-1), rows(count) {
    const int lane = int(threadIdx.x) % kWarp;
    if (lane < count) own = row_adapters[lane];
  }
  // All lanes of the warp call, here too.
  __device__ __forceinline__ int32_t at(int row) const { return __shfl_sync(kAllLanes, own, row); }
  // Behind the last row from `begin` on that has the same.
  __device__ __forceinline__ int end_of(int begin) const {
    const int lane = int(threadIdx.x) % kWarp;
    const int32_t wanted = at(begin);
    const uint32_t others = __ballot_sync(kAllLanes, lane >= rows || own != wanted) >> begin;
    return begin + __ffs(int(others)) - 1;
  }
};

inline void check(const Lora& a, const char* name) {
  check_argument(a.rows >= 0 && a.rows < 1 << 30, name, "rows");
  check_argument(a.in >= 1 && a.in <= a.ldx && a.in < 1 << 23, name, "in");
  check_argument(a.out >= 1 && a.out <= a.ldy && a.out < 1 << 23, name, "out");
  check_argument(a.most_rank >= 0 && a.most_rank <= 1024, name, "most_rank");
  check_argument((a.onto == nullptr) == (a.whole == nullptr), name, "onto");
}

inline Loras checked(const Lora* all, int64_t count, const char* name) {
  check_argument(count >= 1 && count <= Lora::kMost, name, "count");
  Loras out{};
  for (int64_t i = 0; i < count; ++i) {
    check(all[i], name);
    const bool alike = all[i].rows == all[0].rows && all[i].most_rank == all[0].most_rank && all[i].adapter_count == all[0].adapter_count;
    check_argument(alike && (all[i].onto == nullptr) == (all[0].onto == nullptr), name, "all");
    out.each[i] = all[i];
  }
  return out;
}

inline bool no_rank(const Lora& a) { return a.most_rank == 0 || a.adapter_count == 0; }

}  // namespace tandem::cuda::lora
