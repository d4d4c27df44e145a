// What is known of a vocabulary before any grammar: which bytes come below each node of its trie, and the masks of strings of any text.
// Made once per vocabulary; immutable.
#pragma once
#include <array>

#include "grammar/lex_mask.h"

namespace tandem::grammar {

class SharedMasks {
 public:
  explicit SharedMasks(std::shared_ptr<const Vocabulary> vocabulary);
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  // Inside a string that may hold any text; null while the shared masks themselves are made.
  const LexMask* text(Mode mode) const { return ready_ ? &texts_[mode == Mode::kAccept ? 0 : 1] : nullptr; }
  // The tokens of text(mode) that add at most `most` code points; null where `most` is so large that the others are few.
  const TokenSet* no_longer_than(Mode mode, int64_t most) const {
    const std::vector<TokenSet>& sets = short_[mode == Mode::kAccept ? 0 : 1];
    return size_t(most) < sets.size() ? &sets[size_t(most)] : nullptr;
  }
  // The tokens of text(mode) that add more than `most` code points (most < 0: no bound) or close the string after fewer than `least`.
  // Cut off at `limit` tokens.
  std::vector<int32_t> miscounted(Mode mode, int64_t least, int64_t most, size_t limit) const;
  // Whether the bytes down to a node of the trie are whole characters within a string, and none of them an escape or the end.
  bool plain(uint32_t node) const { return traits_[node] & kPlain; }
  // The tokens that are plain text, the last character possibly unfinished.
  const TokenSet& plain_tokens() const { return plain_tokens_; }
  // The nodes on the way to the other tokens that may come within a string: those with a quote or an escape after plain text.
  struct Landmark {
    uint32_t node;
    uint32_t end;  // first landmark outside the node's subtree
  };
  const std::vector<Landmark>& landmarks() const { return landmarks_; }
  // The first landmark below the node or after it.
  size_t landmark_after(uint32_t node) const;
  // Whether all bytes below the node leave a state with these loops as it is.
  bool uniform(uint32_t node, const ByteLoops& loops) const {
    const auto& below = ascii_below_[node];
    if ((below[0] & ~loops.ascii[0]) | (below[1] & ~loops.ascii[1])) return false;
    return !(traits_[node] & kOthersBelow) || (loops.others && (traits_[node] & (kWhole | kBrokenBelow)) == kWhole);
  }
  // The tokens with two quotes or more.
  const std::vector<int32_t>& two_quotes() const { return two_quotes_; }
  // The tokens with a comma and more than white space behind it.
  const std::vector<int32_t>& behind_commas() const { return behind_commas_; }
  // Tokens below the node, itself included, that hold three quotes or more.
  void append_quoted(uint32_t node, std::vector<int32_t>& out) const;
  size_t bytes() const;

 private:
  // Of the path down to a node: kPlain, and kWhole: whole characters of any kind. Of the paths below it: kOthersBelow: bytes beyond
  // ASCII; kBrokenBelow: text that is not UTF-8.
  enum Trait : uint8_t { kPlain = 1, kWhole = 2, kOthersBelow = 4, kBrokenBelow = 8 };
  struct Measured {
    int32_t token;
    int32_t code_points;
  };
  void describe_nodes();
  void find_landmarks();
  void measure(Mode mode);
  void find_short(size_t index);

  std::shared_ptr<const Vocabulary> vocabulary_;
  bool ready_ = false;
  std::vector<std::array<uint64_t, 2>> ascii_below_;
  std::vector<uint8_t> traits_;
  std::vector<uint32_t> quoted_;  // indices into the trie's ids
  std::vector<int32_t> two_quotes_, behind_commas_;
  TokenSet plain_tokens_;
  std::vector<Landmark> landmarks_;
  LexMask texts_[2];
  std::vector<TokenSet> short_[2];                       // by code points
  std::vector<Measured> longest_first_[2], closing_[2];  // most code points first; those that close the string, fewest first
};

}  // namespace tandem::grammar
