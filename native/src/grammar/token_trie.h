// The tokens of a tokenizer as a trie of bytes in preorder: a walk goes from node to node and skips a whole subtree where a byte is refused.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::grammar {

class Trie {
 public:
  struct Node {
    uint32_t end;     // first node after the subtree
    uint32_t tokens;  // index into ids() of the first token at or below this node
    uint16_t depth;
    uint8_t byte;
  };
  Trie() = default;
  // Words with their ids; equal words share a node, empty ones belong to the root.
  explicit Trie(std::vector<std::pair<std::string_view, int32_t>> words);

  const std::vector<Node>& nodes() const { return nodes_; }  // node 0 is the root; a last one marks the end
  const std::vector<int32_t>& ids() const { return ids_; }
  size_t size() const { return nodes_.empty() ? 0 : nodes_.size() - 1; }
  uint16_t depth() const { return depth_; }
  bool leaf(uint32_t node) const { return nodes_[node].end == node + 1; }
  // Bytes from a node to the end of the longest word below it.
  uint16_t longest(uint32_t node) const { return longest_[node]; }
  // The tokens that end exactly here.
  std::pair<const int32_t*, const int32_t*> tokens_at(uint32_t node) const {
    return {ids_.data() + nodes_[node].tokens, ids_.data() + nodes_[node + 1].tokens};
  }

 private:
  std::vector<Node> nodes_;
  std::vector<int32_t> ids_;
  std::vector<uint16_t> longest_;
  uint16_t depth_ = 0;
};

// The byte strings of all tokens and the trie over them. Tokens without bytes (special ones) are never allowed, except the end tokens
// where a text may end.
class Vocabulary {
 public:
  // At most 2^20 tokens of at most 4096 bytes. End tokens are no text, whatever their bytes say.
  Vocabulary(std::vector<std::string> tokens, std::vector<int32_t> end_tokens);
  size_t size() const { return tokens_.size(); }
  size_t words() const { return (tokens_.size() + 31) / 32; }
  const std::string& bytes(int32_t token) const { return tokens_[size_t(token)]; }
  bool ends(int32_t token) const;
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }
  const Trie& trie() const { return trie_; }
  // Tokens that spell the text, at each place the longest after which the rest can be spelled; empty where none do.
  std::vector<int32_t> spell(std::string_view text) const;

 private:
  std::vector<std::string> tokens_;
  std::vector<int32_t> end_tokens_;
  Trie trie_;
};

}  // namespace tandem::grammar
