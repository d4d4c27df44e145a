// Objects: named properties and classes of names; which names were met, how many, and which may still come.
#include <algorithm>
#include <map>
#include <mutex>

#include "grammar/name_space.h"
#include "grammar/other_names.h"
#include "grammar/values.h"

namespace tandem::grammar {
namespace {

enum ObjectPhase : uint64_t { kOpened, kBeginKey, kKey, kColon, kBeginValue, kValue, kNext };
constexpr int32_t kComma = 0;
constexpr size_t kMostKeyLexers = 4096;  // sets of names that may come, of one object rule
// Names whose endings are worked out one by one where each takes a look at all others.
constexpr size_t kMostChoices = 64;

class ObjectFrame final : public NestedFrame {
 public:
  ObjectFrame(const ValueTable& table, ObjectRule rule, Remembered remembered)
      : table_(table), rule_(std::move(rule)), words_(rule_.plain ? 0 : (rule_.names.size() + 63) / 64),
        remembered_(std::move(remembered)) {
    for (const auto& property : rule_.names) {
      int64_t& bytes = name_bytes_.emplace_back(3);
      for (char byte : property.name) bytes += StringLexer::written()[uint8_t(byte)];
    }
  }
  const Lexer& opening() const override { return *table_.punctuation->open_object; }

  int64_t shortest() const override { return settled_ ? shortest_ : capped(1, finish({Seen(words_, 0)}, true)); }
  void settle() override {
    shortest_ = capped(1, finish({Seen(words_, 0)}, true));
    if (tracks()) space();
    settled_ = true;
  }

  // a = phase + 8 * label of the property at hand, b = properties so far; extra = bit set of names met, then other_names.h's record of
  // the others. In ordered objects a name that was passed over counts as met.
  void resume(const NodeRef& node, int32_t label, const Text& text, Sink& sink) const override {
    uint32_t current = uint32_t(node->a >> 3);
    switch (ObjectPhase(node->a & 7)) {
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

  Reading reading(const Thread& thread) const override {
    const Node& node = *thread.parent;
    return !tracks() || (node.a & 7) != kKey ? Reading::kNothing : space().bounded() ? Reading::kText : Reading::kHash;
  }
  bool admits(const Thread& thread) const override {
    const Node& node = *thread.parent;
    if (!remembers(node)) return true;
    int32_t label = thread.lexer->label(thread.state);
    // The key lexer offers only declared names that may come.
    if (label != kNone) return size_t(label) < rule_.names.size() || !others(node).has(thread.text);
    return !space().bounded() || leads_to_fresh(node, keys_of(thread), thread.state, thread.text.whole);
  }
  bool remembers(const Node& node) const override { return node.extra.size() > words_; }
  bool begins_refused(const Thread& thread) const override {
    return thread.lexer->label(thread.state) == kNone && others(*thread.parent).beginning(thread.text.whole) > 0;
  }

  int64_t distance(const Node& node, int32_t label) const override {
    const Progress done = progress(node);
    switch (ObjectPhase(node.a & 7)) {
      case kOpened: return finish(done, true);
      case kBeginKey: return one_more(done);
      case kKey: return with_property(done, needs(done), size_t(label), begun(label));
      case kColon:
      case kBeginValue:
        return capped(((node.a & 7) == kColon ? 1 : 0) + table_.at(value_of(uint32_t(node.a >> 3))).cost, finish(done, false));
      case kValue: return finish(done, false);
      default: return label == kComma ? one_more(done) : 0;
    }
  }
  // Within a name many labels may lie ahead: what the object needs after it is found once for all of them.
  int64_t rest(const Thread& thread, int64_t most) const override {
    if ((thread.parent->a & 7) != kKey || rule_.plain) return Frame::rest(thread, most);
    struct Choice {
      int64_t added;  // bytes of the property as far as it is to come, less those that it would cost as a whole
      int64_t cost;
      size_t label;
    };
    const Progress done = progress(*thread.parent);
    const Needs need = needs(done);
    std::vector<Choice> choices;
    for (auto [label, bytes] : keys_of(thread).labels_ahead(thread.state)) {
      const int64_t name = name_distance(thread, label), cost = capped(name, begun(label));
      if (cost >= most) continue;
      if (need.missing_after(is_required(done.seen, size_t(label))) > 0)
        choices.push_back({cost - cost_of(size_t(label)), cost, size_t(label)});
      else most = std::min(most, with_property(done, need, size_t(label), cost));
    }
    // With any property among what follows, all of it costs at least as much as it does at best. What is left out by number alone is no better
    // than what was looked at, byte for byte, so the estimate still shrinks along that way.
    const int64_t best = choices.empty() ? 0 : finish(done, false) - 1;
    std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) { return a.added < b.added; });
    if (choices.size() > kMostChoices) choices.resize(kMostChoices);
    for (const Choice& choice : choices) {
      if (choice.added + best >= most) break;
      most = std::min(most, with_property(done, need, choice.label, choice.cost));
    }
    return most;
  }

