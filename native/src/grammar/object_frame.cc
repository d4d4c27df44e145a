// Objects: named properties and classes of names; which names were met, how many, and which may still come.
#include <algorithm>

#include "grammar/values.h"

namespace tandem::grammar {
namespace {

enum Phase : uint64_t { kOpened, kBeginKey, kKey, kColon, kBeginValue, kValue, kNext };
constexpr int32_t kComma = 0;
constexpr size_t kMostKeyLexers = 4096;  // sets of names that may come, of one object rule

class ObjectFrame final : public NestedFrame {
 public:
  ObjectFrame(const ValueTable& table, ObjectRule rule)
      : table_(table), rule_(std::move(rule)), words_(rule_.plain ? 0 : (rule_.names.size() + 63) / 64) {}
  const Lexer& opening() const override { return *table_.punctuation->open_object; }

  int64_t shortest() const override { return settled_ ? shortest_ : capped(1, finish(Seen(words_, 0), 0, true)); }
  void settle() override {
    shortest_ = capped(1, finish(Seen(words_, 0), 0, true));
    settled_ = true;
  }

  // a = phase + 8 * label of the property at hand, b = properties so far; extra = bit set of names met, then hashes of other names.
  // In ordered objects a name that was passed over counts as met.
  void resume(const NodeRef& node, int32_t label, TextHash text, Sink& sink) const override {
    uint32_t current = uint32_t(node->a >> 3);
    switch (Phase(node->a & 7)) {
      case kOpened: return opened(node, sink);
      case kBeginKey: return key(node, sink);
      case kKey: return named(node, label, text, sink);
      case kColon: return spaced(at(*node, kBeginValue, current, node->b, node->extra), sink);
      case kBeginValue: return table_.begin(value_of(current), at(*node, kValue, 0, node->b, node->extra), sink);
      case kValue: {
        int allowed = (any_allowed(*node) ? 1 : 0) | (finished(*node) ? 2 : 0);
        if (allowed) sink.add(*table_.punctuation->object_next[allowed], at(*node, kNext, 0, node->b, node->extra));
        return;
      }
      default:
        if (label != kComma) return sink.pop(*node);
        return spaced(at(*node, kBeginKey, 0, node->b, node->extra), sink);
    }
  }

  bool reads_text(const Node& node) const override { return tracks() && (node.a & 7) == kKey; }
  bool admits(const Node& node, int32_t label, TextHash text) const override {
    if (size_t(label) < rule_.names.size()) return true;  // the key lexer offers only names that may come
    for (size_t i = words_; i + 1 < node.extra.size(); i += 2) {
      if (node.extra[i] == text.a && node.extra[i + 1] == text.b) return false;
    }
    return true;
  }

  bool remembers(const Node& node) const override { return node.extra.size() > words_; }

  int64_t distance(const Node& node, int32_t label) const override {
    Seen seen = met(node);
    switch (Phase(node.a & 7)) {
      case kOpened: return finish(seen, count(node), true);
      case kBeginKey: return one_more(seen, count(node));
      case kKey: return key_distance(node, label);
      case kColon:
      case kBeginValue:
        return capped(((node.a & 7) == kColon ? 1 : 0) + table_.at(value_of(uint32_t(node.a >> 3))).cost, finish(seen, count(node), false));
      case kValue: return finish(seen, count(node), false);
      default: return label == kComma ? one_more(seen, count(node)) : 0;
    }
  }

 private:
  using Seen = std::vector<uint64_t>;
  static int64_t capped(int64_t a, int64_t b) { return std::min(a + b, kNever); }
  bool tracks() const { return rule_.unique && !rule_.classes.empty(); }
  NodeRef at(const Node& node, Phase phase, uint64_t label, uint64_t count, std::vector<uint64_t> extra) const {
    return make_node(this, node.parent, phase + 8 * label, count, std::move(extra));
  }
  static int64_t count(const Node& node) { return int64_t(node.b); }
  Seen met(const Node& node) const {
    Seen seen(node.extra.begin(), node.extra.begin() + int64_t(std::min(words_, node.extra.size())));
    seen.resize(words_, 0);
    return seen;
  }
  bool is_met(const Seen& seen, size_t name) const { return !rule_.plain && (seen[name / 64] >> (name % 64) & 1); }
  ValueId value_of(uint32_t label) const {
    return label < rule_.names.size() ? rule_.names[label].value : rule_.classes[label - rule_.names.size()];
  }

