#include "grammar/mask_walk.h"

namespace tandem::grammar {
namespace {

constexpr int32_t kUnknown = -2;
// Steps of threads that the mask of one may take, and bytes that the states beyond its lexeme may: usual ones take some thousands of either.
constexpr size_t kMostMaskSteps = 400'000;
constexpr size_t kMostMaskBytes = size_t(64) << 20;

// Stands for a text that is not known; no string has these bytes.
const Text kSomeText = [] {
  Text text;
  text.add("\xFD", Reading::kText);
  return text;
}();

void set_tokens(TokenBits& out, const Trie& trie, uint32_t node) {
  auto [first, last] = trie.tokens_at(node);
  for (const int32_t* token = first; token != last; ++token) out.set(*token);
}

}  // namespace

int32_t MaskWalk::intern(State state) {
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

int32_t MaskWalk::next(int32_t state, uint8_t byte) {
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

void MaskWalk::spend(size_t threads) {
  steps_ += threads;
  if (steps_ > kMostMaskSteps || bytes_ > kMostMaskBytes) throw Error(ErrorKind::kRange, "the grammar is too ambiguous here");
}

// Sets the tokens below `root` whose bytes from there on keep the text possible.
void MaskWalk::walk(const Trie& trie, uint32_t root, int32_t from) {
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
    set_tokens(bits_, trie, i);
    ++i;
  }
}

// The tokens that go on after the lexeme. The text of a name or an item does not matter here but for repeated ones, which are taken out later.
void MaskWalk::beyond(const Thread& thread, const LexMask& lex, int32_t label) {
  std::vector<std::pair<int32_t, int32_t>> known;
  auto after = [&](int32_t own) {
    int32_t wanted = label == kNone ? own : label;
    for (const auto& [found, state] : known) {
      if (found == wanted) return state;
    }
    known.emplace_back(wanted, intern(after_lexeme(thread.parent, wanted, kSomeText)));
    return known.back().second;
  };
  for (const auto& [own, rests] : lex.rests) walk(rests, 0, after(own));
  if (!lex.rests.empty()) return;
  const Trie& trie = vocabulary().trie();
  for (const LexMask::Exit& exit : lex.exits) {
    if (!trie.leaf(exit.node)) walk(trie, exit.node, after(exit.label));
  }
}

TokenSet MaskWalk::mask(const Thread& thread, const LexMask& lex) {
  known_.clear();
  known_ids_.clear();
  steps_ = bytes_ = 0;
  bits_.reset();
  if (lex.base) {
    bits_.unite(lex.base->inside);
    beyond(thread, *lex.base, lex.base_label);
    if (lex.within) bits_.cut(*lex.within);
    for (int32_t token : lex.excluded) bits_.clear(token);
  }
  bits_.unite(lex.inside);
  beyond(thread, lex, kNone);
  Reading reading = thread.parent->frame->reading(thread);
  if (reading == Reading::kHash) {
    if (lex.base) check_names(thread, *lex.base);
    check_names(thread, lex);
  } else if (reading == Reading::kText) {
    if (thread.parent->frame->remembers(*thread.parent)) clear_refused(thread, 0);
    // Those with two quotes may hold a name and begin another.
    for (int32_t token : shared_.two_quotes()) judge(thread, token);
  }
  if (thread.parent->frame->recalls(*thread.parent)) {
    // Where the text of the item matters to the next one, no more than too much was allowed: it counted for none that was met.
    for (int32_t token : shared_.behind_commas()) {
      if (bits_.has(token)) judge(thread, token);
    }
  }
  return bits_.take();
}

// Takes out the tokens that would end a name met before, and decides one by one those that hold another whole name.
void MaskWalk::check_names(const Thread& thread, const LexMask& lex) {
  if (thread.parent->frame->remembers(*thread.parent)) clear_repeated(thread, lex);
  for (int32_t token : lex.with_strings) judge(thread, token);
}

void MaskWalk::judge(const Thread& thread, int32_t token) {
  State state{{thread}, false}, to;
  for (char byte : vocabulary().bytes(token)) {
    spend(step(state, uint8_t(byte), to));
    std::swap(state, to);
    if (!state.alive()) break;
  }
  bits_.clear(token);
  if (state.alive()) bits_.set(token);
}

// Takes out the tokens by which a name or an item could only become one that was met before: follows the trie as far as those that were met
// begin.
void MaskWalk::clear_refused(const Thread& thread, uint32_t node) {
  const auto& nodes = vocabulary().trie().nodes();
  for (uint32_t child = node + 1; child < nodes[node].end; child = nodes[child].end) {
    spend(1);
    if (thread.lexer->next(thread.state, nodes[child].byte) == kDead) {
      if (!thread.parent->frame->ends(thread)) clear_below(child);
      continue;
    }
    Thread moved = thread;
    if (move_thread(moved, nodes[child].byte) == Move::kRefused) clear_below(child);
    else if (moved.parent->frame->begins_refused(moved)) clear_refused(moved, child);
  }
}

// The node's own tokens included.
void MaskWalk::clear_below(uint32_t node) {
  const Trie& trie = vocabulary().trie();
  for (uint32_t i = trie.nodes()[node].tokens; i < trie.nodes()[trie.nodes()[node].end].tokens; ++i) bits_.clear(trie.ids()[i]);
}

// Where the texts of the exits are known, the name may be of any text, so all that end it end it alike.
void MaskWalk::clear_repeated(const Thread& thread, const LexMask& lex) {
  const Frame& frame = *thread.parent->frame;
  const LexState closed = lex.texts.empty() ? kDead : thread.lexer->next(thread.state, '"');
  Thread ended = thread;
  for (size_t i = 0; i < lex.exits.size(); ++i) {
    ended.state = closed == kDead ? thread.state : closed;
    ended.text = thread.text;
    if (closed != kDead) ended.text.add(lex.texts[i], Reading::kHash);
    else if (!read_name(lex.exits[i].node, ended)) continue;
    if (!frame.admits(ended)) clear_below(lex.exits[i].node);
  }
}

// Carries a thread at the beginning of the token to a node of the trie; false where no name ends there.
bool MaskWalk::read_name(uint32_t node, Thread& thread) const {
  const Trie& trie = vocabulary().trie();
  std::string decoded;
  for (char byte : std::string_view(vocabulary().bytes(trie.ids()[trie.nodes()[node].tokens])).substr(0, trie.nodes()[node].depth)) {
    const LexState next = thread.lexer->next(thread.state, uint8_t(byte));
    if (next == kDead) return false;
    thread.lexer->decode(thread.state, uint8_t(byte), decoded);
    thread.state = next;
  }
  thread.text.add(decoded, Reading::kHash);
  return thread.lexer->label(thread.state) != kNone;
}

}  // namespace tandem::grammar
