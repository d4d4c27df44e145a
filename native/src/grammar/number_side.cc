#include "grammar/number_side.h"

#include <algorithm>

namespace tandem::grammar {

Decimal increment(std::string digits, int64_t exponent) {
  size_t i = digits.size();
  while (i > 0 && digits[i - 1] == '9') digits[--i] = '0';
  if (i > 0) ++digits[i - 1];
  else digits.insert(0, "1");
  return make_decimal(false, digits, exponent);
}

bool contradictory(const NumberSet& set) {
  if (!set.step) return false;
  return std::any_of(set.avoid.begin(), set.avoid.end(), [&](const Step& bad) {
    std::optional<Step> both = least_common_multiple(*set.step, bad);
    if (!both) throw Refused("multipleOf", "these steps together are too fine");
    return *both == *set.step;
  });
}

std::optional<Side> make_side(const NumberSet& set, bool negative) {
  auto mirrored = [&](const std::optional<Bound>& bound) -> std::optional<Bound> {
    if (!bound) return {};
    Bound out = *bound;
    if (negative && !out.value.zero()) out.value.negative = !out.value.negative;
    return out;
  };
  std::optional<Bound> low = mirrored(negative ? set.high : set.low), high = mirrored(negative ? set.low : set.high);
  if (high && (high->value.zero() || high->value.negative)) return {};
  Side side;
  side.low = low && !low->value.negative && !low->value.zero() ? *low : Bound{{}, true};
  side.high = high;
  side.step = set.step;
  side.avoid = set.avoid;
  if (!side.meets({}, true, {})) return {};
  return side;
}

bool holds_zero(const NumberSet& set) {
  if (!set.avoid.empty()) return false;
  if (set.low && (compare(set.low->value, {}) > 0 || (set.low->value.zero() && set.low->strict))) return false;
  return !(set.high && (compare(set.high->value, {}) < 0 || (set.high->value.zero() && set.high->strict)));
}

}  // namespace tandem::grammar
