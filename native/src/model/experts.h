// The feed-forward of a layer whose rows go to some of many experts each: y[r] += sum over the experts of r, ascending, of
// weight * down(silu(gate x) * up x). Rows are sorted by expert, and each expert multiplies its own together. What a row gets depends on
// the row alone: an expert's product for it is the same beside any others, and the sum has one order.
#pragma once
#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "model/weights.h"
#include "ops/expert_routing.h"

namespace tandem::model {

struct Model;

// A row under one of its experts is a pair: number row * used + i for the i-th of its experts (ascending).
class ExpertRows {
 public:
  // Memory for batches of at most `max_pairs` pairs, of rows of at most `max_rows` in all. Holds nothing where the model has no mixtures.
  ExpertRows(Model& model, int64_t max_rows, int64_t max_pairs);

  // All of it. x: normed rows of elements, ldx apart, as ops::matmul takes them; y: rows of floats, ldy apart.
  void run(const Layer& layer, const void* x, int64_t ldx, int64_t rows, float* y, int64_t ldy);

  // The same in parts, for those who do something between them. First the experts of every row:
  void route(const Layer& layer, const void* x, int64_t ldx, int64_t rows);
  // then batch after batch, while there is one: whole experts as long as they have at most max_pairs pairs together; one that has more by
  // itself is cut.
  bool take();
  void gather(const void* x, int64_t ldx);
  // Each piece's rows times its expert's `outputs` outputs of w: gate and up of what was gathered, down of what was activated.
  void multiply(const ops::PackedMatrix& w, int64_t outputs);
  void activate();
  void combine(float* y, int64_t ldy) { combine(y, ldy, wide_.data(), ld_wide_, weights_.data()); }

  // One expert's rows within a batch: `count` from the batch's row `first` on.
  struct Piece {
    int32_t expert;
    int64_t first, count;
  };
  const std::vector<Piece>& pieces() const { return pieces_; }
  // Some panels of a piece's product, counted from its expert's first.
  struct Part {
    Piece piece;
    ops::PanelRange panels;
  };
  // The same of these alone.
  void multiply(const ops::PackedMatrix& w, int64_t outputs, const std::vector<Part>& parts);
  int64_t batch_rows() const { return end_ - begin_; }
  // Of a row of the batch.
  int64_t pair(int64_t batch_row) const { return order_[size_t(begin_ + batch_row)]; }
  int64_t row(int64_t batch_row) const { return pair(batch_row) / used(); }
  // Per pair.
  float weight(int64_t pair) const { return weights_[size_t(pair)]; }
  // y[r] += sum over r's pairs in the batch, ascending, of (weights ? their weight : 1) * their row of z.
  void combine(float* y, int64_t ldy, const float* z, int64_t ldz, const float* weights);

  int64_t max_pairs() const { return max_pairs_; }
  int64_t used() const;
  // What the last product left, a row of the batch each.
  const float* wide() const { return wide_.data(); }
  int64_t ld_wide() const { return ld_wide_; }
  // Of a routed row: its logits, experts and weights.
  const float* logits(int64_t row) const { return logits_.data() + row * ld_logits_; }
  const int32_t* chosen(int64_t row) const { return chosen_.data() + row * used(); }
  const float* weights(int64_t row) const { return weights_.data() + row * used(); }
  ops::Routing routing() const;

 private:
  void sort();
  ops::MatmulJob job(const ops::PackedMatrix& w, int64_t outputs, const Piece& piece);

  Model& model_;
  int64_t max_pairs_, ld_elements_ = 0, ld_wide_ = 0, ld_logits_ = 0;
  int64_t rows_ = 0, begin_ = 0, end_ = 0;  // routed rows; the batch, in places of order_
  Buffer<float> logits_;                    // [rows][experts padded]
  Buffer<uint8_t> elements_;                // [pairs of a batch][ld_elements_]
  Buffer<float> wide_;                      // [pairs of a batch][ld_wide_]
  std::vector<int32_t> chosen_;             // per pair
  std::vector<float> weights_;              // per pair
  std::vector<int32_t> order_, places_;     // pairs sorted by expert, and where each pair is among them
  std::vector<int64_t> starts_, next_;      // where each expert's pairs begin
  std::vector<ops::MatmulJob> jobs_;
  std::vector<Piece> pieces_;
};

}  // namespace tandem::model
