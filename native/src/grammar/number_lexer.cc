#include "grammar/number_lexer.h"

#include <algorithm>
#include <array>
#include <deque>
#include <unordered_map>

#include "grammar/number_side.h"

namespace tandem::grammar {
namespace {

constexpr size_t kMostDigits = 4096;     // significant digits of one number text
constexpr size_t kMostStates = 200'000;  // number prefixes that one lexer remembers
constexpr size_t kMostNumberBytes = size_t(32) << 20;

enum class NumberPhase : uint8_t { kStart, kMinus, kZero, kWhole, kPoint, kFraction, kExponent, kSign, kPower };

struct Prefix {
  NumberPhase phase = NumberPhase::kStart;
  bool negative = false, down = false;
  std::string digits;    // without leading zeros
  int64_t fraction = 0;  // digits after the point
  int64_t power = 0;     // saturates
};

int symbol_of(uint8_t byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  switch (byte) {
    case '-': return 10;
    case '+': return 11;
    case '.': return 12;
    case 'e': return 13;
    case 'E': return 14;
    default: return -1;
  }
}

class SetLexer final : public NumberLexer {
 public:
  SetLexer(const NumberSet& set, Mode mode, Remembered remembered)
      : set_(set), mode_(mode), zero_(holds_zero(set)), remembered_(std::move(remembered)) {
    NumberSet bounded = set;
    if (mode == Mode::kGenerate) bound_digits(bounded);
    if (bounded.step && bounded.avoid.size() > 1) throw Refused("not", "several excluded multiples");
    if (!contradictory(bounded)) {
      sides_[0] = make_side(bounded, false);
      sides_[1] = make_side(bounded, true);
    }
    whole_ = bounded.step && bounded.step->exponent >= 0;
    intern({});
  }
  bool empty() const { return !zero_ && !sides_[0] && !sides_[1]; }
  LexState start() const override { return empty() ? kDead : 0; }

  LexState next(LexState state, uint8_t byte) const override {
    int symbol = symbol_of(byte);
    if (symbol < 0) return kDead;
    std::lock_guard<std::mutex> lock(mutex_);
    int32_t known = states_[size_t(state)].next[size_t(symbol)];
    if (known == kUnknown) {
      Prefix prefix = states_[size_t(state)].prefix;
      known = extend(prefix, char(byte)) && feasible(prefix) ? intern(std::move(prefix)) : kNone;
      states_[size_t(state)].next[size_t(symbol)] = known;
    }
    return known == kNone ? kDead : LexState(known);
  }

  int32_t label(LexState state) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return states_[size_t(state)].accepted ? 0 : kNone;
  }

  int64_t distance(LexState state, int32_t) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    const Known& known = states_[size_t(state)];
    return known.accepted ? 0 : missing(known.prefix);
  }