 private:
  using Seen = std::vector<uint64_t>;
  struct Progress {  // of one object
    Seen seen;
    int64_t count = 0, others = 0;  // properties, as far as they are counted; names of classes among them
  };
  // What an object still lacks, apart from its brackets.
  struct Needs {
    int64_t required = 0, cost = 0;  // names, and the bytes of their properties with a comma each
    int64_t missing = 0;             // properties beside them, for the least number
    int64_t missing_after(bool one_of_them) const { return one_of_them ? missing : missing - 1; }
  };
  static int64_t capped(int64_t a, int64_t b) { return std::min(a + b, kNever); }
  bool tracks() const { return rule_.unique && !rule_.classes.empty(); }
  static const StringLexer& keys_of(const Thread& thread) { return static_cast<const StringLexer&>(*thread.lexer); }
  OtherNames others(const Node& node) const { return {node.extra, words_, space().bounded()}; }
  // Until costs are settled a class may turn out to be possible after all.
  const NameSpace& space() const {
    if (settled_) return *space_;
    std::vector<bool> possible;
    for (ValueId id : rule_.classes) possible.push_back(table_.possible(id));
    if (!space_ || space_->possible() != possible)
      space_ = std::make_unique<NameSpace>(rule_.keys->text(), int32_t(rule_.names.size()), std::move(possible));
    return *space_;
  }
  // Names of classes that may still come.
  int64_t room(const Progress& done) const {
    if (!tracks() || space().all() >= NameSpace::kMany) return kNever;
    return std::max<int64_t>(0, int64_t(space().all()) - done.others);
  }

