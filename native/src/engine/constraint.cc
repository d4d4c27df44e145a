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
// Text that is looked for at once; what is forced beyond it comes with the next jump.
constexpr size_t kForcedBytes = 1024;
// Tokens of one jump: the matcher can take back no more than it keeps.
constexpr size_t kMostJumped = 200;
// Nodes of the trie that are tried for one token that goes on.
constexpr size_t kExtensionNodes = 4096;
// After so many refused tokens at one position the shortest ending is taken.
constexpr int kMostRefused = 4;

// Whether some token begins with `text`, goes on, and may come: `end` is the state after the text.
bool extends(const grammar::Trie& trie, std::string_view text, const grammar::State& end) {
  uint32_t node = 0;
  for (char byte : text) {
    uint32_t child = node + 1;
    while (child < trie.nodes()[node].end && trie.nodes()[child].byte != uint8_t(byte)) child = trie.nodes()[child].end;
    if (child >= trie.nodes()[node].end) return false;
    node = child;
  }
  std::vector<grammar::State> path = {end};
  size_t top = trie.nodes()[node].depth;
  for (uint32_t i = node + 1; i < trie.nodes()[node].end; ++i) {
    if (i - node > kExtensionNodes) return true;
    size_t depth = trie.nodes()[i].depth - top;
    path.resize(depth + 1);
    grammar::step(path[depth - 1], trie.nodes()[i].byte, path[depth]);
    if (!path[depth].alive()) {
      i = trie.nodes()[i].end - 1;
      continue;
    }
    auto [first, last] = trie.tokens_at(i);
    if (first != last) return true;
  }
  return false;
}

}  // namespace

std::shared_ptr<const Program> make_program(grammar::GrammarRef grammar, std::shared_ptr<const grammar::SharedMasks> shared,
                                            const grammar::Budget& budget) {
  auto program = std::make_shared<Program>();
  program->masks = std::make_shared<grammar::GrammarMasks>(std::move(grammar), std::move(shared), kMaskBytes);
  grammar::Matcher matcher(program->masks);
  std::string bytes;
  if (matcher.bytes_to_end() <= int64_t(kProgramBytes) && matcher.completion(bytes, kProgramBytes, &budget)) {
    program->shortest = matcher.vocabulary().spell(bytes);
  }
  return program;
}

Constraint::Constraint(std::shared_ptr<const Program> program, const std::vector<int32_t>& stop_ids, int64_t max_tokens, bool jumps)
    : program_(std::move(program)), matcher_(program_->masks), max_tokens_(max_tokens), jumps_(jumps) {
  const grammar::Vocabulary& vocabulary = matcher_.vocabulary();
  for (int32_t id : stop_ids) {
    if (size_t(id) < vocabulary.size() && vocabulary.bytes(id).empty()) ends_.push_back(id);
  }
  bool planned = !program_->shortest.empty() && int64_t(program_->shortest.size()) <= max_tokens;
  steers_ = matcher_.bytes_to_end() <= max_tokens || planned;
}

template <typename Body>
void Constraint::guarded(const Body& body) {
  std::lock_guard<std::mutex> lock(mutex_);
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

std::string Constraint::forced() {
  std::string text;
  guarded([&] { text = forced_text(); });
  return text;
}

bool Constraint::is_forced() {
  bool forced = false;
  guarded([&] { forced = !forced_text().empty(); });
  return forced;
}

const std::string& Constraint::forced_text() {
  if (!forced_known_) forced_ = matcher_.forced(kForcedBytes);
  forced_known_ = true;
  return forced_;
}

size_t Constraint::jump(const std::vector<int32_t>& tokens) {
  size_t taken = 0;
  guarded([&] { taken = leap(tokens); });
  return taken;
}

// How many of the tokens stand whatever follows the forced text. Where a longer token could come instead of one of them, the model chooses.
size_t Constraint::settled(const std::vector<int32_t>& tokens) {
  const grammar::Vocabulary& vocabulary = matcher_.vocabulary();
  const std::string& text = forced_text();
  grammar::State end = matcher_.state(), next;
  for (char byte : text) {
    grammar::step(end, uint8_t(byte), next);
    std::swap(end, next);
  }
  size_t at = 0, count = 0;
  for (int32_t token : tokens) {
    if (token < 0 || size_t(token) >= vocabulary.size()) return count;
    const std::string& bytes = vocabulary.bytes(token);
    std::string_view rest = std::string_view(text).substr(at);
    if (bytes.empty() || rest.substr(0, bytes.size()) != bytes) return count;
    if (rest.size() < vocabulary.trie().depth() && extends(vocabulary.trie(), rest, end)) return count;
    at += bytes.size();
    ++count;
  }
  return count;
}

size_t Constraint::leap(const std::vector<int32_t>& tokens) {
  if (!jumps_) return 0;
  size_t most = std::min({settled(tokens), size_t(std::max<int64_t>(0, max_tokens_ - 1 - taken_)), kMostJumped}), count = 0;
  std::vector<bool> on_plan;
  while (count < most) {
    on_plan.push_back(on_plan_);
    if (!advance(tokens[count])) break;
    ++count;
  }
  auto ends_badly = [&] { return matcher_.complete() || (steers_ && room(max_tokens_ - taken_) == Room::kNone); };
  while (count > 0 && ends_badly()) retreat(on_plan[--count]);
  return count;
}

void Constraint::retreat(bool on_plan) {
  matcher_.rollback(1);
  forced_known_ = false;
  --taken_;
  on_plan_ = on_plan;
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
  return verdict;
}

bool Constraint::advance(int32_t token) {
  if (!matcher_.advance(token)) return false;
  const std::string& bytes = matcher_.vocabulary().bytes(token);
  // The rest of a text that was cut goes on further than is known.
  forced_known_ = forced_known_ && !bytes.empty() && forced_.size() < kForcedBytes && forced_.compare(0, bytes.size(), bytes) == 0;
  if (forced_known_) forced_.erase(0, bytes.size());
  on_plan_ = on_plan_ && size_t(taken_) < program_->shortest.size() && program_->shortest[size_t(taken_)] == token;
  ++taken_;
  return true;
}

void Constraint::fill(int64_t index) {
  refused_ = 0;
  mask_.resize(matcher_.vocabulary().words());
  matcher_.fill_mask(mask_.data(), mask_.size());
  const auto worn = [](const grammar::Thread& thread) { return thread.lexer->worn(); };
  const std::vector<grammar::Thread>& threads = matcher_.state().threads;
  if (std::any_of(threads.begin(), threads.end(), worn)) program_->worn = true;
  // No ending but the rest of the grammar's shortest text is known to fit.
  if (steers_ && matcher_.bytes_to_end() > int64_t(kEndingBytes) && room(max_tokens_ - index) == Room::kAlongPlan) leave_only_ending();
  allow_ends();
}

void Constraint::allow_ends() {
  if (!matcher_.can_end()) return;
  for (int32_t id : ends_) mask_[size_t(id) / 32] |= 1u << (id % 32);
}

Constraint::Verdict Constraint::judge(int32_t token) {
  if (std::find(ends_.begin(), ends_.end(), token) != ends_.end()) return Verdict::kEnded;
  const bool was_on_plan = on_plan_;
  if (!advance(token)) return Verdict::kFailed;
  if (matcher_.complete()) return Verdict::kComplete;
  if (!steers_ || room(max_tokens_ - taken_) != Room::kNone) return Verdict::kGoesOn;
  retreat(was_on_plan);
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
  allow_ends();
}

}  // namespace tandem::engine
