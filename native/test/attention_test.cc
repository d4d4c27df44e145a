// Paged attention against the naive truth, and every query alone bitwise equal to the same query inside a chunk.
#include "ops/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "ops/kv_read.h"
#include "support.h"
#include "test.h"

namespace tandem::test {
namespace {

using ops::AttentionRun;
using ops::Element;

// What queries and pages are stored as.
struct Format {
  Element element;
  bool int8;
};
constexpr Format kFormats[] = {{Element::kF32, false}, {Element::kBf16, false}, {Element::kF32, true}, {Element::kBf16, true}};

struct Sequence {
  std::vector<int32_t> pages;
  AttentionRun run;
};

// Sequences with written keys and values on scattered pages; every page that no sequence owns is poison.
struct Scene {
  ops::AttentionShape shape;
  ops::KvPages kv;
  std::vector<Sequence> sequences;
  int64_t rows = 0;
  std::vector<float> q;          // rows x heads x head_dim
  std::vector<uint8_t> q_bytes;  // rows x heads x dim elements

  Scene(Random& random, const ops::KvShape& kv_shape, int64_t heads, int64_t window, const std::vector<std::pair<int64_t, int64_t>>& runs)
      : shape{heads, window}, kv(kv_shape, page_count(runs)) {
    poison();
    std::vector<int32_t> ids;
    for (int32_t p = 0; p < kv.pages(); ++p) ids.push_back(p);
    random.shuffle(ids);
    for (auto [first, count] : runs) add_sequence(random, first, count, ids);
    make_queries(random);
  }

  static int64_t page_count(const std::vector<std::pair<int64_t, int64_t>>& runs) {
    int64_t pages = 3;
    for (auto [first, count] : runs) pages += (first + count + 15) / 16;
    return pages;
  }

  void poison() {
    for (int64_t layer = 0; layer < kv.shape().layers; ++layer) {
      for (int64_t page = 0; page < kv.pages(); ++page) std::memset(kv.keys(layer, page, 0), 0xff, kv.shape().layer_page_bytes());
    }
  }

  void add_sequence(Random& random, int64_t first, int64_t count, std::vector<int32_t>& ids) {
    Sequence s;
    for (int64_t p = 0; p < (first + count + 15) / 16; ++p) {
      s.pages.push_back(ids.back());
      kv.clear(ids.back());
      ids.pop_back();
    }
    size_t d = size_t(kv.shape().head_dim);
    for (int64_t p = 0; p < first + count; ++p) {
      for (int64_t h = 0; h < kv.shape().kv_heads; ++h) {
        kv.write(kv.shape().layers - 1, s.pages[size_t(p / 16)], h, int(p % 16), random.normals(d).data(), random.normals(d).data());
      }
    }
    s.run = {rows, first, count, nullptr};
    rows += count;
    sequences.push_back(std::move(s));
  }

  void make_queries(Random& random) {
    int64_t d = kv.shape().head_dim, dim = kv.shape().dim(), heads = shape.heads;
    bool bf16 = kv.shape().element == Element::kBf16;
    q = random.normals(size_t(rows * heads * d), 2.0f);  // peaked weights: a misplaced key shows
    q_bytes.assign(size_t(rows * heads * dim) * ops::element_size(kv.shape().element), 0);
    for (int64_t i = 0; i < rows * heads; ++i) {
      for (int64_t c = 0; c < d; ++c) {
        float& value = q[size_t(i * d + c)];
        if (bf16) value = rounded_bf16(value);
        if (bf16) reinterpret_cast<uint16_t*>(q_bytes.data())[i * dim + c] = float_to_bf16(value);
        if (!bf16) reinterpret_cast<float*>(q_bytes.data())[i * dim + c] = value;
      }
    }
  }

  int64_t layer() const { return kv.shape().layers - 1; }
  int64_t row_floats() const { return shape.heads * kv.shape().head_dim; }

