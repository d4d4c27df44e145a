// Weight files are hostile: whatever their bytes and the table say, the answer is an Error or the right numbers.
#include "model/tensor_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support.h"
#include "temp_folder.h"
#include "test.h"

namespace tandem::test {
namespace {

using model::Stored;
using model::Tensor;
using model::TensorFiles;

std::string file_of(const TempFolder& folder, const std::string& name, size_t bytes) {
  std::vector<uint8_t> content(bytes);
  for (size_t i = 0; i < bytes; ++i) content[i] = uint8_t(i * 37 % 120);
  return folder.write(name, content.data(), bytes);
}

void refuse(const std::string& file, const Tensor& tensor, const std::string& text) {
  CHECK_ERROR(kRange, text, TensorFiles({file}, {tensor}));
}

TEST_ONCE(tensors_outside_their_file_are_refused) {
  TempFolder folder;
  std::string file = file_of(folder, "weights", 64);
  refuse(file, {"w", Stored::kF32, {17}, 0, 0}, "tensor w lies outside");
  refuse(file, {"w", Stored::kF32, {16}, 0, 1}, "tensor w lies outside");
  refuse(file, {"w", Stored::kBf16, {33}, 0, 0}, "tensor w lies outside");
  refuse(file, {"w", Stored::kF32, {1}, 0, -1}, "tensor w lies outside");
  refuse(file, {"w", Stored::kF32, {1}, 0, INT64_MAX}, "tensor w lies outside");
  refuse(file, {"w", Stored::kF32, {1}, 0, INT64_MIN}, "tensor w lies outside");
  refuse(file, {"w", Stored::kF32, {1}, 1, 0}, "tensor w names no file");
  refuse(file, {"w", Stored::kF32, {1}, -1, 0}, "tensor w names no file");
  refuse(file, {"w", Stored::kF32, {1}, INT64_MAX, 0}, "tensor w names no file");
  TensorFiles fits({file}, {{"w", Stored::kF32, {4, 4}, 0, 0}});
}

TEST_ONCE(tensor_shapes_that_overflow_are_refused) {
  TempFolder folder;
  std::string file = file_of(folder, "weights", 64);
  refuse(file, {"w", Stored::kF32, {INT64_MAX, 2}, 0, 0}, "impossible shape");
  refuse(file, {"w", Stored::kF32, {int64_t(1) << 32, int64_t(1) << 32}, 0, 0}, "impossible shape");
  refuse(file, {"w", Stored::kF32, {int64_t(1) << 62, 4}, 0, 0}, "impossible shape");
  refuse(file, {"w", Stored::kF32, {-2, -2}, 0, 0}, "impossible shape");
  refuse(file, {"w", Stored::kF32, {4, 0}, 0, 0}, "impossible shape");
  refuse(file, {"w", Stored::kF32, {int64_t(1) << 45}, 0, 0}, "lies outside");
}

TEST_ONCE(rows_that_are_no_whole_blocks_or_heads_are_refused) {
  TempFolder folder;
  std::string file = file_of(folder, "weights", 4096);
  refuse(file, {"w", Stored::kQ8_0, {2, 31}, 0, 0}, "tensor w has rows that are not whole blocks");
  refuse(file, {"w", Stored::kQ8_0, {64}, 0, 0}, "tensor w has rows that are not whole blocks");
  refuse(file, {"w", Stored::kQ4K, {1, 128}, 0, 0}, "tensor w has rows that are not whole blocks");
  refuse(file, {"w", Stored::kQ6K, {20, 256}, 0, 0}, "tensor w lies outside");
  refuse(file, {"w", Stored::kF32, {8, 2}, 0, 0, 3}, "tensor w has rows that are not whole interleaved heads");
  refuse(file, {"w", Stored::kF32, {8, 2}, 0, 0, 6}, "tensor w has rows that are not whole interleaved heads");
  refuse(file, {"w", Stored::kF32, {9, 2}, 0, 0, 3}, "tensor w has rows that are not whole interleaved heads");
  refuse(file, {"w", Stored::kF32, {}, 0, 0, 2}, "tensor w has rows that are not whole interleaved heads");
  refuse(file, {"w", Stored::kF32, {8, 2}, 0, 0, -4}, "tensor w has rows that are not whole interleaved heads");
  refuse(file, {"w", Stored::kF32, {8, 2}, 0, 0, INT64_MIN}, "tensor w has rows that are not whole interleaved heads");
  TensorFiles fits({file}, {{"w", Stored::kQ8_0, {120, 32}, 0, 16}, {"v", Stored::kF32, {8, 2}, 0, 0, 4}});
}

// Row i of the first half of a head lies at 2 i, row i of the second at 2 i + 1.
TEST_ONCE(interleaved_heads_are_put_in_order) {
  TempFolder folder;
  std::vector<float> stored(16 * 3);
  for (size_t i = 0; i < stored.size(); ++i) stored[i] = float(i);
  std::string file = folder.write("weights", stored.data(), stored.size() * 4);
  TensorFiles open({file}, {{"w", Stored::kF32, {16, 3}, 0, 0, 8}, {"b", Stored::kF32, {16}, 0, 0, 8}});
  const int64_t order[16] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
  for (int64_t first : {0, 1, 5, 8}) {
    for (int64_t rows : {1, 3, 8}) {
      std::vector<float> w(size_t(rows * 3)), b(static_cast<size_t>(rows));
      CHECK(open.read(open.find("w", {16, 3}), first * 3, rows * 3, w.data()));
      CHECK(open.read(open.find("b", {16}), first, rows, b.data()));
      for (int64_t r = 0; r < rows; ++r) {
        CHECK_EQ(b[size_t(r)], float(order[first + r]));
        for (int64_t c = 0; c < 3; ++c) CHECK_EQ(w[size_t(r * 3 + c)], float(order[first + r] * 3 + c));
      }
    }
  }
}

TEST_ONCE(blocks_are_unpacked_row_by_row) {
  TempFolder folder;
  // Two rows of two Q8_0 blocks: scale 1 or 2 (f16 0x3c00, 0x4000), numbers counting up from -16.
  std::vector<uint8_t> raw;
  for (int block = 0; block < 4; ++block) {
    raw.push_back(0);
    raw.push_back(block % 2 == 0 ? 0x3c : 0x40);
    for (int i = 0; i < 32; ++i) raw.push_back(uint8_t(i - 16 + block));
  }
  std::string file = folder.write("weights", raw.data(), raw.size());
  TensorFiles open({file}, {{"w", Stored::kQ8_0, {2, 64}, 0, 0}, {"q", Stored::kQ8_0, {2, 64}, 0, 0, 2}});
  std::vector<float> floats(128), scales(4);
  std::vector<uint8_t> values(128);
  for (const char* name : {"w", "q"}) {
    CHECK(open.read(open.find(name, {2, 64}), 0, 128, floats.data()));
    CHECK(open.read_blocks(open.find(name, {2, 64}), 0, 2, {values.data(), scales.data(), nullptr}));
    for (int i = 0; i < 128; ++i) {
      int block = i / 32, number = i % 32 - 16 + block;
      CHECK_EQ(int(values[size_t(i)]), number + 128);
      CHECK_EQ(floats[size_t(i)], float(number * (block % 2 + 1)));
    }
  }
  CHECK_EQ(truncate(file.c_str(), 100), 0);
  CHECK(!open.read_blocks(open.find("w", {2, 64}), 0, 2, {values.data(), scales.data(), nullptr}));
  CHECK(open.read_blocks(open.find("w", {2, 64}), 0, 1, {values.data(), scales.data(), nullptr}));
}

// Random blocks of every type in one matrix, so that panels of different formats meet: packing changes no value.
TEST_ONCE(packed_blocks_have_the_values_of_the_file) {
  TempFolder folder;
  Random random(71);
  const Stored types[] = {Stored::kQ4K, Stored::kQ6K, Stored::kQ8_0, Stored::kQ4_0};
  const int64_t rows = 24, k = 512;
  std::vector<std::string> files;
  std::vector<Tensor> tensors;
  for (size_t t = 0; t < 4; ++t) {
    model::BlockTraits block = model::block_traits(types[t]);
    std::vector<uint8_t> raw(size_t(rows * k / block.elements * block.bytes));
    // Every second byte keeps the f16 scales, at even offsets, below 2: their upper byte has no exponent above 15.
    for (size_t i = 0; i < raw.size(); ++i) raw[i] = uint8_t(random.bits() & (i % 2 == 1 ? 0xbf : 0xff));
    files.push_back(folder.write("blocks" + std::to_string(t), raw.data(), raw.size()));
    tensors.push_back({"w" + std::to_string(t), types[t], {rows, k}, int64_t(t), 0, t == 0 ? 8 : 0});
  }
  TensorFiles open(files, tensors);
  ThreadPool pool(2);
  std::vector<ops::QuantPart> parts;
  for (const Tensor& tensor : tensors) {
    parts.push_back({rows, model::block_traits(tensor.stored).format,
                     [&](int64_t first, int64_t count, const ops::QuantRows& out) { return open.read_blocks(tensor, first, count, out); }});
  }
  ops::QuantisedMatrix packed(16, k, parts, pool);
  std::vector<float> row(static_cast<size_t>(k)), truth(static_cast<size_t>(k));
  for (int64_t r = 0; r < 4 * rows; ++r) {
    packed.copy_row(r, row.data());
    CHECK(open.read(open.find(tensors[size_t(r / rows)].name, {rows, k}), r % rows * k, k, truth.data()));
    // A zero may lose its sign where a panel has minima.
    for (size_t i = 0; i < row.size(); ++i) CHECK_EQ(row[i], truth[i]);
  }
}

TEST_ONCE(tensors_are_found_by_name_and_shape_once) {
  TempFolder folder;
  std::string file = file_of(folder, "weights", 64);
  CHECK_ERROR(kRange, "listed twice", TensorFiles({file}, {{"w", Stored::kF32, {2}, 0, 0}, {"w", Stored::kF32, {2}, 0, 8}}));
  TensorFiles files({file}, {{"w", Stored::kF32, {2, 3}, 0, 0}});
  CHECK_ERROR(kRange, "tensor v is missing", files.find("v", {2, 3}));
  CHECK_ERROR(kRange, "wrong shape", files.find("w", {3, 2}));
  CHECK_ERROR(kRange, "wrong shape", files.find("w", {6}));
  CHECK_EQ(files.find("w", {2, 3}).offset, 0);
}

TEST_ONCE(what_is_no_regular_file_is_refused) {
  TempFolder folder;
  Tensor tensor{"w", Stored::kF32, {2}, 0, 0};
  CHECK_ERROR(kIo, "cannot open", TensorFiles({folder.path("absent")}, {tensor}));
  CHECK_ERROR(kIo, "not a regular file", TensorFiles({folder.path("")}, {tensor}));
  CHECK_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  CHECK_ERROR(kIo, "not a regular file", TensorFiles({folder.path("pipe")}, {tensor}));
  CHECK_ERROR(kIo, "not a regular file", TensorFiles({"/dev/zero"}, {tensor}));
  // The message names no path.
  try {
    TensorFiles({folder.path("absent")}, {tensor});
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find('/') == std::string::npos);
  }
}

TEST_ONCE(failed_opens_leave_no_descriptor_behind) {
  TempFolder folder;
  std::string file = file_of(folder, "weights", 64);
  int before = dup(0);
  close(before);
  for (int i = 0; i < 20; ++i) {
    CHECK_ERROR(kIo, "", TensorFiles({file, file, folder.path("absent")}, {}));
    CHECK_ERROR(kIo, "", TensorFiles({file, folder.path("")}, {}));
    CHECK_ERROR(kRange, "", TensorFiles({file, file}, {{"w", Stored::kF32, {99}, 0, 0}}));
    TensorFiles fine({file, file}, {});
  }
  int after = dup(0);
  close(after);
  CHECK_EQ(after, before);
}

TEST_ONCE(a_file_that_shrinks_is_a_failed_read) {
  TempFolder folder;
  std::string file = file_of(folder, "weights", 64);
  TensorFiles files({file}, {{"w", Stored::kF32, {16}, 0, 0}});
  CHECK_EQ(truncate(file.c_str(), 60), 0);
  std::vector<float> out(16);
  CHECK(!files.read(files.find("w", {16}), 0, 16, out.data()));
  CHECK(files.read(files.find("w", {16}), 0, 15, out.data()));
}

TEST_ONCE(tensors_are_read_as_floats) {
  TempFolder folder;
  Random random(51);
  size_t count = 300;
  std::vector<float> f32(count);
  std::vector<uint16_t> halves(count);
  for (size_t i = 0; i < count; ++i) {
    f32[i] = random.normal();
    halves[i] = uint16_t(random.bits());
  }
  std::vector<std::string> files = {folder.write("f32", f32.data(), count * 4), folder.write("half", halves.data(), count * 2)};
  TensorFiles open(files, {{"a", Stored::kF32, {300}, 0, 0}, {"b", Stored::kF16, {300}, 1, 0}, {"c", Stored::kBf16, {299}, 1, 2}});
  for (int64_t first : {0, 1, 7}) {
    for (int64_t n : {1, 2, 3, 100, 290}) {
      std::vector<float> a(static_cast<size_t>(n)), b(static_cast<size_t>(n)), c(static_cast<size_t>(n));
      CHECK(open.read(open.find("a", {300}), first, n, a.data()));
      CHECK(open.read(open.find("b", {300}), first, n, b.data()));
      CHECK(open.read(open.find("c", {299}), first, n, c.data()));
      for (size_t i = 0; i < size_t(n); ++i) {
        CHECK(same_bits(a[i], f32[size_t(first) + i]));
        CHECK(same_bits(b[i], half_to_float(halves[size_t(first) + i])));
        CHECK(same_bits(c[i], bf16_to_float(halves[size_t(first) + i + 1])));
      }
    }
  }
}

}  // namespace
}  // namespace tandem::test
