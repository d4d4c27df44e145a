// The items of a list that holds none twice: which values there are, which of them are left, and how long those are. Values are told apart by their
// texts, so each must have one: strings as they decode, null, false, true, whole numbers and listed numbers.
#pragma once
#include "grammar/name_space.h"
#include "grammar/values.h"

namespace tandem::grammar {

// The values that one lexer reads.
class ItemValues {
 public:
  static constexpr uint64_t kMany = NameSpace::kMany;
  virtual ~ItemValues() = default;
  virtual const LexerRef& lexer() const = 0;
  virtual Reading reading() const { return Reading::kText; }
  // How many there are; kMany where they are so many or more.
  virtual uint64_t count() const = 0;
  // Whether the lexeme can become a value that was not met, or is one.
  virtual bool fresh(const Thread& thread, const UsedValues& used) const = 0;
  // Fewest bytes to the end of a value that was not met.
  virtual int64_t distance(const Thread& thread, const UsedValues* used) const = 0;
  // How many values at most 0, 1, 2, ... bytes write, up to the first that is more than `enough`, or as far as is known.
  virtual std::vector<uint64_t> lengths(uint64_t enough) const = 0;
  // Appends all values, as they are told apart, each with its bytes as written; of fewer than kMany.
  virtual void list(std::vector<std::pair<std::string, int64_t>>& out, Budget& budget) const = 0;
};

class UniqueItems {
 public:
  // So many values are remembered: then a list that is written ends.
  static constexpr int64_t kMostRemembered = 4096;

  // Throws Refused where the texts of some items do not tell them apart.
  UniqueItems(const Value& item, Mode mode, Budget& budget);
  // How many different items there are; more than kMostRemembered are all alike.
  int64_t values() const { return values_; }
  void begin(const NodeRef& parent, Sink& sink) const;
  Reading reading(const Lexer& lexer) const { return of(lexer).reading(); }
  // Whether strings alone can be items, and what was written of one never keeps it from going on.
  bool endless() const { return endless_; }
  std::string value_of(const Text& text) const;
  bool admits(const Thread& thread, const UsedValues& used) const;
  bool ends(const Thread& thread, const UsedValues& used) const { return !is_raw(thread.text) || !used.has(value_of(thread.text)); }
  bool begins_refused(const Thread& thread, const UsedValues& used) const;
  // Fewest bytes of the item at hand that are to come.
  int64_t distance(const Thread& thread, const UsedValues* used) const { return of(*thread.lexer).distance(thread, used); }
  // Bytes of the shortest `count` different items but the first `from`, kNever where there are not so many.
  int64_t cost(int64_t from, int64_t count) const;

 private:
  const ItemValues& of(const Lexer& lexer) const;
  static bool is_raw(const Text& text) { return !text.whole.empty() && text.whole[0] == '\xFF'; }
  void add_strings(const Value& item, Budget& budget);
  void add_others(const Value& item, Budget& budget);
  void measure(Budget& budget);
  // Bytes of the different items, ascending: of all where they are few; else of the shortest kMostRemembered + 1, by how many each length has.
  std::vector<int64_t> lengths_of_all(Budget& budget) const;
  std::vector<int64_t> lengths_by_count() const;

  Mode mode_;
  std::vector<std::unique_ptr<ItemValues>> kinds_;
  int64_t values_ = 0;
  bool endless_ = false, hashed_ = false;  // hashed_: of strings the hash is remembered
  std::vector<int64_t> costs_;             // of the shortest 0, 1, 2, ... items together
};

}  // namespace tandem::grammar
