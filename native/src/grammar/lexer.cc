#include "grammar/lexer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "grammar/number_lexer.h"
#include "grammar/regex.h"

namespace tandem::grammar {

const std::vector<int32_t>& Lexer::labels() const {
  static const std::vector<int32_t> one = {0};
  return one;
}

std::vector<int32_t> labels_of(const Dfa& dfa) {
  std::vector<int32_t> out;
  for (int32_t label : dfa.label) {
    if (label != kNone) out.push_back(label);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::vector<int32_t> distances_to(const Dfa& dfa, int32_t label) {
  Dfa only;
  only.byte_class = dfa.byte_class;
  only.classes = dfa.classes;
  only.table = dfa.table;
  only.start = dfa.start;
  only.label = dfa.label;
  for (int32_t& found : only.label) found = found == label ? 0 : kNone;
  return distances(only);
}

namespace {

// Per state the states before it, each with the fewest written bytes of a step.
std::vector<std::vector<std::pair<int32_t, int32_t>>> written_back(const Dfa& dfa, const WrittenBytes& written) {
  std::vector<int32_t> cost(size_t(dfa.classes), kMostWritten);
  for (size_t byte = 0; byte < 256; ++byte) {
    int32_t& least = cost[dfa.byte_class[byte]];
    least = std::min(least, int32_t(written[byte]));
  }
  std::vector<std::vector<std::pair<int32_t, int32_t>>> back(dfa.size());
  for (size_t cell = 0; cell < dfa.table.size(); ++cell) {
    if (dfa.table[cell] == kNone) continue;
    const int32_t from = int32_t(cell / size_t(dfa.classes)), bytes = cost[cell % size_t(dfa.classes)];
    std::vector<std::pair<int32_t, int32_t>>& sources = back[size_t(dfa.table[cell])];
    if (sources.empty() || sources.back().first != from) sources.emplace_back(from, bytes);
    else sources.back().second = std::min(sources.back().second, bytes);
  }
  return back;
}

// The states from which the ends are reached, with the bytes to them in `distance`. States wait in the ring by their distance, of which those
// that wait together differ by a step at most.
std::vector<int32_t> spread(const std::vector<int32_t>& ends, const std::vector<std::vector<std::pair<int32_t, int32_t>>>& back,
                            std::vector<int32_t>& distance) {
  std::array<std::vector<int32_t>, kMostWritten + 1> ring;
  std::vector<int32_t> found;
  for (int32_t state : ends) distance[size_t(state)] = 0;
  ring[0] = ends;
  size_t waiting = ends.size();
  for (int32_t bytes = 0; waiting > 0; ++bytes) {
    std::vector<int32_t> here = std::exchange(ring[size_t(bytes) % ring.size()], {});
    waiting -= here.size();
    for (int32_t state : here) {
      if (distance[size_t(state)] != bytes) continue;
      found.push_back(state);
      for (auto [from, step] : back[size_t(state)]) {
        int32_t& known = distance[size_t(from)];
        if (known != kNone && known <= bytes + step) continue;
        known = bytes + step;
        ring[size_t(known) % ring.size()].push_back(from);
        ++waiting;
      }
    }
  }
  return found;
}

}  // namespace

std::vector<LabelDistances> label_distances(const Dfa& dfa, const WrittenBytes& written) {
  const std::vector<std::vector<std::pair<int32_t, int32_t>>> back = written_back(dfa, written);
  std::map<int32_t, std::vector<int32_t>> ends;
  for (size_t state = 0; state < dfa.size(); ++state) {
    if (dfa.label[state] != kNone) ends[dfa.label[state]].push_back(int32_t(state));
  }
  std::vector<LabelDistances> out(dfa.size());
  std::vector<int32_t> distance(dfa.size(), kNone);
  size_t count = 0;
  for (const auto& [label, states] : ends) {
    const std::vector<int32_t> found = spread(states, back, distance);
    count += found.size();
    require(count <= kMostDistances, ErrorKind::kRange, "the grammar needs too many states");
    for (int32_t state : found) out[size_t(state)].emplace_back(label, std::exchange(distance[size_t(state)], kNone));
  }
  return out;
}

DfaLexer::DfaLexer(DfaRef dfa) : dfa_(std::move(dfa)), labels_(labels_of(*dfa_)) {
  for (int32_t label : labels_) distance_.push_back(distances_to(*dfa_, label));
}

int64_t DfaLexer::distance(LexState state, int32_t label) const {
  for (size_t i = 0; i < labels_.size(); ++i) {
    if (labels_[i] == label && distance_[i][size_t(state)] != kNone) return distance_[i][size_t(state)];
  }
  return kNever;
}

const LexerRef& keyword_lexer(const std::string& word) {
  static const std::map<std::string, LexerRef> lexers = [] {
    std::map<std::string, LexerRef> out;
    Budget budget;
    for (const char* text : {"null", "false", "true"}) out[text] = std::make_shared<DfaLexer>(words({text}, budget));
    return out;
  }();
  return lexers.at(word);
}

LexerRef any_number_lexer(Mode mode) {
  static const LexerRef lexers[2] = {
      [] {
        Budget budget;
        return std::make_shared<DfaLexer>(compile_regex("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?", Anchoring::kWhole, budget));
      }(),
      [] {
        Budget budget;
        return std::make_shared<DfaLexer>(
            compile_regex("-?(0|[1-9][0-9]{0,15})(\\.[0-9]{1,16})?([eE][+-]?[0-9]{1,2})?", Anchoring::kWhole, budget));
      }()};
  return lexers[mode == Mode::kAccept ? 0 : 1];
}

}  // namespace tandem::grammar
