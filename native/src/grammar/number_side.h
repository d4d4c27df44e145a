// One side of zero of a set of numbers, and what its members can be written with.
#pragma once
#include <algorithm>
#include <numeric>

#include "grammar/number_lexer.h"

namespace tandem::grammar {

constexpr int64_t kEndless = int64_t(1) << 60;

// Positive numbers of the set, mirrored for the negative side.
struct Side {
  Bound low;  // at least zero
  std::optional<Bound> high;
  std::optional<Step> step;
  std::vector<Step> avoid;

  // Whether a member lies in [from, to), or at `from` alone where `to` is absent and point is set.
  bool meets(const Decimal& from, bool from_strict, const std::optional<Bound>& to) const {
    Bound least = low;
    int order = compare(from, low.value);
    if (order > 0 || (order == 0 && from_strict)) least = {from, from_strict};
    std::optional<Bound> most = high;
    if (to && (!most || compare(to->value, most->value) < 0 || (compare(to->value, most->value) == 0 && to->strict))) most = to;
    if (!most) return true;  // an endless side has members everywhere: contradictions were removed when it was made
    int span = compare(least.value, most->value);
    if (span > 0 || (span == 0 && (least.strict || most->strict))) return false;
    return step ? multiple_between(least, *most) : span < 0 || avoids(least.value);
  }
  bool avoids(const Decimal& value) const {
    return std::none_of(avoid.begin(), avoid.end(), [&](const Step& bad) {
      bool exact;
      quotient(value, bad, exact);
      return exact;
    });
  }
  bool multiple_between(const Bound& least, const Bound& most) const {
    bool low_exact, high_exact;
    Natural first = quotient(least.value, *step, low_exact), last = quotient(most.value, *step, high_exact);
    if (!low_exact || least.strict || least.value.zero()) first.add_one();
    if (high_exact && most.strict) {
      if (last.zero()) return false;
      last.subtract_one();
    }
    int order = first.compare(last);
    if (order > 0) return false;
    if (avoid.empty()) return true;
    std::optional<Step> both = least_common_multiple(*step, avoid[0]);
    // Of two neighbouring multiples of the step at most one is a multiple of a coarser step, and both are multiples of one that divides it.
    return !both || (*both != *step && (order < 0 || !in_steps_of(*both, first)));
  }
  // Whether `count` steps are a multiple of a coarse step, itself a multiple of the step: by factors, whose product may be beyond 64 bits.
  bool in_steps_of(const Step& coarse, Natural count) const {
    const uint64_t common = std::gcd(coarse.factor, step->factor);
    uint64_t left = step->factor / common;
    bool even = count.divide(coarse.factor / common) == 0;
    for (int64_t exponent = step->exponent; even && exponent < coarse.exponent; ++exponent) {
      const uint64_t shared = std::gcd(uint64_t(10), left);
      left /= shared;
      even = count.divide(10 / shared) == 0;
    }
    return even;
  }
  // How many members lie between the two, both included. Of a side with a step.
  uint64_t count(const Decimal& from, const Decimal& to) const {
    uint64_t all = multiples(from, to, *step);
    for (const Step& bad : avoid) {
      std::optional<Step> both = least_common_multiple(*step, bad);
      if (both) all -= multiples(from, to, *both);
    }
    return all;
  }
  uint64_t multiples(const Decimal& from, const Decimal& to, const Step& of) const {
    const Bound least = compare(from, low.value) > 0 ? Bound{from} : low;
    const Bound most = high && compare(to, high->value) >= 0 ? *high : Bound{to};
    if (compare(least.value, most.value) > 0) return 0;
    bool low_exact, high_exact;
    Natural first = quotient(least.value, of, low_exact), last = quotient(most.value, of, high_exact);
    if (!low_exact || least.strict || least.value.zero()) first.add_one();
    if (high_exact && most.strict) {
      if (last.zero()) return 0;
      last.subtract_one();
    }
    if (first.compare(last) > 0) return 0;
    last.add_one();
    return last.minus(first);
  }
  // The powers X for which digits * 10^X is a member; empty when first > second. `digits` has no zeros at its ends.
  std::pair<int64_t, int64_t> powers(const std::string& digits) const {
    int64_t first = -kEndless, last = kEndless, size = int64_t(digits.size());
    if (!low.value.zero()) {
      int order = digits.compare(low.value.digits);
      first = low.value.magnitude() - size + (order < 0 || (order == 0 && low.strict) ? 1 : 0);
    }
    if (high) {
      int order = digits.compare(high->value.digits);
      last = high->value.magnitude() - size - (order > 0 || (order == 0 && high->strict) ? 1 : 0);
    }
    if (step) {
      std::optional<int64_t> least = least_power(digits, *step);
      if (!least) return {1, 0};
      first = std::max(first, *least);
    }
    for (const Step& bad : avoid) {
      std::optional<int64_t> least = least_power(digits, bad);
      if (least) last = std::min(last, *least - 1);
    }
    return {first, last};
  }
};

// (digits + 1) * 10^exponent
Decimal increment(std::string digits, int64_t exponent);
bool contradictory(const NumberSet& set);
std::optional<Side> make_side(const NumberSet& set, bool negative);
bool holds_zero(const NumberSet& set);

}  // namespace tandem::grammar
