// Norms, embedding, activation, rotation against plain loops in double.

#include "cuda/elementwise/elementwise.h"
#include "cuda/norm/rms_norm.h"
#include "cuda/rope/rope_store.h"
#include "device/weights.h"
#include "gpu_support.h"
#include "quant_support.h"

namespace tandem::test {
namespace {

void check_bf16(bf16 seen, double wanted) { CHECK_NEAR(cuda::to_float(seen), wanted, kBf16 * std::fabs(wanted) + 1e-6); }

TEST(gpu_rms_norm_matches_plain_loops) {
  Random random(1);
  // Held by 256 threads and by 512, in one piece each, in two, in four, and by nobody.
  for (const auto& [width, ld] : std::vector<std::pair<int64_t, int64_t>>{{1, 6},
                                                                          {31, 36},
                                                                          {192, 196},
                                                                          {1000, 1005},
                                                                          {1028, 1028},
                                                                          {1500, 1500},
                                                                          {2052, 2052},
                                                                          {4096, 4101},
                                                                          {4100, 4100},
                                                                          {8196, 8196}}) {
    const int64_t rows = 3;
    DeviceBuffer<float> x(random.normals(size_t(rows * ld), 3)), weight(random.normals(size_t(width)));
    DeviceBuffer<bf16> y(size_t(rows * ld));
    cuda::rms_norm({x.data(), ld, weight.data(), y.data(), ld, rows, width, 1e-6f}, nullptr);
    const auto xs = x.download(), ws = weight.download();
    const auto ys = y.download();
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (int64_t i = 0; i < width; ++i) squares += double(xs[size_t(r * ld + i)]) * xs[size_t(r * ld + i)];
      const double scale = 1 / std::sqrt(squares / double(width) + 1e-6);
      for (int64_t i = 0; i < width; ++i) check_bf16(ys[size_t(r * ld + i)], xs[size_t(r * ld + i)] * scale * ws[size_t(i)]);
      for (int64_t i = width; i < ld; ++i) CHECK_EQ(ys[size_t(r * ld + i)].bits, uint16_t(0));
    }
  }
}

// Rows of whole pieces and rows that are not give the same bits.
TEST(gpu_rms_norm_gives_the_same_bits_wherever_rows_lie) {
  Random random(9);
  for (int64_t width : {36, 1028, 2052, 4100}) {
    const std::vector<float> xs = random.normals(size_t(2 * width)), ws = random.normals(size_t(width + 1));
    DeviceBuffer<float> x(xs), weight(ws), aligned(std::vector<float>(ws.begin() + 1, ws.end()));
    DeviceBuffer<bf16> seen(size_t(2 * width)), wanted(size_t(2 * width));
    cuda::rms_norm({x.data(), width, aligned.data(), wanted.data(), width, 2, width, 1e-6f}, nullptr);
    cuda::rms_norm({x.data(), width, weight.data() + 1, seen.data(), width, 2, width, 1e-6f}, nullptr);
    CHECK(same_bits(seen.download(), wanted.download()));
  }
}

TEST(gpu_rms_norm_refuses_what_does_not_fit) {
  CHECK_ERROR(kRange, "width", cuda::rms_norm({nullptr, 4, nullptr, nullptr, 8, 1, 8, 1e-6f}, nullptr));
  CHECK_ERROR(kRange, "rows", cuda::rms_norm({nullptr, 8, nullptr, nullptr, 8, -1, 8, 1e-6f}, nullptr));
  cuda::rms_norm({nullptr, 8, nullptr, nullptr, 8, 0, 8, 1e-6f}, nullptr);
}

TEST(gpu_memory_that_is_not_there_spoils_no_launch) {
  CHECK_ERROR(kState, "out of memory", DeviceBuffer<float>(size_t(1) << 45));
  DeviceBuffer<float> x(std::vector<float>(8, 2)), weight(std::vector<float>(8, 1));
  DeviceBuffer<bf16> y(size_t(8));
  cuda::rms_norm({x.data(), 8, weight.data(), y.data(), 8, 1, 8, 1e-6f}, nullptr);
  check_bf16(y.download()[7], 1);
}

TEST(gpu_embedding_copies_rows_and_marks_bad_ids) {
  Random random(2);
  const int64_t vocab = 7;
  for (int64_t width : {300, 301, 2100}) {
    DeviceBuffer<bf16> table(bf16s(random, size_t(vocab * width)));
    DeviceBuffer<int32_t> tokens(std::vector<int32_t>{6, 0, 7, -1});
    DeviceBuffer<float> y(size_t(4 * width));
    cuda::embed_tokens({tokens.data(), table.data(), vocab, width, 4, y.data(), width}, nullptr);
    const auto ts = table.download();
    const auto ys = y.download();
    for (int64_t i = 0; i < width; ++i) {
      CHECK_EQ(ys[size_t(i)], cuda::to_float(ts[size_t(6 * width + i)]));
      CHECK_EQ(ys[size_t(width + i)], cuda::to_float(ts[size_t(i)]));
      CHECK(std::isnan(ys[size_t(2 * width + i)]) && std::isnan(ys[size_t(3 * width + i)]));
    }
  }
}

TEST(gpu_rows_are_gathered_and_take_a_bias) {
  Random random(10);
  // Rows of whole pieces, and in several blocks; and rows that are not.
  for (int64_t width : {1100, 45}) {
    const int64_t ldx = width + 4, ldy = width + 8;
    const std::vector<float> xs = random.normals(size_t(3 * ldx)), bs = random.normals(size_t(width));
    DeviceBuffer<float> x(xs), bias(bs), y(size_t(4 * ldy));
    DeviceBuffer<int32_t> from(std::vector<int32_t>{2, -1, 3, 0});
    cuda::gather_rows({x.data(), ldx, 3, from.data(), y.data(), ldy, 4, width}, nullptr);
    cuda::add_bias({y.data(), ldy, bias.data(), 3, width}, nullptr);
    const std::vector<float> seen = y.download();
    for (int64_t i = 0; i < ldy; ++i) {
      const bool inside = i < width;
      const float b = inside ? bs[size_t(i)] : 0;
      CHECK_EQ(seen[size_t(i)], inside ? xs[size_t(2 * ldx + i)] + b : 0.0f);
      CHECK_EQ(seen[size_t(ldy + i)], b);
      CHECK_EQ(seen[size_t(2 * ldy + i)], b);
      CHECK_EQ(seen[size_t(3 * ldy + i)], inside ? xs[size_t(i)] : 0.0f);
    }
  }
}

TEST(gpu_embedding_takes_tokens_from_where_they_were_sampled) {
  Random random(3);
  const int64_t vocab = 7, width = 40;
  DeviceBuffer<bf16> table(bf16s(random, size_t(vocab * width)));
  DeviceBuffer<int32_t> last(std::vector<int32_t>{-2, 5, 3, 7});
  // The third place, the second, two without a token, and one that is not there.
  DeviceBuffer<int32_t> tokens(std::vector<int32_t>{-4, -3, -2, -5, -6, 6});
  DeviceBuffer<float> y(size_t(6 * width));
  cuda::embed_tokens({tokens.data(), table.data(), vocab, width, 6, y.data(), width, {}, last.data(), 4}, nullptr);
  const auto ts = table.download();
  const auto ys = y.download();
  for (int64_t i = 0; i < width; ++i) {
    CHECK_EQ(ys[size_t(i)], cuda::to_float(ts[size_t(3 * width + i)]));
    CHECK_EQ(ys[size_t(width + i)], cuda::to_float(ts[size_t(5 * width + i)]));
    for (int64_t row : {2, 3, 4}) CHECK(std::isnan(ys[size_t(row * width + i)]));
    CHECK_EQ(ys[size_t(5 * width + i)], cuda::to_float(ts[size_t(6 * width + i)]));
  }
}

TEST(gpu_embedding_widens_quantised_rows) {
  Random random(4);
  ThreadPool pool(1);
  for (ops::QuantFormat format : kDeviceFormats) {
    const QuantSource table(random, format, 70, 72);
    const device::Matrix matrix = device::quantised_matrix({table.part()}, table.k, pool);
    // Of the last panel the last, of the first one both ends, and none.
    const std::vector<int32_t> rows{69, 0, 63, 70};
    DeviceBuffer<int32_t> tokens(rows);
    DeviceBuffer<float> y(size_t(4 * table.k));
    cuda::embed_tokens({tokens.data(), nullptr, table.rows, table.k, 4, y.data(), table.k, matrix.quantised()}, nullptr);
    const auto ys = y.download();
    for (int64_t i = 0; i < table.k; ++i) {
      for (int64_t t = 0; t < 3; ++t) CHECK_EQ(ys[size_t(t * table.k + i)], cuda::to_float(cuda::to_bf16(table.at(rows[size_t(t)], i))));
      CHECK(std::isnan(ys[size_t(3 * table.k + i)]));
    }
  }
}

TEST(gpu_half_floats_are_read_as_the_cpu_reads_them) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const float seen = cuda::half_to_float(uint16_t(bits)), wanted = half_to_float(uint16_t(bits));
    CHECK(same_bits(seen, wanted) || (std::isnan(seen) && std::isnan(wanted)));
  }
}

