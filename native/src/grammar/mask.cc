#include "grammar/mask.h"

#include <algorithm>
#include <optional>

namespace tandem::grammar {
namespace {

constexpr int32_t kUnknown = -2;
// Steps of threads that one mask may take, and bytes that it may add to the caches: usual ones take some thousands of either.
constexpr size_t kMostWalkSteps = 400'000;
constexpr size_t kMostAddedBytes = size_t(64) << 20;

void set_tokens(TokenBits& out, const Trie& trie, uint32_t node) {
  auto [first, last] = trie.tokens_at(node);
  for (const int32_t* token = first; token != last; ++token) out.set(*token);
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
  spend(step(known_[size_t(state)].state, byte, to));
  found = to.alive() ? intern(std::move(to)) : kNone;
  (*known_[size_t(state)].next)[byte] = found;
  return found;
}

void GrammarMasks::spend(size_t threads) {
  spent_ += threads;
  if (spent_ <= kMostWalkSteps && bytes_ <= most_bytes_ + kMostAddedBytes) return;
  forget();
  throw Error(ErrorKind::kRange, "the grammar is too ambiguous here");
}

const LexMask& GrammarMasks::lex_mask(const Thread& thread, TokenBits& bits) {
  auto& known = lex_masks_[thread.lexer];
  auto entry = known.find(thread.state);
  if (entry == known.end()) {
    // Made first: a lexer may throw, and no empty mask stays behind.
    LexMask made = make_lex_mask(*thread.lexer, thread.state, *shared_, bits);
    bytes_ += made.bytes();
    entry = known.emplace(thread.state, std::move(made)).first;
  }
  return entry->second;
}

// Sets the tokens below `root` whose bytes from there on keep the text possible.
void GrammarMasks::walk(const Trie& trie, uint32_t root, int32_t from, TokenBits& out) {
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
    set_tokens(out, trie, i);
    ++i;
  }
}

// The tokens that go on after the lexeme. The text of a name does not matter here but for repeated names, which check_names takes out.
void GrammarMasks::beyond(const Thread& thread, const LexMask& mask, int32_t label, TokenBits& out) {
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
}

TokenSet GrammarMasks::thread_mask(const Thread& thread, TokenBits& bits) {
  const LexMask& mask = lex_mask(thread, bits);
  bits.reset();
  if (mask.base) {
    bits.unite(mask.base->inside);
    beyond(thread, *mask.base, mask.base_label, bits);
    if (mask.within) bits.cut(*mask.within);
    for (int32_t token : mask.excluded) bits.clear(token);
  }
  bits.unite(mask.inside);
  beyond(thread, mask, kNone, bits);
  Reading reading = thread.parent->frame->reading(*thread.parent);
  if (reading == Reading::kHash) {
    if (mask.base) check_names(thread, *mask.base, bits);
    check_names(thread, mask, bits);
  } else if (reading == Reading::kText) {
    if (thread.parent->frame->remembers(*thread.parent)) clear_refused(thread, 0, bits);
    // Those with two quotes may hold a name and begin another.
    for (int32_t token : shared_->two_quotes()) judge(thread, token, bits);
  }
  return bits.take();
}

// Takes out the tokens that would end a name met before, and decides one by one those that hold another whole name.
void GrammarMasks::check_names(const Thread& thread, const LexMask& mask, TokenBits& out) {
  if (thread.parent->frame->remembers(*thread.parent)) {
    for (const LexMask::Exit& exit : mask.exits) clear_repeated(thread, exit, out);
  }
  for (int32_t token : mask.with_strings) judge(thread, token, out);
}

void GrammarMasks::judge(const Thread& thread, int32_t token, TokenBits& out) {
  State state{{thread}, false}, to;
  for (char byte : vocabulary().bytes(token)) {
    spend(step(state, uint8_t(byte), to));
    std::swap(state, to);
    if (!state.alive()) break;
  }
  out.clear(token);
  if (state.alive()) out.set(token);
}

// Takes out the tokens by which a name could only become one that was met before: follows the trie as far as names that were met begin.
void GrammarMasks::clear_refused(const Thread& thread, uint32_t node, TokenBits& out) {
  const auto& nodes = vocabulary().trie().nodes();
  for (uint32_t child = node + 1; child < nodes[node].end; child = nodes[child].end) {
    spend(1);
    if (thread.lexer->next(thread.state, nodes[child].byte) == kDead) continue;
    Thread moved = thread;
    if (move_thread(moved, nodes[child].byte) == Move::kRefused) clear_below(child, out);
    else if (moved.lexer->label(moved.state) == kNone && moved.parent->frame->begins_refused(moved)) clear_refused(moved, child, out);
  }
}

// The node's own tokens included.
void GrammarMasks::clear_below(uint32_t node, TokenBits& out) const {
  const Trie& trie = vocabulary().trie();
  for (uint32_t i = trie.nodes()[node].tokens; i < trie.nodes()[trie.nodes()[node].end].tokens; ++i) out.clear(trie.ids()[i]);
}

void GrammarMasks::clear_repeated(const Thread& thread, const LexMask::Exit& exit, TokenBits& out) {
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
  Thread ended{thread.lexer, state, thread.parent, thread.text};
  ended.text.add(decoded, Reading::kHash);
  if (label != kNone && !thread.parent->frame->admits(ended)) clear_below(exit.node, out);
}

void GrammarMasks::fill(const State& state, uint32_t* mask) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::fill(mask, mask + vocabulary().words(), 0u);
  if (bytes_ > most_bytes_) forget();
  spent_ = 0;
  std::optional<TokenBits> bits;  // made where something is not known yet
  for (const Thread& thread : state.threads) {
    auto entry = masks_.find(Key{thread});
    if (entry == masks_.end()) {
      if (!bits) bits.emplace(vocabulary().words());
      entry = masks_.emplace(Key{thread}, thread_mask(thread, *bits)).first;
      bytes_ += entry->second.bytes() + 200;
    }
    entry->second.unite_into(mask);
  }
  if (!state.can_end) return;
  for (int32_t token : vocabulary().end_tokens()) set_bit(mask, token);
}

}  // namespace tandem::grammar
