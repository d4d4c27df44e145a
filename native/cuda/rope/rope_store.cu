#include "cuda/rope/rope_store.h"

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/rope/rope_row.h"

namespace tandem::cuda {
namespace {

using namespace rope;

constexpr int kThreads = 256;
constexpr int64_t kMostDim = 256;

template <int kLanes>
__device__ __forceinline__ Share share_of(const RopeStore& a, unsigned runs) {
  constexpr int kHeads = kThreads / kLanes;
  const unsigned row = blockIdx.x / runs;
  Share s;
  s.row = row;
  s.head = int(blockIdx.x - row * runs) * kHeads + int(threadIdx.x) / kLanes;
  s.pair = 4 * (int(threadIdx.x) % kLanes);
  const int queries = int(a.heads), keys = int(a.kv.kv_heads);
  s.left = s.head < queries + 2 * keys ? int(a.dim) / 2 - s.pair : 0;
  s.column = s.head * int(a.dim) + s.pair;
  s.kind = s.head < queries ? Kind::kQuery : s.head < queries + keys ? Kind::kKey : Kind::kValue;
  return s;
}

// To the queries, or into the pages; of a row without a place NaN queries and no more.
template <bool kWhole>
__device__ __forceinline__ void store_share(const RopeStore& a, const Share& s, int half, int slot, bool valid, Four (&pairs)[2]) {
  bf16* to = a.queries + s.row * a.heads * a.dim + s.column;
  if (s.kind != Kind::kQuery) {
    if (!valid) return;
    const bool key = s.kind == Kind::kKey;
    const int kv_head = s.head - int(a.heads) - (key ? 0 : int(a.kv.kv_heads));
    to = (key ? a.kv.keys : a.kv.values) + a.kv.offset(slot / kPagePositions, kv_head, slot % kPagePositions) + s.pair;
  }
  const Four nan{NAN, NAN, NAN, NAN};
  if (!valid) pairs[0] = pairs[1] = nan;
  store_pairs<kWhole>(to, s, half, pairs);
}

// kLanes threads have a head; the heads of a row, of q, then of k, then of v, are `runs` blocks beside each other. What no kernel writes is on
// its way before the row is there.
template <int kLanes, bool kWhole, int kAtOnce>
__global__ void __launch_bounds__(kThreads) rope_store_kernel(RopeStore a, unsigned runs) {
  const Share s = share_of<kLanes>(a, runs);
  const int half = int(a.dim) / 2;
  const Constants c = load_constants<kWhole>(a, s, half);
  wait_for_inputs();
  Four pairs[2] = {};
  load_pairs<kWhole, kAtOnce>(a, s, half, pairs);
  add_bias(a, c, pairs);
  const int64_t kept_heads = a.heads + a.kv.kv_heads;
  if (a.qk != nullptr && s.kind != Kind::kValue) store_pairs<kWhole>(a.qk + s.row * kept_heads * a.dim + s.column, s, half, pairs);
  finish_pairs<kLanes>(a, c, pairs);
  store_share<kWhole>(a, s, half, c.slot, c.valid, pairs);
}

template <int kLanes>
void launch_rope_store(const RopeStore& a, bool whole, cudaStream_t stream) {
  const int64_t runs = ceil_div(a.heads + 2 * a.kv.kv_heads, kThreads / kLanes);
  check_argument(a.rows * runs < int64_t(1) << 31, "rope_store", "rows");
  const dim3 grid(unsigned(a.rows * runs)), block(kThreads);
  // Loads of few parts are few instructions.
  if (!whole) GPU_LAUNCH_EARLY((rope_store_kernel<kLanes, false, 8>), grid, block, 0, stream, a, unsigned(runs));
  else if (a.parts.count > 4) GPU_LAUNCH_EARLY((rope_store_kernel<kLanes, true, 8>), grid, block, 0, stream, a, unsigned(runs));
  else if (a.parts.count > 0) GPU_LAUNCH_EARLY((rope_store_kernel<kLanes, true, 4>), grid, block, 0, stream, a, unsigned(runs));
  else GPU_LAUNCH_EARLY((rope_store_kernel<kLanes, true, 0>), grid, block, 0, stream, a, unsigned(runs));
}

}  // namespace

bool rope_in_fours(const RopeStore& a) {
  const bool read = in_fours(a.qkv, a.ld) && in_fours(a.parts) && in_fours(a.bias) && in_fours(a.q_norm) && in_fours(a.k_norm);
  const bool written = in_fours(a.queries) && in_fours(a.kv.keys) && in_fours(a.kv.values) && in_fours(a.qk);
  return a.dim % 8 == 0 && read && written && in_fours(a.cosines) && in_fours(a.sines);
}

void rope_store(const RopeStore& a, cudaStream_t stream) {
  const char* name = "rope_store";
  check_argument(a.rows >= 0 && a.rows < 1 << 30, name, "rows");
  check_argument(a.dim >= 2 && a.dim % 2 == 0 && a.dim <= kMostDim && a.dim == a.kv.dim, name, "dim");
  check_argument(a.heads >= 1 && a.kv.kv_heads >= 1 && a.heads + 2 * a.kv.kv_heads < 1 << 16, name, "heads");
  check_argument(a.ld >= (a.heads + 2 * a.kv.kv_heads) * a.dim, name, "ld");
  check_argument((a.q_norm == nullptr) == (a.k_norm == nullptr), name, "k_norm");
  const bool fits = a.parts.count == 0 || (a.parts.rows == a.rows && a.parts.columns == a.ld);
  check_argument(fits, name, "parts");
  if (a.rows == 0) return;
  const bool whole = rope_in_fours(a);
  switch (lanes_of(a.dim)) {
    case 4: launch_rope_store<4>(a, whole, stream); break;
    case 8: launch_rope_store<8>(a, whole, stream); break;
    case 16: launch_rope_store<16>(a, whole, stream); break;
    default: launch_rope_store<32>(a, whole, stream);
  }
  check_launch(name);
}

}  // namespace tandem::cuda
