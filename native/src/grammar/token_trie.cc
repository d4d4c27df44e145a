#include "grammar/token_trie.h"

#include <algorithm>

#include "base/error.h"

namespace tandem::grammar {

Trie::Trie(std::vector<std::pair<std::string_view, int32_t>> words) {
  std::sort(words.begin(), words.end());
  nodes_.push_back({0, 0, 0, 0});
  std::vector<uint32_t> path = {0};
  std::string_view before;
  for (const auto& [word, id] : words) {
    size_t shared = 0;
    while (shared < before.size() && shared < word.size() && before[shared] == word[shared]) ++shared;
    while (path.size() > shared + 1) {
      nodes_[path.back()].end = uint32_t(nodes_.size());
      path.pop_back();
    }
    for (size_t i = shared; i < word.size(); ++i) {
      path.push_back(uint32_t(nodes_.size()));
      nodes_.push_back({0, uint32_t(ids_.size()), uint16_t(i + 1), uint8_t(word[i])});
    }
    depth_ = std::max(depth_, uint16_t(word.size()));
    longest_.resize(nodes_.size(), 0);
    for (size_t i = 0; i < path.size(); ++i) longest_[path[i]] = std::max(longest_[path[i]], uint16_t(word.size() - i));
    ids_.push_back(id);
    before = word;
  }
  for (uint32_t node : path) nodes_[node].end = uint32_t(nodes_.size());
  longest_.resize(nodes_.size() + 1, 0);
  nodes_.push_back({uint32_t(nodes_.size()) + 1, uint32_t(ids_.size()), 0, 0});
}

Vocabulary::Vocabulary(std::vector<std::string> tokens, std::vector<int32_t> end_tokens)
    : tokens_(std::move(tokens)), end_tokens_(std::move(end_tokens)) {
  require(!tokens_.empty() && tokens_.size() <= (size_t(1) << 20), ErrorKind::kRange, "a vocabulary has between 1 and 2^20 tokens");
  for (int32_t token : end_tokens_) {
    require(token >= 0 && size_t(token) < tokens_.size(), ErrorKind::kRange, "an end token is outside the vocabulary");
    tokens_[size_t(token)].clear();
  }
  std::vector<std::pair<std::string_view, int32_t>> words;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    require(tokens_[i].size() <= 4096, ErrorKind::kRange, "a token has more than 4096 bytes");
    if (!tokens_[i].empty()) words.emplace_back(tokens_[i], int32_t(i));
  }
  trie_ = Trie(std::move(words));
}

bool Vocabulary::ends(int32_t token) const { return std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end(); }

std::vector<int32_t> Vocabulary::spell(std::string_view text) const {
  std::vector<int32_t> out;
  std::vector<bool> stuck(text.size(), false);  // places from which no tokens lead to the end: each is found out once
  const auto& nodes = trie_.nodes();
  for (size_t at = 0; at < text.size();) {
    uint32_t node = 0;
    int32_t best = -1;
    for (size_t next = at; next < text.size();) {
      uint32_t child = node + 1;
      while (child < nodes[node].end && nodes[child].byte != uint8_t(text[next])) child = nodes[child].end;
      if (child >= nodes[node].end) break;
      node = child;
      ++next;
      auto [first, last] = trie_.tokens_at(node);
      if (first != last && (next == text.size() || !stuck[next])) best = *first;
    }
    if (best >= 0) {
      out.push_back(best);
      at += bytes(best).size();
      continue;
    }
    if (out.empty()) return {};
    stuck[at] = true;
    at -= bytes(out.back()).size();
    out.pop_back();
  }
  return out;
}

}  // namespace tandem::grammar
