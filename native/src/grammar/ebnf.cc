#include "grammar/ebnf.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "grammar/regex.h"

namespace tandem::grammar {
namespace {

struct Expression {
  enum Kind { kText, kRegex, kName, kSequence, kEither, kRepeat } kind = kSequence;
  std::string text;  // literal bytes, a regular expression, or a name
  std::vector<Expression> parts;
  int64_t least = 0, most = -1;
};

struct Definition {
  std::string name;
  Expression body;
};

constexpr int64_t kMostRepeats = 1000;

// Reads both notations: they differ in the definition sign, in comments, and in what a quoted text may hold.
class GrammarReader {
 public:
  GrammarReader(std::string_view text, Budget& budget) : text_(text), budget_(budget) { lark_ = looks_like_lark(); }
  bool lark() const { return lark_; }

  std::vector<Definition> definitions() {
    std::vector<Definition> out;
    for (space(true); at_ < text_.size(); space(true)) {
      if (lark_ && peek() == '%') {
        directive();
        continue;
      }
      Definition rule;
      rule.name = name();
      if (lark_ && peek() == '.') {
        ++at_;
        while (isdigit(uint8_t(peek()))) ++at_;
      }
      space(false);
      if (lark_ ? !take(":") : !(take("::=") || take("="))) fail(lark_ ? "expected \":\"" : "expected \"::=\"");
      rule.body = either(0, false);
      out.push_back(std::move(rule));
      require(out.size() <= 10'000, ErrorKind::kRange, "grammar: too many rules");
    }
    if (out.empty()) malformed("grammar: no rule is defined");
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    size_t line = 1 + size_t(std::count(text_.begin(), text_.begin() + int64_t(std::min(at_, text_.size())), '\n'));
    malformed("grammar: " + why + " in line " + std::to_string(line));
  }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  // By the sign behind the first name.
  bool looks_like_lark() const {
    size_t at = 0;
    while (at < text_.size() && (isspace(uint8_t(text_[at])) || text_[at] == '#' || text_.substr(at, 2) == "//")) {
      if (isspace(uint8_t(text_[at]))) ++at;
      else at = std::min(text_.find('\n', at), text_.size());
    }
    if (at < text_.size() && (text_[at] == '%' || text_[at] == '?' || text_[at] == '!')) return true;
    while (at < text_.size() && name_char(text_[at])) ++at;
    if (text_.substr(at, 1) == ".")
      for (++at; at < text_.size() && isdigit(uint8_t(text_[at]));) ++at;
    while (at < text_.size() && (text_[at] == ' ' || text_[at] == '\t')) ++at;
    return text_.substr(at, 1) == ":" && text_.substr(at, 3) != "::=";
  }
  void space(bool lines) {
    while (at_ < text_.size()) {
      char c = peek();
      bool comment = lark_ ? (c == '/' && peek(1) == '/') || (c == '#') : c == '#';
      if (comment) {
        while (at_ < text_.size() && peek() != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n')) {
        ++at_;
      } else {
        return;
      }
    }
  }
  static bool name_char(char c) { return isalnum(uint8_t(c)) || c == '_' || c == '-'; }
  std::string name() {
    if (lark_ && (peek() == '?' || peek() == '!')) ++at_;
    size_t begin = at_;
    while (name_char(peek()) && !(lark_ && peek() == '-')) ++at_;
    if (at_ == begin) fail("expected a rule name");
    return std::string(text_.substr(begin, at_ - begin));
  }
  void directive() {
    if (take("%ignore")) throw Refused("%ignore", "write white space into the rules");
    throw Refused(std::string(text_.substr(at_, std::min<size_t>(text_.find_first_of(" \n", at_) - at_, 20))),
                  "this directive is not supported");
  }

  // A definition ends where a new line begins with a name and a definition sign, or (inside) at a closing bracket.
  bool ends(bool inside) {
    size_t before = at_;
    space(true);
    if (at_ >= text_.size()) return true;
    char c = peek();
    if (c == ')' || c == ']') return true;
    if (inside) return false;
    size_t probe = at_;
    if (lark_ && (c == '%' || c == '?' || c == '!')) ++probe;
    if (lark_ && c == '%') return true;
    size_t begin = probe;
    while (probe < text_.size() && name_char(text_[probe])) ++probe;
    if (probe > begin) {
      size_t after = probe;
      if (lark_ && after < text_.size() && text_[after] == '.' && after + 1 < text_.size() && isdigit(uint8_t(text_[after + 1]))) {
        for (++after; after < text_.size() && isdigit(uint8_t(text_[after]));) ++after;
      }
      while (after < text_.size() && (text_[after] == ' ' || text_[after] == '\t')) ++after;
      bool sign = lark_ ? text_.substr(after, 1) == ":" : text_.substr(after, 3) == "::=" || text_.substr(after, 1) == "=";
      if (sign && text_.substr(before, at_ - before).find('\n') == std::string_view::npos) fail("a rule begins on a line of its own");
      if (sign) return at_ = before, true;
    }
    return false;
  }

  Expression either(int depth, bool inside) {
    if (depth > budget_.limits().nesting) throw Error(ErrorKind::kRange, "grammar: groups are nested too deeply");
    Expression out;
    out.kind = Expression::kEither;
    do {
      out.parts.push_back(sequence(depth, inside));
      space(true);
    } while (take("|"));
    if (out.parts.size() == 1) return Expression(std::move(out.parts[0]));
    return out;
  }
  Expression sequence(int depth, bool inside) {
    Expression out;
    while (!ends(inside)) {
      if (peek() == '|') break;
      if (lark_ && take("->")) {
        space(false);
        name();
        continue;
      }
      budget_.tick();
      Expression item = atom(depth);
      out.parts.push_back(repeated(std::move(item)));
    }
    return out;
  }
  Expression repeated(Expression item) {
    int64_t least = 1, most = 1;
    space(false);  // both notations let blanks stand before the sign
    if (take("*")) least = 0, most = -1;
    else if (take("+")) most = -1;
    else if (take("?")) least = 0;
    else if (peek() == '{') braces(least, most);
    else if (lark_ && peek() == '~') tilde(least, most);
    else return item;
    Expression out;
    out.kind = Expression::kRepeat;
    out.least = least, out.most = most;
    out.parts.push_back(std::move(item));
    return out;
  }
  int64_t number() {
    if (!isdigit(uint8_t(peek()))) fail("expected a number");
    int64_t value = 0;
    while (isdigit(uint8_t(peek()))) value = std::min<int64_t>(value * 10 + (text_[at_++] - '0'), kMostRepeats + 1);
    if (value > kMostRepeats) throw Error(ErrorKind::kRange, "grammar: a repetition count is too large");
    return value;
  }
  void braces(int64_t& least, int64_t& most) {
    take("{");
    space(true);
    least = peek() == ',' ? 0 : number();
    most = least;
    space(true);
    if (take(",")) {
      space(true);
      most = peek() == '}' ? -1 : number();
      space(true);
    }
    if (!take("}")) fail("expected \"}\"");
    if (most >= 0 && most < least) fail("numbers out of order in {}");
  }
  void tilde(int64_t& least, int64_t& most) {
    take("~");
    space(false);
    least = most = number();
    if (!take("..")) return;
    most = number();
    if (most < least) fail("numbers out of order after ~");
  }

  Expression atom(int depth) {
    Expression out;
    char c = peek();
    if (c == '"' || (c == '\'' && !lark_)) return quoted(c);
    if (c == '(') {
      ++at_;
      out = either(depth + 1, true);
      space(true);
      if (!take(")")) fail("missing )");
      return out;
    }
    if (c == '[' && lark_) {
      ++at_;
      out.kind = Expression::kRepeat;
      out.most = 1;
      out.parts.push_back(either(depth + 1, true));
      space(true);
      if (!take("]")) fail("missing ]");
      return out;
    }
    if (c == '[') return bracket();
    if (c == '/') return slashed();
    if (c == '.' && !lark_) {
      ++at_;
      out.kind = Expression::kRegex;
      out.text = "[^]";
      return out;
    }
    out.kind = Expression::kName;
    out.text = name();
    return out;
  }
  // The text between quotes with its escapes read.
  Expression quoted(char quote) {
    Expression out;
    out.kind = Expression::kText;
    ++at_;
    while (peek() != quote) {
      if (at_ >= text_.size() || peek() == '\n') fail("an unclosed quote");
      if (peek() != '\\') {
        out.text += text_[at_++];
        continue;
      }
      ++at_;
      escape(out.text);
    }
    ++at_;
    if (lark_ && peek() == 'i' && !name_char(peek(1))) throw Refused("case-insensitive text", "spell the variants");
    if (lark_ && take("..")) {
      if (peek() != quote) fail("a wrong range of characters");
      uint32_t low = only_character(out.text), high = only_character(quoted(quote).text);
      if (low > high) fail("a wrong range of characters");
      out.kind = Expression::kRegex;
      char spelled[32];
      std::snprintf(spelled, sizeof spelled, "[\\u{%x}-\\u{%x}]", low, high);
      out.text = spelled;
    }
    return out;
  }
  uint32_t only_character(const std::string& text) const {
    size_t end = 0;
    uint32_t code = text.empty() ? 0 : read_utf8(text, end);
    if (text.empty() || end != text.size()) fail("a wrong range of characters");
    return code;
  }
  void escape(std::string& out) {
    static constexpr std::string_view kLetters = "nrt\\\"'/[]-", kMeaning = "\n\r\t\\\"'/[]-";
    char c = peek();
    ++at_;
    if (size_t index = kLetters.find(c); c != '\0' && index != std::string_view::npos) {
      out += kMeaning[index];
      return;
    }
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) fail("an unknown escape");
    uint32_t code = 0;
    for (int i = 0; i < digits; ++i) {
      char h = peek(), low = char(h | 32);
      if (!isxdigit(uint8_t(h))) fail("a wrong escape");
      code = code * 16 + uint32_t(h <= '9' ? h - '0' : low - 'a' + 10);
      ++at_;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) fail("an escape that is no code point");
    append_utf8(code, out);
  }
  // A character class of GBNF is one of regular expressions.
  Expression bracket() {
    Expression out;
    out.kind = Expression::kRegex;
    size_t begin = at_++;
    while (peek() != ']') {
      if (at_ >= text_.size()) fail("missing ]");
      if (peek() == '\\') ++at_;
      ++at_;
    }
    ++at_;
    out.text = std::string(text_.substr(begin, at_ - begin));
    for (size_t i = 1; i < out.text.size(); ++i) {  // a bare bracket within is itself, and \U has eight digits
      if (out.text[i] == '[') out.text.insert(i++, "\\");
      else if (out.text[i] == '\\' && out.text.compare(++i, 3, "U00") == 0 && i + 9 < out.text.size())
        out.text.replace(i, 9, "u{" + out.text.substr(i + 3, 6) + "}");
    }
    return out;
  }
  Expression slashed() {
    Expression out;
    out.kind = Expression::kRegex;
    ++at_;
    bool in_class = false;
    while (peek() != '/' || in_class) {
      if (at_ >= text_.size() || peek() == '\n') fail("an unclosed regular expression");
      if (peek() == '[') in_class = true;
      if (peek() == ']') in_class = false;
      if (peek() == '\\') out.text += text_[at_++];
      out.text += text_[at_++];
    }
    ++at_;
    if (isalpha(uint8_t(peek()))) throw Refused("regular expression flags", "write the expression without them");
    return out;
  }

  std::string_view text_;
  Budget& budget_;
  bool lark_ = false;
  size_t at_ = 0;
};

// Turns definitions into rules of sequences; repetitions and groups become rules of their own.
class Builder {
 public:
  Builder(const std::vector<Definition>& definitions, const std::string& start, Budget& budget) : budget_(budget) {
    auto root = std::find_if(definitions.begin(), definitions.end(), [&](const Definition& d) { return d.name == start; });
    if (root == definitions.end()) malformed("grammar: the start rule \"" + start + "\" is missing");
    rules_.rules.emplace_back();
    rules_.names.push_back("(start)");
    for (const Definition& definition : definitions) {
      auto [entry, fresh] = index_.emplace(definition.name, int32_t(rules_.rules.size()));
      if (!fresh) malformed("grammar: rule \"" + definition.name + "\" is defined twice");
      rules_.rules.emplace_back();
      rules_.names.push_back(definition.name);
    }
    rules_.rules[0] = {{rule(index_.at(start))}};
    for (const Definition& definition : definitions) define(index_.at(definition.name), definition.body);
  }
  Rules take() { return std::move(rules_); }

