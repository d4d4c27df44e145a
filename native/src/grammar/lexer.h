// Lexers: deterministic machines on bytes whose state fits one word, so that a step allocates nothing. A state that is not kDead can
// always be completed. What follows an accepted lexeme is decided by the frame on the stack (frame.h).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "grammar/dfa.h"
#include "grammar/made_once.h"

namespace tandem::grammar {

using LexState = uint64_t;
constexpr LexState kDead = ~LexState(0);
constexpr int64_t kNever = int64_t(1) << 40;  // a distance that no completion has

enum class Mode { kAccept, kGenerate };

class Lexer {
 public:
  virtual ~Lexer() = default;
  virtual LexState start() const = 0;
  virtual LexState next(LexState state, uint8_t byte) const = 0;
  // What was read, if the lexeme may end here; kNone where it may not.
  virtual int32_t label(LexState state) const = 0;
  // The labels that some completion can get.
  virtual const std::vector<int32_t>& labels() const;
  // Fewest bytes to an end with that label; kNever where there is none.
  virtual int64_t distance(LexState state, int32_t label) const = 0;
  // Appends the decoded text that this byte completes. Only string lexers decode.
  virtual void decode(LexState, uint8_t, std::string&) const {}
  // Whether half of what it may remember of the texts that it was asked for is taken: when all of it is, new ones throw.
  virtual bool worn() const { return false; }
};
using LexerRef = std::shared_ptr<const Lexer>;

// A language of raw bytes.
class DfaLexer final : public Lexer {
 public:
  explicit DfaLexer(DfaRef dfa);
  LexState start() const override { return LexState(int64_t(dfa_->start)); }
  LexState next(LexState state, uint8_t byte) const override { return LexState(int64_t(dfa_->next(int32_t(state), byte))); }
  int32_t label(LexState state) const override { return dfa_->label[size_t(state)]; }
  const std::vector<int32_t>& labels() const override { return labels_; }
  int64_t distance(LexState state, int32_t label) const override;
  ByteLoops loops(LexState state) const { return loops_of(*dfa_, int32_t(state)); }

 private:
  DfaRef dfa_;
  std::vector<int32_t> labels_;
  std::vector<std::vector<int32_t>> distance_;  // [label index][state]
};

// Fewest bytes from each state to one with that label.
std::vector<int32_t> distances_to(const Dfa& dfa, int32_t label);
std::vector<int32_t> labels_of(const Dfa& dfa);

// The labels that completions of a state can get, ascending, each with the fewest bytes to it, as they are written.
using LabelDistances = std::vector<std::pair<int32_t, int32_t>>;
// What each byte is written with: 1 to kMostWritten bytes.
using WrittenBytes = std::array<uint8_t, 256>;
constexpr int32_t kMostWritten = 6;
constexpr size_t kMostDistances = 4'000'000;
// Of all states. Throws Error(kRange) where they would be too many: every label may be possible from every state.
std::vector<LabelDistances> label_distances(const Dfa& dfa, const WrittenBytes& written);

// A JSON string whose decoded text is in a language, quotes included. Accept mode takes every escape, generate mode one spelling of
// each character. `least`/`most` count code points, beyond what the automaton says; they are only for automata with equal
// languages from every state at a character's start (any_string), `most` also for automata of ASCII text (`is_ascii`): what the shortest text
// from a state on needs is known there.
class StringLexer final : public Lexer {
 public:
  StringLexer(DfaRef text, Mode mode, int64_t least = 0, int64_t most = -1);
  // The same strings, but only those with one of these labels. Shares the automaton.
  std::shared_ptr<const StringLexer> restricted(const std::vector<bool>& allowed) const;
  // What the bytes of a text are written with.
  static const WrittenBytes& written();
  bool empty() const;
  // Of what it does not share with the lexer that it restricts.
  size_t bytes() const { return (live_.size() + allowed_.size() + text_->size()) / 8 + (labels_.size() + needs_.size()) * 4; }
  LexState start() const override;
  LexState next(LexState state, uint8_t byte) const override;
  int32_t label(LexState state) const override;
  const std::vector<int32_t>& labels() const override { return labels_; }
  // The labels ahead of a state, those among them too that this restriction leaves out: few where names are many.
  const LabelDistances& labels_ahead(LexState state) const;
  int64_t distance(LexState state, int32_t label) const override;
  void decode(LexState from, uint8_t byte, std::string& out) const override;
  Mode mode() const { return mode_; }
  // Whether the state stands between the characters of a string whose rest may be any text of `least` to `most` further code points
  // (most < 0: no bound); and the label that every such string gets.
  struct FreeView {
    bool free = false;
    int32_t label = kNone;
    int64_t least = 0, most = -1;
  };
  FreeView free_view(LexState state) const;
  // next() without a call for the bytes of plain text; walks over the vocabulary spend their time there.
  LexState next_inline(LexState state, uint8_t byte) const {
    if (!inside(state) || byte < 0x20 || byte == '"' || byte == '\\' || most_ >= 0 || least_ > 0) return next(state, byte);
    int32_t text = text_->next(int32_t(state >> kTextShift), byte);
    return live(text) ? LexState(text) << kTextShift | (state & ((LexState(1) << kTextShift) - 1)) : kDead;
  }
  // Between the quotes and outside escapes: no end.
  static bool inside(LexState state) { return (state >> kPhaseShift & ((1u << kPhaseBits) - 1)) == kInsidePhase; }
  const Dfa& text() const { return *text_; }
  // What the strings say, without quotes and escapes, but for `most`: of a lexer that is no restriction of another.
  DfaRef texts(Budget& budget) const { return with_lengths(text_, least_, -1, budget); }
  int64_t least() const { return least_; }
  int64_t most() const { return most_; }
  // The state of the text's automaton between the quotes and outside escapes; kNone elsewhere.
  int32_t text_state(LexState state) const;
  // The same wherever the state stands: after the last whole character.
  static int32_t text_before(LexState state) { return unpack(state).text; }
  // Generate mode: the characters that a started escape may become, with the automaton's state after them; none outside escapes.
  std::vector<std::pair<char, int32_t>> escapes(LexState state) const;
  // Bytes of text that lead from such a state to itself, lengths apart.
  ByteLoops loops(LexState state) const;
  // Whether every text may follow such a state, lengths apart, and still lead to some string.
  bool takes_any_text(LexState state) const;
  // Code points that may still be added without leaving the automaton's state.
  int64_t room(LexState state) const;
  // No code point may be added.
  bool full(LexState state) const;
  // Code points read so far, as far as they are counted; a started escape is one.
  static uint32_t code_points(LexState state);

