#include "grammar/decimal.h"

#include <algorithm>
#include <numeric>

namespace tandem::grammar {
namespace {

constexpr uint32_t kBase = 1'000'000'000;
constexpr int64_t kMostExponent = 1'000'000'000;

bool digit(char c) { return c >= '0' && c <= '9'; }

int count_factor(uint64_t& value, uint64_t prime) {
  int count = 0;
  for (; value % prime == 0; value /= prime) ++count;
  return count;
}

}  // namespace

Decimal make_decimal(bool negative, std::string digits, int64_t exponent) {
  size_t first = digits.find_first_not_of('0');
  if (first == std::string::npos) return {};
  size_t last = digits.find_last_not_of('0');
  exponent += int64_t(digits.size() - 1 - last);
  return {negative, digits.substr(first, last - first + 1), exponent};
}

std::optional<Decimal> parse_decimal(std::string_view text) {
  size_t at = 0;
  auto peek = [&] { return at < text.size() ? text[at] : '\0'; };
  bool negative = peek() == '-';
  if (negative) ++at;
  if (!digit(peek()) || (peek() == '0' && at + 1 < text.size() && digit(text[at + 1]))) return {};
  std::string digits;
  int64_t exponent = 0;
  while (digit(peek())) digits += text[at++];
  if (peek() == '.') {
    ++at;
    if (!digit(peek())) return {};
    for (; digit(peek()); --exponent) digits += text[at++];
  }
  if (peek() == 'e' || peek() == 'E') {
    ++at;
    bool down = peek() == '-';
    if (down || peek() == '+') ++at;
    if (!digit(peek())) return {};
    int64_t power = 0;
    while (digit(peek())) power = std::min<int64_t>(power * 10 + (text[at++] - '0'), kMostExponent + 1);
    if (power > kMostExponent) return {};
    exponent += down ? -power : power;
  }
  if (at != text.size()) return {};
  return make_decimal(negative, std::move(digits), exponent);
}

int compare(const Decimal& a, const Decimal& b) {
  int sign_a = a.zero() ? 0 : a.negative ? -1 : 1, sign_b = b.zero() ? 0 : b.negative ? -1 : 1;
  if (sign_a != sign_b) return sign_a < sign_b ? -1 : 1;
  if (sign_a == 0) return 0;
  int sizes = a.magnitude() != b.magnitude() ? (a.magnitude() < b.magnitude() ? -1 : 1) : a.digits.compare(b.digits);
  return sizes == 0 ? 0 : (sizes < 0) == (sign_a > 0) ? -1 : 1;
}

std::string to_text(const Decimal& value) {
  if (value.zero()) return "0";
  std::string out = value.negative ? "-" : "";
  int64_t magnitude = value.magnitude(), size = int64_t(value.digits.size());
  if (value.exponent >= 0 && magnitude <= 400) return out + value.digits + std::string(size_t(value.exponent), '0');
  if (value.exponent < 0 && magnitude > 0)
    return out + value.digits.substr(0, size_t(magnitude)) + '.' + value.digits.substr(size_t(magnitude));
  if (value.exponent < 0 && magnitude > -20 && size < 400) return out + "0." + std::string(size_t(-magnitude), '0') + value.digits;
  return out + value.digits + "e" + std::to_string(value.exponent);
}

std::optional<Step> to_step(const Decimal& value) {
  if (value.zero() || value.negative || value.digits.size() > 18) return {};
  return Step{std::stoull(value.digits), value.exponent};
}

std::optional<Step> least_common_multiple(const Step& a, const Step& b) {
  // Powers of two and five may be negative: the steps are decimals.
  uint64_t rest_a = a.factor, rest_b = b.factor;
  int64_t twos_a = count_factor(rest_a, 2) + a.exponent, twos_b = count_factor(rest_b, 2) + b.exponent;
  int64_t fives_a = count_factor(rest_a, 5) + a.exponent, fives_b = count_factor(rest_b, 5) + b.exponent;
  int64_t twos = std::max(twos_a, twos_b), fives = std::max(fives_a, fives_b), exponent = std::min(twos, fives);
  constexpr unsigned __int128 kLimit = 1'000'000'000'000'000'000ull;
  unsigned __int128 factor = static_cast<unsigned __int128>(rest_a / std::gcd(rest_a, rest_b)) * rest_b;
  if (factor > kLimit || std::max(twos, fives) - exponent > 60) return {};
  for (int64_t i = exponent; i < twos && factor <= kLimit; ++i) factor *= 2;
  for (int64_t i = exponent; i < fives && factor <= kLimit; ++i) factor *= 5;
  if (factor > kLimit) return {};
  return Step{uint64_t(factor), exponent};
}

Natural::Natural(std::string_view digits) {
  for (size_t end = digits.size(); end > 0;) {
    size_t begin = end > 9 ? end - 9 : 0;
    uint32_t limb = 0;
    for (size_t i = begin; i < end; ++i) limb = limb * 10 + uint32_t(digits[i] - '0');
    limbs_.push_back(limb);
    end = begin;
  }
  shrink();
}

void Natural::shrink() {
  while (!limbs_.empty() && limbs_.back() == 0) limbs_.pop_back();
}

uint64_t Natural::divide(uint64_t divisor) {
  unsigned __int128 rest = 0;
  for (size_t i = limbs_.size(); i-- > 0;) {
    rest = rest * kBase + limbs_[i];
    limbs_[i] = uint32_t(rest / divisor);
    rest %= divisor;
  }
  shrink();
  return uint64_t(rest);
}

uint64_t Natural::modulo(uint64_t divisor) const {
  Natural copy = *this;
  return copy.divide(divisor);
}

void Natural::add_one() {
  for (uint32_t& limb : limbs_) {
    if (++limb < kBase) return;
    limb = 0;
  }
  limbs_.push_back(1);
}

void Natural::subtract_one() {
  for (uint32_t& limb : limbs_) {
    if (limb-- > 0) break;
    limb = kBase - 1;
  }
  shrink();
}

int Natural::compare(const Natural& other) const {
  if (limbs_.size() != other.limbs_.size()) return limbs_.size() < other.limbs_.size() ? -1 : 1;
  for (size_t i = limbs_.size(); i-- > 0;) {
    if (limbs_[i] != other.limbs_[i]) return limbs_[i] < other.limbs_[i] ? -1 : 1;
  }
  return 0;
}

uint64_t Natural::minus(const Natural& smaller) const {
  uint64_t out = 0, scale = 1;
  int64_t borrow = 0;
  for (size_t i = 0; i < limbs_.size(); ++i) {
    int64_t left = int64_t(limbs_[i]) - (i < smaller.limbs_.size() ? int64_t(smaller.limbs_[i]) : 0) - borrow;
    borrow = left < 0 ? 1 : 0;
    left += borrow * int64_t(kBase);
    if (i >= 2 && left > 0) out = kMost;
    if (i < 2) out += uint64_t(left) * scale, scale *= kBase;
  }
  return std::min(out, kMost);
}

Natural quotient(const Decimal& value, const Step& step, bool& exact) {
  int64_t shift = value.exponent - step.exponent;
  std::string digits = value.digits;
  exact = true;
  if (shift >= 0) {
    digits.append(size_t(shift), '0');
  } else if (-shift >= int64_t(digits.size())) {
    exact = digits.empty();
    digits.clear();
  } else {
    size_t kept = digits.size() - size_t(-shift);
    exact = digits.find_first_not_of('0', kept) == std::string::npos;
    digits.resize(kept);
  }
  Natural out(digits);
  if (out.divide(step.factor) != 0) exact = false;
  return out;
}

std::optional<int64_t> least_power(const std::string& digits, const Step& step) {
  uint64_t rest = step.factor;
  int twos = count_factor(rest, 2), fives = count_factor(rest, 5);
  Natural number(digits);
  if (number.modulo(rest) != 0) return {};
  auto valuation = [&](uint64_t prime) {
    Natural left = number;
    int64_t count = 0;
    while (left.modulo(prime) == 0) left.divide(prime), ++count;
    return count;
  };
  return step.exponent + std::max(twos - valuation(2), fives - valuation(5));
}

}  // namespace tandem::grammar
