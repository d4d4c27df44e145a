// Kernels of low-rank adapters, for gpu_bench.
#pragma once
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "cuda/common/device_buffer.h"
#include "cuda/gemm/matmul.h"
#include "cuda/lora/lora.h"
#include "cuda/lora/lora_back.h"
#include "device_noise.h"

namespace tandem::benchmarks {

using cuda::bf16;
using cuda::DeviceBuffer;
using cuda::Lora;
using cuda::LoraBack;
using cuda::LoraOuter;
using cuda::LoraPart;
using cuda::LoraTile;
using cuda::LoraWeights;

// What is called so, the bytes that it moves, 0 where only its time counts, and the call.
using TimeAdapter = std::function<void(const std::string& name, double bytes, const std::function<void()>& call)>;

// Queries, keys and values of a decode step. What comes next, the product, fetches its weights meanwhile.
inline void time_adapter_part(const Lora& one, const std::string& name, const TimeAdapter& time) {
  DeviceBuffer<float> u(size_t(cuda::lora_part_floats(one.rows, 3, one.most_rank))), part(size_t(one.rows * 3 * one.out));
  const DeviceBuffer<LoraTile> tiles(cuda::lora_tiles(std::vector<int32_t>(size_t(one.rows)), one.adapter_count));
  LoraPart all{};
  for (int64_t i = 0; i < 3; ++i) all.projections[i] = {one.adapters, i * one.out, one.out};
  all.count = 3;
  all.adapter_count = one.adapter_count;
  all.tiles = tiles.data();
  all.tile_count = int64_t(tiles.size());
  all.rows = one.rows;
  all.in = one.in;
  all.most_rank = one.most_rank;
  all.x = one.x;
  all.ldx = one.ldx;
  all.u = u.data();
  all.part = part.data();
  all.columns = 3 * one.out;
  time(name + "part of 3", 0, [&] { lora_part(all, nullptr); });
}

// Of one projection and rank 8, and what its gradient takes besides: bytes of rows of x and y, each moved once.
inline void time_adapter(int64_t count, const TimeAdapter& time) {
  const int64_t width = 4096, rank = 8;
  DeviceBuffer<bf16> a(device_noise(size_t(rank * width), 1)), b(device_noise(size_t(rank * width), 1));
  DeviceBuffer<bf16> x(device_noise(size_t(count * width), 1));
  DeviceBuffer<float> u(size_t(count * rank)), y(size_t(count * width)), gradient(size_t(rank * width));
  const DeviceBuffer<LoraWeights> table(std::vector<LoraWeights>{{a.data(), b.data(), int32_t(rank), 1.0f}});
  const DeviceBuffer<int32_t> which{size_t(count)};
  const Lora args{table.data(), 1, which.data(), count, width, width, rank, x.data(), width, u.data(), y.data(), width};
  const double row = double(count * width);
  const std::string name = "adapter of rank 8, " + std::to_string(count) + " rows, ";
  time(name + "A x", 2 * row, [&] { lora_shrink(&args, 1, nullptr); });
  time(name + "B u", 8 * row, [&] { lora_expand(&args, 1, nullptr); });
  const LoraOuter outer{u.data(), rank, x.data(), width, count, rank, width, gradient.data()};
  time(name + "gradient", 2 * row, [&] { lora_outer(&outer, 1, nullptr); });
  const LoraBack back{{{a.data(), b.data(), rank, 1.0f, 0, width, u.data()}}, 1, count, width, x.data(), width, y.data(), width};
  time(name + "way back, d B", 2 * row, [&] { lora_back_shrink(back, nullptr); });
  time(name + "way back, u A", 8 * row, [&] { lora_back_expand(back, nullptr); });
  if (count <= LoraPart::kMostRows) time_adapter_part(args, name, time);
}

// What a chunk of training takes of a product's adapters of rank 8, in the launches that it makes: bytes of rows of x and of d, each moved once.
inline void time_adapters_of_product(int64_t rows, int64_t k, const std::vector<int64_t>& outs, const TimeAdapter& time) {
  const int64_t rank = 8, count = int64_t(outs.size());
  int64_t n = 0;
  for (int64_t out : outs) n += out;
  DeviceBuffer<bf16> a(device_noise(size_t(count * rank * k), 1)), b(device_noise(size_t(rank * n), 1));
  DeviceBuffer<bf16> x(device_noise(size_t(rows * k), 1)), d(device_noise(size_t(rows * n), 1));
  DeviceBuffer<float> u(size_t(count * rows * rank)), du(u.size()), y(size_t(rows * n)), gradients(size_t(rank * (count * k + n)));
  const DeviceBuffer<int32_t> which{size_t(rows)};
  std::vector<LoraWeights> weights;
  LoraBack back{{}, count, rows, k, d.data(), n, nullptr, k};
  std::vector<LoraOuter> outers;
  int64_t first = 0;
  for (int64_t i = 0; i < count; first += outs[size_t(i++)]) {
    const int64_t out = outs[size_t(i)];
    weights.push_back({a.data() + i * rank * k, b.data() + rank * first, int32_t(rank), 1.0f});
    float *of_rows = u.data() + i * rows * rank, *of_back = du.data() + i * rows * rank;
    back.projections[i] = {weights.back().a, weights.back().b, rank, 1.0f, first, out, of_back};
    outers.push_back({of_rows, rank, d.data() + first, n, rows, rank, out, gradients.data() + rank * (i * k + first)});
    outers.push_back({of_back, rank, x.data(), k, rows, rank, k, outers.back().gradient + rank * out});
  }
  const DeviceBuffer<LoraWeights> table(weights);
  std::vector<Lora> loras;
  for (int64_t i = 0; i < count; ++i) {
    const LoraBack::Projection& p = back.projections[i];
    loras.push_back(
        {table.data() + i, 1, which.data(), rows, k, p.out, rank, x.data(), k, u.data() + i * rows * rank, y.data() + p.first, n});
  }
  const double of_x = 2 * double(rows * k), of_d = 2 * double(rows * n);
  const std::string name = "adapters of a product n=" + std::to_string(n) + " k=" + std::to_string(k) + ", ";
  time(name + "A x", of_x, [&] { lora_shrink(loras.data(), count, nullptr); });
  time(name + "d B", of_d, [&] { lora_back_shrink(back, nullptr); });
  time(name + "gradients", of_x + of_d, [&] { lora_outer(outers.data(), int64_t(outers.size()), nullptr); });
}

// A product of an 8B model and an adapter of rank 16 on all of its projections, which follow each other: the product alone, with launches behind
// it, and with both in one.
inline void time_adapted_product(int64_t rows, int64_t k, const std::vector<int64_t>& outs, const TimeAdapter& time) {
  const int64_t rank = 16;
  int64_t n = 0;
  for (int64_t out : outs) n += out;
  const int64_t splits = cuda::matmul_splits(n, k);
  DeviceBuffer<bf16> w(device_noise(size_t(n * k), 1)), x(device_noise(size_t(rows * k), 1));
  DeviceBuffer<bf16> a(device_noise(size_t(int64_t(outs.size()) * rank * k), 1)), b(device_noise(size_t(rank * n), 1));
  DeviceBuffer<float> workspace(size_t((splits + 1) * rows * n));
  LoraPart part{};
  part.rows = rows, part.most_rank = rank;
  DeviceBuffer<float> u(size_t(cuda::lora_part_floats(rows, LoraPart::kMost, rank)));
  DeviceBuffer<int32_t> arrived{size_t(LoraPart::kArrivals)};
  const DeviceBuffer<LoraTile> tiles(cuda::lora_tiles(std::vector<int32_t>(size_t(rows)), 1));
  std::vector<LoraWeights> weights;
  for (int64_t out : outs) {
    part.projections[part.count] = {nullptr, part.columns, out};
    weights.push_back({a.data() + part.count++ * rank * k, b.data() + part.columns * rank, int32_t(rank), 1.0f});
    part.columns += out;
  }
  const DeviceBuffer<LoraWeights> table(weights);
  for (int64_t i = 0; i < part.count; ++i) part.projections[i].adapters = table.data() + i;
  part.adapter_count = 1;
  part.tiles = tiles.data();
  part.tile_count = int64_t(tiles.size());
  part.in = part.ldx = k;
  part.x = x.data();
  part.u = u.data();
  part.arrived = arrived.data();
  part.part = workspace.data() + splits * rows * n;
  cuda::MatMul product{x.data(), k, rows, w.data(), n, k, workspace.data(), n, false, workspace.data(), int64_t(workspace.size())};
  product.kernel = cuda::MatMulKernel::kWgmma;
  product.leave_parts = true;
  const std::string name = "product m=" + std::to_string(rows) + " n=" + std::to_string(n) + " k=" + std::to_string(k);
  time(name + ", no adapter", 0, [&] { matmul(product, nullptr); });
  cuda::MatMul followed = product, holding = product;
  LoraPart beside = part;
  followed.beside = beside.beside = true;
  holding.adapters = &part;
  time(name + ", adapter behind", 0, [&] {
    matmul(followed, nullptr);
    lora_part(beside, nullptr);
  });
  time(name + ", adapter within", 0, [&] { matmul(holding, nullptr); });
}

}  // namespace tandem::benchmarks
