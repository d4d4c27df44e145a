// The way back through norms, activation, rotation, products, adapters and attention against plain loops in double.
#include "cuda/elementwise/row_backward.h"
#include "cuda/gemm/matmul.h"
#include "cuda/lora/lora.h"
#include "cuda/lora/lora_back.h"
#include "device/weights.h"
#include "attention_gradient.h"
#include "quant_parts.h"
#include "transposed_product.h"

namespace tandem::test {
namespace {

double at(const std::vector<bf16>& values, int64_t index) { return cuda::to_float(values[size_t(index)]); }

TEST(gpu_matmul_transposed_matches_plain_loops) {
  check_transposed(1, 64, 64, false);
  check_transposed(3, 103, 40, false);
  check_transposed(16, 8, 72, true);
  check_transposed(19, 330, 136, true);
}

void check_quantised_back(const std::vector<ops::QuantFormat>& formats, const std::vector<int64_t>& rows, int64_t m, int64_t k) {
  Random random(8);
  ThreadPool pool(1);
  const QuantParts weights(random, formats, rows, k);
  const device::Matrix quantised = device::quantised_matrix(weights.parts(), k, pool);
  const int64_t n = int64_t(weights.plain.size()) / k, ldx = (n + 7) / 8 * 8;
  std::vector<bf16> xs = bf16s(random, size_t(m * ldx));
  for (int64_t t = 0; t < m; ++t) {
    for (int64_t i = n; i < ldx; ++i) xs[size_t(t * ldx + i)] = {0};
  }
  DeviceBuffer<bf16> x(xs), w(weights.plain);
  DeviceBuffer<float> seen(size_t(m * k)), wanted(size_t(m * k));
  cuda::matmul_transposed({x.data(), ldx, m, w.data(), n, k, wanted.data(), k, false, nullptr, 0}, nullptr);
  cuda::matmul_transposed({x.data(), ldx, m, nullptr, n, k, seen.data(), k, false, nullptr, 0, quantised.quantised()}, nullptr);
  CHECK(same_bits(seen.download(), wanted.download()));
}

TEST(gpu_matmul_transposed_takes_quantised_weights_for_what_they_stand_for) {
  for (ops::QuantFormat format : kDeviceFormats) {
    check_quantised_back({format}, {70}, 3, 136);
    check_quantised_back({format}, {70}, 20, 136);
  }
  // Panels of several formats follow each other; several parts of n.
  check_quantised_back({ops::QuantFormat::kInt4, ops::QuantFormat::kFp8, ops::QuantFormat::kInt8Fine}, {64, 64, 128}, 20, 40);
  check_quantised_back({ops::QuantFormat::kInt8, ops::QuantFormat::kInt4Min}, {512, 64}, 3, 72);
}

TEST(gpu_matmul_transposed_refuses_what_does_not_fit) {
  alignas(16) bf16 memory[64] = {};
  alignas(8) float y[8] = {};
  const cuda::MatMul good{memory, 8, 1, memory, 8, 8, y, 8, false, nullptr, 0};
  auto with = [&](auto change) {
    cuda::MatMul args = good;
    change(args);
    cuda::matmul_transposed(args, nullptr);
  };
  CHECK_ERROR(kRange, "matmul_transposed: ldx", with([](auto& a) { a.n = 16; }));
  CHECK_ERROR(kRange, "matmul_transposed: ldy", with([](auto& a) { a.ldy = 7; }));
  CHECK_ERROR(kRange, "matmul_transposed: ldy", with([](auto& a) { a.ldy = 9; }));
  CHECK_ERROR(kRange, "matmul_transposed: y", with([](auto& a) { a.y += 1; }));
  CHECK_ERROR(kRange, "matmul_transposed: k", with([](auto& a) { a.k = 12; }));
  // Parts of a vocabulary need a workspace where they are blocks of their own.
  CHECK_EQ(cuda::matmul_transposed_floats(cuda::MatMulKernel::kMma, 3, 151936, 8), int64_t(0));
  CHECK_EQ(cuda::matmul_transposed_floats(cuda::MatMulKernel::kWgmma, 3, 40960, 8), int64_t(0));
  CHECK_EQ(cuda::matmul_transposed_floats(cuda::MatMulKernel::kWgmma, 3, 151936, 8), int64_t(4 * 3 * 8));
  CHECK_ERROR(kRange, "matmul_transposed: workspace_floats", with([](auto& a) {
                a.kernel = cuda::MatMulKernel::kWgmma;
                a.n = a.ldx = 151936;
              }));
}

TEST(gpu_lora_halves_and_the_gradients_of_factors) {
  Random random(31);
  const int64_t rows = 21, in = 70, out = 130, rank = 11, ldx = 75;
  DeviceBuffer<bf16> a(bf16s(random, size_t(rank * in))), b(bf16s(random, size_t(rank * out))), x(bf16s(random, size_t(rows * ldx)));
  const std::vector<float> old = random.normals(size_t(rank * in)), start = random.normals(size_t(rows * out));
  DeviceBuffer<cuda::LoraWeights> table(std::vector<cuda::LoraWeights>{{a.data(), b.data(), int32_t(rank), 0.5f}});
  DeviceBuffer<int32_t> which(static_cast<size_t>(rows));
  DeviceBuffer<float> u(size_t(rows * rank)), halves(start), whole(start), gradient(old);
  const cuda::Lora args{table.data(), 1, which.data(), rows, in, out, rank, x.data(), ldx, u.data(), whole.data(), out};
  cuda::lora_add(&args, 1, nullptr);
  cuda::Lora half = args;
  half.y = halves.data();
  cuda::lora_shrink(&half, 1, nullptr);
  cuda::lora_expand(&half, 1, nullptr);
  CHECK(same_bits(halves.download(), whole.download()));
  const cuda::LoraOuter outer{u.data(), rank, x.data(), ldx, rows, rank, in, gradient.data()};
  cuda::lora_outer(&outer, 1, nullptr);
  const std::vector<float> us = u.download(), seen = gradient.download();
  const std::vector<bf16> xs = x.download(), as = a.download();
  for (int64_t r = 0; r < rank; ++r) {
    double down = 0;
    for (int64_t i = 0; i < in; ++i) down += 0.5 * at(as, r * in + i) * at(xs, i);
    CHECK_NEAR(us[size_t(r)], down, 1e-4);
    for (int64_t j = 0; j < in; ++j) {
      double sum = old[size_t(r * in + j)];
      for (int64_t t = 0; t < rows; ++t) sum += double(us[size_t(t * rank + r)]) * at(xs, t * ldx + j);
      CHECK_NEAR(seen[size_t(r * in + j)], sum, 1e-4 * (1 + std::fabs(sum)));
    }
  }
  cuda::LoraOuter wrong = outer;
  wrong.ldu = 4;
  CHECK_ERROR(kRange, "lora_outer: ranks", cuda::lora_outer(&wrong, 1, nullptr));
  CHECK_ERROR(kRange, "lora_shrink: count", cuda::lora_shrink(&half, cuda::Lora::kMost + 1, nullptr));
  half.rows = 1;
  const cuda::Lora others[] = {args, half};
  CHECK_ERROR(kRange, "lora_expand: all", cuda::lora_expand(others, 2, nullptr));
  CHECK_ERROR(kRange, "lora_outer: count", cuda::lora_outer(&wrong, cuda::LoraOuter::kMost + 1, nullptr));
}

// Projections of one product, of ranks 8, 11 and 3, whose outputs lie beside each other and end before d's rows do.
struct LoraBackCase {
  static constexpr int64_t kCount = 3, kRanks[kCount] = {8, 11, 3};
  int64_t rows, in, outs[kCount], ldd;
  Random random{33};
  std::vector<DeviceBuffer<bf16>> as, bs;
  std::vector<DeviceBuffer<float>> us;
  std::vector<bf16> ds;
  std::vector<float> old;
  DeviceBuffer<bf16> d;
  DeviceBuffer<float> dx;
  cuda::LoraBack args{};

