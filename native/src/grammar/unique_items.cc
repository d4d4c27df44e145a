#include "grammar/unique_items.h"

#include <algorithm>
#include <cstring>

#include "grammar/number_lexer.h"
#include "grammar/regex.h"

namespace tandem::grammar {
namespace {

// So many whole numbers are listed as words; more are counted.
constexpr uint64_t kMostListedNumbers = 512;
constexpr const char* kKeywords[] = {"null", "false", "true"};

// Whether more values begin with the text than were met of them: `count` in all, of which holds() says what is one.
template <typename Holds>
bool more_than_met(uint64_t count, const UsedValues& used, std::string_view start, const Holds& holds) {
  if (count > used.beginning(start)) return true;
  return count > used.beginning_in(start, holds, size_t(count));
}

int64_t code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (uint8_t(byte) & 0xC0) != 0x80; });
}

class StringItems final : public ItemValues {
 public:
  StringItems(std::shared_ptr<const StringLexer> lexer, int64_t least)
      : strings_(std::move(lexer)), lexer_(strings_), least_(least), counted_(strings_->most() >= 0),
        space_(strings_->text(), 0, std::vector<bool>(size_t(strings_->labels().empty() ? 1 : strings_->labels().back() + 1), true)) {}
  const LexerRef& lexer() const override { return lexer_; }
  bool bounded() const { return counted_ || space_.bounded(); }
  void read_hashes() { reading_ = Reading::kHash; }
  Reading reading() const override { return reading_; }
  uint64_t count() const override { return from(strings_->text().start, 0); }

  bool fresh(const Thread& thread, const UsedValues& used) const override {
    const LexState state = thread.state;
    if (reading_ == Reading::kHash) return true;
    const int64_t points = StringLexer::code_points(state);
    auto left = [&](int32_t at, const std::string& text) {
      return more_than_met(from(at, points), used, text, [&](const std::string& value) { return holds(value); });
    };
    const int32_t at = state == strings_->start() ? strings_->text().start : strings_->text_state(state);
    if (at != kNone) return left(at, thread.text.whole);
    // In accept mode the digits of an escape are not looked through.
    if (strings_->mode() == Mode::kAccept) return true;
    const std::vector<std::pair<char, int32_t>> escapes = strings_->escapes(state);
    return std::any_of(escapes.begin(), escapes.end(),
                       [&](const auto& escape) { return left(escape.second, thread.text.whole + escape.first); });
  }

  int64_t distance(const Thread& thread, const UsedValues* used) const override {
    int64_t shortest = kNever;
    for (int32_t label : strings_->labels()) shortest = std::min(shortest, strings_->distance(thread.state, label));
    if (!used || shortest == 0 || shortest >= kNever) return shortest;
    const int32_t at = StringLexer::text_before(thread.state);
    const uint64_t met = reading_ == Reading::kHash ? used->size() : used->beginning(thread.text.whole);
    if (met == 0) return shortest;
    const int64_t nearest = space_.reach(at, 0);
    // One that is whole is nearer its end than any that goes on.
    if (nearest == 0 && !used->has(reading_ == Reading::kHash ? hashed(thread.text) : thread.text.whole)) return shortest;
    return shortest + space_.reach(at, met) - nearest;
  }

  std::vector<uint64_t> lengths(uint64_t enough) const override {
    // Of so many characters there is more than enough.
    if (least_ > 3) {
      std::vector<uint64_t> out(size_t(least_) + 2, 0);
      out.push_back(kMany);
      return out;
    }
    const int32_t start = strings_->text().start;
    const uint64_t shorter = least_ == 0 ? 0 : space_.within(start, kMany)[size_t(least_) - 1];
    std::vector<uint64_t> out = {0, 0};
    for (uint64_t texts : space_.within(start, enough + shorter)) out.push_back(texts - std::min(texts, shorter));
    return out;
  }
  void list(std::vector<std::pair<std::string, int64_t>>& out, Budget&) const override {
    std::vector<std::string> words;
    if (counted_) words.push_back("");
    else list_words(strings_->text(), strings_->text().start, "", words, size_t(kMany));
    for (std::string& word : words) {
      int64_t bytes = 2;
      for (char byte : word) bytes += StringLexer::written()[uint8_t(byte)];
      out.emplace_back(std::move(word), bytes);
    }
  }
  // The hash behind a byte that no other value begins with, as much of it as fits a short string.
  static std::string hashed(const Text& text) {
    char out[15] = {'\xFE'};
    std::memcpy(out + 1, &text.a, sizeof text.a);
    std::memcpy(out + 9, &text.b, sizeof out - 9);
    return {out, sizeof out};
  }