TEST(gpu_codes_of_e4m3_are_read_as_the_cpu_reads_them) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float seen = cuda::e4m3_to_float(code), wanted = e4m3_to_float(uint8_t(code));
    CHECK(same_bits(seen, wanted) || (std::isnan(seen) && std::isnan(wanted)));
  }
}

TEST(gpu_silu_multiply_matches_plain_loops) {
  Random random(3);
  for (int64_t width : {515, 1100}) {
    const int64_t rows = 2;
    DeviceBuffer<float> x(random.normals(size_t(rows * 2 * width), 4));
    DeviceBuffer<bf16> y(size_t(rows * width));
    cuda::silu_multiply({x.data(), 2 * width, y.data(), width, rows, width}, nullptr);
    const auto xs = x.download();
    const auto ys = y.download();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < width; ++i) {
        const double gate = xs[size_t(r * 2 * width + i)], up = xs[size_t(r * 2 * width + width + i)];
        check_bf16(ys[size_t(r * width + i)], gate / (1 + std::exp(-gate)) * up);
      }
    }
  }
}

// A thread takes more of a row where there are many rows, with the same bits.
TEST(gpu_silu_multiply_of_many_rows) {
  Random random(11);
  const int64_t rows = 1030, width = 1028;
  DeviceBuffer<float> x(random.normals(size_t(2 * rows * width), 4));
  DeviceBuffer<bf16> seen(size_t(rows * width)), wanted(size_t(rows * width));
  cuda::silu_multiply({x.data(), 2 * width, seen.data(), width, rows, width}, nullptr);
  for (int64_t first : {0, 515}) {
    cuda::silu_multiply({x.data() + first * 2 * width, 2 * width, wanted.data() + first * width, width, 515, width}, nullptr);
  }
  CHECK(same_bits(seen.download(), wanted.download()));
}

