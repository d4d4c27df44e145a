#include "engine/constraint.h"

#include <algorithm>

#include "base/error.h"

namespace tandem::engine {
namespace {

// Bytes of a shortest text that are looked for once per grammar, and of an ending that is looked for at a token.
constexpr size_t kProgramBytes = 16384;
constexpr size_t kEndingBytes = 512;
// Masks that one grammar keeps.
constexpr size_t kMaskBytes = size_t(8) << 20;
// After so many refused tokens at one position the shortest ending is taken.
constexpr int kMostRefused = 4;

}  // namespace

std::shared_ptr<const Program> make_program(grammar::GrammarRef grammar, std::shared_ptr<const grammar::SharedMasks> shared) {
  auto program = std::make_shared<Program>();
  program->masks = std::make_shared<grammar::GrammarMasks>(std::move(grammar), std::move(shared), kMaskBytes);
  grammar::Matcher matcher(program->masks);
  std::string bytes;
  if (matcher.bytes_to_end() <= int64_t(kProgramBytes) && matcher.completion(bytes, kProgramBytes)) {
    program->shortest = matcher.vocabulary().spell(bytes);
  }
  return program;
}

Constraint::Constraint(std::shared_ptr<const Program> program, const std::vector<int32_t>& stop_ids, int64_t max_tokens)
    : program_(std::move(program)), matcher_(program_->masks), max_tokens_(max_tokens) {
  const grammar::Vocabulary& vocabulary = matcher_.vocabulary();
  mask_.resize(vocabulary.words());
  for (int32_t id : stop_ids) {
    if (size_t(id) < vocabulary.size() && vocabulary.bytes(id).empty()) ends_.push_back(id);
  }
  bool planned = !program_->shortest.empty() && int64_t(program_->shortest.size()) <= max_tokens;
  steers_ = matcher_.bytes_to_end() <= max_tokens || planned;
}

template <typename Body>
void Constraint::guarded(const Body& body) {
  if (failed_) return;
  try {
    body();
  } catch (const std::exception&) {
    failed_ = true;
  }
}

void Constraint::take(int64_t index, int32_t token) {
  guarded([&] {
    if (index >= taken_) failed_ = index != taken_ || !advance(token);
  });
}

void Constraint::prepare(int64_t index) {
  guarded([&] { fill(index); });
}

Constraint::Verdict Constraint::accept(int64_t index, int32_t token) {
  Verdict verdict = Verdict::kFailed;
  guarded([&] {
    failed_ = index != taken_;
    if (!failed_) verdict = judge(token);
  });
  return failed_ ? Verdict::kFailed : verdict;
}

bool Constraint::advance(int32_t token) {
  if (!matcher_.advance(token)) return false;
  on_plan_ = on_plan_ && size_t(taken_) < program_->shortest.size() && program_->shortest[size_t(taken_)] == token;
  ++taken_;
  return true;
}

void Constraint::fill(int64_t index) {
  refused_ = 0;
  matcher_.fill_mask(mask_.data(), mask_.size());
  // No ending but the rest of the grammar's shortest text is known to fit.
  if (steers_ && matcher_.bytes_to_end() > int64_t(kEndingBytes) && room(max_tokens_ - index) == Room::kAlongPlan) leave_only_ending();
  if (!matcher_.can_end()) return;
  for (int32_t id : ends_) mask_[size_t(id) / 32] |= 1u << (id % 32);
}

Constraint::Verdict Constraint::judge(int32_t token) {
  if (std::find(ends_.begin(), ends_.end(), token) != ends_.end()) return Verdict::kEnded;
  const bool was_on_plan = on_plan_;
  if (!advance(token)) return Verdict::kFailed;
  if (matcher_.complete()) return Verdict::kComplete;
  if (!steers_ || room(max_tokens_ - taken_) != Room::kNone) return Verdict::kGoesOn;
  matcher_.rollback(1);
  --taken_;
  on_plan_ = was_on_plan;
  mask_[size_t(token) / 32] &= ~(1u << (token % 32));
  if (++refused_ == kMostRefused) leave_only_ending();
  return Verdict::kTooLong;
}

// A byte is a token at most, so that the number of tokens matters only where the bytes are too many.
Constraint::Room Constraint::room(int64_t tokens) const {
  int64_t distance = matcher_.bytes_to_end();
  if (distance <= tokens) return Room::kEnough;
  if (distance <= int64_t(kEndingBytes)) {
    std::string bytes;
    if (!matcher_.completion(bytes, kEndingBytes)) return Room::kNone;
    std::vector<int32_t> ending = matcher_.vocabulary().spell(bytes);
    return !ending.empty() && int64_t(ending.size()) <= tokens ? Room::kEnough : Room::kNone;
  }
  bool fits = on_plan_ && int64_t(program_->shortest.size()) - taken_ <= tokens;
  return fits && taken_ < int64_t(program_->shortest.size()) ? Room::kAlongPlan : Room::kNone;
}

// Each token along a shortest way makes the rest shorter by its bytes, so that what fitted before it fits after it.
void Constraint::leave_only_ending() {
  int32_t token = -1;
  if (on_plan_ && size_t(taken_) < program_->shortest.size()) {
    token = program_->shortest[size_t(taken_)];
  } else {
    std::string bytes;
    matcher_.completion(bytes, kEndingBytes);
    std::vector<int32_t> ending = matcher_.vocabulary().spell(bytes);
    if (!ending.empty()) token = ending[0];
  }
  std::fill(mask_.begin(), mask_.end(), 0u);
  if (token >= 0) mask_[size_t(token) / 32] |= 1u << (token % 32);
}

}  // namespace tandem::engine
