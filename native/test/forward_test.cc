// Rows that are not wanted cost the last layer's keys and values alone, and change nothing of those that are.
#include <cstring>
#include <memory>
#include <vector>

#include "test.h"
#include "tiny_model.h"

namespace tandem::test {
namespace {

constexpr int64_t kPages = 3;  // of each sequence

// Three sequences in one batch: a prompt from its beginning, the rest of another, one token of a third.
class Batch {
 public:
  explicit Batch(const std::shared_ptr<model::Model>& model) : model_(model) {
    for (int i = 0; i < 2; ++i)
      adapters_.push_back(std::make_unique<model::Adapter>(model, tiny_factors(model->spec, 5 + uint64_t(i), 4, all_modules())));
    for (int32_t page = 0; page < 3 * kPages; ++page) pages_.push_back(page);
    add(0, 0, 19, nullptr);
    add(1, 17, 21, adapters_[0].get());
    add(2, 40, 1, adapters_[1].get());
  }

  // Keys and values of what came before, then the batch: the hidden states of wanted rows, one behind the other, and all pages.
  std::vector<uint8_t> run(const std::vector<int32_t>& wanted) {
    ops::KvPages kv(model_->kv_shape(), 3 * kPages);
    for (int64_t page = 0; page < kv.pages(); ++page) kv.clear(page);
    model::Forward forward(*model_, 16 * kPages, 64, 8);
    model::ForwardBatch before;
    for (auto [sequence, count] : {std::pair{1, 17}, {2, 40}}) {
      before.runs.push_back({int64_t(before.tokens.size()), 0, count, pages_.data() + sequence * kPages});
      before.tokens.insert(before.tokens.end(), size_t(count), 7 + sequence);
    }
    forward.run(before, kv);
    batch_.wanted = wanted;
    forward.run(batch_, kv);
    std::vector<uint8_t> out(size_t(kv.pages()) * kv.shape().page_bytes());
    for (int64_t page = 0; page < kv.pages(); ++page) kv.copy_out(page, out.data() + size_t(page) * kv.shape().page_bytes());
    hidden_.clear();
    for (int32_t row : wanted) hidden_.emplace_back(forward.hidden(row), forward.hidden(row) + model_->spec.hidden_size);
    return out;
  }
  const std::vector<std::vector<float>>& hidden() const { return hidden_; }
  int32_t rows() const { return int32_t(batch_.tokens.size()); }

 private:
  void add(int64_t sequence, int64_t position, int64_t count, const model::Adapter* adapter) {
    batch_.runs.push_back({int64_t(batch_.tokens.size()), position, count, pages_.data() + sequence * kPages});
    batch_.adapters.push_back(adapter);
    for (int64_t i = 0; i < count; ++i) batch_.tokens.push_back(int32_t((11 * sequence + 5 * (position + i)) % 100));
  }

  std::shared_ptr<model::Model> model_;
  std::vector<std::unique_ptr<model::Adapter>> adapters_;
  std::vector<int32_t> pages_;
  model::ForwardBatch batch_;
  std::vector<std::vector<float>> hidden_;
};

void check_subsets(const std::shared_ptr<model::Model>& model) {
  Batch batch(model);
  std::vector<int32_t> all;
  for (int32_t row = 0; row < batch.rows(); ++row) all.push_back(row);
  const std::vector<uint8_t> pages = batch.run(all);
  const std::vector<std::vector<float>> hidden = batch.hidden();
  const std::vector<std::vector<int32_t>> subsets = {{18, 39, 40}, {18}, {40}, {39}, {0, 1, 2, 17, 18, 19, 20, 38, 40}, {3, 5, 6, 30}, {}};
  for (const std::vector<int32_t>& wanted : subsets) {
    CHECK(batch.run(wanted) == pages);
    for (size_t i = 0; i < wanted.size(); ++i) {
      const std::vector<float>& expected = hidden[size_t(wanted[i])];
      CHECK(std::memcmp(batch.hidden()[i].data(), expected.data(), expected.size() * sizeof(float)) == 0);
    }
  }
}

TEST_ENGINE(rows_that_are_not_wanted_change_nothing_of_those_that_are) {
  for (ops::Element element : {ops::Element::kF32, ops::Element::kBf16}) {
    for (bool small : {false, true}) {
      TinyModel tiny;
      tiny.int8_kv = small;
      if (small) tiny.quantise = model::Quantise{ops::QuantFormat::kInt4};
      check_subsets(tiny.load(element, small ? 1 : 2));
    }
  }
}

}  // namespace
}  // namespace tandem::test