TEST(gpu_silu_multiply_keeps_gate_and_up) {
  Random random(8);
  for (int64_t width : {515, 516}) {
    const std::vector<float> xs = random.normals(size_t(3 * 2 * width), 4);
    DeviceBuffer<float> x(xs);
    DeviceBuffer<bf16> y(size_t(3 * width)), wanted(size_t(3 * width)), kept(xs.size());
    cuda::silu_multiply({x.data(), 2 * width, wanted.data(), width, 3, width}, nullptr);
    cuda::silu_multiply({x.data(), 2 * width, y.data(), width, 3, width, {}, kept.data()}, nullptr);
    CHECK(same_bits(y.download(), wanted.download()));
    const auto seen = kept.download();
    for (size_t i = 0; i < xs.size(); ++i) CHECK_EQ(seen[i].bits, cuda::to_bf16(xs[i]).bits);
  }
}

struct RopeCase {
  int64_t rows = 5, heads = 6, kv_heads = 2, dim = 64, positions = 40, pages = 6;
  bool norm = true, bias = true;
};

struct RopeRun {
  explicit RopeRun(const RopeCase& c, uint64_t seed) : c(c), random(seed) {}

  void run() {
    cuda::KvLayer kv{keys.data(), values.data(), c.pages, c.kv_heads, c.dim};
    const float* none = nullptr;
    cuda::rope_store({qkv.data(), width, c.bias ? bias.data() : none, c.norm ? q_norm.data() : none, c.norm ? k_norm.data() : none, 1e-6f,
                      cosines.data(), sines.data(), positions.data(), slots.data(), queries.data() + shift, kv, c.rows, c.heads, c.dim,
                      c.positions, parts, keep ? qk.data() : nullptr},
                     nullptr);
  }

