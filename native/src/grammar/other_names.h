// The names of an object beyond its declared ones, as its node records them: behind `begin` words of Node::extra their number, then for
// each its hash, or, where texts are kept, its length and its bytes.
#pragma once
#include <cstring>

#include "grammar/frame.h"

namespace tandem::grammar {

class OtherNames {
 public:
  OtherNames(const std::vector<uint64_t>& extra, size_t begin, bool texts) : extra_(extra), begin_(begin), texts_(texts) {}
  uint64_t count() const { return extra_.size() > begin_ ? extra_[begin_] : 0; }
  bool has(const Text& text) const {
    bool found = false;
    if (texts_) each_text([&](std::string_view name) { found = found || name == text.whole; });
    for (size_t at = begin_ + 1; !texts_ && at + 1 < extra_.size() && !found; at += 2)
      found = extra_[at] == text.a && extra_[at + 1] == text.b;
    return found;
  }
  // How many begin with `start`; only where texts are kept.
  uint64_t beginning(std::string_view start) const {
    uint64_t found = 0;
    each_text([&](std::string_view name) { found += name.substr(0, start.size()) == start; });
    return found;
  }
  static void add(std::vector<uint64_t>& extra, size_t begin, const Text& text, bool texts) {
    if (extra.size() == begin) extra.push_back(0);
    ++extra[begin];
    if (!texts) {
      extra.push_back(text.a), extra.push_back(text.b);
      return;
    }
    size_t at = extra.size() + 1;
    extra.push_back(text.whole.size());
    extra.resize(at + (text.whole.size() + 7) / 8, 0);
    if (!text.whole.empty()) std::memcpy(&extra[at], text.whole.data(), text.whole.size());
  }

 private:
  template <typename Visit>
  void each_text(const Visit& visit) const {
    for (size_t at = begin_ + 1; at < extra_.size(); at += 1 + (size_t(extra_[at]) + 7) / 8)
      visit(std::string_view(reinterpret_cast<const char*>(extra_.data() + at + 1), size_t(extra_[at])));
  }
  const std::vector<uint64_t>& extra_;
  size_t begin_;
  bool texts_;
};

}  // namespace tandem::grammar