  std::vector<AttentionRun> runs() const {
    std::vector<AttentionRun> out;
    for (const Sequence& s : sequences) {
      out.push_back(s.run);
      out.back().pages = s.pages.data();
    }
    return out;
  }

  // All rows of `which`, as floats; rows that it does not cover stay NaN.
  std::vector<float> attend(ThreadPool& pool, const std::vector<AttentionRun>& which, bool grouped = false,
                            const ops::BeforeHead& before = {}) {
    ops::AttentionGroups made;
    if (grouped) ops::group_runs(which, shape.heads / kv.shape().kv_heads, made);
    const ops::AttentionGroups* groups = grouped ? &made : nullptr;
    int64_t ld = row_floats() + 5;
    std::vector<float> out(size_t(rows * row_floats()), NAN);
    if (kv.shape().element == Element::kF32) {
      std::vector<float> wide(size_t(rows * ld), NAN);
      ops::attention(kernels(), pool, shape, kv, layer(), q_bytes.data(), which, wide.data(), ld, groups, before);
      for (int64_t r = 0; r < rows; ++r) std::copy_n(wide.begin() + r * ld, row_floats(), out.begin() + r * row_floats());
      return out;
    }
    std::vector<uint16_t> wide(size_t(rows * ld), 0x7fc0);
    ops::attention(kernels(), pool, shape, kv, layer(), q_bytes.data(), which, wide.data(), ld, groups, before);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < row_floats(); ++c) out[size_t(r * row_floats() + c)] = bf16_to_float(wide[size_t(r * ld + c)]);
    }
    return out;
  }
};

void check_against_reference(Scene& scene, const std::vector<float>& out) {
  std::vector<float> truth(out.size());
  ops::attention_reference(scene.shape, scene.kv, scene.layer(), scene.q.data(), scene.runs(), truth.data());
  double tolerance = scene.kv.shape().element == Element::kF32 ? 3e-5 : 0.03;
  for (size_t i = 0; i < out.size(); ++i) CHECK_NEAR(out[i], truth[i], tolerance);
}

// Every query as a run of its own, and the runs cut in two at a random place.
void check_chunking(Random& random, Scene& scene, ThreadPool& pool, const std::vector<float>& whole) {
  std::vector<AttentionRun> single, halves;
  for (const AttentionRun& run : scene.runs()) {
    for (int64_t i = 0; i < run.count; ++i) single.push_back({run.first_row + i, run.first_position + i, 1, run.pages});
    int64_t cut = random.whole(0, run.count);
    if (cut > 0) halves.push_back({run.first_row, run.first_position, cut, run.pages});
    if (cut < run.count) halves.push_back({run.first_row + cut, run.first_position + cut, run.count - cut, run.pages});
  }
  random.shuffle(halves);
  for (const auto& runs : {single, halves}) {
    std::vector<float> out = scene.attend(pool, runs);
    CHECK(same_bits(out.data(), whole.data(), out.size()));
  }
}

void check_scene(Random& random, const ops::KvShape& kv, int64_t heads, int64_t window,
                 const std::vector<std::pair<int64_t, int64_t>>& runs) {
  ThreadPool one(1), three(3);
  Scene scene(random, kv, heads, window, runs);
  std::vector<float> out = scene.attend(one, scene.runs());
  check_against_reference(scene, out);
  check_chunking(random, scene, one, out);
  std::vector<float> threaded = scene.attend(three, scene.runs());
  CHECK(same_bits(threaded.data(), out.data(), out.size()));
}