  // One head of the row in double: bias, norm, rotation.
  std::vector<double> wanted(int64_t row, int64_t column, const DeviceBuffer<float>* norm, bool rotate) const {
    const auto x = qkv.download(), b = bias.download(), cs = cosines.download(), sn = sines.download();
    std::vector<double> v(size_t(c.dim));
    double squares = 0;
    for (int64_t i = 0; i < c.dim; ++i) {
      v[size_t(i)] = double(x[size_t(row * width + column + i)]) + (c.bias ? b[size_t(column + i)] : 0);
      squares += v[size_t(i)] * v[size_t(i)];
    }
    if (norm) {
      const auto w = norm->download();
      for (int64_t i = 0; i < c.dim; ++i) v[size_t(i)] *= w[size_t(i)] / std::sqrt(squares / double(c.dim) + 1e-6);
    }
    if (!rotate) return v;
    std::vector<double> out(v);
    const int64_t half = c.dim / 2, p = positions.download()[size_t(row)];
    for (int64_t i = 0; i < half; ++i) {
      const double co = cs[size_t(p * half + i)], si = sn[size_t(p * half + i)];
      out[size_t(i)] = v[size_t(i)] * co - v[size_t(i + half)] * si;
      out[size_t(i + half)] = v[size_t(i + half)] * co + v[size_t(i)] * si;
    }
    return out;
  }

  RopeCase c;
  Random random;
  cuda::Parts parts{};
  bool keep = false;
  int64_t shift = 0;  // of the queries, so that they do not lie in whole pieces
  DeviceBuffer<bf16> qk{size_t(c.rows * (c.heads + c.kv_heads) * c.dim)};
  int64_t width = (c.heads + 2 * c.kv_heads) * c.dim;
  size_t table = size_t(c.positions * c.dim / 2);
  DeviceBuffer<float> qkv{random.normals(size_t(c.rows * width))}, bias{random.normals(size_t(width))};
  DeviceBuffer<float> q_norm{random.normals(size_t(c.dim))}, k_norm{random.normals(size_t(c.dim))};
  DeviceBuffer<float> cosines{random.normals(table)}, sines{random.normals(table)};
  DeviceBuffer<int32_t> positions{std::vector<int32_t>{0, 1, 17, 39, 20}}, slots{std::vector<int32_t>{3, 95, 16, 17, 40}};
  DeviceBuffer<bf16> queries{size_t(c.rows * c.heads * c.dim + 1)};
  DeviceBuffer<bf16> keys{size_t(c.pages * c.kv_heads * 16 * c.dim)}, values{size_t(c.pages * c.kv_heads * 16 * c.dim)};
};

void check_head(const std::vector<bf16>& memory, int64_t at, const std::vector<double>& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    CHECK_NEAR(cuda::to_float(memory[size_t(at) + i]), wanted[i], kBf16 * std::fabs(wanted[i]) + 2e-6);
  }
}

