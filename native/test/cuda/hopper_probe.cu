#include "hopper_probe.h"

#include "cuda/common/hopper.h"
#include "cuda/common/launch.h"
#include "cuda/common/tensor_map.h"

namespace tandem::test {
namespace {

using namespace cuda;

constexpr int kRow = 64;  // elements of a row of a tile
constexpr int kProbeThreads = 128;

// `rows` in all; by boxes of panels, from that number on, where there are any.
__global__ void copy_probe(const __grid_constant__ TensorMap map, int rows, int row, int column, bool panels, bf16* out) {
#if TANDEM_HOPPER_CODE
  GPU_SHARED_BYTES(shared);
  const int bytes = rows * kRow * int(sizeof(bf16));
  Barrier* barrier = reinterpret_cast<Barrier*>(shared + bytes);
  if (threadIdx.x == 0) {
    barrier_init(barrier, 1);
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    barrier_expect(barrier, bytes);
    if (panels) bulk_load_panels(shared, &map, barrier, column, row);
    else bulk_load(shared, &map, barrier, column, row);
  }
  barrier_wait(barrier, 0);
  for (int i = threadIdx.x; i < rows * kRow; i += kProbeThreads) out[i] = reinterpret_cast<const bf16*>(shared)[i];
#endif
}

constexpr int kPanel = 64 * kRow;

#if TANDEM_HOPPER_CODE

constexpr int kPanelBytes = kPanel * int(sizeof(bf16));

// Rows of `width` elements as bulk copies leave them: panels of 64 rows and 64 columns, or one of any number of rows.
__device__ void place(bf16* panels, const bf16* from, int count, int width) {
  for (int i = threadIdx.x; i < count; i += kProbeThreads) {
    const int row = i / width, column = i % width;
    panels[column / kRow * kPanel + row * kRow + ((column % kRow / 8) ^ (row % 8)) * 8 + column % 8] = from[i];
  }
}

#endif

template <int kTokens, bool kAcross>
__global__ void wgmma_probe(const bf16* a, const bf16* b, int step, float* out) {
#if TANDEM_HOPPER_CODE
  GPU_SHARED_BYTES(shared);
  bf16 *weights = reinterpret_cast<bf16*>(shared), *tokens = weights + kPanel;
  place(weights, a, kPanel, kRow);
  place(tokens, b, kTokens * kRow, kAcross ? kTokens : kRow);
  shared_writes_fence();
  __syncthreads();
  float sums[kTokens / 2] = {};
  wgmma_fence();
  if constexpr (kAcross) wgmma_across<kTokens>(sums, tile_descriptor(weights, step), across_descriptor(tokens, step, kPanelBytes));
  else wgmma<kTokens>(sums, tile_descriptor(weights, step), tile_descriptor(tokens, step));
  wgmma_commit();
  wgmma_wait<0>(sums);
  GPU_UNROLL
  for (int i = 0; i < kTokens / 2; ++i) out[threadIdx.x * (kTokens / 2) + i] = sums[i];
#endif
}

template <bool kRegisters>
__global__ void first_probe(const bf16* a, const bf16* b, int step, float* out) {
#if TANDEM_HOPPER_CODE
  GPU_SHARED_BYTES(shared);
  bf16 *left = reinterpret_cast<bf16*>(shared), *right = left + kPanel;
  place(left, a, kPanel, kRow);
  place(right, b, kPanel, kRow);
  shared_writes_fence();
  __syncthreads();
  const int row = int(threadIdx.x) / kWarp * 16 + int(threadIdx.x) % kWarp / 4, k = step * 16 + int(threadIdx.x) % 4 * 2;
  uint32_t rows[1][4];
  for (int i = 0; i < 4; ++i) memcpy(&rows[0][i], a + (row + i % 2 * 8) * kRow + k + i / 2 * 8, 4);
  float sums[32];
  for (int i = 0; i < 32; ++i) sums[i] = 1000.0f + float(i);
  wgmma_fence();
  if constexpr (kRegisters) wgmma_rows_first(sums, rows[0], tile_descriptor(right, step));
  else wgmma_first(sums, tile_descriptor(left, step), tile_descriptor(right, step));
  wgmma_commit();
  wgmma_wait<0>(sums);
  keep_rows(rows);
  GPU_UNROLL
  for (int i = 0; i < 32; ++i) out[threadIdx.x * 32 + i] = sums[i];
#endif
}

using Probe = void (*)(const bf16*, const bf16*, int, float*);

template <int kTokens>
std::vector<float> run_wgmma(Probe kernel, const std::vector<bf16>& a, const std::vector<bf16>& b, int step) {
  const DeviceBuffer<bf16> on_a(a), on_b(b);
  DeviceBuffer<float> out(size_t(64 * kTokens));
  const size_t bytes = size_t(64 + kTokens) * kRow * sizeof(bf16);
  const bf16 *weights = on_a.data(), *tokens = on_b.data();
  float* sums = out.data();
  allow_shared_bytes(kernel, bytes, "wgmma_probe");
  GPU_LAUNCH(kernel, dim3(1), dim3(kProbeThreads), bytes, cudaStream_t{}, weights, tokens, step, sums);
  check_launch("wgmma_probe");
  return out.download();
}

template <int kColumns, bool kAcross>
__global__ void rows_probe(const bf16* a, const bf16* b, int step, float* out) {
#if TANDEM_HOPPER_CODE
  GPU_SHARED_BYTES(shared);
  bf16* panels = reinterpret_cast<bf16*>(shared);
  place(panels, b, 64 * kColumns, kAcross ? kColumns : kRow);
  shared_writes_fence();
  __syncthreads();
  const int row = int(threadIdx.x) / kWarp * 16 + int(threadIdx.x) % kWarp / 4, k = step * 16 + int(threadIdx.x) % 4 * 2;
  uint32_t rows[1][4];
  for (int i = 0; i < 4; ++i) memcpy(&rows[0][i], a + (row + i % 2 * 8) * kRow + k + i / 2 * 8, 4);
  float sums[kColumns / 2] = {};
  wgmma_fence();
  wgmma_rows<kColumns, kAcross>(sums, rows[0], kAcross ? across_descriptor(panels, step, kPanelBytes) : tile_descriptor(panels, step));
  wgmma_commit();
  wgmma_wait<0>(sums);
  keep_rows(rows);
  GPU_UNROLL
  for (int i = 0; i < kColumns / 2; ++i) out[threadIdx.x * (kColumns / 2) + i] = sums[i];
#endif
}

template <int kColumns, bool kAcross>
std::vector<float> run_wgmma_of_rows(const std::vector<bf16>& a, const std::vector<bf16>& b, int step) {
  const DeviceBuffer<bf16> on_a(a), on_b(b);
  DeviceBuffer<float> out(size_t(64 * kColumns));
  const auto kernel = &rows_probe<kColumns, kAcross>;
  const size_t bytes = size_t((kColumns + kRow - 1) / kRow) * kPanel * sizeof(bf16);
  const bf16 *left = on_a.data(), *right = on_b.data();
  float* sums = out.data();
  GPU_LAUNCH(kernel, dim3(1), dim3(kProbeThreads), bytes, cudaStream_t{}, left, right, step, sums);
  check_launch("rows_probe");
  return out.download();
}

__global__ void pairs_probe(const float* values, uint32_t* out) {
  out[threadIdx.x] = pack_rounded(values[2 * threadIdx.x], values[2 * threadIdx.x + 1]);
}

__global__ void powers_probe(const float* values, float* out) { out[threadIdx.x] = exp2_flushed(values[threadIdx.x]); }

}  // namespace

std::vector<float> first_wgmma(const std::vector<bf16>& a, const std::vector<bf16>& b, int step, bool of_rows) {
  return run_wgmma<64>(of_rows ? &first_probe<true> : &first_probe<false>, a, b, step);
}

std::vector<float> powers_of_two(const std::vector<float>& values) {
  const DeviceBuffer<float> from(values);
  DeviceBuffer<float> out(values.size());
  const float* x = from.data();
  float* to = out.data();
  GPU_LAUNCH(powers_probe, dim3(1), dim3(unsigned(out.size())), 0, cudaStream_t{}, x, to);
  check_launch("powers_probe");
  return out.download();
}

std::vector<uint32_t> rounded_pairs(const std::vector<float>& values) {
  const DeviceBuffer<float> from(values);
  DeviceBuffer<uint32_t> out(values.size() / 2);
  const float* pairs = from.data();
  uint32_t* to = out.data();
  GPU_LAUNCH(pairs_probe, dim3(1), dim3(unsigned(out.size())), 0, cudaStream_t{}, pairs, to);
  check_launch("pairs_probe");
  return out.download();
}

static std::vector<bf16> run_copy(const TensorMap& map, int rows, int row, int column, bool panels) {
  DeviceBuffer<bf16> out(size_t(rows * kRow));
  const size_t bytes = size_t(rows) * kRow * sizeof(bf16) + sizeof(Barrier);
  bf16* to = out.data();
  GPU_LAUNCH(copy_probe, dim3(1), dim3(kProbeThreads), bytes, cudaStream_t{}, map, rows, row, column, panels, to);
  check_launch("copy_probe");
  return out.download();
}

std::vector<bf16> copied_box(const std::vector<bf16>& matrix, int64_t rows, int box_rows, int row, int column) {
  const int64_t columns = int64_t(matrix.size()) / rows;
  const DeviceBuffer<bf16> from(matrix);
  return run_copy(tensor_map(from.data(), rows, columns, columns, box_rows), box_rows, row, column, false);
}

std::vector<bf16> copied_panels(const std::vector<bf16>& matrix, int64_t rows, PanelBox box, int row, int panel) {
  const int64_t columns = int64_t(matrix.size()) / rows;
  const DeviceBuffer<bf16> from(matrix);
  const TensorMap map = panels_map(from.data(), rows, columns, columns, box.rows, box.halves, box.panels);
  return run_copy(map, box.rows * box.halves * box.panels, row, panel, true);
}

std::vector<float> one_wgmma(const std::vector<bf16>& a, const std::vector<bf16>& b, int step, bool across) {
  const size_t columns = b.size() / kRow;
  if (across)
    return columns == 128 ? run_wgmma<128>(&wgmma_probe<128, true>, a, b, step) : run_wgmma<256>(&wgmma_probe<256, true>, a, b, step);
  switch (columns) {
    case 8: return run_wgmma<8>(&wgmma_probe<8, false>, a, b, step);
    case 32: return run_wgmma<32>(&wgmma_probe<32, false>, a, b, step);
    default: return run_wgmma<256>(&wgmma_probe<256, false>, a, b, step);
  }
}

std::vector<float> one_wgmma_of_rows(const std::vector<bf16>& a, const std::vector<bf16>& b, int step, bool across) {
  if (!across) return run_wgmma_of_rows<64, false>(a, b, step);
  switch (b.size() / kRow) {
    case 32: return run_wgmma_of_rows<32, true>(a, b, step);
    case 64: return run_wgmma_of_rows<64, true>(a, b, step);
    case 96: return run_wgmma_of_rows<96, true>(a, b, step);
    default: return run_wgmma_of_rows<128, true>(a, b, step);
  }
}

}  // namespace tandem::test