 private:
  bool holds(const std::string& value) const {
    if (!value.empty() && uint8_t(value[0]) >= 0xFE) return false;
    const int64_t points = code_points(value);
    return points >= least_ && (!counted_ || points <= strings_->most()) && strings_->text().match(value) != kNone;
  }
  // Texts that go on from a state of the automaton behind so many code points, of which the last may be unfinished.
  uint64_t from(int32_t at, int64_t points) const {
    if (!counted_) return space_.from(at);
    return points < strings_->most() ? kMany : character_ends(at);
  }
  // Ways to finish the character at hand.
  uint64_t character_ends(int32_t at) const {
    if (strings_->text().label[size_t(at)] != kNone) return 1;
    uint64_t ways = 0;
    for (int byte = 0x80; byte < 0xC0; ++byte) {
      const int32_t next = strings_->text().next(at, uint8_t(byte));
      if (next != kNone) ways += character_ends(next);
    }
    return ways;
  }

  std::shared_ptr<const StringLexer> strings_;
  LexerRef lexer_;
  int64_t least_;
  bool counted_;  // any text of so many code points
  NameSpace space_;
  Reading reading_ = Reading::kText;
};

// What is no string, read as it is written behind a byte that no string holds.
class RawLexer final : public Lexer {
 public:
  explicit RawLexer(LexerRef inner) : inner_(std::move(inner)) {}
  LexState start() const override { return inner_->start(); }
  LexState next(LexState state, uint8_t byte) const override { return inner_->next(state, byte); }
  int32_t label(LexState state) const override { return inner_->label(state); }
  const std::vector<int32_t>& labels() const override { return inner_->labels(); }
  int64_t distance(LexState state, int32_t label) const override { return inner_->distance(state, label); }
  void decode(LexState from, uint8_t byte, std::string& out) const override {
    if (from == inner_->start()) out += '\xFF';
    out += char(byte);
  }

 private:
  LexerRef inner_;
};

// A few words: constants, null, false, true.
class WordItems final : public ItemValues {
 public:
  WordItems(const std::vector<std::string>& list, Budget& budget) : words_(alike(list, budget)), space_(*words_, 0, {true}) {
    lexer_ = std::make_shared<RawLexer>(std::make_shared<DfaLexer>(words_));
  }
  const LexerRef& lexer() const override { return lexer_; }
  uint64_t count() const override { return space_.all(); }
  bool fresh(const Thread& thread, const UsedValues& used) const override {
    return more_than_met(space_.from(int32_t(thread.state)), used, thread.text.whole, [&](const std::string& value) {
      return !value.empty() && value[0] == '\xFF' && words_->match(std::string_view(value).substr(1)) != kNone;
    });
  }
  int64_t distance(const Thread& thread, const UsedValues* used) const override {
    const int32_t at = int32_t(thread.state);
    const int64_t shortest = lexer_->distance(thread.state, 0);
    if (!used || (shortest == 0 && !used->has(thread.text.whole))) return shortest;
    return std::max(shortest, space_.reach(at, used->beginning(thread.text.whole)));
  }
  std::vector<uint64_t> lengths(uint64_t enough) const override { return space_.within(words_->start, enough); }
  void list(std::vector<std::pair<std::string, int64_t>>& out, Budget&) const override {
    std::vector<std::string> found;
    list_words(*words_, words_->start, "", found, size_t(kMany));
    for (const std::string& word : found) out.emplace_back('\xFF' + word, int64_t(word.size()));
  }

 private:
  static DfaRef alike(const std::vector<std::string>& list, Budget& budget) {
    auto out = std::make_shared<Dfa>(*words(list, budget));
    for (int32_t& label : out->label) label = label == kNone ? kNone : 0;
    return out;
  }
  DfaRef words_;
  NameSpace space_;
  LexerRef lexer_;
};

// All texts of a lexer of numbers that writes each in one way.
void list_numbers(const Lexer& lexer, LexState state, const std::string& text, std::vector<std::string>& out, Budget& budget) {
  budget.tick();
  if (lexer.label(state) != kNone) out.push_back(text);
  for (char byte : std::string_view("-.0123456789")) {
    const LexState next = lexer.next(state, uint8_t(byte));
    if (next != kDead) list_numbers(lexer, next, text + byte, out, budget);
  }
}

bool is_one(const NumberSet& set) { return set.low && set.high && compare(set.low->value, set.high->value) == 0; }

