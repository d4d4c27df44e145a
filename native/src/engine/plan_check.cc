#include "engine/plan_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"

namespace tandem::engine {
namespace {

// `where`: what holds them, for the message.
void check_bias(const std::string& where, const std::vector<std::pair<int32_t, float>>& bias, int64_t vocab) {
  std::string ids = where + ".biasIds", values = where + ".biasValues must be in -100..100";
  for (const auto& [id, value] : bias) {
    in_range(ids.c_str(), id, 0, vocab - 1);
    require(std::fabs(value) <= 100, ErrorKind::kRange, values.c_str());
  }
}

void check_allowed(const std::string& where, const std::vector<int32_t>& allowed, int64_t vocab) {
  std::string ids = where + ".allowedIds", order = ids + " must ascend";
  for (int32_t id : allowed) in_range(ids.c_str(), id, 0, vocab - 1);
  require(std::is_sorted(allowed.begin(), allowed.end()), ErrorKind::kRange, order.c_str());
}

void check_sampling(const ops::SamplingParams& p, const Options& options, int64_t vocab) {
  bool shape = std::isfinite(p.temperature) && p.temperature >= 0 && p.top_p > 0 && p.top_p <= 1 && p.min_p >= 0 && p.min_p <= 1;
  require(shape, ErrorKind::kRange, "open.sampling: temperature, topP or minP is out of range");
  bool penalties = std::fabs(p.frequency_penalty) <= 2 && std::fabs(p.presence_penalty) <= 2 && std::isfinite(p.repetition_penalty) &&
                   p.repetition_penalty > 0;
  require(penalties, ErrorKind::kRange, "open.sampling: a penalty is out of range");
  check_bias("open.sampling", p.bias, vocab);
  check_allowed("open.sampling", p.allowed, vocab);
  for (const auto& word : p.bad_words) {
    require(!word.empty(), ErrorKind::kRange, "open.sampling.badWords must not hold an empty word");
    for (int32_t id : word) in_range("open.sampling.badWords", id, 0, vocab - 1);
  }
  in_range("open.sampling.topK", p.top_k, 0, std::numeric_limits<int32_t>::max());
  in_range("open.sampling.choice", p.choice, 0, std::numeric_limits<int32_t>::max());
  in_range("open.sampling.logprobs", p.logprobs, -1, options.max_logprobs);
}

void check_open(const Open& open, const Options& options, const std::shared_ptr<model::Model>& model) {
  const int64_t vocab = model->spec.vocab_size;
  const SequenceParams& p = open.params;
  in_range("open.promptLength", open.prompt_length, 1, options.max_model_len);
  check_sampling(p.sampling, options, vocab);
  in_range("open.sampling.maxTokens", p.max_tokens, 1, options.max_model_len);
  in_range("open.sampling.minTokens", p.min_tokens, 0, p.max_tokens);
  in_range("open.sampling.stopIds.length", int64_t(p.stop_ids.size()), 0, 1024);
  for (int32_t id : p.stop_ids) in_range("open.sampling.stopIds", id, 0, vocab - 1);
  in_range("open.sampling.barredIds.length", int64_t(p.barred_ids.size()), 0, 1024);
  for (int32_t id : p.barred_ids) in_range("open.sampling.barredIds", id, 0, vocab - 1);
  in_range("open.promptLogprobs", open.prompt_logprobs, -1, options.max_logprobs);
  require(open.prompt_logprobs < 0 || open.cached.empty(), ErrorKind::kRange, "open.promptLogprobs needs an empty cached");
  in_range("open.cached.length", int64_t(open.cached.size()), 0, options.max_model_len - 1);
  // Whole pages only: what follows is written, and a shared page must not be.
  require(open.cached.size() % simd::kPage == 0, ErrorKind::kRange, "open.cached must fill whole pages");
  for (int32_t id : open.cached) in_range("open.cached", id, 0, vocab - 1);
  require(!open.adapter || open.adapter->fits(model), ErrorKind::kRange, "open.adapter is not of this model");
  bool fits = !open.constraint || int64_t(open.constraint->vocabulary_size()) >= options.samplable_vocab;
  require(fits, ErrorKind::kRange, "open.constraint: its vocabulary is smaller than samplableVocab");
}

// A slot as the plan leaves it before its rows run.
struct Planned {
  bool open = false;
  bool opened = false;  // by the plan
  bool has_row = false;
  bool sampled = false;      // the next token may be the one that it sampled last
  bool last_hidden = false;  // the next token may be scored
  int64_t position = 0, prompt_length = 0;
  int64_t pages = 0;
};

class PlanCheck {
 public:
  PlanCheck(const Plan& plan, const std::vector<Slot>& slots, const Options& options, const std::shared_ptr<model::Model>& model)
      : plan_(plan), slots_(slots), options_(options), model_(model), planned_(slots.size()) {
    for (size_t i = 0; i < slots.size(); ++i) {
      const Slot& slot = slots[i];
      Planned& planned = planned_[i];
      planned.open = slot.open;
      planned.sampled = slot.last_token >= 0 || slot.awaited > 0 || (plan.ahead && slot.ended);
      planned.last_hidden = !slot.last_hidden.empty();
      planned.position = slot.position;
      planned.prompt_length = slot.prompt_length;
      planned.pages = int64_t(slot.pages.size());
    }
  }

