// Exact decimal arithmetic on number texts: comparison, divisibility and counting of multiples, without floating point.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::grammar {

// digits * 10^exponent; digits without leading or trailing zeros, empty for zero.
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t exponent = 0;

  bool zero() const { return digits.empty(); }
  // The place of the first digit: |value| lies in [10^(m-1), 10^m).
  int64_t magnitude() const { return int64_t(digits.size()) + exponent; }
  Decimal absolute() const { return {false, digits, exponent}; }
  bool operator==(const Decimal&) const = default;
};

Decimal make_decimal(bool negative, std::string digits, int64_t exponent);
// Reads a JSON number; nothing when it is not one, or when its exponent is beyond +-10^9.
std::optional<Decimal> parse_decimal(std::string_view text);
// -1, 0, 1
int compare(const Decimal& a, const Decimal& b);
// Plain JSON spelling without exponent where short, else with one.
std::string to_text(const Decimal& value);

// A positive step c * 10^e, c not divisible by ten.
struct Step {
  uint64_t factor = 1;
  int64_t exponent = 0;
  bool operator==(const Step&) const = default;
};
std::optional<Step> to_step(const Decimal& value);
std::optional<Step> least_common_multiple(const Step& a, const Step& b);

// Non-negative integers of any size.
class Natural {
 public:
  Natural() = default;
  explicit Natural(std::string_view digits);
  // Divides in place and gives the remainder.
  uint64_t divide(uint64_t divisor);
  void add_one();
  void subtract_one();  // at least one
  bool zero() const { return limbs_.empty(); }
  int compare(const Natural& other) const;
  // The difference to one that is no larger; kMost where it is more.
  uint64_t minus(const Natural& smaller) const;
  static constexpr uint64_t kMost = uint64_t(1) << 59;
  uint64_t modulo(uint64_t divisor) const;

 private:
  void shrink();
  std::vector<uint32_t> limbs_;  // base 10^9, lowest first
};

// floor(|value| / step), and whether it divides evenly.
Natural quotient(const Decimal& value, const Step& step, bool& exact);
// The smallest X for which digits * 10^X is a multiple of the step; nothing when there is none. `digits` is not zero.
std::optional<int64_t> least_power(const std::string& digits, const Step& step);

}  // namespace tandem::grammar
