// The values that a list of different items holds so far: a set that grows by sharing what it was, so that states of one text keep it without
// copies. Its shape follows from what it holds, not from the order in which that came.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tandem::grammar {

class UsedValues;
using UsedRef = std::shared_ptr<const UsedValues>;  // null: nothing

class UsedValues {
 public:
  static UsedRef with(const UsedRef& set, const std::string& value);
  size_t size() const { return size_; }
  bool has(std::string_view value) const;
  // How many begin with `start`.
  size_t beginning(std::string_view start) const { return below(start, true) - below(start, false); }
  // How many of those that begin with `start` are in a language; stops at `enough`.
  template <typename Holds>
  size_t beginning_in(std::string_view start, const Holds& holds, size_t enough) const {
    const int order = order_of(start);
    size_t found = order >= 0 && left_ ? left_->beginning_in(start, holds, enough) : 0;
    if (order == 0 && found < enough && holds(*value_)) ++found;
    if (order <= 0 && found < enough && right_) found += right_->beginning_in(start, holds, enough - found);
    return found;
  }
  uint64_t hash() const { return hash_a_; }
  bool same(const UsedValues& other) const { return size_ == other.size_ && hash_a_ == other.hash_a_ && hash_b_ == other.hash_b_; }

 private:
  using ValueRef = std::shared_ptr<const std::string>;
  struct Item {
    ValueRef value;
    uint64_t a, b;  // its hash, wide enough that a collision does not occur; `a` orders the tree from its root down
  };
  struct Halves {
    UsedRef below, above;
  };
  UsedValues(Item item, UsedRef left, UsedRef right);
  static UsedRef make(Item item, UsedRef left, UsedRef right);
  static UsedRef insert(const UsedRef& set, const Item& item);
  static Halves split(const UsedRef& set, const std::string& value);
  Item item() const { return {value_, own_a_, own_b_}; }
  // -1 where the value lies before all that begin with `start`, 0 where it begins so, 1 where it lies behind them.
  int order_of(std::string_view start) const {
    const int order = value_->compare(0, start.size(), start);
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  // Values before those that begin with `start`, those too where asked.
  size_t below(std::string_view start, bool with) const;

  ValueRef value_;
  UsedRef left_, right_;
  size_t size_;
  uint64_t own_a_, own_b_, hash_a_, hash_b_;
};

}  // namespace tandem::grammar