// A set of whole numbers, or a single number. `spelled` writes each of them in one way.
class NumberItems final : public ItemValues {
 public:
  NumberItems(LexerRef inner, std::shared_ptr<const NumberLexer> spelled, Mode mode, Budget& budget)
      : lexer_(std::make_shared<RawLexer>(std::move(inner))), spelled_(std::move(spelled)), mode_(mode) {
    if (count() < kMostListedNumbers) list_numbers(*spelled_, spelled_->start(), "", words_, budget);
  }
  const LexerRef& lexer() const override { return lexer_; }
  const std::vector<std::string>& words() const { return words_; }
  uint64_t count() const override { return is_one(spelled_->set()) ? 1 : std::min(kMany, spelled_->members(spelled_->start()).back()); }
  bool fresh(const Thread& thread, const UsedValues& used) const override {
    // In accept mode zeros and exponents may follow without end.
    if (mode_ == Mode::kAccept) return true;
    return more_than_met(spelled_->members(thread.state).back(), used, thread.text.whole,
                         [&](const std::string& value) { return holds(value); });
  }
  int64_t distance(const Thread& thread, const UsedValues* used) const override {
    const int64_t shortest = lexer_->distance(thread.state, 0);
    if (!used || mode_ == Mode::kAccept || (shortest == 0 && !used->has(thread.text.whole))) return shortest;
    const std::vector<uint64_t>& members = spelled_->members(thread.state);
    const uint64_t met = used->beginning(thread.text.whole);
    return std::max(shortest, std::upper_bound(members.begin(), members.end(), met) - members.begin());
  }
  std::vector<uint64_t> lengths(uint64_t) const override { return spelled_->members(spelled_->start()); }
  void list(std::vector<std::pair<std::string, int64_t>>& out, Budget& budget) const override {
    std::vector<std::string> words = words_;
    if (words.empty()) list_numbers(*spelled_, spelled_->start(), "", words, budget);
    for (const std::string& word : words) out.emplace_back('\xFF' + word, int64_t(word.size()));
  }

 private:
  bool holds(const std::string& value) const {
    if (value.empty() || value[0] != '\xFF') return false;
    LexState state = spelled_->start();
    for (size_t i = 1; i < value.size() && state != kDead; ++i) state = spelled_->next(state, uint8_t(value[i]));
    return state != kDead && spelled_->label(state) != kNone;
  }
  LexerRef lexer_;
  std::shared_ptr<const NumberLexer> spelled_;
  Mode mode_;
  std::vector<std::string> words_;
};

bool is_keyword(const LexerRef& lexer) {
  return std::any_of(std::begin(kKeywords), std::end(kKeywords), [&](const char* word) { return lexer == keyword_lexer(word); });
}

}  // namespace

UniqueItems::UniqueItems(const Value& item, Mode mode, Budget& budget) : mode_(mode) {
  add_strings(item, budget);
  endless_ = hashed_;
  const size_t strings = kinds_.size();
  add_others(item, budget);
  endless_ = endless_ && kinds_.size() == strings;
  measure(budget);
}

void UniqueItems::add_strings(const Value& item, Budget& budget) {
  std::vector<StringItems*> found;
  for (const LexerRef& scalar : item.scalars) {
    auto strings = std::dynamic_pointer_cast<const StringLexer>(scalar);
    if (!strings) continue;
    const bool any = &strings->text() == any_string().get();
    // What is left of fewer characters is counted where the bound is part of the automaton.
    if (!any && strings->most() >= 0)
      strings = std::make_shared<StringLexer>(with_lengths(strings->texts(budget), 0, strings->most(), budget), mode_);
    auto kind = std::make_unique<StringItems>(strings, any ? strings->least() : 0);
    found.push_back(kind.get());
    kinds_.push_back(std::move(kind));
  }
  hashed_ = !found.empty() && std::none_of(found.begin(), found.end(), [](const StringItems* kind) { return kind->bounded(); });
  if (!hashed_) return;
  for (StringItems* kind : found) kind->read_hashes();
}

void UniqueItems::add_others(const Value& item, Budget& budget) {
  std::vector<std::string> words;
  for (const char* word : kKeywords) {
    if (std::find(item.scalars.begin(), item.scalars.end(), keyword_lexer(word)) != item.scalars.end()) words.push_back(word);
  }
  for (const LexerRef& scalar : item.scalars) {
    if (is_keyword(scalar) || dynamic_cast<const StringLexer*>(scalar.get())) continue;
    auto numbers = std::dynamic_pointer_cast<const NumberLexer>(scalar);
    const bool whole = numbers && numbers->set().step && numbers->set().step->exponent >= 0;
    if (!numbers || !(whole || is_one(numbers->set()))) throw Refused("uniqueItems", "of numbers that need not be whole ones");
    LexerRef spelled = mode_ == Mode::kGenerate ? scalar : make_number_lexer(numbers->set(), Mode::kGenerate, budget);
    if (!spelled) throw Refused("uniqueItems", "of numbers that are too large");
    auto kind = std::make_unique<NumberItems>(scalar, std::dynamic_pointer_cast<const NumberLexer>(spelled), mode_, budget);
    if (mode_ == Mode::kGenerate && !kind->words().empty()) words.insert(words.end(), kind->words().begin(), kind->words().end());
    else kinds_.push_back(std::move(kind));
  }
  if (!words.empty()) kinds_.push_back(std::make_unique<WordItems>(words, budget));
}

