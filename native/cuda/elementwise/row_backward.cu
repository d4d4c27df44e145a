#include "cuda/elementwise/row_backward.h"

#include "cuda/common/fours.h"
#include "cuda/common/launch.h"
#include "cuda/common/reduce.h"
#include "cuda/elementwise/swiglu.h"

namespace tandem::cuda {
namespace {

constexpr int kRowThreads = 256;
constexpr int kRowRun = 4 * kRowThreads;
constexpr int kCopyThreads = 128;
// Of rows that no thread can hold its share of.
constexpr int kWideThreads = 1024;
constexpr int64_t kMostDim = 256;

// Blocks of a row beside each other, here and below; a thread takes two pieces.
template <bool kWhole>
__global__ void __launch_bounds__(kRowThreads) narrow_kernel(Narrow a, unsigned runs) {
  const ColumnPlace place = place_of(runs, 2 * kRowRun);
  const float* x = a.x + place.row * a.ldx;
  bf16* y = a.y + place.row * a.ldy;
  Four v[2];
  GPU_UNROLL
  for (int j = 0; j < 2; ++j) {
    const int i = place.column + j * kRowRun, left = int(a.width) - i;
    v[j] = load_four<kWhole>(x + i, left);
    if (a.bias == nullptr) continue;
    const Four bias = load_four<kWhole>(a.bias + i, left);
    GPU_UNROLL
    for (int c = 0; c < 4; ++c) v[j].at[c] += bias.at[c];
  }
  GPU_UNROLL
  for (int j = 0; j < 2; ++j) {
    const int i = place.column + j * kRowRun;
    store_four<kWhole>(y + i, int(a.width) - i, v[j]);
  }
}

// With r = 1 / sqrt(mean(x^2) + eps) and g = weight * d: dx = r * g - x * r^3 / n * sum(g * x).
struct NormSlope {
  float r, along;