  // Whether an unfinished name can become one that is not met yet. In accept mode the digits of an escape are not looked through.
  bool leads_to_fresh(const Node& node, const StringLexer& keys, LexState state, const std::string& text) const {
    if (size_t(keys.labels().back()) < rule_.names.size()) return true;
    int32_t at = keys.text_state(state);
    if (at != kNone) return fresh_after(node, keys, at, text);
    if (keys.mode() == Mode::kAccept) return true;
    std::vector<std::pair<char, int32_t>> escapes = keys.escapes(state);
    bool open = escapes.empty();  // before the quote: that some name is left was seen to
    return open || std::any_of(escapes.begin(), escapes.end(),
                               [&](const auto& escape) { return fresh_after(node, keys, escape.second, text + escape.first); });
  }
  bool fresh_after(const Node& node, const StringLexer& keys, int32_t at, const std::string& text) const {
    if (space().from(at) > others(node).beginning(text)) return true;
    return std::any_of(keys.labels().begin(), keys.labels().end(), [&](int32_t label) {
      return size_t(label) < rule_.names.size() && rule_.names[size_t(label)].name.compare(0, text.size(), text) == 0;
    });
  }
  NodeRef at(const Node& node, ObjectPhase phase, uint64_t label, uint64_t count, std::vector<uint64_t> extra) const {
    return make_node(this, node.parent, phase + 8 * label, count, std::move(extra));
  }
  Progress progress(const Node& node) const {
    Seen seen(node.extra.begin(), node.extra.begin() + int64_t(std::min(words_, node.extra.size())));
    seen.resize(words_, 0);
    return {std::move(seen), int64_t(node.b), tracks() ? int64_t(others(node).count()) : 0};
  }
  bool is_met(const Seen& seen, size_t name) const { return !rule_.plain && (seen[name / 64] >> (name % 64) & 1); }
  bool is_required(const Seen& seen, size_t label) const {
    return label < rule_.names.size() && rule_.names[label].required && !is_met(seen, label);
  }
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
    const StringLexer* lexer = key_lexer(allowed(progress(*node)));
    if (lexer) sink.add(*lexer, at(*node, kKey, 0, node->b, node->extra));
  }
  void named(const NodeRef& node, int32_t label, const Text& text, Sink& sink) const {
    std::vector<uint64_t> extra = node->extra;
    uint64_t counted = node->b + 1;
    if (rule_.plain || (rule_.most == kUnbounded && int64_t(node->b) >= rule_.least)) counted = node->b;
    if (size_t(label) >= rule_.names.size()) {
      if (rule_.ordered) mark_up_to(extra, rule_.names.size());
      if (tracks()) OtherNames::add(extra, words_, text, space().bounded());
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
  bool finished(const Node& node) const {
    const Progress done = progress(node);
    return done.count >= rule_.least && required_left(done.seen) == 0;
  }
  bool any_allowed(const Node& node) const {
    std::vector<bool> labels = allowed(progress(node));
    return std::find(labels.begin(), labels.end(), true) != labels.end();
  }

  // The labels that the next name may have such that the object can still end.
  std::vector<bool> allowed(const Progress& done) const {
    size_t names = rule_.names.size(), required = required_left(done.seen);
    std::vector<bool> out(names + rule_.classes.size(), false);
    int64_t slots = rule_.most == kUnbounded ? kNever : rule_.most - done.count;
    if (slots <= 0 || int64_t(required) > slots) return out;
    bool only_required = int64_t(required) == slots;
    bool classes = std::any_of(rule_.classes.begin(), rule_.classes.end(), [&](ValueId id) { return table_.possible(id); });
    int64_t others = classes ? room(done) : 0;
    for (size_t j = 0; j < rule_.classes.size() && others > 0; ++j) {
      bool last = rule_.ordered && (required > 0 || done.count + others < rule_.least);  // no declared name would follow
      out[names + j] = table_.possible(rule_.classes[j]) && !only_required && !last;
    }
    int64_t available = 0;  // names that could still come after this one
    for (size_t i = names; i-- > 0;) {
      bool free = !is_met(done.seen, i) && table_.possible(rule_.names[i].value);
      out[i] =
          free && (!only_required || rule_.names[i].required) && (!rule_.ordered || done.count + 1 + available + others >= rule_.least);
      available += free;
    }
    if (!rule_.ordered) return out;
    for (size_t i = 0, past_required = 0; i < names; ++i) {
      if (past_required) out[i] = false;
      past_required |= rule_.names[i].required && !is_met(done.seen, i);
    }
    return out;
  }

  const StringLexer* key_lexer(const std::vector<bool>& labels) const {
    if (std::find(labels.begin(), labels.end(), true) == labels.end()) return nullptr;
    if (std::find(labels.begin(), labels.end(), false) == labels.end()) return rule_.keys.get();
    std::lock_guard<std::mutex> lock(mutex_);
    auto& lexer = lexers_[labels];
    require(lexer || lexers_.size() <= kMostKeyLexers, ErrorKind::kRange, "too many orders of property names");
    if (!lexer) {
      lexer = rule_.keys->restricted(labels);
      remembered_->fetch_add(lexer->bytes() + labels.size() / 8 + 200, std::memory_order_relaxed);
    }
    return lexer->empty() ? nullptr : lexer.get();
  }

  // Names met before are no ends: so many bytes further there are enough others.
  int64_t name_distance(const Thread& thread, int32_t label) const {
    const Node& node = *thread.parent;
    int64_t shortest = thread.lexer->distance(thread.state, label);
    bool repeats = shortest > 0 && shortest < kNever && size_t(label) >= rule_.names.size() && remembers(node);
    if (!repeats) return shortest;
    int32_t at = keys_of(thread).text_before(thread.state);
    // A new name that is whole is nearer its end than any that goes on, or the way to it would lead past all of them.
    if (!space().bounded() && space().reach(at, 0) == 0 && !others(node).has(thread.text)) return shortest;
    uint64_t used = space().bounded() ? others(node).beginning(thread.text.whole) : others(node).count();
    return used == 0 ? shortest : capped(shortest, space().reach(at, used) - space().reach(at, 0));
  }
  // Bytes of `"name":value`.
  int64_t property_cost(size_t name) const { return capped(name_bytes_[name], table_.at(rule_.names[name].value).cost); }
  int64_t class_cost() const {
    int64_t best = kNever, name = tracks() ? space().shortest() : 0;
    for (ValueId id : rule_.classes) best = std::min(best, capped(8 + name, table_.at(id).cost));
    return best;
  }
  int64_t cost_of(size_t label) const { return label < rule_.names.size() ? property_cost(label) : class_cost(); }
  // Of a property whose name has been read.
  int64_t begun(int32_t label) const { return capped(1, table_.at(value_of(uint32_t(label))).cost); }

  Needs needs(const Progress& done) const {
    Needs out;
    for (size_t i = 0; i < rule_.names.size(); ++i) {
      if (!is_required(done.seen, i)) continue;
      ++out.required;
      out.cost = capped(out.cost, property_cost(i) + 1);
    }
    out.missing = rule_.least - done.count - out.required;
    return out;
  }
  bool too_many(int64_t count) const { return rule_.most != kUnbounded && (count > rule_.most || rule_.least > rule_.most); }
  // Bytes from after a property (or the brace) to the closing brace, included.
  int64_t finish(const Progress& done, bool first) const {
    const Needs need = needs(done);
    if (need.cost >= kNever || too_many(done.count + need.required)) return kNever;
    const int64_t lone = first ? 1 : 0;  // the first property has no comma before it
    if (need.missing <= 0) return 1 + need.cost - (need.required > 0 ? lone : 0);
    std::vector<int64_t> optional;
    for (size_t i = 0; i < rule_.names.size(); ++i) {
      if (!is_met(done.seen, i) && !rule_.names[i].required && property_cost(i) < kNever) optional.push_back(property_cost(i));
    }
    // The cheapest of both kinds, as many as there are.
    std::sort(optional.begin(), optional.end());
    int64_t other = class_cost(), free = other < kNever ? room(done) : 0, names = 0, total = 1 + need.cost;
    auto better = [&](int64_t cost) { return cost <= other || need.missing - names > free; };
    while (names < need.missing && size_t(names) < optional.size() && better(optional[size_t(names)])) {
      total = capped(total, optional[size_t(names++)] + 1);
    }
    const int64_t others = need.missing - names;
    if (others > free || total >= kNever) return kNever;
    if (need.required + names > 0) total -= lone;
    return others > 0 ? capped(total, others * (other + 1)) : total;
  }
  int64_t one_more(const Progress& done) const {
    if (rule_.plain) return capped(class_cost(), 1);
    const Needs need = needs(done);
    // What it lacks is to come anyway, and the comma before the first of it is written.
    if (need.required > 0 || need.missing > 0) {
      const int64_t all = finish(done, false);
      return all >= kNever ? kNever : all - 1;
    }
    std::vector<bool> labels = allowed(done);
    int64_t best = kNever;
    for (size_t label = 0; label < labels.size(); ++label) {
      if (labels[label]) best = std::min(best, capped(cost_of(label), 1));
    }
    return best;
  }
  // Of a property of which so many bytes are to come, and of all that follows it.
  int64_t with_property(const Progress& done, const Needs& need, size_t label, int64_t cost) const {
    if (rule_.plain) return capped(cost, 1);
    const bool required = is_required(done.seen, label);
    if (need.missing_after(required) > 0) return capped(cost, finish(after(done, label), false));
    if (need.cost >= kNever || too_many(done.count + 1 + need.required - (required ? 1 : 0))) return kNever;
    return capped(cost, 1 + need.cost - (required ? property_cost(label) + 1 : 0));
  }
  Progress after(Progress done, size_t label) const {
    bool declared = label < rule_.names.size();
    if (declared && !rule_.ordered) done.seen[label / 64] |= uint64_t(1) << (label % 64);
    else if (rule_.ordered) mark_up_to(done.seen, std::min(label + 1, rule_.names.size()));
    ++done.count;
    done.others += declared ? 0 : 1;
    return done;
  }

  const ValueTable& table_;
  ObjectRule rule_;
  size_t words_;
  std::vector<int64_t> name_bytes_;  // of `"name":`, for each declared name
  bool settled_ = false;
  mutable std::unique_ptr<NameSpace> space_;  // as far as classes are known to be possible, all after settling
  int64_t shortest_ = kNever;
  Remembered remembered_;
  mutable std::mutex mutex_;
  mutable std::map<std::vector<bool>, std::shared_ptr<const StringLexer>> lexers_;
};

}  // namespace

std::unique_ptr<Frame> make_object(const ValueTable& table, ObjectRule rule, const Budget& budget) {
  return std::make_unique<ObjectFrame>(table, std::move(rule), budget.remembered());
}

}  // namespace tandem::grammar
