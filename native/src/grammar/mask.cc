#include "grammar/mask.h"

#include <algorithm>

namespace tandem::grammar {
namespace {

constexpr int32_t kUnknown = -2;
// Steps of threads that one mask may take, and bytes that it may add to the caches: usual ones take some thousands of either.
constexpr size_t kMostSteps = 400'000;
constexpr size_t kMostAddedBytes = size_t(64) << 20;

void set_tokens(uint32_t* mask, const Trie& trie, uint32_t node) {
  auto [first, last] = trie.tokens_at(node);
  for (const int32_t* token = first; token != last; ++token) set_bit(mask, *token);
}

}  // namespace

GrammarMasks::GrammarMasks(GrammarRef grammar, std::shared_ptr<const SharedMasks> shared, size_t most_bytes)
    : grammar_(std::move(grammar)), shared_(std::move(shared)), most_bytes_(most_bytes) {}

void GrammarMasks::forget() {
  masks_.clear();
  lex_masks_.clear();
  known_.clear();
  known_ids_.clear();
  bytes_ = 0;
}

int32_t GrammarMasks::intern(State state) {
  uint64_t hash = state.hash();
  auto [first, last] = known_ids_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    if (known_[size_t(at->second)].state.same(state)) return at->second;
  }
  int32_t id = int32_t(known_.size());
  bytes_ += 200 + state.threads.size() * 120;
  known_.push_back({std::move(state), nullptr});
  known_ids_.emplace(hash, id);
  return id;
}

int32_t GrammarMasks::next(int32_t state, uint8_t byte) {
  if (!known_[size_t(state)].next) {
    known_[size_t(state)].next = std::make_unique<std::array<int32_t, 256>>();
    known_[size_t(state)].next->fill(kUnknown);
    bytes_ += 1024;
  }
  int32_t found = (*known_[size_t(state)].next)[byte];
  if (found != kUnknown) return found;
  State to;
  spend(known_[size_t(state)].state.threads.size());
  step(known_[size_t(state)].state, byte, to);
  found = to.alive() ? intern(std::move(to)) : kNone;
  (*known_[size_t(state)].next)[byte] = found;
  return found;
}

void GrammarMasks::spend(size_t threads) {
  spent_ += threads;
  if (spent_ <= kMostSteps && bytes_ <= most_bytes_ + kMostAddedBytes) return;
  forget();
  throw Error(ErrorKind::kRange, "the grammar is too ambiguous here");
}

const LexMask& GrammarMasks::lex_mask(const Thread& thread) {
  auto [entry, fresh] = lex_masks_[thread.lexer].try_emplace(thread.state);
  if (fresh) {
    entry->second = make_lex_mask(*thread.lexer, thread.state, *shared_);
    bytes_ += entry->second.bytes();
  }
  return entry->second;
}

// Sets the tokens below `root` whose bytes from there on keep the text possible.
void GrammarMasks::walk(const Trie& trie, uint32_t root, int32_t from, std::vector<uint32_t>& out) {
  const auto& nodes = trie.nodes();
  const uint16_t base = nodes[root].depth;
  path_.resize(std::max(path_.size(), size_t(trie.depth()) + 1));
  path_[0] = from;
  for (uint32_t i = root + 1; i < nodes[root].end;) {
    const Trie::Node& node = nodes[i];
    int32_t to = next(path_[size_t(node.depth - base) - 1], node.byte);
    if (to == kNone) {
      i = node.end;
      continue;
    }
    path_[size_t(node.depth - base)] = to;
    set_tokens(out.data(), trie, i);
    ++i;
  }
}

// The tokens that go on after the lexeme. The text of a name does not matter here but for repeated names, which check_names takes out.
void GrammarMasks::beyond(const Thread& thread, const LexMask& mask, int32_t label, std::vector<uint32_t>& out) {
  std::vector<std::pair<int32_t, int32_t>> known;
  auto after = [&](int32_t own) {
    int32_t wanted = label == kNone ? own : label;
    for (const auto& [found, state] : known) {
      if (found == wanted) return state;
    }
    known.emplace_back(wanted, intern(after_lexeme(thread.parent, wanted, {})));
    return known.back().second;
  };
  for (const auto& [own, rests] : mask.rests) walk(rests, 0, after(own), out);
  if (!mask.rests.empty()) return;
  const Trie& trie = vocabulary().trie();
  for (const LexMask::Exit& exit : mask.exits) {
    if (!trie.leaf(exit.node)) walk(trie, exit.node, after(exit.label), out);
  }
  for (const LexMask::Exit& span : mask.spans) walk_span(span.node, after(span.label), out);
}