  LoraBackCase(int64_t count, int64_t inputs, const std::array<int64_t, kCount>& outputs)
      : rows(count), in(inputs), outs{outputs[0], outputs[1], outputs[2]}, ldd(outs[0] + outs[1] + outs[2] + 8),
        ds(bf16s(random, size_t(rows * ldd))), old(random.normals(size_t(rows * in))), d(ds), dx(old) {
    args = {{}, kCount, rows, in, d.data(), ldd, dx.data(), in};
    int64_t first = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      as.emplace_back(bf16s(random, size_t(kRanks[i] * in)));
      bs.emplace_back(bf16s(random, size_t(kRanks[i] * outs[i])));
      us.emplace_back(size_t(rows * kRanks[i]));
      args.projections[i] = {as.back().data(), bs.back().data(), kRanks[i], 0.5f, first, outs[i], us.back().data()};
      first += outs[i];
    }
  }

  void check() const {
    const std::vector<float> seen = dx.download();
    std::vector<double> sums(old.begin(), old.end()), sizes(old.size());
    for (int64_t i = 0; i < kCount; ++i) {
      const cuda::LoraBack::Projection& p = args.projections[i];
      const std::vector<float> u = us[size_t(i)].download();
      const std::vector<bf16> a = as[size_t(i)].download(), b = bs[size_t(i)].download();
      for (int64_t t = 0; t < rows * p.rank; ++t) {
        double sum = 0;
        for (int64_t j = 0; j < p.out; ++j) sum += 0.5 * at(b, t % p.rank * p.out + j) * at(ds, t / p.rank * ldd + p.first + j);
        CHECK_NEAR(u[size_t(t)], sum, 1e-3 * (1 + std::fabs(sum)));
        for (int64_t j = 0; j < in; ++j) {
          const double added = double(u[size_t(t)]) * at(a, t % p.rank * in + j);
          sums[size_t(t / p.rank * in + j)] += added;
          sizes[size_t(t / p.rank * in + j)] += std::fabs(added);
        }
      }
    }
    // Of u 16 bits are taken.
    for (size_t i = 0; i < seen.size(); ++i) CHECK_NEAR(seen[i], sums[i], 1e-5 * (1 + std::fabs(sums[i]) + sizes[i]));
  }
};

TEST(gpu_lora_back_goes_through_all_projections_of_a_product) {
  struct Shape {
    int64_t rows, in;
    std::array<int64_t, 3> outs;
  };
  // Whole vectors and others; less than a strip of columns, and more than the warps take at a time; more inputs than a block has.
  for (const Shape& s :
       {Shape{21, 1032, {2320, 8, 200}}, Shape{3, 70, {130, 33, 8}}, Shape{16, 24, {64, 1096, 16}}, Shape{9, 1027, {40, 16, 3}}}) {
    LoraBackCase c(s.rows, s.in, s.outs);
    cuda::lora_back_shrink(c.args, nullptr);
    cuda::lora_back_expand(c.args, nullptr);
    c.check();
    // From what was there before, rounded: that is left as it is.
    LoraBackCase again(s.rows, s.in, s.outs);
    DeviceBuffer<bf16> rounded(size_t(s.rows * s.in));
    again.args.rounded = rounded.data();
    cuda::lora_back_shrink(again.args, nullptr);
    cuda::lora_back_expand(again.args, nullptr);
    CHECK(same_bits(again.dx.download(), again.old));
    const std::vector<float> sums = c.dx.download();
    const std::vector<bf16> seen = rounded.download();
    for (size_t i = 0; i < sums.size(); ++i) CHECK_EQ(seen[i].bits, cuda::to_bf16(sums[i]).bits);
    again.args.count = 0;
    cuda::lora_back_expand(again.args, nullptr);
    CHECK_EQ(rounded.download()[0].bits, cuda::to_bf16(again.old[0]).bits);
    // A row alone gets the same u.
    LoraBackCase one(s.rows, s.in, s.outs);
    one.args.rows = 1;
    one.args.d = c.d.data() + (s.rows - 1) * c.ldd;
    cuda::lora_back_shrink(one.args, nullptr);
    for (int64_t i = 0; i < LoraBackCase::kCount; ++i) {
      const std::vector<float> all = c.us[size_t(i)].download(), alone = one.us[size_t(i)].download();
      const int64_t rank = LoraBackCase::kRanks[i];
      CHECK(std::equal(alone.begin(), alone.begin() + rank, all.end() - rank));
    }
  }
}

TEST(gpu_lora_back_refuses_what_does_not_fit) {
  LoraBackCase c(2, 16, {8, 8, 8});
  auto with = [&](auto change) {
    cuda::LoraBack args = c.args;
    change(args);
    cuda::lora_back_shrink(args, nullptr);
    cuda::lora_back_expand(args, nullptr);
  };
  CHECK_ERROR(kRange, "lora_back_shrink: count", with([](auto& a) { a.count = 4; }));
  CHECK_ERROR(kRange, "lora_back_shrink: rows", with([](auto& a) { a.rows = -1; }));
  CHECK_ERROR(kRange, "lora_back_shrink: rank", with([](auto& a) { a.projections[2].rank = 0; }));
  CHECK_ERROR(kRange, "lora_back_shrink: out", with([](auto& a) { a.projections[1].first = 30; }));
  CHECK_ERROR(kRange, "lora_back_expand: in", with([](auto& a) { a.lddx = 15; }));
}

// The gradient of weight * x / sqrt(mean(x^2) + eps), given d.
std::vector<double> norm_back(const std::vector<double>& x, const std::vector<double>& weight, const std::vector<double>& d) {
  double squares = 0, dot = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    squares += x[i] * x[i];
    dot += weight[i] * d[i] * x[i];
  }
  const double r = 1 / std::sqrt(squares / double(x.size()) + 1e-6);
  std::vector<double> out;
  for (size_t i = 0; i < x.size(); ++i) out.push_back(r * weight[i] * d[i] - x[i] * r * r * r * dot / double(x.size()));
  return out;
}