void check_rope(const RopeCase& c) {
  RopeRun run(c, 4);
  run.run();
  const auto queries = run.queries.download(), keys = run.keys.download(), values = run.values.download();
  const auto slots = run.slots.download();
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t h = 0; h < c.heads; ++h) {
      check_head(queries, (row * c.heads + h) * c.dim, run.wanted(row, h * c.dim, c.norm ? &run.q_norm : nullptr, true));
    }
    for (int64_t h = 0; h < c.kv_heads; ++h) {
      const int64_t page = slots[size_t(row)] / 16, offset = slots[size_t(row)] % 16;
      const int64_t at = ((page * c.kv_heads + h) * 16 + offset) * c.dim, column = (c.heads + h) * c.dim;
      check_head(keys, at, run.wanted(row, column, c.norm ? &run.k_norm : nullptr, true));
      check_head(values, at, run.wanted(row, column + c.kv_heads * c.dim, nullptr, false));
    }
  }
}

TEST(gpu_rope_store_matches_plain_loops) {
  check_rope({});
  RopeCase plain;
  plain.norm = plain.bias = false;
  plain.dim = 32;
  check_rope(plain);
  // Heads of other sizes: of whole pieces and not, with threads that have no pair; and more heads than a block takes.
  for (int64_t dim : {6, 36, 68, 96, 132, 256}) {
    RopeCase other;
    other.dim = dim;
    other.heads = 15;
    other.kv_heads = 3;
    check_rope(other);
  }
}

TEST(gpu_rope_store_gives_the_same_bits_wherever_rows_lie) {
  for (int64_t dim : {32, 64, 96, 128, 256}) {
    RopeCase c;
    c.dim = dim;
    RopeRun run(c, 8), wanted(c, 8);
    run.shift = 1;
    run.run();
    wanted.run();
    std::vector<bf16> seen = run.queries.download(), whole = wanted.queries.download();
    seen.erase(seen.begin());
    whole.pop_back();
    CHECK(same_bits(seen, whole));
    CHECK(same_bits(run.keys.download(), wanted.keys.download()));
    CHECK(same_bits(run.values.download(), wanted.values.download()));
  }
}

TEST(gpu_rope_store_keeps_what_it_read) {
  for (bool bias : {true, false}) {
    RopeCase c;
    c.bias = bias;
    RopeRun run(c, 7), wanted(c, 7);
    run.keep = true;
    run.run();
    wanted.run();
    CHECK(same_bits(run.queries.download(), wanted.queries.download()));
    const auto seen = run.qk.download();
    const auto x = run.qkv.download(), b = run.bias.download();
    const int64_t columns = (c.heads + c.kv_heads) * c.dim;
    for (int64_t row = 0; row < c.rows; ++row) {
      for (int64_t i = 0; i < columns; ++i) {
        const float whole = x[size_t(row * run.width + i)] + (bias ? b[size_t(i)] : 0.0f);
        CHECK_EQ(seen[size_t(row * columns + i)].bits, cuda::to_bf16(whole).bits);
      }
    }
  }
}

TEST(gpu_rope_store_keeps_bad_rows_to_themselves) {
  RopeRun run({}, 5);
  run.slots = DeviceBuffer<int32_t>(std::vector<int32_t>{3, 96, -1, 17, 40});
  run.positions = DeviceBuffer<int32_t>(std::vector<int32_t>{0, 1, 17, 39, 40});
  run.run();
  const auto queries = run.queries.download();
  const size_t row = size_t(run.c.heads * run.c.dim);
  for (int64_t bad : {1, 2, 4}) CHECK(std::isnan(cuda::to_float(queries[size_t(bad) * row])));
  for (int64_t good : {0, 3}) CHECK(std::isfinite(cuda::to_float(queries[size_t(good) * row])));
}

// Random parts of a product of so many columns.
struct SomeParts {
  SomeParts(int64_t count, int64_t rows, int64_t columns, uint64_t seed)
      : random(seed), data(random.normals(size_t(count * rows * columns))), parts{data.data(), count, rows, columns} {}

  Random random;
  DeviceBuffer<float> data;
  cuda::Parts parts;
};

