#include "grammar/lexer.h"

#include <algorithm>
#include <map>

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