std::vector<double> doubles(const std::vector<float>& values, int64_t first, int64_t count) {
  return {values.begin() + first, values.begin() + first + count};
}

void check_norm_backward(int64_t width, int64_t ld) {
  Random random(32);
  const int64_t rows = 4;
  DeviceBuffer<float> x(random.normals(size_t(rows * ld), 2)), weight(random.normals(size_t(width))), d(random.normals(size_t(3 * ld)));
  const std::vector<float> old = random.normals(size_t(rows * ld));
  const std::vector<float> factors{1.5f, -2, 0.25f};
  const std::vector<int32_t> rows_of{3, -1, 1};
  for (bool picked : {false, true}) {
    DeviceBuffer<float> dx(old), scale(factors);
    DeviceBuffer<int32_t> where(rows_of);
    cuda::rms_norm_backward({x.data(), ld, weight.data(), d.data(), ld, dx.data(), ld, 3, width, 1e-6f, picked ? where.data() : nullptr,
                             picked ? scale.data() : nullptr},
                            nullptr);
    const auto xs = x.download(), ws = weight.download(), ds = d.download(), seen = dx.download();
    std::vector<double> wanted = doubles(old, 0, rows * ld);
    for (int64_t i = 0; i < 3; ++i) {
      const int64_t row = picked ? rows_of[size_t(i)] : i;
      if (row < 0) continue;
      std::vector<double> given = doubles(ds, i * ld, width);
      for (double& value : given) value *= picked ? factors[size_t(i)] : 1.0;
      const std::vector<double> change = norm_back(doubles(xs, row * ld, width), doubles(ws, 0, width), given);
      for (int64_t c = 0; c < width; ++c) wanted[size_t(row * ld + c)] += change[size_t(c)];
    }
    for (size_t i = 0; i < wanted.size(); ++i) CHECK_NEAR(seen[i], wanted[i], 1e-5 * (1 + std::fabs(wanted[i])));
  }
}