  void spaced(const NodeRef& next, Sink& sink) const {
    if (table_.punctuation->space) sink.add(*table_.punctuation->space, next);
    else next->frame->resume(next, 0, {}, sink);
  }
  void opened(const NodeRef& node, Sink& sink) const {
    NodeRef first = at(*node, kBeginKey, 0, 0, Seen(words_, 0));
    if (finished(*first)) sink.add(*table_.punctuation->object_next[2], at(*first, kNext, 0, 0, first->extra));
    if (any_allowed(*first)) spaced(first, sink);
  }
  void key(const NodeRef& node, Sink& sink) const {
    const StringLexer* lexer = key_lexer(allowed(met(*node), count(*node)));
    if (lexer) sink.add(*lexer, at(*node, kKey, 0, node->b, node->extra));
  }
  void named(const NodeRef& node, int32_t label, TextHash text, Sink& sink) const {
    if (!admits(*node, label, text)) return;
    std::vector<uint64_t> extra = node->extra;
    uint64_t counted = node->b + 1;
    if (rule_.plain || (rule_.most == kUnbounded && int64_t(node->b) >= rule_.least)) counted = node->b;
    if (size_t(label) >= rule_.names.size()) {
      if (rule_.ordered) mark_up_to(extra, rule_.names.size());
      if (tracks()) extra.push_back(text.a), extra.push_back(text.b);
    } else if (rule_.ordered) {
      mark_up_to(extra, size_t(label) + 1);
    } else if (!rule_.plain) {
      extra[size_t(label) / 64] |= uint64_t(1) << (label % 64);
    }
    sink.add(*table_.punctuation->colon, at(*node, kColon, uint64_t(label), counted, std::move(extra)));
  }
  static void mark_up_to(std::vector<uint64_t>& extra, size_t end) {
    for (size_t i = 0; i < end; ++i) extra[i / 64] |= uint64_t(1) << (i % 64);
  }

  size_t required_left(const Seen& seen) const {
    size_t left = 0;
    for (size_t i = 0; i < rule_.names.size(); ++i) left += rule_.names[i].required && !is_met(seen, i);
    return left;
  }
  bool finished(const Node& node) const { return finished(met(node), count(node)); }
  bool finished(const Seen& seen, int64_t count) const { return count >= rule_.least && required_left(seen) == 0; }
  bool any_allowed(const Node& node) const {
    std::vector<bool> labels = allowed(met(node), count(node));
    return std::find(labels.begin(), labels.end(), true) != labels.end();
  }

  // The labels that the next name may have such that the object can still end.
  std::vector<bool> allowed(const Seen& seen, int64_t count) const {
    size_t names = rule_.names.size(), required = required_left(seen);
    std::vector<bool> out(names + rule_.classes.size(), false);
    int64_t slots = rule_.most == kUnbounded ? kNever : rule_.most - count;
    if (slots <= 0 || int64_t(required) > slots) return out;
    bool only_required = int64_t(required) == slots, classes = false;
    for (size_t j = 0; j < rule_.classes.size(); ++j) {
      bool possible = table_.possible(rule_.classes[j]);
      classes = classes || possible;
      out[names + j] = possible && !only_required && (!rule_.ordered || required == 0);
    }
    int64_t available = 0;  // names that could still come after this one
    for (size_t i = names; i-- > 0;) {
      bool free = !is_met(seen, i) && table_.possible(rule_.names[i].value);
      out[i] = free && (!only_required || rule_.names[i].required) && (classes || !rule_.ordered || count + 1 + available >= rule_.least);
      available += free;
    }
    if (!rule_.ordered) return out;
    for (size_t i = 0, past_required = 0; i < names; ++i) {
      if (past_required) out[i] = false;
      past_required |= rule_.names[i].required && !is_met(seen, i);
    }
    return out;
  }

