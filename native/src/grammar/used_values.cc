#include "grammar/used_values.h"

#include "grammar/frame.h"

namespace tandem::grammar {

UsedValues::UsedValues(Item item, UsedRef left, UsedRef right)
    : value_(std::move(item.value)), left_(std::move(left)), right_(std::move(right)), size_(1), own_a_(item.a), own_b_(item.b),
      hash_a_(item.a), hash_b_(item.b) {
  for (const UsedValues* part : {left_.get(), right_.get()}) {
    if (!part) continue;
    size_ += part->size_;
    hash_a_ += part->hash_a_;
    hash_b_ += part->hash_b_;
  }
}

UsedRef UsedValues::make(Item item, UsedRef left, UsedRef right) {
  return UsedRef(new UsedValues(std::move(item), std::move(left), std::move(right)));
}

UsedRef UsedValues::with(const UsedRef& set, const std::string& value) {
  if (set && set->has(value)) return set;
  Text text;
  text.add(value, Reading::kHash);
  return insert(set, {std::make_shared<const std::string>(value), text.a, text.b});
}

bool UsedValues::has(std::string_view value) const {
  for (const UsedValues* at = this; at;) {
    const int order = at->value_->compare(value);
    if (order == 0) return true;
    at = order < 0 ? at->right_.get() : at->left_.get();
  }
  return false;
}

UsedRef UsedValues::insert(const UsedRef& set, const Item& item) {
  if (!set) return make(item, nullptr, nullptr);
  if (item.a > set->own_a_) {
    Halves halves = split(set, *item.value);
    return make(item, std::move(halves.below), std::move(halves.above));
  }
  if (*item.value < *set->value_) return make(set->item(), insert(set->left_, item), set->right_);
  return make(set->item(), set->left_, insert(set->right_, item));
}

UsedValues::Halves UsedValues::split(const UsedRef& set, const std::string& value) {
  if (!set) return {};
  if (*set->value_ < value) {
    Halves rest = split(set->right_, value);
    return {make(set->item(), set->left_, std::move(rest.below)), std::move(rest.above)};
  }
  Halves rest = split(set->left_, value);
  return {std::move(rest.below), make(set->item(), std::move(rest.above), set->right_)};
}

size_t UsedValues::below(std::string_view start, bool with) const {
  size_t found = 0;
  for (const UsedValues* at = this; at;) {
    const int order = at->order_of(start);
    if (order < 0 || (order == 0 && with)) {
      found += 1 + (at->left_ ? at->left_->size_ : 0);
      at = at->right_.get();
    } else {
      at = at->left_.get();
    }
  }
  return found;
}

}  // namespace tandem::grammar