void UniqueItems::measure(Budget& budget) {
  uint64_t all = 0;
  for (const auto& kind : kinds_) all += kind->count();
  const bool few = all <= uint64_t(kMostRemembered);
  const std::vector<int64_t> each = few ? lengths_of_all(budget) : lengths_by_count();
  values_ = few ? int64_t(each.size()) : kMostRemembered + 1;
  costs_.push_back(0);
  for (int64_t bytes : each) costs_.push_back(costs_.back() + bytes);
}

std::vector<int64_t> UniqueItems::lengths_of_all(Budget& budget) const {
  std::vector<std::pair<std::string, int64_t>> list;
  for (const auto& kind : kinds_) kind->list(list, budget);
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  std::vector<int64_t> each;
  for (const auto& value : list) each.push_back(value.second);
  std::sort(each.begin(), each.end());
  return each;
}

std::vector<int64_t> UniqueItems::lengths_by_count() const {
  std::vector<uint64_t> lengths;
  for (const auto& kind : kinds_) {
    const std::vector<uint64_t> own = kind->lengths(uint64_t(kMostRemembered));
    if (own.empty()) continue;
    if (lengths.size() < own.size()) lengths.resize(own.size(), lengths.empty() ? 0 : lengths.back());
    for (size_t i = 0; i < lengths.size(); ++i) lengths[i] += own[std::min(i, own.size() - 1)];
  }
  std::vector<int64_t> each;
  for (size_t bytes = 0; bytes < lengths.size(); ++bytes) {
    while (int64_t(each.size()) <= kMostRemembered && each.size() < lengths[bytes]) each.push_back(int64_t(bytes));
  }
  while (int64_t(each.size()) <= kMostRemembered) each.push_back(int64_t(lengths.size()));
  return each;
}

int64_t UniqueItems::cost(int64_t from, int64_t count) const {
  if (count <= 0) return 0;
  if (values_ <= kMostRemembered && from + count > values_) return kNever;
  // Where none are written so many (accept mode), those beyond are as long as the last one known.
  const int64_t known = int64_t(costs_.size()) - 1, each = costs_[size_t(known)] - costs_[size_t(known) - 1];
  auto total = [&](int64_t items) { return costs_[size_t(std::min(items, known))] + std::max<int64_t>(0, items - known) * each; };
  return std::min(kNever, total(from + count) - total(from));
}

const ItemValues& UniqueItems::of(const Lexer& lexer) const {
  for (const auto& kind : kinds_) {
    if (kind->lexer().get() == &lexer) return *kind;
  }
  throw Error(ErrorKind::kState, "a lexer of no item");
}

void UniqueItems::begin(const NodeRef& parent, Sink& sink) const {
  for (const auto& kind : kinds_) {
    if (parent->used && kind->lexer()->start() != kDead &&
        !kind->fresh({kind->lexer().get(), kind->lexer()->start(), parent}, *parent->used))
      continue;
    sink.add(*kind->lexer(), parent);
  }
}

std::string UniqueItems::value_of(const Text& text) const {
  if (text.whole.empty()) return hashed_ ? StringItems::hashed(text) : "";
  if (mode_ == Mode::kGenerate || !is_raw(text)) return text.whole;
  const std::optional<Decimal> number = parse_decimal(std::string_view(text.whole).substr(1));
  return number ? '\xFF' + to_text(*number) : text.whole;
}

bool UniqueItems::admits(const Thread& thread, const UsedValues& used) const {
  if (!is_raw(thread.text) && thread.lexer->label(thread.state) != kNone) return !used.has(value_of(thread.text));
  return of(*thread.lexer).fresh(thread, used);
}

bool UniqueItems::begins_refused(const Thread& thread, const UsedValues& used) const {
  if (is_raw(thread.text)) return mode_ == Mode::kAccept || used.beginning(thread.text.whole) > 0;
  return thread.lexer->label(thread.state) == kNone && used.beginning(thread.text.whole) > 0;
}

}  // namespace tandem::grammar