TEST(gpu_rms_norm_backward_matches_plain_loops) {
  check_norm_backward(300, 307);
  check_norm_backward(300, 304);
  check_norm_backward(1500, 1500);
  check_norm_backward(3000, 3000);
  check_norm_backward(5000, 5000);
  check_norm_backward(8300, 8300);
}

void check_silu_backward(int64_t width, int64_t ldd) {
  Random random(33);
  const int64_t rows = 2;
  DeviceBuffer<bf16> x(bf16s(random, size_t(rows * 2 * width), 3)), dx(size_t(rows * 2 * width)), y(size_t(rows * width));
  DeviceBuffer<float> d(random.normals(size_t(rows * ldd)));
  cuda::silu_multiply_backward({x.data(), nullptr, 0, nullptr, y.data(), rows, width}, nullptr);
  cuda::silu_multiply_backward({x.data(), d.data(), ldd, dx.data(), nullptr, rows, width}, nullptr);
  const auto xs = x.download(), seen = dx.download(), ys = y.download();
  const auto ds = d.download();
  auto near = [&](const std::vector<bf16>& values, int64_t index, double wanted) {
    CHECK_NEAR(at(values, index), wanted, kBf16 * std::fabs(wanted) + 1e-5);
  };
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      const double gate = at(xs, r * 2 * width + i), up = at(xs, r * 2 * width + width + i), sigmoid = 1 / (1 + std::exp(-gate));
      const double given = ds[size_t(r * ldd + i)];
      near(ys, r * width + i, gate * sigmoid * up);
      near(seen, r * 2 * width + i, given * up * sigmoid * (1 + gate * (1 - sigmoid)));
      near(seen, r * 2 * width + width + i, given * gate * sigmoid);
    }
  }
}