// Walks on from every node below `top` at which the lexeme may end, where something that may follow comes below it at all.
void GrammarMasks::walk_span(uint32_t top, int32_t from, std::vector<uint32_t>& out) {
  if (known_[size_t(from)].state.threads.empty()) return;
  std::array<uint64_t, 4> follows{};
  for (size_t byte = 0; byte < 256; ++byte) follows[byte / 64] |= uint64_t(next(from, uint8_t(byte)) != kNone) << (byte % 64);
  const Trie& trie = vocabulary().trie();
  for (uint32_t i = top + 1; i < trie.nodes()[top].end;) {
    if (!shared_->any_below(i, follows)) {
      i = trie.nodes()[i].end;
      continue;
    }
    if (shared_->ends_in_span(top, i)) walk(trie, i, from, out);
    ++i;
  }
}

TokenSet GrammarMasks::thread_mask(const Thread& thread) {
  const LexMask& mask = lex_mask(thread);
  std::vector<uint32_t> bits(vocabulary().words(), 0);
  if (mask.base) {
    mask.base->inside.unite_into(bits.data());
    beyond(thread, *mask.base, mask.base_label, bits);
    for (int32_t token : mask.excluded) clear_bit(bits.data(), token);
  }
  mask.inside.unite_into(bits.data());
  beyond(thread, mask, kNone, bits);
  if (thread.parent->frame->reads_text(*thread.parent)) {
    if (mask.base) check_names(thread, *mask.base, bits);
    check_names(thread, mask, bits);
  }
  return TokenSet(bits);
}

// Takes out the tokens that would end a name met before, and decides one by one those that hold another whole name.
void GrammarMasks::check_names(const Thread& thread, const LexMask& mask, std::vector<uint32_t>& out) {
  if (thread.parent->frame->remembers(*thread.parent)) {
    for (const LexMask::Exit& exit : mask.exits) clear_repeated(thread, exit, out);
  }
  for (int32_t token : mask.with_strings) {
    State state{{thread}, false}, to;
    for (char byte : vocabulary().bytes(token)) {
      spend(state.threads.size());
      step(state, uint8_t(byte), to);
      std::swap(state, to);
    }
    clear_bit(out.data(), token);
    if (state.alive()) set_bit(out.data(), token);
  }
}

void GrammarMasks::clear_repeated(const Thread& thread, const LexMask::Exit& exit, std::vector<uint32_t>& out) {
  const Trie& trie = vocabulary().trie();
  const Trie::Node& node = trie.nodes()[exit.node];
  const std::string& bytes = vocabulary().bytes(trie.ids()[node.tokens]);
  LexState state = thread.state;
  std::string decoded;
  for (size_t i = 0; i < node.depth; ++i) {
    LexState next = thread.lexer->next(state, uint8_t(bytes[i]));
    if (next == kDead) return;
    thread.lexer->decode(state, uint8_t(bytes[i]), decoded);
    state = next;
  }
  int32_t label = thread.lexer->label(state);
  TextHash text = thread.text;
  text.add(decoded);
  if (label == kNone || thread.parent->frame->admits(*thread.parent, label, text)) return;
  for (uint32_t i = node.tokens; i < trie.nodes()[node.end].tokens; ++i) {
    int32_t token = trie.ids()[i];
    clear_bit(out.data(), token);
  }
}

void GrammarMasks::fill(const State& state, uint32_t* mask) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::fill(mask, mask + vocabulary().words(), 0u);
  if (bytes_ > most_bytes_) forget();
  spent_ = 0;
  for (const Thread& thread : state.threads) {
    auto entry = masks_.find(Key{thread});
    if (entry == masks_.end()) {
      entry = masks_.emplace(Key{thread}, thread_mask(thread)).first;
      bytes_ += entry->second.bytes() + 200;
    }
    entry->second.unite_into(mask);
  }
  if (!state.can_end) return;
  for (int32_t token : vocabulary().end_tokens()) set_bit(mask, token);
}

}  // namespace tandem::grammar
