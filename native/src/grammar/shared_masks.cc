#include "grammar/shared_masks.h"

#include <algorithm>

namespace tandem::grammar {
namespace {

// So many tokens are faster left out one by one.
constexpr size_t kFewLonger = 256;

}  // namespace

SharedMasks::SharedMasks(std::shared_ptr<const Vocabulary> vocabulary) : vocabulary_(std::move(vocabulary)) {
  describe_nodes();
  find_landmarks();
  TokenBits bits(vocabulary_->words());
  for (Mode mode : {Mode::kAccept, Mode::kGenerate}) {
    const StringLexer& lexer = *any_text_lexer(mode);
    texts_[mode == Mode::kAccept ? 0 : 1] = make_shared_lex_mask(lexer, lexer.next(lexer.start(), '"'), *this, bits);
    measure(mode);
  }
  ready_ = true;
}

// Downwards what the bytes to a node are; upwards what comes below it.
void SharedMasks::describe_nodes() {
  const Trie& trie = vocabulary_->trie();
  const Dfa& text = *any_string();
  ascii_below_.assign(trie.size(), {0, 0});
  traits_.assign(trie.size(), 0);
  std::vector<int32_t> path(size_t(trie.depth()) + 1, kNone);
  std::vector<bool> escaped(size_t(trie.depth()) + 1, false);
  std::vector<uint32_t> parents(trie.size(), 0), open(size_t(trie.depth()) + 1, 0);
  path[0] = text.start;
  traits_[0] = kPlain | kWhole;
  for (uint32_t i = 1; i < trie.size(); ++i) {
    const Trie::Node& node = trie.nodes()[i];
    size_t above = size_t(node.depth) - 1;
    parents[i] = open[above];
    open[node.depth] = i;
    escaped[node.depth] = escaped[above] || node.byte < 0x20 || node.byte == '"' || node.byte == '\\';
    path[node.depth] = path[above] == kNone ? kNone : text.next(path[above], node.byte);
    bool broken = path[node.depth] == kNone, whole = !broken && text.label[size_t(path[node.depth])] != kNone;
    traits_[i] = uint8_t((whole ? kWhole : 0) | (whole && !escaped[node.depth] ? kPlain : 0) | (broken ? kBrokenBelow : 0));
    auto [first, last] = trie.tokens_at(i);
    for (const int32_t* token = first; token != last; ++token) {
      const std::string& bytes = vocabulary_->bytes(*token);
      auto quotes = std::count(bytes.begin(), bytes.end(), '"');
      if (quotes >= 2) two_quotes_.push_back(*token);
      if (quotes >= 3) quoted_.push_back(uint32_t(token - trie.ids().data()));
      const size_t comma = bytes.find(',');
      if (comma != std::string::npos && bytes.find_first_not_of(" \t\n\r", comma + 1) != std::string::npos)
        behind_commas_.push_back(*token);
    }
  }
  for (uint32_t i = uint32_t(trie.size()); i-- > 1;) {
    uint8_t byte = trie.nodes()[i].byte;
    auto& above = ascii_below_[parents[i]];
    for (size_t word = 0; word < 2; ++word) above[word] |= ascii_below_[i][word];
    if (byte < 0x80) above[byte / 64] |= uint64_t(1) << (byte % 64);
    traits_[parents[i]] |= uint8_t((traits_[i] & (kOthersBelow | kBrokenBelow)) | (byte >= 0x80 ? kOthersBelow : 0));
  }
}

// Quotes and escapes end plain text; whatever follows them belongs to the landmarks too.
void SharedMasks::find_landmarks() {
  const Trie& trie = vocabulary_->trie();
  const Dfa& text = *any_string();
  std::vector<uint32_t> text_tokens(vocabulary_->words(), 0), parents(trie.size(), 0), open(size_t(trie.depth()) + 1, 0);
  std::vector<int32_t> path(size_t(trie.depth()) + 1, kNone);
  std::vector<bool> marked(trie.size(), false), special(trie.size(), false);
  path[0] = text.start;
  for (uint32_t i = 1; i < trie.size(); ++i) {
    const Trie::Node& node = trie.nodes()[i];
    uint32_t above = parents[i] = open[size_t(node.depth) - 1];
    open[node.depth] = i;
    bool ends = plain(above) && (node.byte == '"' || node.byte == '\\');
    special[i] = special[above] || ends;
    path[node.depth] = special[i] || node.byte < 0x20 || path[size_t(node.depth) - 1] == kNone
                           ? kNone
                           : text.next(path[size_t(node.depth) - 1], node.byte);
    auto [first, last] = trie.tokens_at(i);
    if (special[i]) marked[i] = true;
    for (const int32_t* token = first; token != last && path[node.depth] != kNone; ++token) set_bit(text_tokens.data(), *token);
  }
  for (uint32_t i = uint32_t(trie.size()); i-- > 1;) {
    if (marked[i]) marked[parents[i]] = true;
  }
  std::vector<size_t> waiting;  // landmarks whose end is not known yet
  for (uint32_t i = 1; i <= trie.size(); ++i) {
    while (!waiting.empty() && trie.nodes()[landmarks_[waiting.back()].node].end <= i) {
      landmarks_[waiting.back()].end = uint32_t(landmarks_.size());
      waiting.pop_back();
    }
    if (i == trie.size() || !marked[i]) continue;
    waiting.push_back(landmarks_.size());
    landmarks_.push_back({i, 0});
  }
  plain_tokens_ = TokenSet(text_tokens);
}

size_t SharedMasks::landmark_after(uint32_t node) const {
  auto at = std::upper_bound(landmarks_.begin(), landmarks_.end(), node, [](uint32_t n, const Landmark& mark) { return n < mark.node; });
  return size_t(at - landmarks_.begin());
}

void SharedMasks::append_quoted(uint32_t node, std::vector<int32_t>& out) const {
  const Trie& trie = vocabulary_->trie();
  auto at = std::lower_bound(quoted_.begin(), quoted_.end(), trie.nodes()[node].tokens);
  for (; at != quoted_.end() && *at < trie.nodes()[trie.nodes()[node].end].tokens; ++at) out.push_back(trie.ids()[*at]);
}

// Walks the trie as make_lex_mask does, with a lexer that counts code points.
void SharedMasks::measure(Mode mode) {
  const size_t index = mode == Mode::kAccept ? 0 : 1;
  const StringLexer& lexer = *any_text_lexer(mode);
  const StringLexer counting(any_string(), mode, 200'000, -1);
  const Trie& trie = vocabulary_->trie();
  struct Step {
    LexState state, counted;
    bool closed;
  };
  std::vector<Step> path(size_t(trie.depth()) + 1);
  path[0] = {lexer.next(lexer.start(), '"'), counting.next(counting.start(), '"'), false};
  for (uint32_t i = 1; i < trie.size(); ++i) {
    const Trie::Node& node = trie.nodes()[i];
    Step step = path[size_t(node.depth) - 1];
    if (!step.closed) {
      step.state = lexer.next(step.state, node.byte);
      if (step.state == kDead) {
        i = node.end - 1;
        continue;
      }
      step.closed = lexer.label(step.state) != kNone;
      if (!step.closed) step.counted = counting.next(step.counted, node.byte);
    }
    path[node.depth] = step;
    auto [first, last] = trie.tokens_at(i);
    for (const int32_t* token = first; token != last; ++token) {
      Measured measured{*token, int32_t(counting.code_points(step.counted))};
      longest_first_[index].push_back(measured);
      if (step.closed) closing_[index].push_back(measured);
    }
  }
  auto more = [](const Measured& a, const Measured& b) { return a.code_points > b.code_points; };
  std::stable_sort(longest_first_[index].begin(), longest_first_[index].end(), more);
  std::stable_sort(closing_[index].rbegin(), closing_[index].rend(), more);
  find_short(index);
}

// One set of tokens for each length with many longer ones.
void SharedMasks::find_short(size_t index) {
  const std::vector<Measured>& all = longest_first_[index];
  std::vector<uint32_t> bits(vocabulary_->words(), 0);
  size_t added = 0;
  for (int32_t most = 0; all.size() - added > kFewLonger; ++most) {
    for (; added < all.size() && all[all.size() - 1 - added].code_points <= most; ++added)
      set_bit(bits.data(), all[all.size() - 1 - added].token);
    short_[index].emplace_back(bits);
  }
}

std::vector<int32_t> SharedMasks::miscounted(Mode mode, int64_t least, int64_t most, size_t limit) const {
  const size_t index = mode == Mode::kAccept ? 0 : 1;
  std::vector<int32_t> out;
  for (const Measured& one : longest_first_[index]) {
    if (most < 0 || one.code_points <= most || out.size() >= limit) break;
    out.push_back(one.token);
  }
  for (const Measured& one : closing_[index]) {
    if (one.code_points >= least || out.size() >= limit) break;
    out.push_back(one.token);
  }
  return out;
}

size_t SharedMasks::bytes() const {
  size_t total = ascii_below_.size() * 16 + traits_.size() + (quoted_.size() + two_quotes_.size() + behind_commas_.size()) * 4 +
                 landmarks_.size() * sizeof(Landmark) + plain_tokens_.bytes();
  for (size_t i = 0; i < 2; ++i)
    total += texts_[i].bytes() + short_[i].size() * vocabulary_->words() * 4 +
             (longest_first_[i].size() + closing_[i].size()) * sizeof(Measured);
  return total;
}

}  // namespace tandem::grammar
