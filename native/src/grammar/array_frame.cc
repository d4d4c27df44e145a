// Arrays: items by position, then alike; counts of items; at most one counted kind of item (contains), or no item twice.
#include <algorithm>

#include "grammar/made_once.h"
#include "grammar/unique_items.h"

namespace tandem::grammar {
namespace {

enum ArrayPhase : uint64_t { kOpened, kBegin, kItem, kNext };  // kItem: an item just ended
constexpr int32_t kComma = 0;

class ArrayFrame final : public NestedFrame {
 public:
  ArrayFrame(const ValueTable& table, ArrayRule rule) : table_(table), rule_(std::move(rule)) {}
  const Lexer& opening() const override { return *table_.punctuation->open_array; }
  int64_t shortest() const override { return settled_ ? shortest_ : finish(0, 0) + 1; }
  void settle() override {
    shortest_ = finish(0, 0) + 1;
    settled_ = true;
  }

  void make_unique(std::shared_ptr<const UniqueItems> items, Mode mode) {
    items_ = std::move(items);
    int64_t most = items_->values();
    if (most > UniqueItems::kMostRemembered) {
      if (mode == Mode::kAccept) return;
      most = UniqueItems::kMostRemembered;
      require(rule_.least <= most, ErrorKind::kRange, "uniqueItems: beside it minItems is at most 4096");
    }
    rule_.most = rule_.most == kUnbounded ? most : std::min(rule_.most, most);
  }

  // a = phase + 4 * items begun, b = counted items.
  void resume(const NodeRef& node, int32_t label, const Text& text, Sink& sink) const override {
    int64_t begun = int64_t(node->a >> 2), counted = int64_t(node->b);
    switch (ArrayPhase(node->a & 3)) {
      case kOpened:
        if (finished(0, 0)) sink.add(*table_.punctuation->array_next[2], at(node, kNext, 0, 0, {}));
        if (more(0, 0)) begin_item(node, 0, 0, sink);
        return;
      case kBegin: return items(node, begun, counted, sink);
      case kItem: {
        int allowed = (more(begun, counted) ? 1 : 0) | (finished(begun, counted) ? 2 : 0);
        if (!allowed) return;
        UsedRef used = items_ ? UsedValues::with(node->used, items_->value_of(text)) : nullptr;
        return sink.add(*table_.punctuation->array_next[allowed], at(node, kNext, begun, counted, std::move(used)));
      }
      case kNext:
        if (label != kComma) return sink.pop(*node);
        return begin_item(node, begun, counted, sink);
    }
  }

  int64_t distance(const Node& node, int32_t label) const override {
    int64_t begun = int64_t(node.a >> 2), counted = int64_t(node.b);
    switch (ArrayPhase(node.a & 3)) {
      case kOpened:
      case kItem: return finish(begun, counted);
      case kBegin: return one_more(begun, counted);
      default: return label == kComma ? one_more(begun, counted) : 0;
    }
  }
  int64_t rest(const Thread& thread, int64_t most) const override {
    const Node& node = *thread.parent;
    if (!items_ || !in_item(node)) return Frame::rest(thread, most);
    return std::min(most, capped(items_->distance(thread, node.used.get()), finish(int64_t(node.a >> 2), 0)));
  }

  Reading reading(const Thread& thread) const override {
    return items_ && in_item(*thread.parent) ? items_->reading(*thread.lexer) : Reading::kNothing;
  }
  bool admits(const Thread& thread) const override { return !remembers(*thread.parent) || items_->admits(thread, *thread.parent->used); }
  bool ends(const Thread& thread) const override { return !remembers(*thread.parent) || items_->ends(thread, *thread.parent->used); }
  bool remembers(const Node& node) const override { return node.used && in_item(node); }
  bool begins_refused(const Thread& thread) const override { return items_->begins_refused(thread, *thread.parent->used); }
  bool recalls(const Node& node) const override { return items_ && !items_->endless() && in_item(node); }

 private:
  NodeRef at(const NodeRef& node, ArrayPhase phase, int64_t begun, int64_t counted, UsedRef used) const {
    return make_node(this, node->parent, phase + 4 * uint64_t(saturated(begun)), uint64_t(saturated_count(counted)), {}, std::move(used));
  }
  static bool in_item(const Node& node) { return (node.a & 3) == kItem; }
  // Positions beyond which nothing changes are one.
  int64_t saturated(int64_t begun) const {
    int64_t last =
        std::max({int64_t(rule_.prefix.size()), int64_t(rule_.yes.size()), rule_.least, rule_.most == kUnbounded ? 0 : rule_.most});
    return std::min(begun, last);
  }
  int64_t saturated_count(int64_t counted) const {
    return std::min(counted, rule_.contain_most == kUnbounded ? rule_.contain_least : rule_.contain_most + 1);
  }

  void begin_item(const NodeRef& node, int64_t begun, int64_t counted, Sink& sink) const {
    NodeRef next = at(node, kBegin, begun, counted, node->used);
    if (table_.punctuation->space) sink.add(*table_.punctuation->space, next);
    else items(next, begun, counted, sink);
  }
  void items(const NodeRef& node, int64_t begun, int64_t counted, Sink& sink) const {
    if (items_) return items_->begin(at(node, kItem, begun + 1, counted, node->used), sink);
    if (!rule_.counts) return table_.begin(item(begun), at(node, kItem, begun + 1, counted, {}), sink);
    if (possible(begun + 1, counted + 1)) table_.begin(yes(begun), at(node, kItem, begun + 1, counted + 1, {}), sink);
    if (possible(begun + 1, counted)) table_.begin(no(begun), at(node, kItem, begun + 1, counted, {}), sink);
  }