 private:
  static Symbol rule(int32_t index) { return {Symbol::kRule, nullptr, index, nullptr}; }
  int32_t fresh_rule(const std::string& name) {
    require(rules_.rules.size() < 50'000, ErrorKind::kRange, "grammar: too many rules");
    budget_.tick();
    rules_.rules.emplace_back();
    rules_.names.push_back(name);
    return int32_t(rules_.rules.size()) - 1;
  }

  // A rule that starts with itself, A = A x | y, is the same as A = y x*.
  void define(int32_t index, const Expression& body) {
    std::vector<const Expression*> options;
    if (body.kind == Expression::kEither) {
      for (const Expression& part : body.parts) options.push_back(&part);
    } else {
      options.push_back(&body);
    }
    std::vector<Sequence> heads, tails;
    for (const Expression* option : options) {
      Sequence sequence = flat(*option, index);
      bool own = !sequence.empty() && sequence[0].kind == Symbol::kRule && sequence[0].rule == index;
      if (own) sequence.erase(sequence.begin());
      if (own && sequence.empty()) continue;  // A = A says nothing
      (own ? tails : heads).push_back(std::move(sequence));
    }
    if (!tails.empty()) {
      int32_t more = fresh_rule(rules_.names[size_t(index)]);
      for (Sequence& tail : tails) tail.push_back(rule(more));
      tails.push_back({});
      rules_.rules[size_t(more)] = std::move(tails);
      for (Sequence& head : heads) head.push_back(rule(more));
    }
    rules_.rules[size_t(index)] = std::move(heads);
  }

  Sequence flat(const Expression& expression, int32_t within) {
    Sequence out;
    if (expression.kind == Expression::kSequence) {
      for (const Expression& part : expression.parts) {
        for (Symbol& symbol : flat(part, within)) out.push_back(std::move(symbol));
      }
    } else {
      out.push_back(symbol_of(expression, within));
    }
    return out;
  }
  Symbol symbol_of(const Expression& e, int32_t within) {
    switch (e.kind) {
      case Expression::kText:
        return lexer("t" + e.text,
                     [&] { return e.text.empty() ? compile_regex("", Anchoring::kWhole, budget_) : words({e.text}, budget_); });
      case Expression::kRegex: return lexer("r" + e.text, [&] { return compile_regex(e.text, Anchoring::kWhole, budget_, false); });
      case Expression::kName: {
        auto found = index_.find(e.text);
        if (found == index_.end()) malformed("grammar: rule \"" + e.text.substr(0, 100) + "\" is not defined");
        return rule(found->second);
      }
      case Expression::kRepeat: return repeat(e, within);
      default: break;
    }
    int32_t group = fresh_rule(rules_.names[size_t(within)]);
    std::vector<Sequence> options;
    if (e.kind == Expression::kEither) {
      for (const Expression& part : e.parts) options.push_back(flat(part, within));
    } else {
      options.push_back(flat(e, within));
    }
    rules_.rules[size_t(group)] = std::move(options);
    return rule(group);
  }
  template <typename Make>
  Symbol lexer(const std::string& key, const Make& make) {
    LexerRef& known = lexers_[key];
    if (!known) known = std::make_shared<DfaLexer>(make());
    return {Symbol::kLexer, known, 0, nullptr};
  }
  // x{2,4} = x x (x (x)?)?; x* = a rule that is empty or x and itself.
  Symbol repeat(const Expression& e, int32_t within) {
    Sequence item = flat(e.parts[0], within);
    int64_t copies = std::max(e.least + 1, e.most);
    budget_.add_states(0, size_t(copies) * item.size() * sizeof(Symbol) / sizeof(int32_t));
    int32_t tail = -1;
    auto nested = [&](Sequence rest, bool loops) {
      int32_t index = fresh_rule(rules_.names[size_t(within)]);
      Sequence longer = item;
      for (Symbol& symbol : rest) longer.push_back(symbol);
      if (loops) longer.push_back(rule(index));
      rules_.rules[size_t(index)] = {{}, std::move(longer)};
      return index;
    };
    if (e.most < 0) tail = nested({}, true);
    else {
      for (int64_t i = e.least; i < e.most; ++i) tail = nested(tail < 0 ? Sequence{} : Sequence{rule(tail)}, false);
    }
    int32_t whole = fresh_rule(rules_.names[size_t(within)]);
    Sequence all;
    for (int64_t i = 0; i < e.least; ++i) all.insert(all.end(), item.begin(), item.end());
    if (tail >= 0) all.push_back(rule(tail));
    rules_.rules[size_t(whole)] = {std::move(all)};
    return rule(whole);
  }

  Budget& budget_;
  Rules rules_;
  std::map<std::string, int32_t> index_;
  std::map<std::string, LexerRef> lexers_;
};

}  // namespace

Rules read_ebnf(std::string_view source, Budget& budget) {
  if (source.size() > budget.limits().source_bytes) throw Error(ErrorKind::kRange, "grammar: too large");
  if (source.empty()) malformed("grammar: must not be empty");
  for (size_t at = 0; at < source.size();) read_utf8(source, at);
  GrammarReader reader(source, budget);
  std::vector<Definition> definitions = reader.definitions();
  return Builder(definitions, reader.lark() ? "start" : "root", budget).take();
}

GrammarRef compile_ebnf(std::string_view source, Budget& budget) {
  auto grammar = std::make_shared<Grammar>(read_ebnf(source, budget), budget);
  if (grammar->empty()) throw Refused("empty language", "no text satisfies the grammar");
  return grammar;
}

}  // namespace tandem::grammar