void check_random_scenes(Format format, uint64_t seed) {
  Random random(seed);
  const std::vector<int64_t> dims = {2, 6, 14, 16, 24, 32, 64, 80, 96, 128, 160}, windows = {0, 1, 7, 16, 64, 100};
  for (int i = 0; i < 22; ++i) {
    int64_t head_dim = dims[size_t(i) % dims.size()], group = 1 + i % 8, kv_heads = random.whole(1, 3);
    std::vector<std::pair<int64_t, int64_t>> runs;
    int64_t count = random.whole(1, 3);
    for (int64_t s = 0; s < count; ++s) runs.push_back({random.whole(0, 1) * random.whole(0, 210), random.whole(1, 12)});
    check_scene(random, {2, kv_heads, head_dim, format.element, format.int8}, group * kv_heads, windows[size_t(i) % windows.size()], runs);
  }
}

TEST(attention_f32_matches_reference_alone_and_in_chunks) { check_random_scenes(kFormats[0], 41); }
TEST(attention_bf16_matches_reference_alone_and_in_chunks) { check_random_scenes(kFormats[1], 42); }
TEST(attention_over_int8_pages_matches_reference_alone_and_in_chunks) {
  check_random_scenes(kFormats[2], 48);
  check_random_scenes(kFormats[3], 49);
}

TEST(attention_at_tile_and_page_borders) {
  Random random(43);
  for (Format format : kFormats) {
    for (int64_t window : {0, 1, 16, 64}) {
      check_scene(random, {1, 1, 8, format.element, format.int8}, 2, window,
                  {{0, 1}, {15, 2}, {16, 1}, {62, 5}, {127, 3}, {128, 1}, {191, 40}});
    }
  }
}

TEST(attention_with_the_largest_groups) {
  Random random(44);
  for (int64_t group : {11, 16, 31, 32}) {
    for (bool int8 : {false, true}) check_scene(random, {1, 1, 18, Element::kBf16, int8}, group, 0, {{70, 4}, {0, 3}});
  }
  Scene scene(random, {1, 1, 4, Element::kF32}, 33, 0, {{0, 1}});
  ThreadPool pool(1);
  CHECK_ERROR(kRange, "32 heads", scene.attend(pool, scene.runs()));
}

// The first `pages` pages of `from` become the first pages of `to`.
void share(Scene& scene, size_t from, size_t to, int64_t pages) {
  std::copy_n(scene.sequences[from].pages.begin(), pages, scene.sequences[to].pages.begin());
}

TEST(runs_that_share_pages_are_attended_together_with_the_same_bits) {
  Random random(46);
  for (Format format : kFormats) {
    for (int64_t group : {1, 2, 5}) {
      // Rows of one token, of a few and of many; their positions inside and at the borders of tiles.
      Scene scene(random, {2, 2, 32, format.element, format.int8}, 2 * group, 0,
                  {{300, 1}, {257, 1}, {280, 3}, {64, 1}, {63, 1}, {130, 1}, {255, 1}, {256, 1}, {200, 40}, {310, 2}, {0, 1}, {299, 1}});
      for (size_t s : {1, 2, 7, 11}) share(scene, 0, s, 16);
      share(scene, 0, 3, 4);
      share(scene, 0, 4, 3);  // less than a tile
      share(scene, 9, 5, 7);
      share(scene, 9, 8, 12);
      ops::AttentionGroups groups;
      ops::group_runs(scene.runs(), group, groups);
      CHECK(groups.groups.size() < scene.sequences.size());
      std::vector<float> alone = scene.attend(*std::make_unique<ThreadPool>(1), scene.runs());
      check_against_reference(scene, alone);
      for (int threads : {1, 3}) {
        ThreadPool pool(threads);
        std::vector<float> together = scene.attend(pool, scene.runs(), true);
        CHECK(same_bits(together.data(), alone.data(), alone.size()));
      }
    }
  }
}

// Takes away every row's queries and its position's page, and gives a head's back when it is asked for.
struct GivenLate {
  Scene& scene;
  std::vector<uint8_t> queries, pages;
  std::vector<std::atomic<int>> asked;

