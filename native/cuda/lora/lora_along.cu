#include "cuda/lora/lora_along.h"

#include <algorithm>

#include "cuda/common/device_info.h"
#include "cuda/common/launch.h"
#include "cuda/lora/lora_sums.h"

namespace tandem::cuda {

bool lora_fits_along(const LoraPart& a) { return a.rows >= 1 && a.rows <= LoraAlong::kMostRows && a.most_rank <= LoraAlong::kMostRank; }

int64_t lora_along_floats(const LoraPart& a) {
  return a.rows * a.count * ceil_div(a.most_rank, lora::kRanks) * lora::kSegments * LoraAlong::kPieceFloats;
}

LoraAlong lora_along(const LoraPart& a, int64_t blocks, int64_t adding, int warps) {
  check_lora_part(a, "lora_along");
  check_argument(lora_fits_along(a), "lora_along", "rows");
  check_argument(lora::whole_vectors(a.x, a.in, a.ldx), "lora_along", "x");
  return {a, int(std::min<int64_t>(blocks, device_multiprocessors())) * warps, int(adding) * warps};
}

}  // namespace tandem::cuda