  ValueId item(int64_t i) const { return i < int64_t(rule_.prefix.size()) ? rule_.prefix[size_t(i)] : rule_.rest; }
  ValueId yes(int64_t i) const { return i < int64_t(rule_.yes.size()) ? rule_.yes[size_t(i)] : rule_.rest_yes; }
  ValueId no(int64_t i) const { return i < int64_t(rule_.no.size()) ? rule_.no[size_t(i)] : rule_.rest_no; }
  int64_t cost(int64_t i) const { return rule_.counts ? std::min(table_.at(yes(i)).cost, table_.at(no(i)).cost) : table_.at(item(i)).cost; }

  bool finished(int64_t begun, int64_t counted) const {
    return begun >= rule_.least && counted >= rule_.contain_least && (rule_.contain_most == kUnbounded || counted <= rule_.contain_most);
  }
  bool possible(int64_t begun, int64_t counted) const { return finish(begun, counted) < kNever; }
  bool more(int64_t begun, int64_t counted) const { return one_more(begun, counted) < kNever; }

  // Bytes of the next item and of all that follows, without the comma before it.
  int64_t one_more(int64_t begun, int64_t counted) const {
    if (rule_.most != kUnbounded && begun >= rule_.most) return kNever;
    if (items_) return capped(items_->cost(begun, 1), finish(begun + 1, counted));
    if (!rule_.counts) return capped(cost(begun), finish(begun + 1, counted));
    return std::min(capped(table_.at(yes(begun)).cost, finish(begun + 1, counted + 1)),
                    capped(table_.at(no(begun)).cost, finish(begun + 1, counted)));
  }
  static int64_t capped(int64_t a, int64_t b) { return std::min(a + b, kNever); }

  // Bytes from after item `begun - 1` (or the bracket) to the closing bracket, included; kNever where the array cannot end.
  int64_t finish(int64_t begun, int64_t counted) const {
    if (rule_.contain_most != kUnbounded && counted > rule_.contain_most) return kNever;
    if (finished(begun, counted)) return 1;
    if (!rule_.counts) return finish_plain(begun);
    if (begun >= horizon()) return finish_alike(begun, counted);
    if (!settled_) return finish_table()[cell(begun, counted)];
    return finishes_.get([&] { return finish_table(); })[cell(begun, counted)];
  }
  // From here on all positions are alike and enough items were begun.
  int64_t horizon() const { return std::max(rule_.least, int64_t(rule_.yes.size())); }
  int64_t top() const { return rule_.contain_most == kUnbounded ? rule_.contain_least : rule_.contain_most; }
  size_t cell(int64_t begun, int64_t counted) const { return size_t(begun * (top() + 1) + std::min(counted, top())); }
  int64_t finish_alike(int64_t begun, int64_t counted) const {
    int64_t missing = std::max<int64_t>(0, rule_.contain_least - counted), each = table_.at(rule_.rest_yes).cost;
    if (missing == 0) return 1;
    if (each >= kNever || (rule_.most != kUnbounded && begun + missing > rule_.most)) return kNever;
    return capped(missing * (each + 1), begun == 0 ? 0 : 1);
  }
  // finish() of all positions before the horizon, last first.
  std::vector<int64_t> finish_table() const {
    std::vector<int64_t> out(cell(horizon(), 0), kNever);
    auto after = [&](int64_t begun, int64_t counted) {
      if (counted > top() && rule_.contain_most != kUnbounded) return kNever;
      if (finished(begun, counted)) return int64_t(1);
      return begun >= horizon() ? finish_alike(begun, counted) : out[cell(begun, counted)];
    };
    for (int64_t begun = horizon(); begun-- > 0;) {
      if (rule_.most != kUnbounded && begun >= rule_.most) continue;
      int64_t comma = begun > 0 ? 1 : 0, with = comma + table_.at(yes(begun)).cost, without = comma + table_.at(no(begun)).cost;
      for (int64_t counted = 0; counted <= top(); ++counted) {
        out[cell(begun, counted)] = std::min(capped(with, after(begun + 1, counted + 1)), capped(without, after(begun + 1, counted)));
      }
    }
    return out;
  }
  int64_t finish_plain(int64_t begun) const {
    if (rule_.most != kUnbounded && rule_.least > rule_.most) return kNever;
    if (items_) return capped(1 + rule_.least - begun - (begun == 0 ? 1 : 0), items_->cost(begun, rule_.least - begun));
    int64_t total = 1, positions = std::min(rule_.least, int64_t(rule_.prefix.size()));
    for (int64_t i = begun; i < positions; ++i) total = capped(total, cost(i) + (i > 0 ? 1 : 0));
    int64_t alike = rule_.least - std::max(begun, positions);
    if (alike > 0) {
      int64_t each = table_.at(rule_.rest).cost;
      if (each >= kNever || total >= kNever) return kNever;
      total = capped(total, alike * (each + 1) - (std::max(begun, positions) == 0 ? 1 : 0));
    }
    return total;
  }

  const ValueTable& table_;
  ArrayRule rule_;
  std::shared_ptr<const UniqueItems> items_;  // where no item may come twice
  bool settled_ = false;
  int64_t shortest_ = kNever;
  mutable MadeOnce<std::vector<int64_t>> finishes_;  // where items are counted
};

}  // namespace

void make_unique(Frame& array, std::shared_ptr<const UniqueItems> items, Mode mode) {
  static_cast<ArrayFrame&>(array).make_unique(std::move(items), mode);
}

std::unique_ptr<Frame> make_array(const ValueTable& table, ArrayRule rule) { return std::make_unique<ArrayFrame>(table, std::move(rule)); }

}  // namespace tandem::grammar
