#include "grammar/minimize.h"

#include <algorithm>
#include <numeric>

namespace tandem::grammar {
namespace {

constexpr size_t kMostCells = 2'000'000;

// Hopcroft's algorithm: blocks of states are split by the states that lead into a block, the smaller half of a split block splits on.
class Partition {
 public:
  Partition(const Dfa& dfa, Budget& budget) : dfa_(dfa), budget_(budget), states_(dfa.size()), place_(dfa.size()), block_(dfa.size()) {
    std::iota(states_.begin(), states_.end(), 0);
    std::stable_sort(states_.begin(), states_.end(), [&](int32_t a, int32_t b) { return dfa.label[size_t(a)] < dfa.label[size_t(b)]; });
    for (size_t i = 0; i < states_.size(); ++i) {
      bool fresh = i == 0 || dfa.label[size_t(states_[i])] != dfa.label[size_t(states_[i - 1])];
      if (fresh) add_block(int32_t(i), int32_t(i));
      place_[size_t(states_[i])] = int32_t(i);
      block_[size_t(states_[i])] = int32_t(blocks_.size()) - 1;
      blocks_.back().end = int32_t(i) + 1;
    }
    find_sources();
  }

  // The block of each state.
  const std::vector<int32_t>& refine() {
    for (int32_t i = 0; i < int32_t(blocks_.size()); ++i) wait(i);
    std::vector<int32_t> members;
    while (!waiting_.empty()) {
      int32_t splitter = waiting_.back();
      waiting_.pop_back();
      blocks_[size_t(splitter)].waits = false;
      members.assign(states_.begin() + blocks_[size_t(splitter)].begin, states_.begin() + blocks_[size_t(splitter)].end);
      for (int32_t symbol = 0; symbol < dfa_.classes; ++symbol) split_by(members, symbol);
    }
    return block_;
  }
  size_t blocks() const { return blocks_.size(); }

 private:
  struct Block {
    int32_t begin, end, marked;  // marked states stand first
    bool waits;
  };
  void add_block(int32_t begin, int32_t end) { blocks_.push_back({begin, end, 0, false}); }
  void wait(int32_t block) {
    if (blocks_[size_t(block)].waits) return;
    blocks_[size_t(block)].waits = true;
    waiting_.push_back(block);
  }

  // States by the state that a symbol leads to: sources_[first_[target * classes + symbol]] and on.
  void find_sources() {
    size_t cells = dfa_.table.size();
    first_.assign(cells + 1, 0);
    auto cell = [&](size_t at) { return size_t(dfa_.table[at]) * size_t(dfa_.classes) + at % size_t(dfa_.classes); };
    for (size_t at = 0; at < cells; ++at) {
      if (dfa_.table[at] != kNone) ++first_[cell(at) + 1];
    }
    for (size_t at = 0; at < cells; ++at) first_[at + 1] += first_[at];
    sources_.resize(size_t(first_[cells]));
    std::vector<int32_t> next(first_.begin(), first_.end() - 1);
    for (size_t at = 0; at < cells; ++at) {
      if (dfa_.table[at] != kNone) sources_[size_t(next[cell(at)]++)] = int32_t(at / size_t(dfa_.classes));
    }
  }

  void split_by(const std::vector<int32_t>& members, int32_t symbol) {
    touched_.clear();
    for (int32_t target : members) {
      size_t cell = size_t(target) * size_t(dfa_.classes) + size_t(symbol);
      for (int32_t i = first_[cell]; i < first_[cell + 1]; ++i) mark(sources_[size_t(i)]);
    }
    budget_.tick();
    for (int32_t touched : touched_) {
      Block& block = blocks_[size_t(touched)];
      int32_t middle = block.begin + block.marked;
      block.marked = 0;
      if (middle == block.end) continue;
      int32_t begin = block.begin, end = block.end;
      bool waits = block.waits, first_smaller = middle - begin <= end - middle;
      block.begin = middle;
      add_block(begin, middle);  // `block` is no longer valid
      int32_t fresh = int32_t(blocks_.size()) - 1;
      for (int32_t i = begin; i < middle; ++i) block_[size_t(states_[size_t(i)])] = fresh;
      wait(waits || first_smaller ? fresh : touched);
    }
  }
  void mark(int32_t state) {
    Block& block = blocks_[size_t(block_[size_t(state)])];
    int32_t to = block.begin + block.marked, from = place_[size_t(state)];
    if (from < to) return;
    if (block.marked++ == 0) touched_.push_back(block_[size_t(state)]);
    std::swap(states_[size_t(from)], states_[size_t(to)]);
    place_[size_t(states_[size_t(from)])] = from;
    place_[size_t(states_[size_t(to)])] = to;
  }

  const Dfa& dfa_;
  Budget& budget_;
  std::vector<int32_t> states_, place_, block_;
  std::vector<Block> blocks_;
  std::vector<int32_t> waiting_, touched_, first_, sources_;
};

}  // namespace

void minimize(Dfa& dfa, Budget& budget) {
  if (dfa.table.size() > kMostCells) return;
  Partition partition(dfa, budget);
  const std::vector<int32_t>& block = partition.refine();
  if (partition.blocks() == dfa.size()) return;
  // Blocks are numbered by their first state, which stands for them.
  std::vector<int32_t> number(partition.blocks(), kNone), stands;
  for (size_t state = 0; state < dfa.size(); ++state) {
    int32_t& own = number[size_t(block[state])];
    if (own == kNone) own = int32_t(stands.size()), stands.push_back(int32_t(state));
  }
  Dfa out;
  out.byte_class = dfa.byte_class;
  out.classes = dfa.classes;
  out.start = number[size_t(block[size_t(dfa.start)])];
  out.table.reserve(stands.size() * size_t(dfa.classes));
  for (int32_t state : stands) {
    out.label.push_back(dfa.label[size_t(state)]);
    for (int32_t symbol = 0; symbol < dfa.classes; ++symbol) {
      int32_t target = dfa.table[size_t(state) * size_t(dfa.classes) + size_t(symbol)];
      out.table.push_back(target == kNone ? kNone : number[size_t(block[size_t(target)])]);
    }
  }
  dfa = std::move(out);
}

}  // namespace tandem::grammar