  bool worn() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return states_.size() > kMostStates / 2 || bytes_ > kMostNumberBytes / 2;
  }

  const NumberSet& set() const override { return set_; }
  const std::vector<uint64_t>& members(LexState state) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<uint64_t>& known = members_[state];
    if (known.empty()) {
      uint64_t all = 0;
      for (int64_t more = 0; more <= whole_digits_ + 1; ++more) {
        all = std::min(Natural::kMost, all + members_after(states_[size_t(state)].prefix, more));
        known.push_back(all);
      }
      hold(8 * known.size() + 50);
    }
    return known;
  }

 private:
  static constexpr int32_t kUnknown = -2;
  struct Known {
    Prefix prefix;
    bool accepted;
    std::array<int32_t, 15> next;  // by symbol
  };

  void bound_digits(NumberSet& set) {
    whole_digits_ = significant_ = kGeneratedDigits;
    fraction_digits_ = kGeneratedPlaces;
    for (const std::optional<Bound>& bound : {set.low, set.high}) {
      if (!bound) continue;
      int64_t exponent = std::min(bound->value.exponent, set.step ? set.step->exponent : 0);
      whole_digits_ = std::max(whole_digits_, bound->value.magnitude() + 1);
      fraction_digits_ = std::max(fraction_digits_, 1 - bound->value.exponent);
      significant_ = std::max(significant_, std::max<int64_t>(bound->value.magnitude(), 0) + std::max<int64_t>(-exponent, 0) + 1);
    }
    if (set.step) {
      whole_digits_ = std::max(whole_digits_, int64_t(std::to_string(set.step->factor).size()) + set.step->exponent);
      fraction_digits_ = std::max(fraction_digits_, -set.step->exponent);
    }
    // Of one value nothing but zeros could follow, which nobody wants to read behind `"const": 2`.
    if (set.low && set.high && compare(set.low->value, set.high->value) == 0)
      fraction_digits_ = std::max<int64_t>(0, -set.low->value.exponent);
    significant_ =
        std::max(significant_, set.step ? int64_t(std::to_string(set.step->factor).size()) + std::max<int64_t>(set.step->exponent, 0) : 0);
    Step grid{1, -fraction_digits_};
    std::optional<Step> step = set.step ? least_common_multiple(*set.step, grid) : grid;
    if (!step) throw Refused("multipleOf", "this step is too fine");
    set.step = step;
    Decimal limit = make_decimal(false, "1", whole_digits_);
    if (!set.high || compare(set.high->value, limit) > 0) set.high = Bound{limit, true};
    limit.negative = true;
    if (!set.low || compare(set.low->value, limit) < 0) set.low = Bound{limit, true};
  }

  // Equal for prefixes that go on alike, so that the numbers of many texts do not fill the memory. A bound that does not begin with the same digits
  // lies on one side of all that begins with them, and of a multiple that is written without an exponent the residue so far matters.
  std::string key_of(const Prefix& p) const {
    std::string out = digits_key(p);
    for (int64_t part : {int64_t(p.phase), int64_t(p.negative), int64_t(p.down), p.fraction, p.power}) out += ',' + std::to_string(part);
    return out;
  }
  std::string digits_key(const Prefix& p) const {
    const std::optional<Side>& set = side(p);
    if (!set || !set->avoid.empty() || (set->step && mode_ == Mode::kAccept) || p.digits.empty()) return p.digits;
    uint64_t step = set->step ? set->step->factor : 1;
    const int64_t exponent = set->step ? set->step->exponent : -p.fraction;
    if (p.fraction > std::max<int64_t>(0, -exponent) || (exponent > 0 && (exponent > 6 || step > 1'000'000))) return p.digits;
    for (int64_t i = 0; i < exponent; ++i) step *= 10;
    std::string out = 'n' + std::to_string(p.digits.size());
    for (const Decimal* bound : {&set->low.value, set->high ? &set->high->value : nullptr}) {
      if (!bound) continue;
      std::string begin = bound->digits;
      begin.resize(p.digits.size(), '0');
      if (begin == p.digits) return p.digits;
      out += begin < p.digits ? '>' : '<';
    }
    return out + std::to_string(Natural(p.digits).modulo(step));
  }

  // The id comes last: one whose state was refused would be found when the same text comes again, to another sequence of the grammar perhaps.
  int32_t intern(Prefix prefix) const {
    std::string key = key_of(prefix);
    if (const auto found = ids_.find(key); found != ids_.end()) return found->second;
    const size_t bytes = 2 * key.size() + 200;
    require(states_.size() < kMostStates && bytes_ + bytes < kMostNumberBytes, ErrorKind::kRange, "too many different numbers");
    const auto id = int32_t(states_.size());
    Known& known = states_.emplace_back(Known{std::move(prefix), false, {}});
    known.accepted = complete(known.prefix);
    known.next.fill(kUnknown);
    ids_.emplace(std::move(key), id);
    hold(bytes);
    return id;
  }

  void hold(size_t bytes) const {
    bytes_ += bytes;
    remembered_->fetch_add(bytes, std::memory_order_relaxed);
  }

  // Reads one more character by JSON's syntax.
  bool extend(Prefix& p, char c) const {
    bool digit = c >= '0' && c <= '9';
    switch (p.phase) {
      case NumberPhase::kStart:
        if (c == '-') return p.negative = true, p.phase = NumberPhase::kMinus, true;
        [[fallthrough]];
      case NumberPhase::kMinus:
        p.phase = c == '0' ? NumberPhase::kZero : NumberPhase::kWhole;
        if (digit && c != '0') p.digits += c;
        return digit;
      case NumberPhase::kWhole:
        if (digit) return p.digits += c, p.digits.size() <= most_digits();
        [[fallthrough]];
      case NumberPhase::kZero:
        if (c == '.') return p.phase = NumberPhase::kPoint, true;
        return exponent_sign(p, c);
      case NumberPhase::kPoint:
      case NumberPhase::kFraction:
        if (p.phase == NumberPhase::kFraction && !digit) return exponent_sign(p, c);
        p.phase = NumberPhase::kFraction;
        ++p.fraction;
        if (c != '0' || !p.digits.empty()) p.digits += c;
        return digit && p.digits.size() <= most_digits();
      case NumberPhase::kExponent:
        p.phase = NumberPhase::kSign;
        if (c == '-') return p.down = true, true;
        if (c == '+') return true;
        [[fallthrough]];
      default:
        p.phase = NumberPhase::kPower;
        if (digit) p.power = std::min<int64_t>(p.power * 10 + (c - '0'), kEndless / 1000);
        return digit;
    }
  }
  size_t most_digits() const { return mode_ == Mode::kGenerate ? size_t(significant_) : kMostDigits; }
  bool exponent_sign(Prefix& p, char c) const {
    p.phase = NumberPhase::kExponent;
    return mode_ == Mode::kAccept && (c == 'e' || c == 'E');
  }

  const std::optional<Side>& side(const Prefix& p) const { return sides_[p.negative ? 1 : 0]; }

  bool complete(const Prefix& p) const {
    if (p.phase != NumberPhase::kZero && p.phase != NumberPhase::kWhole && p.phase != NumberPhase::kFraction &&
        p.phase != NumberPhase::kPower)
      return false;
    if (p.digits.empty()) return zero_ && (mode_ == Mode::kAccept || !p.negative);
    if (!side(p)) return false;
    auto [first, last] = allowed_powers(p);
    int64_t power = p.down ? -p.power : p.power;
    return first <= power && power <= last;
  }
  // The values that the number after `e` may take.
  std::pair<int64_t, int64_t> allowed_powers(const Prefix& p) const {
    Decimal value = make_decimal(false, p.digits, -p.fraction);
    auto [first, last] = side(p)->powers(value.digits);
    return {first <= -kEndless ? first : first - value.exponent, last >= kEndless ? last : last - value.exponent};
  }

  bool feasible(const Prefix& p) const {
    if (mode_ == Mode::kGenerate) return feasible_plain(p);
    if (p.phase == NumberPhase::kStart) return !empty();
    if (p.phase == NumberPhase::kMinus || (p.digits.empty() && p.phase < NumberPhase::kExponent)) return zero_ || side(p);
    if (p.digits.empty()) return zero_;
    if (!side(p)) return false;
    return p.phase < NumberPhase::kExponent ? feasible_mantissa(p) : feasible_power(p);
  }

  // Digits may follow and then any exponent: some 10^k [digits, digits + 1) must meet the set.
  bool feasible_mantissa(const Prefix& p) const {
    const Side& set = *side(p);
    if (!set.high) return true;
    int64_t size = int64_t(p.digits.size());
    Decimal low = set.low.value;
    if (low.zero()) {
      if (!set.step) return true;
      low = make_decimal(false, std::to_string(set.step->factor), set.step->exponent);
    }
    for (int64_t k = low.magnitude() - size - 1; k <= set.high->value.magnitude() - size + 1; ++k) {
      if (set.meets(make_decimal(false, p.digits, k), false, Bound{increment(p.digits, k), true})) return true;
    }
    return false;
  }

  bool feasible_power(const Prefix& p) const {
    auto [first, last] = allowed_powers(p);
    if (first > last) return false;
    if (p.phase == NumberPhase::kExponent) return true;
    if (p.down) std::swap(first, last), first = -first, last = -last;
    if (last < 0) return false;
    if (p.phase == NumberPhase::kSign) return true;
    // Further digits: power * 10^j .. power * 10^j + 10^j - 1.
    for (__int128 low = p.power, span = 1; low <= last && span <= kEndless; low *= 10, span *= 10) {
      if (low + span - 1 >= first) return true;
    }
    return false;
  }

  bool feasible_plain(const Prefix& p) const {
    if (p.phase == NumberPhase::kMinus) return side(p).has_value();
    if (p.phase == NumberPhase::kZero && p.negative && whole_) return false;
    if (p.phase == NumberPhase::kPoint && (whole_ || p.fraction >= fraction_digits_)) return false;
    if (p.phase == NumberPhase::kFraction && (whole_ || p.fraction > fraction_digits_)) return false;
    if (p.digits.empty() && zero_ && !p.negative) return true;
    if (!side(p)) return false;
    int64_t size = int64_t(p.digits.size()), most = p.phase == NumberPhase::kWhole ? whole_digits_ - size : 0;
    if (p.phase == NumberPhase::kPoint && size >= significant_) return false;
    for (int64_t j = 0; j <= most; ++j) {
      if (member_on_grid(p, j - p.fraction, fraction_digits_)) return true;
    }
    return false;
  }

  // Fewest further bytes to a member, for generate mode.
  int64_t missing(const Prefix& p) const {
    if (mode_ == Mode::kAccept || empty()) return 1;
    if (p.phase == NumberPhase::kStart) {
      if (zero_) return 1;
      int64_t best = kNever;
      for (int negative : {0, 1}) {
        if (!sides_[size_t(negative)]) continue;
        for (char first = '0'; first <= '9'; ++first) {
          Prefix next{first == '0' ? NumberPhase::kZero : NumberPhase::kWhole,
                      negative == 1,
                      false,
                      first == '0' ? "" : std::string(1, first),
                      0,
                      0};
          if (feasible_plain(next)) best = std::min(best, 1 + negative + (complete(next) ? 0 : missing(next)));
        }
      }
      return best;
    }
    int64_t best = kNever;
    // The shortest ending fixes its length first: digits of the whole part, then of the fraction.
    for (int64_t more = 0; more <= whole_digits_ + fraction_digits_ + 2 && best == kNever; ++more) {
      if (ends_after(p, more)) best = more;
    }
    return best;
  }
  // Whether exactly `more` further bytes can make a member.
  bool ends_after(const Prefix& p, int64_t more) const {
    if (more == 0) return complete(p);
    if (p.phase == NumberPhase::kMinus) {
      for (char first = '0'; first <= '9'; ++first) {
        Prefix next = p;
        if (extend(next, first) && feasible_plain(next) && ends_after(next, more - 1)) return true;
      }
      return false;
    }
    bool fraction = p.phase == NumberPhase::kPoint || p.phase == NumberPhase::kFraction;
    int64_t whole = fraction ? -1 : p.phase == NumberPhase::kZero ? 0 : more;
    if (whole > 0 && member_on_grid(p, more, 0)) return true;
    if (fraction) return (p.digits.empty() && zero_ && !p.negative) || member_on_grid(p, -p.fraction, p.fraction + more);
    for (int64_t digits = p.phase == NumberPhase::kZero ? 0 : more - 2; digits >= 0; --digits) {
      int64_t places = more - 1 - digits;
      if (places >= 1 && member_on_grid(p, digits, places)) return true;
      if (p.phase == NumberPhase::kZero) break;
    }
    return false;
  }
  // A member within [digits, digits + 1) * 10^shift with at most `places` digits after the point.
  bool member_on_grid(const Prefix& p, int64_t shift, int64_t places) const {
    if (places > fraction_digits_ || !side(p)) return false;
    if (!p.digits.empty()) places = std::min(places, significant_ - shift - int64_t(p.digits.size()));
    if (places < 0) return false;
    Side grid = *side(p);
    std::optional<Step> step = least_common_multiple(*grid.step, Step{1, -places});
    if (!step) return false;
    grid.step = step;
    Decimal from = make_decimal(false, p.digits, shift);
    return grid.meets(from, p.digits.empty(), Bound{increment(p.digits, shift), true});
  }

  // Members that exactly so many further bytes make, of whole numbers.
  uint64_t members_after(const Prefix& p, int64_t more) const {
    auto digits = [&](size_t of, int64_t count) {  // of one side, with so many digits
      if (!sides_[of] || count <= 0) return uint64_t(0);
      return sides_[of]->count(make_decimal(false, "1", count - 1), make_decimal(false, std::string(size_t(count), '9'), 0));
    };
    if (p.phase == NumberPhase::kStart) return (zero_ && more == 1 ? 1 : 0) + digits(0, more) + digits(1, more - 1);
    if (p.phase == NumberPhase::kMinus) return digits(1, more);
    if (p.phase == NumberPhase::kZero) return zero_ && more == 0 ? 1 : 0;
    if (!side(p)) return 0;
    const std::string fill(size_t(more), '9');
    return side(p)->count(make_decimal(false, p.digits, more), make_decimal(false, p.digits + fill, 0));
  }

  NumberSet set_;
  Mode mode_;
  bool zero_, whole_ = false;
  int64_t whole_digits_ = 0, fraction_digits_ = 0, significant_ = 0;  // of generate mode
  std::optional<Side> sides_[2];
  mutable std::mutex mutex_;
  Remembered remembered_;
  mutable size_t bytes_ = 0;
  mutable std::unordered_map<std::string, int32_t> ids_;
  mutable std::deque<Known> states_;
  mutable std::unordered_map<LexState, std::vector<uint64_t>> members_;
};

}  // namespace

