// JSON strings over an automaton of decoded text.
#include <algorithm>
#include <functional>
#include <set>

#include "grammar/lexer.h"
#include "grammar/regex.h"

namespace tandem::grammar {
namespace {

// Phases of a string. Digits of \u escapes: kHex + number of digits read; after a high surrogate: kLowSlash, kLowU, kLowHex + digits.
enum StringPhase : uint32_t { kOpen, kInside, kEscape, kHex, kLowSlash = kHex + 4, kLowU, kLowHex, kClosed = kLowHex + 4 };

int hex_value(uint8_t byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  uint8_t low = byte | 32;
  return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

int short_escape(uint8_t byte) {
  switch (byte) {
    case '"':
    case '\\':
    case '/': return byte;
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    default: return -1;
  }
}

constexpr uint8_t kShortLetters[] = {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'};

// Control characters that generate mode writes as \u00XX.
bool long_control(uint32_t code) { return code < 0x20 && code != 8 && code != 9 && code != 10 && code != 12 && code != 13; }

}  // namespace

const WrittenBytes& StringLexer::written() {
  static const WrittenBytes bytes = [] {
    WrittenBytes out;
    for (size_t byte = 0; byte < 256; ++byte) {
      const bool is_short = byte < 0x20 || byte == '"' || byte == '\\';
      out[byte] = long_control(uint32_t(byte)) ? 6 : is_short ? 2 : 1;
    }
    return out;
  }();
  return bytes;
}

StringLexer::StringLexer(DfaRef text, Mode mode, int64_t least, int64_t most)
    : text_(std::move(text)), mode_(mode), least_(least), most_(most) {
  static_assert(kInsidePhase == kInside && kClosed < (1u << kPhaseBits));
  if (std::max(least, most) > int64_t(kMostCount)) throw Error(ErrorKind::kRange, "minLength, maxLength: at most 262143 is supported");
  require(text_->size() < (size_t(1) << 20), ErrorKind::kRange, "the grammar needs too many states");
  labels_ = labels_of(*text_);
  if (most >= 0 && is_ascii(*text_)) needs_ = distances(*text_);
  // Where they may be too many, that shows now and not in the middle of a text.
  if (text_->size() > kMostDistances / std::max<size_t>(1, labels_.size())) labels_ahead(start());
}

void StringLexer::restrict_to(const std::vector<bool>& allowed) {
  allowed_ = allowed;
  std::erase_if(labels_, [&](int32_t label) { return !allowed[size_t(label)]; });
  // Backwards from the accepting states that remain.
  std::vector<std::vector<int32_t>> back(text_->size());
  std::vector<int32_t> queue;
  live_.assign(text_->size(), false);
  for (size_t state = 0; state < text_->size(); ++state) {
    for (int32_t symbol = 0; symbol < text_->classes; ++symbol) {
      int32_t target = text_->table[state * size_t(text_->classes) + size_t(symbol)];
      if (target != kNone) back[size_t(target)].push_back(int32_t(state));
    }
    if (text_->label[state] != kNone && allowed[size_t(text_->label[state])]) queue.push_back(int32_t(state)), live_[state] = true;
  }
  for (size_t i = 0; i < queue.size(); ++i) {
    for (int32_t from : back[size_t(queue[i])]) {
      if (!live_[size_t(from)]) live_[size_t(from)] = true, queue.push_back(from);
    }
  }
}

std::shared_ptr<const StringLexer> StringLexer::restricted(const std::vector<bool>& allowed) const {
  auto out = std::make_shared<StringLexer>(*this);
  out->restrict_to(allowed);
  out->total_ = std::make_shared<MadeOnce<std::vector<bool>>>();
  return out;
}

bool StringLexer::empty() const { return text_->empty() || !fits(text_->start, 0) || (most_ >= 0 && least_ > most_); }

StringLexer::Place StringLexer::unpack(LexState state) {
  Place place;
  place.count = uint32_t(state) & kMostCount;
  state >>= kCountBits;
  place.partial = uint32_t(state) & ((1u << kPartialBits) - 1);
  state >>= kPartialBits;
  place.phase = uint32_t(state) & ((1u << kPhaseBits) - 1);
  place.text = int32_t(state >> kPhaseBits);
  return place;
}

LexState StringLexer::pack(const Place& place) {
  LexState state = LexState(uint32_t(place.text));
  state = (state << kPhaseBits) | place.phase;
  state = (state << kPartialBits) | place.partial;
  return (state << kCountBits) | place.count;
}

uint32_t StringLexer::code_points(LexState state) {
  Place place = unpack(state);
  return place.count + (place.phase >= kEscape && place.phase < kClosed ? 1 : 0);
}

LexState StringLexer::start() const { return empty() ? kDead : pack({text_->start, kOpen, 0, 0}); }

bool StringLexer::step_byte(Place& place, uint8_t byte) const {
  if ((byte & 0xC0) != 0x80) {  // a new code point starts
    if (most_ >= 0 && int64_t(place.count) >= most_) return false;
    if (most_ >= 0 || int64_t(place.count) < least_) ++place.count;
  }
  place.text = text_->next(place.text, byte);
  return fits(place.text, place.count);
}

bool StringLexer::step_code(Place& place, uint32_t code) const {
  std::string spelling;
  append_utf8(code, spelling);
  for (char byte : spelling) {
    if (!step_byte(place, uint8_t(byte))) return false;
  }
  place.phase = kInside;
  place.partial = 0;
  return true;
}

bool StringLexer::text_possible(int32_t text, uint32_t count, uint32_t low, uint32_t high) const {
  // Splits the range where its UTF-8 spellings change length or a continuation byte wraps.
  if (low > high) return false;
  if (low < 0x80) {
    for (uint32_t code = low; code <= std::min(high, 0x7Fu); ++code) {
      if (fits(text_->next(text, uint8_t(code)), count + 1)) return true;
    }
    return text_possible(text, count, 0x80, high);
  }
  // Follows each lead byte's block; blocks are tried code by code only along live states.
  for (uint32_t code = low; code <= high;) {
    std::string spelling;
    append_utf8(code, spelling);
    int32_t state = text;
    size_t i = 0;
    for (; i < spelling.size(); ++i) {
      state = text_->next(state, uint8_t(spelling[i]));
      if (!live(state)) break;
    }
    if (i == spelling.size()) return true;
    // No code point with this dead prefix is possible: skip the block.
    uint32_t block = 1u << (6 * (spelling.size() - 1 - i));
    code = (code / block + 1) * block;
  }
  return false;
}

bool StringLexer::code_possible(const Place& place, uint32_t low, uint32_t high) const {
  if (most_ >= 0 && int64_t(place.count) >= most_) return false;
  if (low <= 0xD7FF && text_possible(place.text, place.count, low, std::min(high, 0xD7FFu))) return true;
  if (high >= 0xE000 && text_possible(place.text, place.count, std::max(low, 0xE000u), std::min(high, 0xFFFFu))) return true;
  uint32_t first = std::max(low, 0xD800u), last = std::min(high, 0xDBFFu);
  if (first > last) return false;
  return text_possible(place.text, place.count, 0x10000 + ((first - 0xD800) << 10), 0x10000 + ((last - 0xD800) << 10) + 0x3FF);
}

// Whether a \u escape with a code unit in the range can go on to some string.
bool StringLexer::escape_possible(const Place& place, uint32_t low, uint32_t high) const {
  if (mode_ == Mode::kAccept) return code_possible(place, low, high);
  for (uint32_t code = low; code <= std::min(high, 0x1Fu); ++code) {
    Place trial = place;
    if (long_control(code) && step_code(trial, code)) return true;
  }
  return false;
}

bool StringLexer::step_escape(Place& place, uint8_t byte) const {
  if (byte == 'u') {
    place.phase = kHex;
    place.partial = 0;
    return escape_possible(place, 0, 0xFFFF);
  }
  int code = short_escape(byte);
  if (code < 0 || (mode_ == Mode::kGenerate && code == '/')) return false;
  return step_code(place, uint32_t(code));
}

bool StringLexer::step_hex(Place& place, uint8_t byte) const {
  int value = hex_value(byte);
  if (value < 0 || (mode_ == Mode::kGenerate && byte >= 'A' && byte <= 'F')) return false;
  bool low_half = place.phase >= kLowHex;
  uint32_t digits = place.phase - (low_half ? kLowHex : kHex) + 1;
  uint32_t high = place.partial >> 12, unit = ((place.partial & 0xFFF) << 4) | uint32_t(value);
  uint32_t open = 4 * (4 - digits), first = unit << open, last = first | ((1u << open) - 1);
  if (low_half) {
    first = std::max(first, 0xDC00u), last = std::min(last, 0xDFFFu);
    if (first > last) return false;
    uint32_t base = 0x10000 + (high << 10);
    if (digits == 4) return step_code(place, base + (unit - 0xDC00));
    if (!text_possible(place.text, place.count, base + (first - 0xDC00), base + (last - 0xDC00))) return false;
  } else {
    if (!escape_possible(place, first, last)) return false;
    if (digits == 4 && (unit < 0xD800 || unit > 0xDBFF)) return step_code(place, unit);
    if (digits == 4) {
      place.phase = kLowSlash;
      place.partial = (unit - 0xD800) << 12;
      return true;
    }
  }
  ++place.phase;
  place.partial = (high << 12) | unit;
  return true;
}

int32_t StringLexer::text_state(LexState state) const {
  Place place = unpack(state);
  return place.phase == kInside ? place.text : kNone;
}

std::vector<std::pair<char, int32_t>> StringLexer::escapes(LexState state) const {
  std::vector<std::pair<char, int32_t>> out;
  Place place = unpack(state);
  uint32_t first = 0, last = 0x1F, digits = place.phase >= kHex && place.phase < kLowSlash ? place.phase - kHex : 0;
  if (place.phase < kEscape || place.phase >= kLowSlash) return out;
  if (digits > 0) first = (place.partial & 0xFFF) << 4 * (4 - digits), last = std::min(last, first | ((1u << 4 * (4 - digits)) - 1));
  auto add = [&](uint32_t code) {
    Place after = place;
    if (step_code(after, code)) out.emplace_back(char(code), after.text);
  };
  for (uint32_t code = first; code <= last; ++code) {
    if (long_control(code)) add(code);
  }
  for (uint8_t letter : kShortLetters) {
    if (place.phase == kEscape && letter != '/') add(uint32_t(short_escape(letter)));
  }
  return out;
}

ByteLoops StringLexer::loops(LexState state) const {
  ByteLoops out = loops_of(*text_, unpack(state).text);
  // Control characters, quotes and escapes are not text.
  for (uint8_t byte : {'"', '\\'}) out.ascii[byte / 64] &= ~(uint64_t(1) << (byte % 64));
  out.ascii[0] &= ~uint64_t(0xFFFFFFFF);
  return out;
}

int64_t StringLexer::room(LexState state) const {
  Place place = unpack(state);
  return most_ < 0 ? kNever : most_ - int64_t(place.count) - (needs_.empty() ? 0 : needs_[size_t(place.text)]);
}

bool StringLexer::full(LexState state) const { return most_ >= 0 && int64_t(unpack(state).count) >= most_; }

LexState StringLexer::next(LexState state, uint8_t byte) const {
  Place place = unpack(state);
  if (place.phase == kInside && byte >= 0x20 && byte != '"' && byte != '\\') return step_byte(place, byte) ? pack(place) : kDead;
  bool ok = false;
  if (place.phase == kInside) {
    if (byte == '"') {
      ok = label(pack({place.text, kClosed, 0, place.count})) != kNone;
      place.phase = kClosed;
    } else if (byte == '\\') {
      place.phase = kEscape;
      for (uint8_t letter : kShortLetters) {
        Place trial = place;
        ok = ok || step_escape(trial, letter);
      }
      ok = ok || escape_possible(place, 0, 0xFFFF);
    }
  } else if (place.phase == kOpen) {
    ok = byte == '"';
    place.phase = kInside;
  } else if (place.phase == kEscape) {
    ok = step_escape(place, byte);
  } else if (place.phase == kLowSlash || place.phase == kLowU) {
    ok = byte == (place.phase == kLowSlash ? '\\' : 'u');
    ++place.phase;
  } else if (place.phase != kClosed) {
    ok = step_hex(place, byte);
  }
  return ok ? pack(place) : kDead;
}

int32_t StringLexer::label(LexState state) const {
  Place place = unpack(state);
  if (place.phase != kClosed || int64_t(place.count) < least_) return kNone;
  int32_t label = text_->label[size_t(place.text)];
  return label != kNone && (allowed_.empty() || allowed_[size_t(label)]) ? label : kNone;
}

const LabelDistances& StringLexer::labels_ahead(LexState state) const {
  return distances_->get([&] { return label_distances(*text_, written()); })[size_t(unpack(state).text)];
}

int64_t StringLexer::distance(LexState state, int32_t label) const {
  Place place = unpack(state);
  if (place.phase == kClosed) return this->label(state) == label ? 0 : kNever;
  if (!allowed_.empty() && !allowed_[size_t(label)]) return kNever;
  int64_t text = place.phase >= kEscape ? escape_distance(place, state, label) : text_distance(place.text, place.count, label);
  return text >= kNever ? kNever : text + (place.phase == kOpen ? 2 : 1);
}

int64_t StringLexer::text_distance(int32_t text, int64_t count, int32_t label) const {
  const LabelDistances& ahead = labels_ahead(pack({text, kInside, 0, 0}));
  auto found = std::lower_bound(ahead.begin(), ahead.end(), std::pair(label, 0));
  if (found == ahead.end() || found->first != label) return kNever;
  return std::max({int64_t(found->second), least_ - count, int64_t(0)});
}

// Inside an escape its rest comes first.
int64_t StringLexer::escape_distance(const Place& place, LexState state, int32_t label) const {
  // What it may become is not listed, so this is an upper bound by one character.
  if (mode_ == Mode::kAccept) return std::min(kNever, 12 + text_distance(place.text, place.count, label));
  int64_t best = kNever;
  for (auto [character, text] : escapes(state)) {
    const int64_t rest = place.phase >= kHex ? int64_t(kHex) + 4 - place.phase : long_control(uint8_t(character)) ? 5 : 1;
    best = std::min(best, rest + text_distance(text, int64_t(place.count) + 1, label));
  }
  return best;
}

namespace {

constexpr int kMostPasses = 32;
constexpr int32_t kSeveral = -2;

// One byte of each class that the automaton or that of any text tells apart.
std::vector<uint8_t> told_apart(const Dfa& dfa) {
  std::vector<uint8_t> symbols;
  std::set<std::pair<int, int>> kinds;
  for (int byte = 0; byte < 256; ++byte) {
    if (kinds.emplace(dfa.byte_class[size_t(byte)], any_string()->byte_class[size_t(byte)]).second) symbols.push_back(uint8_t(byte));
  }
  return symbols;
}

// Per state the label of all its completions, kSeveral where they get different ones.
std::vector<int32_t> only_labels(const Dfa& dfa) {
  std::vector<std::vector<int32_t>> back(dfa.size());
  for (size_t cell = 0; cell < dfa.table.size(); ++cell) {
    if (dfa.table[cell] != kNone) back[size_t(dfa.table[cell])].push_back(int32_t(cell / size_t(dfa.classes)));
  }
  std::vector<int32_t> only = dfa.label, changed;
  for (size_t state = 0; state < dfa.size(); ++state) {
    if (only[state] != kNone) changed.push_back(int32_t(state));
  }
  while (!changed.empty()) {
    int32_t state = changed.back();
    changed.pop_back();
    for (int32_t from : back[size_t(state)]) {
      int32_t& label = only[size_t(from)];
      if (label == only[size_t(state)] || label == kSeveral) continue;
      label = label == kNone ? only[size_t(state)] : kSeveral;
      changed.push_back(from);
    }
  }
  return only;
}

// States of the automaton side by side with those of any text: all pairs in `assumed` (bit a of a state: state a of any text) are taken to agree
// and refuted by `holds(state, a, pairs)` until nothing changes. States stand in order of discovery, so a pass from the last to the first refutes
// whole chains. Nothing agrees where that is not enough.
template <typename Holds>
std::vector<uint32_t> refute(std::vector<uint32_t> assumed, const Holds& holds) {
  bool changed = true;
  for (int pass = 0; changed && pass < kMostPasses; ++pass) {
    changed = false;
    for (size_t state = assumed.size(); state-- > 0;) {
      for (uint32_t rest = assumed[state]; rest; rest &= rest - 1) {
        int a = __builtin_ctz(rest);
        if (!holds(int32_t(state), a, assumed)) assumed[state] &= ~(1u << a), changed = true;
      }
    }
  }
  if (changed) std::fill(assumed.begin(), assumed.end(), 0u);
  return assumed;
}

// For each state of `dfa` the label of all completions where its language is any text.
std::vector<int32_t> free_labels(const Dfa& dfa) {
  const Dfa& any = *any_string();
  const std::vector<uint8_t> symbols = told_apart(dfa);
  const std::vector<int32_t> only = only_labels(dfa);
  std::vector<uint32_t> alike(dfa.size(), (1u << any.size()) - 1);
  for (size_t state = 0; state < dfa.size(); ++state) {
    for (size_t a = 0; a < any.size(); ++a) {
      if (only[state] == kSeveral || (dfa.label[state] == kNone) != (any.label[a] == kNone)) alike[state] &= ~(1u << a);
    }
  }
  alike = refute(std::move(alike), [&](int32_t state, int a, const std::vector<uint32_t>& pairs) {
    return std::all_of(symbols.begin(), symbols.end(), [&](uint8_t byte) {
      int32_t mine = dfa.next(state, byte), other = any.next(a, byte);
      return mine == kNone || other == kNone ? mine == other : (pairs[size_t(mine)] >> other & 1) != 0;
    });
  });
  std::vector<int32_t> out(dfa.size(), kNone);
  for (size_t state = 0; state < dfa.size(); ++state) {
    if (alike[state] >> any.start & 1) out[state] = only[state];
  }
  return out;
}

// The states from which every text leads to live states only.
std::vector<bool> total_states(const Dfa& dfa, const std::function<bool(int32_t)>& live) {
  const Dfa& any = *any_string();
  const std::vector<uint8_t> symbols = told_apart(dfa);
  std::vector<uint32_t> total(dfa.size(), (1u << any.size()) - 1);  // bit a: takes what state a of `any` takes
  total = refute(std::move(total), [&](int32_t state, int a, const std::vector<uint32_t>& pairs) {
    return std::all_of(symbols.begin(), symbols.end(), [&](uint8_t byte) {
      int32_t mine = dfa.next(state, byte), other = any.next(a, byte);
      return other == kNone || (mine != kNone && live(mine) && (pairs[size_t(mine)] >> other & 1));
    });
  });
  std::vector<bool> out(dfa.size(), false);
  for (size_t state = 0; state < dfa.size(); ++state) out[state] = total[state] >> any.start & 1;
  return out;
}

}  // namespace

bool StringLexer::takes_any_text(LexState state) const {
  Place place = unpack(state);
  if (place.phase != kInside) return false;
  return total_->get([&] { return total_states(*text_, [&](int32_t text) { return live(text); }); })[size_t(place.text)];
}

StringLexer::FreeView StringLexer::free_view(LexState state) const {
  Place place = unpack(state);
  if (place.phase != kInside) return {};
  int32_t label = free_->get([&] { return free_labels(*text_); })[size_t(place.text)];
  if (label == kNone || (!allowed_.empty() && !allowed_[size_t(label)])) return {};
  return {true, label, std::max<int64_t>(0, least_ - int64_t(place.count)), most_ < 0 ? -1 : most_ - int64_t(place.count)};
}

const std::shared_ptr<const StringLexer>& any_text_lexer(Mode mode) {
  static const std::shared_ptr<const StringLexer> lexers[2] = {std::make_shared<StringLexer>(any_string(), Mode::kAccept),
                                                               std::make_shared<StringLexer>(any_string(), Mode::kGenerate)};
  return lexers[mode == Mode::kAccept ? 0 : 1];
}

void StringLexer::decode(LexState from, uint8_t byte, std::string& out) const {
  Place place = unpack(from);
  if (place.phase == kInside && byte != '"' && byte != '\\') {
    out += char(byte);
  } else if (place.phase == kEscape && byte != 'u') {
    out += char(short_escape(byte));
  } else if (place.phase == kHex + 3 || place.phase == kLowHex + 3) {
    uint32_t unit = ((place.partial & 0xFFF) << 4) | uint32_t(hex_value(byte));
    if (place.phase == kLowHex + 3) {
      append_utf8(0x10000 + ((place.partial >> 12) << 10) + (unit - 0xDC00), out);
    } else if (unit < 0xD800 || unit > 0xDBFF) {
      append_utf8(unit, out);
    }
  }
}

}  // namespace tandem::grammar