  // In the order in which the engine will do it: what is checked later builds on what was checked before.
  void run() {
    for (int32_t slot : plan_.closes) close(slot);
    for (const Open& open : plan_.opens) this->open(open);
    for (const PageAssignment& page : plan_.pages) assign(page);
    check_rows();
    check_written_pages();
    check_controls();
  }

 private:
  Planned& at(const char* what, int64_t slot) {
    in_range(what, slot, 0, options_.max_sequences - 1);
    return planned_[size_t(slot)];
  }

  void close(int64_t slot) {
    Planned& planned = at("closes: slot", slot);
    require(planned.open, ErrorKind::kRange, "closes: slot is not open");
    planned = {};
  }

  void open(const Open& open) {
    Planned& planned = at("opens: slot", open.slot);
    require(!planned.open, ErrorKind::kRange, "opens: slot is in use");
    check_open(open, options_, model_);
    planned = {.open = true, .opened = true, .position = int64_t(open.cached.size()), .prompt_length = open.prompt_length};
  }

  // Assignments extend a slot's table in order.
  void assign(const PageAssignment& page) {
    const int64_t most_pages = (options_.max_model_len + simd::kPage - 1) / simd::kPage;
    Planned& planned = at("pages: slot", page.slot);
    require(planned.open, ErrorKind::kRange, "pages: slot is not open");
    in_range("pages: index", page.index, 0, most_pages - 1);
    require(page.index == planned.pages, ErrorKind::kRange, "pages: index must be the next of its slot");
    in_range("pages: page", page.page, 0, options_.pages - 1);
    ++planned.pages;
  }

  void check_rows() {
    size_t next = 0;
    for (const Row& row : plan_.rows) {
      Planned& planned = at("rows: slot", row.slot);
      require(planned.open && !planned.has_row, ErrorKind::kRange, "rows: slot is not open or has two rows");
      planned.has_row = true;
      check_row(row, planned, plan_.tokens.size() - next);
      check_tokens(&plan_.tokens[next], row.count, planned.sampled);
      next += size_t(row.count);
    }
    require(next == plan_.tokens.size(), ErrorKind::kRange, "tokens: more than the rows need");
    in_range("tokens.length", int64_t(next), 0, options_.max_batch_tokens);
  }

