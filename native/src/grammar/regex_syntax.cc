#include "grammar/regex_syntax.h"

#include <algorithm>

#include "grammar/regex.h"

namespace tandem::grammar {
namespace {

using Node = RegexNode;
using NodeRef = RegexNodeRef;

NodeRef make(Node::Kind kind) {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  return node;
}

constexpr int64_t kMostRepeats = 100'000;
const std::vector<CodeRange> kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};

class Parser {
 public:
  Parser(std::string_view text, bool look_around, Budget& budget) : text_(text), look_around_(look_around), budget_(budget) {
    for (size_t at = 0; at < text.size();) codes_.push_back(read_utf8(text, at));
    if (std::find(codes_.begin(), codes_.end(), 0u) != codes_.end()) malformed("pattern: NUL is not allowed in an expression");
  }
  NodeRef parse() {
    NodeRef out = either(0);
    if (!done()) fail("unmatched )");
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    malformed("pattern: " + why + " in \"" + std::string(text_.substr(0, 200)) + '"');
  }
  [[noreturn]] void refuse(const std::string& what) const { throw Refused("pattern", what + " cannot be decided by an automaton here"); }
  bool done() const { return at_ >= codes_.size(); }
  uint32_t peek(size_t ahead = 0) const { return at_ + ahead < codes_.size() ? codes_[at_ + ahead] : 0; }
  bool take(char wanted) {
    if (peek() != uint32_t(wanted)) return false;
    ++at_;
    return true;
  }
  bool take_text(std::string_view wanted) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (peek(i) != uint32_t(wanted[i])) return false;
    }
    at_ += wanted.size();
    return true;
  }

  NodeRef either(int depth) {
    if (depth > budget_.limits().nesting) throw Error(ErrorKind::kRange, "pattern: groups are nested too deeply");
    NodeRef out = make(Node::kEither);
    do out->parts.push_back(sequence(depth));
    while (take('|'));
    return out->parts.size() == 1 ? std::move(out->parts[0]) : std::move(out);
  }

  NodeRef sequence(int depth) {
    NodeRef out = make(Node::kSequence);
    while (!done() && peek() != '|' && peek() != ')') {
      budget_.tick();
      NodeRef item = atom(depth);
      out->parts.push_back(repeated(std::move(item)));
    }
    return out;
  }

  NodeRef repeated(NodeRef item) {
    int64_t least = 0, most = -1;
    if (!quantifier(least, most)) return item;
    if (item->asserts) fail("a quantifier after an anchor or look-around");
    take('?');  // lazy: the language is the same
    NodeRef out = make(Node::kRepeat);
    out->least = least, out->most = most;
    out->parts.push_back(std::move(item));
    int64_t again_least, again_most;
    size_t before = at_;
    if (peek() == '+' || quantifier(again_least, again_most)) {
      at_ = before;
      fail("a quantifier after a quantifier");
    }
    return out;
  }

  bool quantifier(int64_t& least, int64_t& most) {
    if (take('*')) return least = 0, most = -1, true;
    if (take('+')) return least = 1, most = -1, true;
    if (take('?')) return least = 0, most = 1, true;
    size_t before = at_;
    if (!take('{')) return false;
    if (take(',')) {
      // Some languages repeat up to n times here, others read the characters: neither is guessed.
      if (number() >= 0 && peek() == '}') fail("a repetition without a least count: write {0,n}");
      return at_ = before, false;
    }
    least = number();
    bool ok = least >= 0;
    most = least;
    if (ok && take(',')) most = peek() == '}' ? -1 : number();
    if (!ok || !take('}')) return at_ = before, false;
    if (most >= 0 && most < least) fail("numbers out of order in {}");
    if (std::max(least, most) > kMostRepeats) throw Error(ErrorKind::kRange, "pattern: a repetition count is too large");
    return true;
  }

  int64_t number() {
    if (peek() < '0' || peek() > '9') return -1;
    int64_t value = 0;
    while (peek() >= '0' && peek() <= '9') value = std::min<int64_t>(value * 10 + int64_t(codes_[at_++] - '0'), kMostRepeats + 1);
    return value;
  }

  NodeRef atom(int depth) {
    uint32_t code = codes_[at_++];
    switch (code) {
      case '(': return group(depth);
      case '[': return bracket();
      case '.': return of(negated({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
      case '^': return assertion(Node::kStart);
      case '$': return assertion(Node::kEnd);
      case '\\': return escape_atom();
      case '*':
      case '+':
      case '?': fail("nothing to repeat");
      default: break;
    }
    if (code == '{' || code == '}' || code == ']') {
      int64_t least, most;
      --at_;
      if (code == '{' && quantifier(least, most)) fail("nothing to repeat");
      ++at_;
    }
    return of({{code, code}});
  }

  static NodeRef of(std::vector<CodeRange> ranges) {
    NodeRef out = make(Node::kClass);
    out->ranges = normalised(std::move(ranges));
    return out;
  }

  // What other languages write behind "(?".
  const char* special_group() const {
    if (peek() == '>') return "an atomic group";
    if (peek() == '#') return "a comment";
    if (peek() == '(') return "a condition";
    if (peek() == 'P' && peek(1) == '=') return "a back-reference";
    return "a group with flags";
  }

  NodeRef group(int depth) {
    if (take('?')) {
      const bool behind = peek() == '<';
      if (const uint32_t sign = peek(behind ? 1 : 0); sign == '=' || sign == '!') {
        at_ += behind ? 2 : 1;
        return look(behind ? Node::kBehind : Node::kAhead, sign == '!', closed(depth));
      }
      if (take_text("P<") || take('<')) {
        while (!done() && peek() != '>') ++at_;
        if (!take('>')) fail("an unclosed group name");
      } else if (!take(':')) {
        refuse(special_group());
      }
    }
    return closed(depth);
  }

  // The rest of a group.
  NodeRef closed(int depth) {
    NodeRef out = either(depth + 1);
    if (!take(')')) fail("missing )");
    return out;
  }

  static NodeRef assertion(Node::Kind kind) {
    NodeRef out = make(kind);
    out->asserts = true;
    return out;
  }

  NodeRef look(Node::Kind kind, bool negative, NodeRef at) const {
    if (!look_around_) refuse("look-around in a part of a text");
    NodeRef out = assertion(kind);
    out->negative = negative;
    out->parts.push_back(std::move(at));
    return out;
  }

  // A word character on one side and none on the other, or the same on both.
  NodeRef word_boundary(bool negative) const {
    NodeRef out = assertion(Node::kEither);
    for (const bool outside : {false, true}) {
      NodeRef sides = make(Node::kSequence);
      sides->parts.push_back(look(Node::kBehind, outside, of(kWord)));
      sides->parts.push_back(look(Node::kAhead, outside == negative, of(kWord)));
      out->parts.push_back(std::move(sides));
    }
    return out;
  }

  NodeRef escape_atom() {
    uint32_t code = peek();
    if (code == 'b' || code == 'B') return ++at_, word_boundary(code == 'B');
    if (code >= '1' && code <= '9') refuse("a back-reference");
    if (code == 'k') refuse("a back-reference");
    if (code == 'A') return ++at_, assertion(Node::kStart);
    if (code == 'z' || code == 'Z') return ++at_, assertion(Node::kEnd);
    return of(escape());
  }

  // After the backslash: one code point or a class.
  std::vector<CodeRange> escape() {
    if (done()) fail("a lone backslash at the end");
    uint32_t code = codes_[at_++];
    static const std::vector<CodeRange> kDigit = {{'0', '9'}};
    static const std::vector<CodeRange> kSpace = {{9, 13},          {32, 32},         {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                                                  {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    auto one = [](uint32_t c) { return std::vector<CodeRange>{{c, c}}; };
    switch (code) {
      case 'd': return kDigit;
      case 'D': return negated(kDigit);
      case 'w': return kWord;
      case 'W': return negated(kWord);
      case 's': return kSpace;
      case 'S': return negated(kSpace);
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 't': return one('\t');
      case 'f': return one('\f');
      case 'v': return one('\v');
      case '0':
        if (peek() >= '0' && peek() <= '9') fail("an octal escape");
        return one(0);
      case 'x': return one(peek() == '{' ? braced_hex() : hex(2));
      case 'u': return one(unicode_escape());
      case 'c': return one(control());
      case 'p':
      case 'P': return property(code == 'P');
      default: break;
    }
    bool letter = (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z') || (code >= '0' && code <= '9');
    if (letter) fail(std::string("unknown escape \\") + char(code));
    return one(code);
  }

  uint32_t control() {
    uint32_t code = peek() | 32;
    if (code < 'a' || code > 'z') fail("a wrong \\c escape");
    ++at_;
    return code - 'a' + 1;
  }

  uint32_t hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      uint32_t code = peek(), low = code | 32;
      bool ok = (code >= '0' && code <= '9') || (low >= 'a' && low <= 'f');
      if (!ok) fail("a wrong hexadecimal escape");
      value = value * 16 + (code <= '9' ? code - '0' : low - 'a' + 10);
      ++at_;
    }
    return value;
  }

  uint32_t braced_hex() {
    take('{');
    size_t end = at_;
    while (end < codes_.size() && codes_[end] != '}') ++end;
    if (end == at_ || end - at_ > 6 || end == codes_.size()) fail("a wrong \\u{} escape");
    uint32_t value = hex(int(end - at_));
    take('}');
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) fail("an escape that is no code point");
    return value;
  }

  uint32_t unicode_escape() {
    if (peek() == '{') return braced_hex();
    uint32_t value = hex(4);
    if (value >= 0xD800 && value <= 0xDBFF && take_text("\\u")) {
      uint32_t low = hex(4);
      if (low < 0xDC00 || low > 0xDFFF) fail("half of a surrogate pair");
      return 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
    }
    if (value >= 0xD800 && value <= 0xDFFF) fail("half of a surrogate pair");
    return value;
  }

  std::vector<CodeRange> property(bool negative) {
    std::string name;
    if (take('{')) {
      while (!done() && peek() != '}') append_utf8(codes_[at_++], name);
      if (!take('}')) fail("an unclosed \\p{}");
    } else if (!done()) {
      append_utf8(codes_[at_++], name);
    }
    std::vector<CodeRange> out = unicode_property(name);
    if (out.empty()) throw Refused("pattern", "the Unicode property " + name.substr(0, 40) + " is not known");
    return negative ? negated(out) : normalised(out);
  }

  NodeRef bracket() {
    bool negative = take('^');
    std::vector<CodeRange> ranges;
    bool first = true;
    while (first || peek() != ']') {
      if (done()) fail("missing ]");
      if (first && peek() == ']') break;  // the empty class of ECMA-262
      first = false;
      std::vector<CodeRange> low = class_atom();
      bool range = peek() == '-' && peek(1) != ']' && at_ + 1 < codes_.size();
      if (!range) {
        ranges.insert(ranges.end(), low.begin(), low.end());
        continue;
      }
      ++at_;
      std::vector<CodeRange> high = class_atom();
      bool single = low.size() == 1 && high.size() == 1 && low[0].low == low[0].high && high[0].low == high[0].high;
      if (!single || low[0].low > high[0].low) fail("a wrong range in []");
      ranges.push_back({low[0].low, high[0].low});
    }
    if (!take(']')) fail("missing ]");
    NodeRef out = make(Node::kClass);
    out->ranges = negative ? negated(ranges) : normalised(std::move(ranges));
    return out;
  }

  std::vector<CodeRange> class_atom() {
    if (done()) fail("missing ]");
    if (peek() == '[' && (peek(1) == ':' || peek(1) == '.' || peek(1) == '=')) refuse("a POSIX class");
    uint32_t code = codes_[at_++];
    if (code != '\\') return {{code, code}};
    if (peek() == 'b') return ++at_, std::vector<CodeRange>{{8, 8}};
    if (peek() >= '1' && peek() <= '9') fail("a back-reference in []");
    return escape();
  }

  std::string_view text_;
  const bool look_around_;
  Budget& budget_;
  std::vector<uint32_t> codes_;
  size_t at_ = 0;
};

}  // namespace

RegexNodeRef parse_regex(std::string_view pattern, bool look_around, Budget& budget) {
  return Parser(pattern, look_around, budget).parse();
}

}  // namespace tandem::grammar
