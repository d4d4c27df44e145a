// Attention that rotates and stores its rows itself: the bits of rope_store() and attention apart, in the results and in the pool.
#include "attention_batch.h"
#include "cuda/rope/rope_store.h"

namespace tandem::test {
namespace {

struct RotateCase {
  std::vector<int> lengths;  // of sequences, each with one new token
  int64_t parts = 2;
  bool norm = true, bias = false, old = true;
  int64_t padded = 0;    // empty tiles behind, with rows that have no place
  int64_t bad_row = -1;  // whose place is none
  AttentionShape shape{4, 2, 128, 0, cuda::AttentionKernel::kWgmma};
};

class Rotating {
 public:
  explicit Rotating(const RotateCase& c)
      : c_(c), batch_(c.shape, sequences(c), 41), rows_(int64_t(c.lengths.size()) + c.padded),
        width_((c.shape.heads + 2 * c.shape.kv_heads) * c.shape.dim),
        sums_(batch_.random.normals(size_t(std::max<int64_t>(c.parts, 1) * rows_ * width_))), bias_(batch_.random.normals(size_t(width_))),
        q_norm_(batch_.random.normals(size_t(c.shape.dim))), k_norm_(batch_.random.normals(size_t(c.shape.dim))),
        cosines_(batch_.random.normals(size_t(batch_.longest * c.shape.dim / 2))), sines_(batch_.random.normals(cosines_.size())) {
    forget_new();
    std::vector<int32_t> positions(size_t(rows_), -1), slots(size_t(rows_), -1);
    for (size_t i = 0; i < c.lengths.size(); ++i) {
      const int32_t position = c.lengths[i] - 1;
      positions[i] = position;
      slots[i] = int64_t(i) == c.bad_row ? -1 : batch_.table[i * size_t(batch_.max_pages) + size_t(position / 16)] * 16 + position % 16;
      tiles_.push_back({int32_t(i), 1, position, int32_t(i), 0, position});
    }
    tiles_.resize(size_t(rows_), {0, 0, 0, 0});
    cuda::number_items(tiles_);
    positions_ = DeviceBuffer<int32_t>(positions);
    slots_ = DeviceBuffer<int32_t>(slots);
  }

  struct Seen {
    std::vector<bf16> out, keys, values;
  };
  Seen run(bool fused, int times = 1) {
    AttentionLaunch launch(batch_, tiles_, true, kAnyBlocks);
    DeviceBuffer<bf16> queries(size_t(rows_ * c_.shape.heads * c_.shape.dim)), out(queries.size());
    launch.args.out = out.data();
    launch.args.tile_rows = c_.shape.heads / c_.shape.kv_heads;
    launch.args.stored_is_old = c_.old;
    const cuda::RopeStore rope = rope_of(launch, queries);
    if (fused) {
      launch.args.queries = nullptr;
      launch.args.rope = &rope;
      CHECK(cuda::attention_rotates(launch.args));
    } else {
      cuda::rope_store(rope, nullptr);
      launch.args.queries = queries.data();
    }
    for (int i = 0; i < times; ++i) launch.run(0, launch.args.tile_count);
    return {out.download(), launch.k.download(), launch.v.download()};
  }

  cuda::RopeStore rope_of(AttentionLaunch& launch, DeviceBuffer<bf16>& queries) {
    cuda::RopeStore r{};
    r.qkv = sums_.data();
    r.ld = width_;
    if (c_.bias) r.bias = bias_.data();
    if (c_.norm) r.q_norm = q_norm_.data(), r.k_norm = k_norm_.data();
    r.eps = 1e-6f;
    r.cosines = cosines_.data();
    r.sines = sines_.data();
    r.positions = positions_.data();
    r.slots = slots_.data();
    r.queries = queries.data();
    r.kv = {launch.k.data(), launch.v.data(), batch_.pages, c_.shape.kv_heads, c_.shape.dim};
    r.rows = rows_;
    r.heads = c_.shape.heads;
    r.dim = c_.shape.dim;
    r.table_positions = batch_.longest;
    if (c_.parts > 0) r.parts = {sums_.data(), c_.parts, rows_, width_};
    return r;
  }

  AttentionBatch& batch() { return batch_; }
  const std::vector<cuda::AttentionTile>& tiles() const { return tiles_; }

 private:
  static std::vector<std::pair<int, int>> sequences(const RotateCase& c) {
    std::vector<std::pair<int, int>> out;
    for (int length : c.lengths) out.emplace_back(length, 1);
    return out;
  }

  // What is in the new tokens' places is not theirs yet.
  void forget_new() {
    const bf16 nan = cuda::to_bf16(std::numeric_limits<float>::quiet_NaN());
    for (size_t i = 0; i < c_.lengths.size(); ++i) {
      for (int64_t h = 0; h < c_.shape.kv_heads; ++h) {
        const int64_t at = batch_.at(int64_t(i), c_.lengths[i] - 1, h);
        std::fill_n(batch_.keys.begin() + at, c_.shape.dim, nan);
        std::fill_n(batch_.values.begin() + at, c_.shape.dim, nan);
      }
    }
  }