  explicit GivenLate(Scene& from) : scene(from), queries(from.q_bytes), asked(size_t(from.rows * from.kv.shape().kv_heads)) {
    std::memset(scene.q_bytes.data(), 0xff, scene.q_bytes.size());
    for (int64_t row = 0; row < scene.rows; ++row) {
      uint8_t* page = page_of(row);
      pages.insert(pages.end(), page, page + scene.kv.shape().layer_page_bytes());
      std::memset(page, 0xff, scene.kv.shape().layer_page_bytes());
    }
  }
  uint8_t* page_of(int64_t row) {
    const Sequence& s = scene.sequences[size_t(row)];
    return scene.kv.keys(scene.layer(), s.pages[size_t(s.run.first_position / 16)], 0);
  }
  void give(int64_t row, int64_t kv_head) {
    const ops::KvShape& kv = scene.kv.shape();
    const size_t head = 2 * kv.block_bytes(), at = size_t(kv_head) * head;
    const size_t q = size_t(scene.shape.heads / kv.kv_heads * kv.dim()) * ops::element_size(kv.element);
    const size_t q_at = (size_t(row * kv.kv_heads) + size_t(kv_head)) * q;
    std::memcpy(page_of(row) + at, pages.data() + size_t(row) * kv.layer_page_bytes() + at, head);
    std::memcpy(scene.q_bytes.data() + q_at, queries.data() + q_at, q);
    ++asked[size_t(row * kv.kv_heads + kv_head)];
  }
};

TEST(what_a_head_needs_may_be_made_when_it_is_its_turn) {
  Random random(50);
  for (Format format : kFormats) {
    for (bool grouped : {false, true}) {
      Scene scene(random, {2, 3, 20, format.element, format.int8}, 6, 0,
                  {{300, 1}, {257, 1}, {64, 1}, {0, 1}, {15, 1}, {310, 1}, {128, 1}});
      for (size_t s : {1, 5}) share(scene, 0, s, 16);
      share(scene, 0, 2, 4);
      for (int threads : {1, 3}) {
        ThreadPool pool(threads);
        const std::vector<float> whole = scene.attend(pool, scene.runs(), grouped);
        GivenLate late(scene);
        auto give = [&](int64_t row, int64_t kv_head) { late.give(row, kv_head); };
        const std::vector<float> out = scene.attend(pool, scene.runs(), grouped, std::ref(give));
        CHECK(same_bits(out.data(), whole.data(), out.size()));
        CHECK(std::all_of(late.asked.begin(), late.asked.end(), [](const auto& times) { return times == 1; }));
      }
    }
  }
  Scene chunk(random, {1, 1, 16, Element::kBf16}, 1, 0, {{20, 1}, {3, 2}});
  ThreadPool pool(1);
  CHECK_ERROR(kRange, "several queries", chunk.attend(pool, chunk.runs(), false, [](int64_t, int64_t) {}));
}

TEST(groups_hold_each_run_once_and_only_what_all_of_them_see) {
  Random random(47);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<int32_t>> tables(size_t(random.whole(1, 12)));
    std::vector<AttentionRun> runs;
    for (auto& table : tables) {
      // Two families of prefixes that part at any page.
      int32_t family = int32_t(random.whole(0, 1)), parts = int32_t(random.whole(0, 20));
      for (int32_t p = 0; p < 20; ++p) table.push_back(p < parts ? 1000 * family + p : 5000 + int32_t(runs.size()) * 20 + p);
      runs.push_back({int64_t(runs.size()), random.whole(0, 310), random.whole(1, 3), table.data()});
    }
    int64_t heads = random.whole(1, 9);
    ops::AttentionGroups groups;
    ops::group_runs(runs, heads, groups);
    std::vector<int> seen(runs.size(), 0);
    for (const auto& g : groups.groups) {
      int64_t rows = 0;
      for (int32_t i = 0; i < g.count; ++i) {
        const AttentionRun& run = runs[size_t(groups.order[size_t(g.first + i)])];
        const AttentionRun& first = runs[size_t(groups.order[size_t(g.first)])];
        ++seen[size_t(groups.order[size_t(g.first + i)])];
        rows += run.count * heads;
        CHECK(g.tiles * simd::kKeyTile <= run.first_position + 1);
        CHECK(std::equal(run.pages, run.pages + g.tiles * 4, first.pages));
      }
      CHECK(g.count == 1 || (rows <= simd::kAttendRows && g.tiles > 0));
    }
    CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  }
  // Eleven times three heads are one row more than a group has.
  std::vector<int32_t> table(20);
  std::vector<AttentionRun> alike;
  for (int64_t i = 0; i < 11; ++i) alike.push_back({i, 300, 1, table.data()});
  ops::AttentionGroups groups;
  ops::group_runs(alike, 3, groups);
  CHECK_EQ(groups.groups.size(), size_t(2));
  CHECK_EQ(groups.groups[0].count, 10);
}