  const StringLexer* key_lexer(const std::vector<bool>& labels) const {
    if (std::find(labels.begin(), labels.end(), true) == labels.end()) return nullptr;
    if (std::find(labels.begin(), labels.end(), false) == labels.end()) return rule_.keys.get();
    std::lock_guard<std::mutex> lock(mutex_);
    auto& lexer = lexers_[labels];
    require(lexer || lexers_.size() <= kMostKeyLexers, ErrorKind::kRange, "too many orders of property names");
    if (!lexer) lexer = rule_.keys->restricted(labels);
    return lexer->empty() ? nullptr : lexer.get();
  }

  // Bytes of `"name":value` for a name (escapes counted roughly), or of the shortest property of a class.
  int64_t property_cost(size_t name) const {
    return capped(int64_t(rule_.names[name].name.size()) + 3, table_.at(rule_.names[name].value).cost);
  }
  int64_t class_cost() const {
    int64_t best = kNever;
    for (ValueId id : rule_.classes) best = std::min(best, capped(8, table_.at(id).cost));
    return best;
  }
  // Bytes from after a property (or the brace) to the closing brace, included.
  int64_t finish(const Seen& seen, int64_t count, bool first) const {
    int64_t total = 1, added = 0;
    auto add = [&](int64_t cost) {
      total = capped(total, cost + (first && added == 0 ? 0 : 1));
      ++added;
    };
    std::vector<int64_t> optional;
    for (size_t i = 0; i < rule_.names.size(); ++i) {
      if (is_met(seen, i)) continue;
      if (rule_.names[i].required) add(property_cost(i));
      else if (property_cost(i) < kNever) optional.push_back(property_cost(i));
    }
    if (rule_.most != kUnbounded && count + added > rule_.most) return kNever;
    if (rule_.most != kUnbounded && rule_.least > rule_.most) return kNever;
    int64_t missing = rule_.least - count - added;
    if (missing <= 0) return total;
    std::sort(optional.begin(), optional.end());
    int64_t other = class_cost();
    for (int64_t cost : optional) {
      if (missing == 0 || cost > other) break;
      add(cost);
      --missing;
    }
    if (missing > 0 && other >= kNever) return kNever;
    return missing > 0 ? capped(total, missing * (other + 1)) : total;
  }
  int64_t one_more(const Seen& seen, int64_t count) const {
    std::vector<bool> labels = allowed(seen, count);
    int64_t best = kNever;
    for (size_t label = 0; label < labels.size(); ++label) {
      if (labels[label])
        best = std::min(best, with_property(seen, count, label, label < rule_.names.size() ? property_cost(label) : class_cost()));
    }
    return best;
  }
  int64_t with_property(Seen seen, int64_t count, size_t label, int64_t cost) const {
    if (rule_.plain) return capped(cost, 1);
    if (label < rule_.names.size() && !rule_.ordered) seen[label / 64] |= uint64_t(1) << (label % 64);
    else if (rule_.ordered) mark_up_to(seen, std::min(label + 1, rule_.names.size()));
    return capped(cost, finish(seen, count + 1, false));
  }
  int64_t key_distance(const Node& node, int32_t label) const {
    return with_property(met(node), count(node), size_t(label), capped(1, table_.at(value_of(uint32_t(label))).cost));
  }

  const ValueTable& table_;
  ObjectRule rule_;
  size_t words_;
  bool settled_ = false;
  int64_t shortest_ = kNever;
  mutable std::mutex mutex_;
  mutable std::map<std::vector<bool>, std::shared_ptr<const StringLexer>> lexers_;
};

}  // namespace

std::unique_ptr<Frame> make_object(const ValueTable& table, ObjectRule rule) {
  return std::make_unique<ObjectFrame>(table, std::move(rule));
}

}  // namespace tandem::grammar