  __device__ NormSlope(float squares, float dot, float width, float eps) {
    r = rsqrtf(squares / width + eps);
    along = dot * r * r * r / width;
  }
  __device__ float of(float g, float x) const { return g * r - x * along; }
};

// One block per row, which its threads hold, with its gradient.
template <int kRowThreads, int kFours, bool kWhole>
__global__ void __launch_bounds__(kRowThreads) rms_norm_backward_kernel(RmsNormBackward a) {
  const int64_t index = blockIdx.x, row = a.at ? a.at[index] : index;
  if (row < 0) return;
  const float factor = a.factors ? a.factors[index] : 1.0f;
  float* dx = a.dx + row * a.lddx;
  Four x[kFours], g[kFours], old[kFours];
  GPU_UNROLL
  for (int j = 0; j < kFours; ++j) {
    const int i = 4 * (int(threadIdx.x) + j * kRowThreads), left = int(a.width) - i;
    x[j] = load_four<kWhole>(a.x + row * a.ldx + i, left);
    g[j] = load_four<kWhole>(a.d + index * a.ldd + i, left);
    old[j] = load_four<kWhole>(dx + i, left);
    const Four weight = load_four<kWhole>(a.weight + i, left);
    GPU_UNROLL
    for (int c = 0; c < 4; ++c) g[j].at[c] = weight.at[c] * (factor * g[j].at[c]);
  }
  float sums[2] = {0, 0};
  GPU_UNROLL
  for (int j = 0; j < kFours; ++j) {
    GPU_UNROLL
    for (int c = 0; c < 4; ++c) {
      sums[0] = fmaf(x[j].at[c], x[j].at[c], sums[0]);
      sums[1] = fmaf(g[j].at[c], x[j].at[c], sums[1]);
    }
  }
  block_sums_once<kRowThreads>(sums);
  const NormSlope slope(sums[0], sums[1], float(a.width), a.eps);
  GPU_UNROLL
  for (int j = 0; j < kFours; ++j) {
    const int i = 4 * (int(threadIdx.x) + j * kRowThreads);
    GPU_UNROLL
    for (int c = 0; c < 4; ++c) old[j].at[c] += slope.of(g[j].at[c], x[j].at[c]);
    store_four<kWhole>(dx + i, int(a.width) - i, old[j]);
  }
}

__global__ void __launch_bounds__(kWideThreads) rms_norm_backward_wide_kernel(RmsNormBackward a) {
  const int64_t index = blockIdx.x, row = a.at ? a.at[index] : index;
  if (row < 0) return;
  const float factor = a.factors ? a.factors[index] : 1.0f;
  const float* x = a.x + row * a.ldx;
  const float* d = a.d + index * a.ldd;
  float* dx = a.dx + row * a.lddx;
  float sums[2] = {0, 0};
  for (int64_t i = threadIdx.x; i < a.width; i += kWideThreads) {
    sums[0] = fmaf(x[i], x[i], sums[0]);
    sums[1] = fmaf(a.weight[i] * (factor * d[i]), x[i], sums[1]);
  }
  block_sums_once<kWideThreads>(sums);
  const NormSlope slope(sums[0], sums[1], float(a.width), a.eps);
  for (int64_t i = threadIdx.x; i < a.width; i += kWideThreads) dx[i] += slope.of(a.weight[i] * (factor * d[i]), x[i]);
}

template <bool kWhole>
__global__ void __launch_bounds__(kRowThreads) silu_backward_kernel(SiluBackward a, unsigned runs) {
  const ColumnPlace place = place_of(runs, kRowRun);
  const int width = int(a.width), i = place.column, left = width - i;
  if (left <= 0) return;
  const bf16* x = a.x + place.row * 2 * width;
  const Four gate = load_four<kWhole>(x + i, left), up = load_four<kWhole>(x + width + i, left);
  Four d{}, y, d_gate, d_up;
  if (a.d != nullptr) d = load_four<kWhole>(a.d + place.row * a.ldd + i, left);
  GPU_UNROLL
  for (int c = 0; c < 4; ++c) {
    const SwigluBack back = swiglu_back(gate.at[c], up.at[c], d.at[c]);
    y.at[c] = back.y, d_gate.at[c] = back.d_gate, d_up.at[c] = back.d_up;
  }
  if (a.y != nullptr) store_four<kWhole>(a.y + place.row * width + i, left, y);
  if (a.d == nullptr) return;
  bf16* dx = a.dx + place.row * 2 * width;
  store_four<kWhole>(dx + i, left, d_gate);
  store_four<kWhole>(dx + width + i, left, d_up);
}

// The gradient of a head's pairs (i, i + dim / 2) through its norm; all kLanes neighbours call. Not wanted: of a head beside one with a norm.
template <int kLanes, bool kWhole>
__device__ __forceinline__ void norm_back(const RopeBackward& a, bool wanted, const float* weight, const bf16* x, int left, Four (&d)[2]) {
  const int half = int(a.dim) / 2;
  Four of_x[2] = {}, g[2] = {};
  if (wanted) {
    GPU_UNROLL
    for (int j = 0; j < 2; ++j) {
      of_x[j] = load_four<kWhole>(x + j * half, left);
      g[j] = load_four<kWhole>(weight + j * half, left);
    }
  }
  float squares = 0, dot = 0;
  GPU_UNROLL
  for (int j = 0; j < 2; ++j) {
    GPU_UNROLL
    for (int c = 0; c < 4; ++c) {
      g[j].at[c] *= d[j].at[c];
      squares = fmaf(of_x[j].at[c], of_x[j].at[c], squares);
      dot = fmaf(g[j].at[c], of_x[j].at[c], dot);
    }
  }
  squares = group_sum<kLanes>(squares);
  dot = group_sum<kLanes>(dot);
  if (!wanted) return;
  const NormSlope slope(squares, dot, float(a.dim), a.eps);
  GPU_UNROLL
  for (int j = 0; j < 2; ++j) {
    GPU_UNROLL
    for (int c = 0; c < 4; ++c) d[j].at[c] = slope.of(g[j].at[c], of_x[j].at[c]);
  }
}

// kLanes threads have a head, each four pairs; the heads of a row, of q, then of k, then of v, are `runs` blocks beside each other.
template <int kLanes, bool kWhole>
__global__ void __launch_bounds__(kRowThreads) rope_backward_kernel(RopeBackward a, unsigned runs) {
  constexpr int kHeads = kRowThreads / kLanes;
  const int64_t row = blockIdx.x / runs;
  const int head = int(blockIdx.x % runs) * kHeads + int(threadIdx.x) / kLanes, pair = 4 * (int(threadIdx.x) % kLanes);
  const int heads = int(a.heads), kv_heads = int(a.kv_heads), all = heads + 2 * kv_heads, half = int(a.dim) / 2;
  const bool is_query = head < heads, is_value = head >= heads + kv_heads;
  const int left = head < all ? half - pair : 0, kv_head = head - heads - (is_value ? kv_heads : 0);
  const float* from = is_query ? a.dq + (row * heads + head) * a.dim : (is_value ? a.dv : a.dk) + (row * kv_heads + kv_head) * a.dim;
  Four d[2] = {load_four<kWhole>(from + pair, left), load_four<kWhole>(from + half + pair, left)};
  const int position = a.positions[row];
  if (!is_value && position >= 0 && position < a.table_positions) {
    const int64_t turn = int64_t(position) * half + pair;
    const Four cosine = load_four<kWhole>(a.cosines + turn, left), sine = load_four<kWhole>(a.sines + turn, left);
    GPU_UNROLL
    for (int c = 0; c < 4; ++c) {
      const float low = d[0].at[c], high = d[1].at[c];
      d[0].at[c] = low * cosine.at[c] + high * sine.at[c];
      d[1].at[c] = high * cosine.at[c] - low * sine.at[c];
    }
  }
  if (a.q_norm != nullptr) {
    const bf16* x = a.qk + (row * (heads + kv_heads) + head) * a.dim + pair;
    norm_back<kLanes, kWhole>(a, !is_value, (is_query ? a.q_norm : a.k_norm) + pair, x, left, d);
  }
  bf16* to = a.d + (row * all + head) * a.dim + pair;
  store_four<kWhole>(to, left, d[0]);
  store_four<kWhole>(to + half, left, d[1]);
}

__device__ __forceinline__ bool is_slot(const KvLayer& kv, int64_t slot) { return slot >= 0 && slot < kv.pages * kPagePositions; }

// The pieces of all heads of one slot, eight bf16 each where kWhole, one otherwise, are shared out to the threads of a block.
template <bool kWhole, class Move>
__device__ __forceinline__ void for_pieces(const KvLayer& kv, const Move& move) {
  constexpr int kPiece = kWhole ? 8 : 1;
  const unsigned pieces = unsigned(kv.dim) / kPiece;
  for (unsigned i = threadIdx.x; i < pieces * unsigned(kv.kv_heads); i += kCopyThreads)
    move(int64_t(i / pieces), int64_t(i % pieces) * kPiece);
}

template <bool kWhole>
__device__ __forceinline__ void move_piece(bf16* to, const bf16* from, bool valid) {
  if constexpr (kWhole) *reinterpret_cast<uint4*>(to) = valid ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
  else *to = valid ? *from : bf16{0};
}

template <bool kWhole>
__global__ void __launch_bounds__(kCopyThreads) copy_slots_kernel(KvLayer kv, const SlotCopy* copies) {
  const SlotCopy copy = copies[blockIdx.x];
  if (!is_slot(kv, copy.from) || !is_slot(kv, copy.to)) return;
  for_pieces<kWhole>(kv, [&](int64_t head, int64_t at) {
    const int64_t from = kv.offset(copy.from / kPagePositions, head, copy.from % kPagePositions) + at;
    const int64_t to = kv.offset(copy.to / kPagePositions, head, copy.to % kPagePositions) + at;
    move_piece<kWhole>(kv.keys + to, kv.keys + from, true);
    move_piece<kWhole>(kv.values + to, kv.values + from, true);
  });
}

template <bool kWhole>
__global__ void __launch_bounds__(kCopyThreads) gather_slots_kernel(GatherSlots a) {
  const int32_t slot = a.slots[blockIdx.x];
  const bool valid = is_slot(a.kv, slot);
  for_pieces<kWhole>(a.kv, [&](int64_t head, int64_t at) {
    const int64_t from = valid ? a.kv.offset(slot / kPagePositions, head, slot % kPagePositions) + at : 0;
    const int64_t to = (int64_t(blockIdx.x) * a.kv.kv_heads + head) * a.kv.dim + at;
    move_piece<kWhole>(a.keys + to, a.kv.keys + from, valid);
    move_piece<kWhole>(a.values + to, a.kv.values + from, valid);
  });
}

void check_rows(int64_t rows, const char* name) { check_argument(rows >= 0 && rows < 1 << 30, name, "rows"); }

void check_kv(const KvLayer& kv, const char* name) {
  check_argument(kv.kv_heads >= 1 && kv.kv_heads < 1 << 16 && kv.dim >= 1 && kv.dim < 1 << 15, name, "kv_heads");
}

unsigned row_runs(int64_t width, int64_t run) { return unsigned(ceil_div(width, run)); }

// One block per row and run.
dim3 row_blocks(int64_t rows, unsigned runs, const char* name) {
  check_argument(rows * runs < int64_t(1) << 31, name, "rows");
  return dim3(unsigned(rows * runs));
}

// Whether keys and values here and there are made of whole pieces of eight.
bool in_eights(const KvLayer& kv, const bf16* keys, const bf16* values) {
  auto aligned = [](const bf16* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return kv.dim % 8 == 0 && aligned(kv.keys) && aligned(kv.values) && aligned(keys) && aligned(values);
}

template <bool kWhole>
void launch_norm_backward(const RmsNormBackward& a, cudaStream_t stream) {
  const dim3 grid(unsigned(a.rows));
  if (a.width <= 1024) GPU_LAUNCH((rms_norm_backward_kernel<256, 1, kWhole>), grid, dim3(256), 0, stream, a);
  else if (a.width <= 2048) GPU_LAUNCH((rms_norm_backward_kernel<256, 2, kWhole>), grid, dim3(256), 0, stream, a);
  else if (a.width <= 4096) GPU_LAUNCH((rms_norm_backward_kernel<256, 4, kWhole>), grid, dim3(256), 0, stream, a);
  else if (a.width <= 8192) GPU_LAUNCH((rms_norm_backward_kernel<512, 4, kWhole>), grid, dim3(512), 0, stream, a);
  else GPU_LAUNCH(rms_norm_backward_wide_kernel, grid, dim3(kWideThreads), 0, stream, a);
}

template <int kLanes>
void launch_rope_backward(const RopeBackward& a, cudaStream_t stream) {
  const unsigned runs = row_runs(a.heads + 2 * a.kv_heads, kRowThreads / kLanes);
  const dim3 grid = row_blocks(a.rows, runs, "rope_backward"), block(kRowThreads);
  const bool read = in_fours(a.dq) && in_fours(a.dk) && in_fours(a.dv) && in_fours(a.qk) && in_fours(a.q_norm) && in_fours(a.k_norm);
  const bool whole = a.dim % 8 == 0 && read && in_fours(a.cosines) && in_fours(a.sines) && in_fours(a.d);
  if (whole) GPU_LAUNCH((rope_backward_kernel<kLanes, true>), grid, block, 0, stream, a, runs);
  else GPU_LAUNCH((rope_backward_kernel<kLanes, false>), grid, block, 0, stream, a, runs);
}

}  // namespace

void narrow(const Narrow& a, cudaStream_t stream) {
  check_rows(a.rows, "narrow");
  check_argument(a.width >= 1 && a.width <= a.ldx && a.width <= a.ldy, "narrow", "width");
  if (a.rows == 0) return;
  const unsigned runs = row_runs(a.width, 2 * kRowRun);
  const dim3 grid = row_blocks(a.rows, runs, "narrow"), block(kRowThreads);
  const bool whole = a.width % 4 == 0 && in_fours(a.x, a.ldx) && in_fours(a.bias) && in_fours(a.y, a.ldy);
  if (whole) GPU_LAUNCH(narrow_kernel<true>, grid, block, 0, stream, a, runs);
  else GPU_LAUNCH(narrow_kernel<false>, grid, block, 0, stream, a, runs);
  check_launch("narrow");
}

void rms_norm_backward(const RmsNormBackward& a, cudaStream_t stream) {
  check_rows(a.rows, "rms_norm_backward");
  check_argument(a.width >= 1 && a.width <= a.ldx && a.width <= a.ldd && a.width <= a.lddx, "rms_norm_backward", "width");
  check_argument(a.eps > 0, "rms_norm_backward", "eps");
  if (a.rows == 0) return;
  const bool read = in_fours(a.x, a.ldx) && in_fours(a.weight) && in_fours(a.d, a.ldd);
  if (a.width % 4 == 0 && read && in_fours(a.dx, a.lddx)) launch_norm_backward<true>(a, stream);
  else launch_norm_backward<false>(a, stream);
  check_launch("rms_norm_backward");
}

void silu_multiply_backward(const SiluBackward& a, cudaStream_t stream) {
  check_rows(a.rows, "silu_multiply_backward");
  check_argument(a.width >= 1 && (a.d == nullptr || a.width <= a.ldd), "silu_multiply_backward", "width");
  if (a.rows == 0) return;
  const unsigned runs = row_runs(a.width, kRowRun);
  const dim3 grid = row_blocks(a.rows, runs, "silu_multiply_backward"), block(kRowThreads);
  const bool whole = a.width % 4 == 0 && in_fours(a.x) && in_fours(a.d, a.ldd) && in_fours(a.dx) && in_fours(a.y);
  if (whole) GPU_LAUNCH(silu_backward_kernel<true>, grid, block, 0, stream, a, runs);
  else GPU_LAUNCH(silu_backward_kernel<false>, grid, block, 0, stream, a, runs);
  check_launch("silu_multiply_backward");
}

void rope_backward(const RopeBackward& a, cudaStream_t stream) {
  const char* name = "rope_backward";
  check_rows(a.rows, name);
  check_argument(a.dim >= 2 && a.dim % 2 == 0 && a.dim <= kMostDim, name, "dim");
  check_argument(a.heads >= 1 && a.kv_heads >= 1 && a.heads + 2 * a.kv_heads < 1 << 16, name, "heads");
  check_argument((a.q_norm == nullptr) == (a.k_norm == nullptr), name, "k_norm");
  check_argument(a.q_norm == nullptr || a.qk != nullptr, name, "qk");
  if (a.rows == 0) return;
  if (a.dim <= 32) launch_rope_backward<4>(a, stream);
  else if (a.dim <= 64) launch_rope_backward<8>(a, stream);
  else if (a.dim <= 128) launch_rope_backward<16>(a, stream);
  else launch_rope_backward<32>(a, stream);
  check_launch(name);
}

void copy_slots(const KvLayer& kv, const SlotCopy* copies, int64_t count, cudaStream_t stream) {
  check_rows(count, "copy_slots");
  check_kv(kv, "copy_slots");
  if (count == 0) return;
  const dim3 grid(static_cast<unsigned>(count)), block(kCopyThreads);
  if (in_eights(kv, nullptr, nullptr)) GPU_LAUNCH(copy_slots_kernel<true>, grid, block, 0, stream, kv, copies);
  else GPU_LAUNCH(copy_slots_kernel<false>, grid, block, 0, stream, kv, copies);
  check_launch("copy_slots");
}

void gather_slots(const GatherSlots& a, cudaStream_t stream) {
  check_rows(a.rows, "gather_slots");
  check_kv(a.kv, "gather_slots");
  if (a.rows == 0) return;
  const dim3 grid(unsigned(a.rows)), block(kCopyThreads);
  if (in_eights(a.kv, a.keys, a.values)) GPU_LAUNCH(gather_slots_kernel<true>, grid, block, 0, stream, a);
  else GPU_LAUNCH(gather_slots_kernel<false>, grid, block, 0, stream, a);
  check_launch("gather_slots");
}

}  // namespace tandem::cuda