TEST(attention_ignores_what_it_does_not_see) {
  Random random(45);
  for (Format format : kFormats) {
    ThreadPool pool(1);
    Scene scene(random, {2, 2, 32, format.element, format.int8}, 4, 7, {{100, 3}, {40, 2}});
    std::vector<float> before = scene.attend(pool, scene.runs());
    // Another sequence breaks: its own rows turn NaN, the others keep every bit.
    std::vector<float> broken(32, NAN);
    scene.kv.write(scene.layer(), scene.sequences[1].pages[2], 0, 9, broken.data(), broken.data());
    std::vector<float> after = scene.attend(pool, scene.runs());
    CHECK(same_bits(after.data(), before.data(), size_t(3 * scene.row_floats())));
    CHECK(std::isnan(after[size_t(4 * scene.row_floats())]));
    // The sequence's own tiles before the window and its other layer are poisoned.
    const Sequence& first = scene.sequences[0];
    for (int page = 0; page < 4; ++page) {
      std::memset(scene.kv.keys(scene.layer(), first.pages[size_t(page)], 0), 0xff, scene.kv.shape().layer_page_bytes());
    }
    for (int32_t page : first.pages) std::memset(scene.kv.keys(0, page, 0), 0xff, scene.kv.shape().layer_page_bytes());
    after = scene.attend(pool, scene.runs());
    CHECK(same_bits(after.data(), before.data(), size_t(3 * scene.row_floats())));
  }
}

TEST(cleared_pages_hold_nothing_of_the_past) {
  for (Format format : kFormats) {
    ops::KvPages kv({3, 2, 10, format.element, format.int8}, 4);
    for (int64_t layer = 0; layer < 3; ++layer) {
      for (int64_t page = 0; page < 4; ++page) std::memset(kv.keys(layer, page, 0), 0xff, kv.shape().layer_page_bytes());
    }
    kv.clear(2);
    for (int64_t layer = 0; layer < 3; ++layer) {
      for (int64_t page = 0; page < 4; ++page) {
        const uint8_t* bytes = kv.keys(layer, page, 0);
        uint8_t wanted = page == 2 ? 0 : 0xff;
        CHECK(std::all_of(bytes, bytes + kv.shape().layer_page_bytes(), [&](uint8_t b) { return b == wanted; }));
      }
    }
  }
}

// A position's key and value as they are read back.
std::vector<double> stored(ops::KvPages& kv, int64_t page, int slot) {
  std::vector<double> out;
  for (int64_t d = 0; d < kv.shape().head_dim; ++d) out.push_back(ops::key_at(kv, 0, page, 1, slot, d));
  for (int64_t d = 0; d < kv.shape().head_dim; ++d) out.push_back(ops::value_at(kv, 0, page, 1, slot, d));
  return out;
}

