// A product, and adapters of some ranks on projections of it. Projection i has the table of adapters turned by i.
#pragma once
#include "cuda/lora/lora_variants.h"
#include "cuda/lora/lora_within.h"
#include "product.h"

namespace tandem::test {

struct AdaptedShape {
  int64_t n, k;
  std::vector<std::pair<int64_t, int64_t>> projections;  // first output and count
};

struct AdaptedProduct {
  AdaptedProduct(const AdaptedShape& s, const std::vector<int32_t>& rows, const std::vector<int32_t>& ranks)
      : shape(s), p(int64_t(rows.size()), s.n, s.k, 61, cuda::MatMulKernel::kWgmma), which(rows), adapters(rows) {
    for (size_t i = 0; i < s.projections.size(); ++i) {
      std::vector<cuda::LoraWeights> table;
      for (size_t j = 0; j < ranks.size(); ++j) {
        const int32_t rank = ranks[(i + j) % ranks.size()];
        factors.emplace_back(bf16s(p.random, size_t(rank * s.k)));
        const bf16* a = factors.back().data();
        factors.emplace_back(bf16s(p.random, size_t(rank * s.projections[i].second)));
        table.push_back({a, factors.back().data(), rank, 0.5f + float(rank)});
        most_rank = std::max<int64_t>(most_rank, rank);
      }
      tables.emplace_back(table);
    }
    parts = cuda::matmul_splits(s.n, s.k);
    u = DeviceBuffer<float>(size_t(cuda::lora_part_floats(p.m, cuda::LoraPart::kMost, most_rank)));
    arrived = DeviceBuffer<int32_t>(size_t(cuda::LoraPart::kArrivals));
    tiles = DeviceBuffer<cuda::LoraTile>(cuda::lora_tiles(rows, int64_t(ranks.size())));
  }

  // Of scratch in which nothing has been made.
  cuda::LoraPart part_in(float* workspace) {
    u = DeviceBuffer<float>(std::vector<float>(u.size(), NAN));
    cuda::LoraPart part{};
    for (size_t i = 0; i < tables.size(); ++i) {
      part.projections[i] = {tables[i].data(), shape.projections[i].first, shape.projections[i].second};
    }
    part.count = int64_t(tables.size());
    part.adapter_count = int64_t(tables[0].size());
    part.tiles = tiles.data();
    part.tile_count = int64_t(tiles.size());
    part.rows = p.m;
    part.in = part.ldx = p.k;
    part.most_rank = most_rank;
    part.x = p.x.data();
    part.u = u.data();
    part.arrived = arrived.data();
    part.part = workspace + parts * p.m * p.n;
    part.columns = p.n;
    return part;
  }

  // The product's parts and that of the adapters, where nobody writes what was there.
  std::vector<float> run(cuda::AdapterKernel kernel, int times = 1) {
    const bool behind = kernel == cuda::AdapterKernel::kBehind;
    DeviceBuffer<float> workspace(std::vector<float>(size_t((parts + 1) * p.m * p.n), 7.5f));
    cuda::MatMul product{
        p.x.data(), p.k, p.m, p.w.data(), p.n, p.k, workspace.data(), p.n, false, workspace.data(), int64_t(workspace.size())};
    product.kernel = cuda::MatMulKernel::kWgmma;
    product.leave_parts = true;
    for (int i = 0; i < times; ++i) {
      const cuda::LoraPart part = part_in(workspace.data());
      if (!behind) product.adapters = &part;
      cuda::matmul(product, nullptr);
      if (behind) cuda::lora_part(part, nullptr);
    }
    for (int32_t left : arrived.download()) CHECK_EQ(left, 0);
    return workspace.download();
  }

  // One projection's rows, added to y.
  std::vector<float> added(size_t i, const std::vector<float>& y) {
    DeviceBuffer<float> sums(y);
    const int64_t out = shape.projections[i].second;
    const cuda::Lora args{tables[i].data(),
                          int64_t(tables[i].size()),
                          adapters.data(),
                          p.m,
                          p.k,
                          out,
                          most_rank,
                          p.x.data(),
                          p.k,
                          u.data(),
                          sums.data(),
                          out};
    cuda::lora_add(&args, 1, nullptr);
    return sums.download();
  }

  AdaptedShape shape;
  Product p;
  std::vector<int32_t> which;
  DeviceBuffer<int32_t> adapters, arrived;
  DeviceBuffer<cuda::LoraTile> tiles;
  std::vector<DeviceBuffer<bf16>> factors;
  std::vector<DeviceBuffer<cuda::LoraWeights>> tables;
  DeviceBuffer<float> u;
  int64_t parts = 1, most_rank = 1;
};

// Made so, they have the bits of lora_part behind the product, and of lora_add.
inline void check_within(const AdaptedShape& shape, const std::vector<int32_t>& rows, const std::vector<int32_t>& ranks) {
  AdaptedProduct c(shape, rows, ranks);
  const std::vector<float> seen = c.run(cuda::AdapterKernel::kWithin, 2);
  CHECK(same_bits(seen, c.run(cuda::AdapterKernel::kBehind)));
  const float* part = seen.data() + c.parts * c.p.m * c.p.n;
  for (size_t i = 0; i < shape.projections.size(); ++i) {
    const auto [first, out] = shape.projections[i];
    const std::vector<float> y = c.p.random.normals(size_t(c.p.m * out));
    std::vector<float> sums;
    for (int64_t t = 0; t < c.p.m; ++t) {
      for (int64_t o = 0; o < out; ++o) sums.push_back(y[size_t(t * out + o)] + part[t * c.p.n + first + o]);
    }
    CHECK(same_bits(sums, c.added(i, y)));
  }
}

// So many rows, by turns of the adapters and of those that there are not.
inline std::vector<int32_t> turns(int count, int adapters) {
  std::vector<int32_t> rows;
  for (int i = 0; i < count; ++i) rows.push_back(i * 7 % (adapters + 2) - 1);
  return rows;
}

const std::vector<int32_t> kMixedRanks{8, 40, 1, 0};

// Of projections of 4,096 inputs with so many outputs each, beside each other; nothing of it is there.
inline cuda::LoraPart planned(int64_t rows, int64_t adapters, std::vector<int64_t> outs) {
  cuda::LoraPart part{};
  for (size_t i = 0; i < outs.size(); ++i) {
    part.projections[i] = {nullptr, part.columns, outs[i]};
    part.columns += outs[i];
  }
  part.count = int64_t(outs.size());
  part.adapter_count = adapters;
  part.rows = rows;
  part.tile_count = cuda::lora_most_tiles(rows, adapters);
  part.in = part.ldx = 4096;
  part.most_rank = 16;
  return part;
}

}  // namespace tandem::test