 private:
  // A state's word: the automaton's state, the phase, the digits of an escape, the count.
  static constexpr uint32_t kCountBits = 18, kPartialBits = 22, kPhaseBits = 4, kInsidePhase = 1;
  static constexpr uint32_t kPhaseShift = kCountBits + kPartialBits, kTextShift = kPhaseShift + kPhaseBits;
  static constexpr uint32_t kMostCount = (1u << kCountBits) - 1;
  struct Place {   // a state taken apart
    int32_t text;  // state of the automaton
    uint32_t phase;
    uint32_t partial;  // hexadecimal digits so far; above them the high surrogate's ten bits
    uint32_t count;    // code points so far, saturated where more do not matter
  };
  static Place unpack(LexState state);
  static LexState pack(const Place& place);
  bool live(int32_t text) const { return text != kNone && (live_.empty() || live_[size_t(text)]); }
  // Whether some text goes on from the state behind so many code points.
  bool fits(int32_t text, uint32_t count) const { return live(text) && (needs_.empty() || int64_t(count) + needs_[size_t(text)] <= most_); }
  // The state after one more code point; false when no string goes on so.
  bool step_code(Place& place, uint32_t code) const;
  bool step_byte(Place& place, uint8_t byte) const;
  bool step_escape(Place& place, uint8_t byte) const;
  bool step_hex(Place& place, uint8_t byte) const;
  bool code_possible(const Place& place, uint32_t low, uint32_t high) const;
  // One of the code points from `low` to `high`, behind `count` others.
  bool text_possible(int32_t text, uint32_t count, uint32_t low, uint32_t high) const;
  bool escape_possible(const Place& place, uint32_t low, uint32_t high) const;
  void restrict_to(const std::vector<bool>& allowed);
  // The fewest bytes from a state of the automaton, behind `count` code points, to the end of its text.
  int64_t text_distance(int32_t text, int64_t count, int32_t label) const;
  int64_t escape_distance(const Place& place, LexState state, int32_t label) const;

  DfaRef text_;
  Mode mode_;
  int64_t least_, most_;
  // All made at first use. Shared by all restrictions of one lexer: per state of the automaton the labels ahead of it, and the label that all its
  // completions get where it takes any text, kNone elsewhere.
  std::shared_ptr<MadeOnce<std::vector<LabelDistances>>> distances_ = std::make_shared<MadeOnce<std::vector<LabelDistances>>>();
  std::shared_ptr<MadeOnce<std::vector<int32_t>>> free_ = std::make_shared<MadeOnce<std::vector<int32_t>>>();
  // For each restriction: per state of the automaton whether it takes any text.
  std::shared_ptr<MadeOnce<std::vector<bool>>> total_ = std::make_shared<MadeOnce<std::vector<bool>>>();
  std::vector<bool> live_;      // empty: every state
  std::vector<int32_t> needs_;  // per state the bytes, here code points, of the shortest text; empty: `most` cuts off none
  std::vector<int32_t> labels_;
  std::vector<bool> allowed_;
};

// The lexer of null, false or true, common to all grammars.
const LexerRef& keyword_lexer(const std::string& word);
// The lexer of strings with any text: one per mode, common to all grammars.
const std::shared_ptr<const StringLexer>& any_text_lexer(Mode mode);

}  // namespace tandem::grammar