// The bits of a product that is whole.
TEST(gpu_parts_are_added_by_what_reads_them) {
  for (int64_t count : {1, 3, 8, 12, 17}) {
    for (int64_t width : {200, 203, 1500, 2056, 4096, 5000, 8300}) {
      SomeParts some(count, 3, width, uint64_t(count));
      const std::vector<float> before = some.random.normals(size_t(3 * width));
      DeviceBuffer<float> whole(before), left(before), weight(some.random.normals(size_t(width)));
      DeviceBuffer<bf16> wanted(size_t(3 * width)), seen(size_t(3 * width));
      cuda::add_parts(some.parts, whole.data(), width, true, nullptr);
      cuda::rms_norm({whole.data(), width, weight.data(), wanted.data(), width, 3, width, 1e-6f}, nullptr);
      cuda::rms_norm({left.data(), width, weight.data(), seen.data(), width, 3, width, 1e-6f, some.parts, left.data()}, nullptr);
      CHECK(same_bits(seen.download(), wanted.download()));
      CHECK(same_bits(left.download(), whole.download()));
    }
    for (int64_t width : {700, 701}) {
      SomeParts some(count, 2, 2 * width, uint64_t(count));
      DeviceBuffer<float> whole(size_t(4 * width));
      DeviceBuffer<bf16> wanted(size_t(2 * width)), seen(size_t(2 * width));
      cuda::add_parts(some.parts, whole.data(), 2 * width, false, nullptr);
      cuda::silu_multiply({whole.data(), 2 * width, wanted.data(), width, 2, width}, nullptr);
      whole = DeviceBuffer<float>(size_t(4 * width));
      cuda::silu_multiply({whole.data(), 2 * width, seen.data(), width, 2, width, some.parts}, nullptr);
      CHECK(same_bits(seen.download(), wanted.download()));
    }
  }
}

// In order, also onto what was there, in rows of whole pieces and in others.
TEST(gpu_parts_are_added_in_order) {
  for (int64_t columns : {45, 600}) {
    SomeParts some(18, 2, columns, 12);
    const std::vector<float> data = some.data.download(), before = some.random.normals(size_t(2 * columns));
    DeviceBuffer<float> y(before);
    cuda::add_parts(some.parts, y.data(), columns, true, nullptr);
    const std::vector<float> seen = y.download();
    for (size_t i = 0; i < seen.size(); ++i) {
      float sum = data[i];
      for (size_t p = 1; p < 18; ++p) sum += data[p * seen.size() + i];
      CHECK(seen[i] == before[i] + sum);
    }
  }
}

void check_rotated_parts(const RopeCase& c, int64_t count) {
  RopeRun whole(c, 6), left(c, 6);
  SomeParts some(count, whole.c.rows, whole.width, 6);
  cuda::add_parts(some.parts, whole.qkv.data(), whole.width, false, nullptr);
  left.parts = some.parts;
  whole.run();
  left.run();
  CHECK(same_bits(left.queries.download(), whole.queries.download()));
  CHECK(same_bits(left.keys.download(), whole.keys.download()));
  CHECK(same_bits(left.values.download(), whole.values.download()));
}

TEST(gpu_parts_are_rotated_and_stored_as_a_whole_product) {
  for (int64_t count : {1, 4, 5, 9}) check_rotated_parts({}, count);
  RopeCase other;
  other.dim = 36;
  other.bias = false;
  check_rotated_parts(other, 5);
}

TEST(gpu_parts_of_another_shape_are_refused) {
  float x[8] = {};
  const cuda::Parts other{x, 2, 1, 4};
  CHECK_ERROR(kRange, "rms_norm: parts", cuda::rms_norm({x, 8, x, nullptr, 8, 1, 8, 1e-6f, other, x}, nullptr));
  CHECK_ERROR(kRange, "silu_multiply: parts", cuda::silu_multiply({x, 8, nullptr, 4, 1, 4, other}, nullptr));
}

}  // namespace
}  // namespace tandem::test
