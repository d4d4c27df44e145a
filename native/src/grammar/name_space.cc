#include "grammar/name_space.h"

#include <algorithm>
#include <map>

namespace tandem::grammar {
namespace {

uint64_t capped(uint64_t count) { return std::min(count, NameSpace::kMany); }

}  // namespace

NameSpace::NameSpace(const Dfa& keys, int32_t first, std::vector<bool> possible)
    : keys_(&keys), first_(first), possible_(std::move(possible)), bytes_(size_t(keys.classes), 0), plain_(size_t(keys.classes), 0) {
  for (size_t byte = 0; byte < 256; ++byte) {
    ++bytes_[keys.byte_class[byte]];
    plain_[keys.byte_class[byte]] += byte >= 0x20 && byte != '"' && byte != '\\';
  }
  count();
}

bool NameSpace::ends(int32_t state) const {
  int32_t label = keys_->label[size_t(state)];
  return label >= first_ && possible_[size_t(label - first_)];
}

// From the ends backwards, each state once all that follow it are counted; a state that leads into a loop never is.
void NameSpace::count() {
  const Dfa& keys = *keys_;
  std::vector<std::vector<std::pair<int32_t, uint32_t>>> back(keys.size());  // where from, by how many bytes
  for (size_t state = 0; state < keys.size(); ++state) {
    for (size_t symbol = 0; symbol < bytes_.size(); ++symbol) {
      int32_t target = keys.table[state * bytes_.size() + symbol];
      if (target != kNone) back[size_t(target)].emplace_back(int32_t(state), bytes_[symbol]);
    }
  }
  names_.assign(keys.size(), 0);
  std::vector<int32_t> live, waits(keys.size(), 0);  // waits: edges to states that are not counted yet
  std::vector<int64_t> distance(keys.size(), -1);
  for (size_t state = 0; state < keys.size(); ++state) {
    if (ends(int32_t(state))) distance[state] = 0, live.push_back(int32_t(state));
  }
  for (size_t i = 0; i < live.size(); ++i) {
    for (auto [from, bytes] : back[size_t(live[i])]) {
      ++waits[size_t(from)];
      if (distance[size_t(from)] < 0) distance[size_t(from)] = distance[size_t(live[i])] + 1, live.push_back(from);
    }
  }
  if (!keys.empty()) shortest_ = std::max<int64_t>(0, distance[size_t(keys.start)]);
  std::vector<int32_t> ready;
  for (int32_t state : live) {
    names_[size_t(state)] = ends(state);
    if (waits[size_t(state)] == 0) ready.push_back(state);
  }
  for (size_t i = 0; i < ready.size(); ++i) {
    for (auto [from, bytes] : back[size_t(ready[i])]) {
      names_[size_t(from)] = capped(names_[size_t(from)] + bytes * names_[size_t(ready[i])]);
      if (--waits[size_t(from)] == 0) ready.push_back(from);
    }
  }
  for (int32_t state : live) {
    if (waits[size_t(state)] > 0) names_[size_t(state)] = kMany;
    bounded_ = bounded_ || names_[size_t(state)] < kMany;
  }
}

std::vector<uint64_t> NameSpace::within(int32_t state, uint64_t enough) const {
  const Dfa& keys = *keys_;
  std::map<int32_t, uint64_t> at = {{state, 1}}, next;  // ways of so many bytes to each state
  uint64_t found = 0;
  std::vector<uint64_t> out;
  while (int64_t(out.size()) < kMostReach) {
    for (auto [here, ways] : at) found += ends(here) ? ways : 0;
    out.push_back(found);
    if (found > enough) return out;
    next.clear();
    for (auto [here, ways] : at) {
      for (size_t symbol = 0; symbol < plain_.size(); ++symbol) {
        int32_t target = keys.table[size_t(here) * plain_.size() + symbol];
        if (target != kNone && plain_[symbol] > 0 && names_[size_t(target)] > 0)
          next[target] = capped(next[target] + ways * plain_[symbol]);
      }
    }
    std::swap(at, next);
  }
  out.push_back(kMany);
  return out;
}

}  // namespace tandem::grammar