TEST_ONCE(int8_positions_are_what_was_written_within_half_a_step) {
  Random random(50);
  for (Element element : {Element::kF32, Element::kBf16}) {
    for (int64_t dim : {2, 18, 64, 130}) {
      ops::KvPages kv({1, 2, dim, element, true}, 2);
      kv.clear(1);
      std::vector<std::vector<float>> keys, values;
      for (int slot = 0; slot < simd::kPage; ++slot) {
        // Each position has a scale of its own, from very small to very large.
        float size = std::ldexp(1.0f, 10 * (slot - 8));
        keys.push_back(random.normals(size_t(dim), size));
        values.push_back(random.normals(size_t(dim), 1 / size));
        kv.write(0, 1, 1, slot, keys.back().data(), values.back().data());
      }
      for (int slot = 0; slot < simd::kPage; ++slot) {
        std::vector<double> found = stored(kv, 1, slot);
        for (const auto& [written, first] : {std::pair{&keys[size_t(slot)], int64_t(0)}, std::pair{&values[size_t(slot)], dim}}) {
          double largest = 0;
          for (float x : *written) largest = std::max(largest, std::fabs(double(x)));
          for (int64_t d = 0; d < dim; ++d) CHECK_NEAR(found[size_t(first + d)], (*written)[size_t(d)], largest / 127 * 0.5001);
        }
      }
      CHECK(ops::KvPages::finite(kv.shape(), kv.keys(0, 1, 0)));
    }
  }
}

TEST_ONCE(int8_positions_round_to_even_and_keep_what_is_not_finite) {
  const float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  int8_t values[6];
  auto quantised = [&](std::vector<float> x) { return ops::quantise_position(x.data(), int64_t(x.size()), values); };
  CHECK_EQ(quantised({127, -127, 0.5f, 1.5f, -2.5f, 0}), 1.0f);
  const int wanted[] = {127, -127, 0, 2, -2, 0};
  for (int i = 0; i < 6; ++i) CHECK_EQ(int(values[i]), wanted[i]);
  CHECK_EQ(quantised({0, -0.0f, 1e-31f}), 0.0f);
  CHECK(values[0] == 0 && values[1] == 0 && values[2] == 0);
  for (float broken : {kNan, kInf, -kInf}) {
    CHECK(std::isnan(quantised({1, broken})));
    CHECK(values[0] == 0 && values[1] == 0);
  }
  CHECK_EQ(quantised({3e38f, -1e38f}), 3e38f / 127.0f);
  CHECK(values[0] == 127 && values[1] == -42);
}

TEST_ONCE(pages_with_what_is_not_finite_are_told) {
  Random random(51);
  for (Format format : kFormats) {
    ops::KvPages kv({2, 2, 18, format.element, format.int8}, 1);
    kv.clear(0);
    std::vector<float> good = random.normals(18), broken = good;
    broken[17] = std::numeric_limits<float>::infinity();
    std::vector<uint8_t> bytes(kv.shape().page_bytes());
    auto finite = [&] {
      kv.copy_out(0, bytes.data());
      return ops::KvPages::finite(kv.shape(), bytes.data());
    };
    for (int64_t layer : {0, 1}) {
      for (int64_t head : {0, 1}) {
        for (bool key : {true, false}) {
          kv.write(layer, 0, head, 15, key ? broken.data() : good.data(), key ? good.data() : broken.data());
          CHECK(!finite());
          kv.write(layer, 0, head, 15, good.data(), good.data());
          CHECK(finite());
        }
      }
    }
  }
}

TEST(kv_memory_that_overflows_is_refused) {
  CHECK_ERROR(kRange, "pages", ops::KvPages({1024, 1024, 1024, Element::kF32}, int64_t(1) << 30));
  CHECK_ERROR(kRange, "pages", ops::KvPages({1, 1, 16, Element::kF32}, -1));
  CHECK_ERROR(kState, "out of memory", ops::KvPages({1024, 1024, 1024, Element::kF32}, int64_t(1) << 12));
}

}  // namespace
}  // namespace tandem::test