std::optional<NumberSet> intersect(const NumberSet& a, const NumberSet& b) {
  NumberSet out = a;
  if (b.low && (!out.low || compare(b.low->value, out.low->value) > 0 || (compare(b.low->value, out.low->value) == 0 && b.low->strict)))
    out.low = b.low;
  if (b.high &&
      (!out.high || compare(b.high->value, out.high->value) < 0 || (compare(b.high->value, out.high->value) == 0 && b.high->strict)))
    out.high = b.high;
  if (b.step) {
    out.step = a.step ? least_common_multiple(*a.step, *b.step) : b.step;
    if (!out.step) throw Refused("multipleOf", "these steps together are too fine");
  }
  out.avoid.insert(out.avoid.end(), b.avoid.begin(), b.avoid.end());
  if (out.avoid.size() > 1 && out.step) throw Refused("not", "several excluded multiples besides a multiple");
  if (out.low && out.high) {
    int order = compare(out.low->value, out.high->value);
    if (order > 0 || (order == 0 && (out.low->strict || out.high->strict))) return {};
  }
  if (contradictory(out)) return {};
  return out;
}

std::vector<NumberSet> outside(const std::vector<NumberSet>& sets, size_t most) {
  std::vector<NumberSet> out = {{}};
  for (const NumberSet& set : sets) {
    std::vector<NumberSet> parts, next;
    if (set.low) parts.push_back({.high = Bound{set.low->value, !set.low->strict}});
    if (set.high) parts.push_back({.low = Bound{set.high->value, !set.high->strict}});
    if (set.step) parts.push_back({.avoid = {*set.step}});
    for (const NumberSet& before : out) {
      for (const NumberSet& part : parts) {
        if (std::optional<NumberSet> both = intersect(before, part)) next.push_back(*both);
      }
    }
    if (next.size() > most) throw Error(ErrorKind::kRange, "too many ranges of numbers");
    out = std::move(next);
  }
  return out;
}

LexerRef make_number_lexer(const NumberSet& set, Mode mode, const Budget& budget) {
  std::optional<NumberSet> checked = intersect(set, {});
  if (!checked) return nullptr;
  auto lexer = std::make_shared<SetLexer>(*checked, mode, budget.remembered());
  return lexer->empty() ? nullptr : lexer;
}

}  // namespace tandem::grammar