TEST(gpu_silu_multiply_backward_matches_plain_loops) {
  check_silu_backward(261, 270);
  check_silu_backward(1100, 1104);
}

TEST(gpu_narrow_takes_rows_of_whole_pieces) {
  Random random(37);
  const int64_t width = 2100;
  const std::vector<float> xs = random.normals(size_t(2 * width)), bs = random.normals(size_t(width));
  DeviceBuffer<float> x(xs), bias(bs);
  DeviceBuffer<bf16> y(size_t(2 * width)), plain(size_t(2 * width));
  cuda::narrow({x.data(), width, bias.data(), y.data(), width, 2, width}, nullptr);
  cuda::narrow({x.data(), width, nullptr, plain.data(), width, 2, width}, nullptr);
  const auto ys = y.download(), ps = plain.download();
  for (size_t i = 0; i < xs.size(); ++i) {
    CHECK_EQ(ys[i].bits, cuda::to_bf16(xs[i] + bs[i % size_t(width)]).bits);
    CHECK_EQ(ps[i].bits, cuda::to_bf16(xs[i]).bits);
  }
}

TEST(gpu_narrow_adds_a_bias_and_rounds) {
  Random random(34);
  DeviceBuffer<float> x(random.normals(2 * 50)), bias(random.normals(40));
  DeviceBuffer<bf16> y(size_t(2 * 45));
  cuda::narrow({x.data(), 50, bias.data(), y.data(), 45, 2, 40}, nullptr);
  const auto xs = x.download(), bs = bias.download();
  const auto ys = y.download();
  for (size_t i = 0; i < 40; ++i) CHECK_EQ(ys[45 + i].bits, cuda::to_bf16(xs[50 + i] + bs[i]).bits);
  CHECK_EQ(ys[44].bits, uint16_t(0));
}

void check_slots(int64_t heads, int64_t dim) {
  Random random(35);
  const int64_t pages = 3;
  const std::vector<bf16> ks = bf16s(random, size_t(pages * heads * 16 * dim)), vs = bf16s(random, ks.size());
  DeviceBuffer<bf16> keys(ks), values(vs), k(size_t(3 * heads * dim)), v(size_t(3 * heads * dim));
  const cuda::KvLayer kv{keys.data(), values.data(), pages, heads, dim};
  DeviceBuffer<cuda::SlotCopy> copies(std::vector<cuda::SlotCopy>{{15, 47}, {15, 48}, {-1, 3}});
  cuda::copy_slots(kv, copies.data(), 3, nullptr);
  DeviceBuffer<int32_t> slots(std::vector<int32_t>{47, 31, 48});
  cuda::gather_slots({kv, slots.data(), k.data(), v.data(), 3}, nullptr);
  const auto seen_k = k.download(), seen_v = v.download();
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < dim; ++i) {
      CHECK_EQ(seen_k[size_t(h * dim + i)].bits, ks[size_t(kv.offset(0, h, 15) + i)].bits);
      CHECK_EQ(seen_v[size_t((heads + h) * dim + i)].bits, vs[size_t(kv.offset(1, h, 15) + i)].bits);
      CHECK_EQ(seen_v[size_t((2 * heads + h) * dim + i)].bits, uint16_t(0));
    }
  }
  CHECK_EQ(keys.download()[size_t(kv.offset(0, 0, 3))].bits, ks[size_t(kv.offset(0, 0, 3))].bits);
}

TEST(gpu_slots_are_copied_and_gathered) {
  check_slots(2, 40);
  check_slots(2, 36);
  check_slots(9, 128);
}

