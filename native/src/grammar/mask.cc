#include "grammar/mask.h"

#include <algorithm>
#include <optional>

namespace tandem::grammar {
namespace {

// Steps and bytes that the masks of one state's threads may take, all together.
constexpr size_t kMostStateSteps = 1'000'000;
constexpr size_t kMostStateBytes = size_t(64) << 20;

}  // namespace

GrammarMasks::GrammarMasks(GrammarRef grammar, std::shared_ptr<const SharedMasks> shared, size_t most_bytes)
    : grammar_(std::move(grammar)), shared_(std::move(shared)), most_bytes_(most_bytes) {}

// Masks of threads go first: states of lexers are few and met again, and to make their masks takes longest.
GrammarMasks::Forgotten GrammarMasks::make_room() {
  Forgotten forgotten;
  if (bytes_ <= most_bytes_) return forgotten;
  std::swap(forgotten.masks, masks_);
  if (lex_bytes_ > most_bytes_ / 2) {
    std::swap(forgotten.lex_masks, lex_masks_);
    lex_bytes_ = 0;
  }
  bytes_ = lex_bytes_;
  return forgotten;
}

std::shared_ptr<const LexMask> GrammarMasks::lex_mask(const Thread& thread, MaskWalk& walk) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& known = lex_masks_[thread.lexer];
    auto entry = known.find(thread.state);
    if (entry != known.end()) return entry->second;
  }
  // Made first: a lexer may throw, and no empty mask stays behind.
  auto made = std::make_shared<const LexMask>(walk.lex_mask(thread));
  Forgotten forgotten;
  std::lock_guard<std::mutex> lock(mutex_);
  forgotten = make_room();
  auto [entry, fresh] = lex_masks_[thread.lexer].emplace(thread.state, std::move(made));
  if (fresh) {
    lex_bytes_ += entry->second->bytes();
    bytes_ += entry->second->bytes();
  }
  return entry->second;
}

GrammarMasks::Made GrammarMasks::make(const Thread& thread, MaskWalk& walk) {
  const std::shared_ptr<const LexMask> lex = lex_mask(thread, walk);
  TokenSet tokens = walk.mask(thread, *lex);
  return std::make_shared<const ThreadMask>(ThreadMask{std::move(tokens), walk.steps()});
}

std::vector<GrammarMasks::Made> GrammarMasks::known(const State& state) {
  std::vector<Made> out;
  out.reserve(state.threads.size());
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Thread& thread : state.threads) {
    const auto entry = masks_.find(Key{thread});
    out.push_back(entry == masks_.end() ? nullptr : entry->second);
  }
  return out;
}

// Those that another thread has made meanwhile stay: they are the same.
void GrammarMasks::keep(const State& state, const std::vector<Made>& masks) {
  Forgotten forgotten;
  std::lock_guard<std::mutex> lock(mutex_);
  forgotten = make_room();
  for (size_t i = 0; i < masks.size(); ++i) {
    if (masks_.emplace(Key{state.threads[i]}, masks[i]).second) bytes_ += masks[i]->tokens.bytes() + 200;
  }
}

void GrammarMasks::fill(const State& state, uint32_t* mask) {
  std::fill(mask, mask + vocabulary().words(), 0u);
  std::vector<Made> masks = known(state);
  std::optional<MaskWalk> walk;  // where something is not known yet
  size_t bytes = 0, steps = 0;   // known masks count as if they were made now
  for (size_t i = 0; i < masks.size(); ++i) {
    if (!masks[i]) {
      if (!walk) walk.emplace(*shared_);
      masks[i] = make(state.threads[i], *walk);
    }
    bytes += masks[i]->tokens.bytes();
    steps += masks[i]->steps;
    if (steps > kMostStateSteps || bytes > kMostStateBytes) throw Error(ErrorKind::kRange, "the grammar is too ambiguous here");
    masks[i]->tokens.unite_into(mask);
  }
  if (walk) keep(state, masks);
  if (!state.can_end) return;
  for (int32_t token : vocabulary().end_tokens()) set_bit(mask, token);
}

}  // namespace tandem::grammar