  RotateCase c_;
  AttentionBatch batch_;
  int64_t rows_, width_;
  DeviceBuffer<float> sums_, bias_, q_norm_, k_norm_, cosines_, sines_;
  DeviceBuffer<int32_t> positions_, slots_;
  std::vector<cuda::AttentionTile> tiles_;
};

void check_rotating(const RotateCase& c) {
  Rotating r(c);
  const Rotating::Seen apart = r.run(false), fused = r.run(true, 2);
  // Of empty tiles nothing is written.
  const size_t rows = c.lengths.size(), width = size_t(c.shape.heads * c.shape.dim);
  for (size_t row = 0; row < rows; ++row) {
    const auto first = [&](const std::vector<bf16>& out) {
      return std::vector<bf16>(out.begin() + row * width, out.begin() + (row + 1) * width);
    };
    if (int64_t(row) != c.bad_row) CHECK(same_bits(first(fused.out), first(apart.out)));
    for (bf16 value : first(fused.out)) CHECK_EQ(std::isnan(cuda::to_float(value)), int64_t(row) == c.bad_row);
  }
  CHECK(same_bits(fused.keys, apart.keys));
  CHECK(same_bits(fused.values, apart.values));
}

TEST(hopper_attention_rotates_rows_with_the_bits_of_rope_store) {
  if (!on_hopper()) return;
  for (int length : {1, 2, 16, 17, 63, 64, 65, 255, 256, 257, 300, 700}) check_rotating({.lengths = {length}});
  check_rotating({.lengths = {5, 300, 64, 129}, .padded = 3});
  check_rotating({.lengths = {40, 270}, .old = false});
  check_rotating({.lengths = {70, 33}, .bad_row = 1});
}

TEST(hopper_attention_rotates_whatever_a_product_gives) {
  if (!on_hopper()) return;
  for (int64_t parts : {0, 1, 3, 5, 9}) check_rotating({.lengths = {80, 257}, .parts = parts});
  check_rotating({.lengths = {80, 257}, .norm = false});
  check_rotating({.lengths = {80, 257}, .norm = false, .bias = true});
  check_rotating({.lengths = {80, 257}, .parts = 0, .bias = true});
}

TEST(hopper_attention_rotates_heads_of_all_sizes) {
  if (!on_hopper()) return;
  for (int64_t dim : {32, 64, 96, 128}) {
    for (auto [heads, kv_heads] : {std::pair{2, 2}, {8, 2}, {16, 1}}) {
      check_rotating({.lengths = {90, 258}, .shape = {heads, kv_heads, dim, 0, cuda::AttentionKernel::kWgmma}});
    }
  }
  check_rotating({.lengths = {90, 400}, .shape = {4, 2, 64, 100, cuda::AttentionKernel::kWgmma}});
}

TEST(hopper_attention_rotates_where_it_can) {
  Rotating r({.lengths = {20, 30}});
  AttentionLaunch launch(r.batch(), r.tiles(), true, kAnyBlocks);
  DeviceBuffer<bf16> queries(size_t(2 * 4 * 128));
  launch.args.tile_rows = 2;
  const cuda::RopeStore rope = r.rope_of(launch, queries);
  launch.args.rope = &rope;
  CHECK(cuda::attention_rotates(launch.args));
  const auto refuses = [&](const auto& change) {
    cuda::PagedAttention args = launch.args;
    cuda::RopeStore other = rope;
    args.rope = &other;
    change(args, other);
    CHECK(!cuda::attention_rotates(args));
    if (args.rope != nullptr) CHECK_ERROR(kRange, "paged_attention: rope", cuda::paged_attention(args, nullptr));
  };
  refuses([](auto& a, auto&) { a.rope = nullptr; });
  refuses([](auto& a, auto&) { a.kernel = cuda::AttentionKernel::kMma; });
  refuses([](auto& a, auto&) { a.tile_rows = 4; });
  refuses([](auto& a, auto&) { a.few_blocks = 3; });
  refuses([](auto& a, auto&) { a.prefix_count = 1; });
  refuses([](auto& a, auto&) { a.log_sums = reinterpret_cast<float*>(256); });
  refuses([](auto&, auto& r) { r.qk = reinterpret_cast<bf16*>(256); });
  refuses([](auto&, auto& r) { r.heads = 6; });
  refuses([](auto&, auto& r) { r.rows = 3; });
  refuses([](auto&, auto& r) { r.parts.columns += 4; });
  refuses([](auto&, auto& r) { r.ld -= 4; });
  refuses([](auto&, auto& r) { r.k_norm = nullptr; });
  refuses([](auto&, auto& r) { r.kv.keys += 8; });
  refuses([](auto&, auto& r) { r.cosines += 1; });
}

}  // namespace
}  // namespace tandem::test
