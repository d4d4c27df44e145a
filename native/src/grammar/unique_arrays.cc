#include "grammar/unique_arrays.h"

#include <map>

#include "grammar/unique_items.h"

namespace tandem::grammar {
namespace {

bool one_at_most(const UniqueArray& array, const ValueTable& table) {
  return (array.most != kUnbounded && array.most <= 1) || (!array.counted && array.prefix <= 1 && !table.possible(array.rest));
}

void refuse_others(const UniqueArray& array, const ValueTable& table) {
  if (array.counted) throw Refused("uniqueItems", "beside contains");
  if (array.prefix > 0) throw Refused("uniqueItems", "of items with schemas of their own (prefixItems)");
  for (const auto& nested : table.at(array.rest).nested) {
    if (static_cast<const NestedFrame*>(nested.get())->shortest() < kNever)
      throw Refused("uniqueItems", "of arrays or objects, which would have to be remembered whole");
  }
}

}  // namespace

void keep_unique(const std::vector<UniqueArray>& arrays, ValueId root, Mode mode, Budget& budget, ValueTable& table) {
  std::map<ValueId, std::shared_ptr<const UniqueItems>> known;
  const UniqueArray* lacking = nullptr;
  for (const UniqueArray& array : arrays) {
    if (one_at_most(array, table)) continue;
    refuse_others(array, table);
    std::shared_ptr<const UniqueItems>& items = known[array.rest];
    if (!items) items = std::make_shared<const UniqueItems>(table.at(array.rest), mode, budget);
    make_unique(*table.values[size_t(array.value)].nested[array.place], items, mode);
    if (items->values() < array.least && !lacking) lacking = &array;
  }
  if (known.empty()) return;
  table.find_costs(budget);
  if (lacking && !table.possible(root))
    throw Refused("uniqueItems", "minItems asks for " + std::to_string(lacking->least) + " different items, of which there are " +
                                     std::to_string(known.at(lacking->rest)->values()));
}

}  // namespace tandem::grammar
