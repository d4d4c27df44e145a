#include <algorithm>

#include "cuda/common/device_info.h"
#include "cuda/common/early_launch.h"
#include "cuda/lora/lora_launch.h"

namespace tandem::cuda {
namespace {

using namespace lora;

// u of rows [first, first + count), all of one adapter, for at most kRanks ranks from `first_rank` on.
template <int kTiles>
__device__ __forceinline__ void shrink_rows(const Lora& a, int32_t adapter, int64_t first, int count, int first_rank) {
  const LoraWeights w = weights_of(a.adapters, a.adapter_count, a.most_rank, adapter);
  if (w.rank <= first_rank) return;
  const bool vectors = whole_vectors(a.x, a.in, a.ldx) && whole_vectors(w.a, a.in, a.in);
  __syncthreads();  // the rows before have left shared memory
  const auto x_of = [&](int row) { return a.x + (first + row) * a.ldx; };
  shrink<kTiles>(x_of, count, {w.a + first_rank * a.in, min(kRanks, w.rank - first_rank), int(a.in), vectors},
                 [&](int rank, int row, float sum) { a.u[(first + row) * a.most_rank + first_rank + rank] = w.scale * sum; });
}

// Block (kTiles tiles of rows, group of ranks), of which rows of one adapter that follow each other go together.
template <int kTiles>
__global__ void __launch_bounds__(kThreads, 2) shrink_kernel(const __grid_constant__ Loras all) {
  wait_for_inputs();
  const Lora& a = all.each[blockIdx.z];
  static_assert(kTiles * kRows < kWarp);
  const int64_t first = int64_t(blockIdx.x) * kTiles * kRows;
  const TileAdapters adapters(a.row_adapters + first, int(min(int64_t(kTiles * kRows), a.rows - first)));
  GPU_UNROLL_1
  for (int begin = 0; begin < adapters.rows;) {
    const int end = adapters.end_of(begin);
    shrink_rows<kTiles>(a, adapters.at(begin), first + begin, end - begin, int(blockIdx.y) * kRanks);
    begin = end;
  }
}

template <int kTiles>
void shrink_tiles(const Loras& loras, int64_t count, cudaStream_t stream) {
  const Lora& a = loras.each[0];
  const dim3 grid(unsigned(ceil_div(a.rows, kTiles * kRows)), unsigned(ceil_div(a.most_rank, kRanks)), unsigned(count));
  GPU_LAUNCH_EARLY(shrink_kernel<kTiles>, grid, dim3(kThreads), 0, stream, loras);
}

}  // namespace

void lora_shrink(const Lora* all, int64_t count, cudaStream_t stream) {
  const char* name = "lora_shrink";
  const Loras loras = checked(all, count, name);
  const Lora& a = loras.each[0];
  if (a.rows == 0 || no_rank(a)) return;
  // Factors are read once for two tiles where enough are left for all multiprocessors.
  if (ceil_div(a.rows, 2 * kRows) * count >= device_multiprocessors()) shrink_tiles<2>(loras, count, stream);
  else shrink_tiles<1>(loras, count, stream);
  check_launch(name);
}

}  // namespace tandem::cuda