void check_rope_backward(int64_t heads, int64_t dim) {
  Random random(36);
  const int64_t rows = 4, kv_heads = 1, half = dim / 2, positions = 9, all = heads + 2 * kv_heads;
  DeviceBuffer<bf16> qk(bf16s(random, size_t(rows * (heads + kv_heads) * dim), 2)), d(size_t(rows * all * dim));
  DeviceBuffer<float> q_norm(random.normals(size_t(dim))), k_norm(random.normals(size_t(dim)));
  DeviceBuffer<float> cosines(random.normals(size_t(positions * half))), sines(random.normals(size_t(positions * half)));
  const std::vector<int32_t> at_positions{0, 8, 3, 9};  // of the last one no turn is known
  DeviceBuffer<int32_t> where(at_positions);
  DeviceBuffer<float> dq(random.normals(size_t(rows * heads * dim))), dk(random.normals(size_t(rows * dim))),
      dv(random.normals(size_t(rows * dim)));
  for (bool norm : {true, false}) {
    const float* none = nullptr;
    cuda::rope_backward({qk.data(), norm ? q_norm.data() : none, norm ? k_norm.data() : none, 1e-6f, cosines.data(), sines.data(),
                         where.data(), dq.data(), dk.data(), dv.data(), d.data(), rows, heads, kv_heads, dim, positions},
                        nullptr);
    const auto seen = d.download(), raw = qk.download();
    const auto cs = cosines.download(), sn = sines.download(), dqs = dq.download(), dks = dk.download(), dvs = dv.download();
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t head = 0; head < all; ++head) {
        const bool query = head<heads, value = head> heads;
        std::vector<double> given = query ? doubles(dqs, (row * heads + head) * dim, dim) : doubles(value ? dvs : dks, row * dim, dim);
        const int64_t position = at_positions[size_t(row)];
        for (int64_t i = 0; !value && position < positions && i < half; ++i) {
          const double c = cs[size_t(position * half + i)], s = sn[size_t(position * half + i)];
          const double low = given[size_t(i)], high = given[size_t(i + half)];
          given[size_t(i)] = low * c + high * s;
          given[size_t(i + half)] = high * c - low * s;
        }
        if (norm && !value) {
          std::vector<double> x;
          for (int64_t i = 0; i < dim; ++i) x.push_back(at(raw, (row * (heads + kv_heads) + head) * dim + i));
          given = norm_back(x, doubles((query ? q_norm : k_norm).download(), 0, dim), given);
        }
        for (int64_t i = 0; i < dim; ++i) {
          CHECK_NEAR(at(seen, (row * all + head) * dim + i), given[size_t(i)], kBf16 * std::fabs(given[size_t(i)]) + 1e-5);
        }
      }
    }
  }
}

TEST(gpu_rope_backward_matches_plain_loops) {
  check_rope_backward(3, 32);
  for (int64_t dim : {6, 36, 64, 96, 128, 256}) check_rope_backward(15, dim);
}

TEST(gpu_attention_backward_matches_plain_loops) {
  check_attention_gradient({1, 1, 32, 0, {{1, -1}}, 1});
  check_attention_gradient({2, 1, 64, 0, {{20, -1}, {70, -1}}, 2});
  check_attention_gradient({4, 2, 96, 9, {{30, -1}}, 3});
  check_attention_gradient({1, 1, 128, 0, {{17, -1}}, 4});
}

// Prefixes with endings in other tiles, a sequence of its own between them, and a window that reaches into a prefix.
TEST(gpu_attention_backward_sees_shared_prefixes) {
  check_attention_gradient({2, 1, 32, 0, {{20, -1}, {30, 0}, {5, 0}, {80, -1}, {9, 0}, {1, 3}}, 5});
  check_attention_gradient({1, 1, 32, 13, {{20, -1}, {30, 0}, {24, 0}}, 6});
  check_attention_gradient({1, 1, 32, 0, kSingleRowsOfTiles, 7});
}

TEST(gpu_attention_backward_refuses_what_does_not_fit) {
  const Packed p(2, 1, 32, 0, {{70, -1}}, 7);
  AttentionGradient g(p, cuda::AttentionKernel::kMma);
  CHECK_ERROR(kRange, "attention_backward: tiles", cuda::attention_backward_keys(g.args, 1, 2, nullptr));
  CHECK_ERROR(kRange, "attention_backward: tiles", cuda::attention_backward_queries(g.args, -1, 1, nullptr));
  g.args.dim = 40;
  CHECK_ERROR(kUnsupported, "attention_backward: heads of this size", cuda::attention_backward_queries(g.args, 0, 1, nullptr));
  g.args.dim = 32;
  g.args.kernel = cuda::AttentionKernel::kWgmma;
  g.args.d_out += 1;
  CHECK_ERROR(kRange, "attention_backward_wgmma: rows are 16-byte aligned", cuda::attention_backward_queries(g.args, 0, 1, nullptr));
  g.args.d_out -= 1;
  g.args.dk += 1;
  CHECK_ERROR(kRange, "attention_backward_wgmma: sums are 8-byte aligned", cuda::attention_backward_keys(g.args, 0, 1, nullptr));
}

}  // namespace
}  // namespace tandem::test
