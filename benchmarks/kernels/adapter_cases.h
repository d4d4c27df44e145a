// Kernels of low-rank adapters, for gpu_bench.
#pragma once
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "cuda/common/device_buffer.h"
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
using cuda::LoraWeights;

// What is called so, the bytes that it moves, 0 where only its time counts, and the call.
using TimeAdapter = std::function<void(const std::string& name, double bytes, const std::function<void()>& call)>;

// Queries, keys and values of a decode step. What comes next, the product, fetches its weights meanwhile.
inline void time_adapter_part(const Lora& one, const std::string& name, const TimeAdapter& time) {
  DeviceBuffer<float> u(size_t(std::max(one.rows, LoraPart::kLeastRows) * 3 * one.most_rank)), part(size_t(one.rows * 3 * one.out));
  DeviceBuffer<int32_t> arrived(size_t(LoraPart::kMostRows * LoraPart::kMost));
  LoraPart all{};
  for (int64_t i = 0; i < 3; ++i) all.projections[i] = {one.adapters, i * one.out, one.out};
  all.count = 3;
  all.adapter_count = one.adapter_count;
  all.row_adapters = one.row_adapters;
  all.rows = one.rows;
  all.in = one.in;
  all.most_rank = one.most_rank;
  all.x = one.x;
  all.ldx = one.ldx;
  all.u = u.data();
  all.arrived = arrived.data();
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

}  // namespace tandem::benchmarks