  void check_row(const Row& row, const Planned& slot, size_t tokens_left) const {
    in_range("rows: count", row.count, 1, options_.max_batch_tokens);
    in_range("rows: samples", row.samples, 0, row.count);
    require(row.first_position == slot.position, ErrorKind::kRange, "rows: position does not continue its slot");
    const int64_t end = row.first_position + row.count;
    require(end <= options_.max_model_len, ErrorKind::kRange, "rows: past maxModelLen");
    require(end <= slot.pages * simd::kPage, ErrorKind::kRange, "rows: a position has no page");
    require(size_t(row.count) <= tokens_left, ErrorKind::kRange, "tokens: fewer than the rows need");
    in_range("rows: scored", row.scored, 0, row.count - row.proposals());
    require(row.scored < row.count - row.proposals() || slot.last_hidden, ErrorKind::kRange,
            "rows: the position before a scored token was not fed");
    const bool outputs = row.samples <= 1 || end - row.samples >= slot.prompt_length - 1;
    require(outputs, ErrorKind::kRange, "rows: a proposed token lies in the prompt");
  }

  void check_tokens(const int32_t* tokens, int64_t count, bool sampled) const {
    for (int64_t i = 0; i < count; ++i) {
      const bool last = tokens[i] == -1 && i == 0 && sampled;
      require(last || (tokens[i] >= 0 && tokens[i] < model_->spec.vocab_size), ErrorKind::kRange, "tokens: id outside the vocabulary");
    }
  }

  // Prefixes may share pages to read; two rows that write one page would race.
  void check_written_pages() const {
    std::unordered_map<int64_t, int32_t> assigned;  // slot << 32 | page index -> page
    for (const PageAssignment& a : plan_.pages) assigned[a.slot << 32 | a.index] = int32_t(a.page);
    std::vector<int32_t> written;
    written.reserve(plan_.rows.size() + plan_.tokens.size() / simd::kPage + 1);
    for (const Row& row : plan_.rows) {
      const std::vector<int32_t>& held = slots_[size_t(row.slot)].pages;
      const int64_t held_count = planned_[size_t(row.slot)].opened ? 0 : int64_t(held.size());
      for (int64_t i = row.first_position / simd::kPage; i <= (row.first_position + row.count - 1) / simd::kPage; ++i) {
        written.push_back(i < held_count ? held[size_t(i)] : assigned.at(row.slot << 32 | i));
      }
    }
    std::sort(written.begin(), written.end());
    bool twice = std::adjacent_find(written.begin(), written.end()) != written.end();
    require(!twice, ErrorKind::kRange, "rows: two rows write the same page");
  }

  void check_controls() const {
    if (plan_.controls.empty()) return;
    std::unordered_set<int64_t> samples;
    for (const Row& row : plan_.rows) {
      if (row.samples == 1) samples.insert(row.slot);
    }
    for (const StepControl& control : plan_.controls) {
      // Erased: a second entry of the same slot finds nothing.
      require(samples.erase(control.slot) == 1, ErrorKind::kRange, "controls: slot has no row that samples once, or two entries");
      check_bias("controls", control.controls.bias, model_->spec.vocab_size);
      check_allowed("controls", control.controls.allowed, model_->spec.vocab_size);
    }
  }

  const Plan& plan_;
  const std::vector<Slot>& slots_;
  const Options& options_;
  const std::shared_ptr<model::Model>& model_;
  std::vector<Planned> planned_;
};

}  // namespace

void check_options(const Options& options, const model::Spec& spec) {
  in_range("maxSequences", options.max_sequences, 1, 4096);
  in_range("maxBatchTokens", options.max_batch_tokens, 1, 65536);
  in_range("pages", options.pages, 1, int64_t(1) << 30);
  in_range("maxModelLen", options.max_model_len, 1, spec.max_position);
  in_range("samplableVocab", options.samplable_vocab, 1, spec.vocab_size);
  in_range("maxLogprobs", options.max_logprobs, 0, spec.vocab_size);
}

void check_plan(const Plan& plan, const std::vector<Slot>& slots, const Options& options, const std::shared_ptr<model::Model>& model) {
  PlanCheck(plan, slots, options, model).run();
}

}  // namespace tandem::engine
