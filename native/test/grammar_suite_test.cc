// The public suites for JSON and JSON Schema, where they are at hand: TANDEM_SHARED_DATA or ../shared/data beside the checkout.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "grammar/grammar.h"
#include "patient_budget.h"
#include "test.h"

namespace {

using namespace tandem;
using namespace tandem::grammar;
namespace fs = std::filesystem;

// Empty, with a line that says so, where the data is not there.
fs::path suites() {
  std::vector<fs::path> places;
  if (const char* given = std::getenv("TANDEM_SHARED_DATA")) places.push_back(given);
  for (fs::path at = fs::current_path();; at = at.parent_path()) {
    places.push_back(at.parent_path() / "shared" / "data");
    if (at == at.parent_path()) break;
  }
  for (const fs::path& place : places) {
    if (fs::exists(place / "suites")) return place / "suites";
  }
  std::printf("  skipped: no shared data (set TANDEM_SHARED_DATA)\n");
  return {};
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool suite_accepts(const Grammar& grammar, const std::string& text) {
  State state = grammar.start(), next;
  for (char byte : text) {
    step(state, uint8_t(byte), next);
    std::swap(state, next);
    if (!state.alive()) return false;
  }
  return state.can_end;
}

struct Counts {
  int schemas = 0, compiled = 0, valid_accepted = 0, valid_refused = 0, invalid_accepted = 0, invalid_refused = 0;
  std::map<std::string, int> refused;
};

std::string slice(const std::string& text, const Json& part) { return text.substr(part.begin, part.end - part.begin); }

void run_file(const fs::path& path, const GrammarOptions& options, Counts& counts) {
  std::string text = read_text(path);
  Budget own;
  for (const Json& group : parse_json(text, own).items) {
    ++counts.schemas;
    GrammarRef grammar;
    try {
      Budget budget = patient_budget();
      grammar = compile_json_schema(slice(text, *group.find("schema")), options, budget);
    } catch (const Refused& refused) {
      ++counts.refused[refused.keyword()];
      if (std::getenv("TANDEM_GRAMMAR_VERBOSE"))
        std::printf("  refused %s: %s: %s\n", path.filename().c_str(), group.find("description")->text.c_str(), refused.what());
      continue;
    } catch (const Error& error) {
      ++counts.refused[std::string("error: ") + error.what()];
      continue;
    }
    ++counts.compiled;
    for (const Json& test : group.find("tests")->items) {
      bool valid = test.find("valid")->is(Json::kTrue), accepted = suite_accepts(*grammar, slice(text, *test.find("data")));
      ++(valid ? (accepted ? counts.valid_accepted : counts.valid_refused) : accepted ? counts.invalid_accepted : counts.invalid_refused);
      if (valid != accepted) {
        std::printf("  %s %s / %s: %s is %s\n", path.filename().c_str(), group.find("description")->text.c_str(),
                    test.find("description")->text.c_str(), slice(text, *test.find("data")).substr(0, 120).c_str(),
                    accepted ? "wrongly accepted" : "wrongly refused");
      }
    }
  }
}

void run_suite(const char* draft, bool draft7) {
  fs::path root = suites();
  if (root.empty()) return;
  Counts counts;
  std::vector<fs::path> files;
  for (const char* folder : {"", "optional"}) {
    for (const auto& entry : fs::directory_iterator(root / "JSON-Schema-Test-Suite/tests" / draft / folder)) {
      // Left out: formats and contents as assertions, which both drafts leave to the implementation; here they are annotations.
      std::string name = entry.path().filename();
      bool assertion = name == "format-assertion.json" || (*folder && name == "content.json");
      if (entry.path().extension() == ".json" && !assertion) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  GrammarOptions options{.mode = Mode::kAccept, .assert_formats = false, .draft7 = draft7};
  for (const fs::path& file : files) run_file(file, options, counts);
  std::printf("  %s: %d of %d schemas compiled; valid %d accepted, %d refused; invalid %d refused, %d accepted\n", draft, counts.compiled,
              counts.schemas, counts.valid_accepted, counts.valid_refused, counts.invalid_refused, counts.invalid_accepted);
  for (const auto& [keyword, count] : counts.refused) std::printf("    %s: %d\n", keyword.c_str(), count);
  CHECK(counts.compiled * 10 >= counts.schemas * 6);
  CHECK_EQ(counts.invalid_accepted, 0);
  CHECK_EQ(counts.valid_refused, 0);
}

TEST_ONCE(grammar_suite_draft7) { run_suite("draft7", true); }
TEST_ONCE(grammar_suite_draft2020) { run_suite("draft2020-12", false); }

TEST_ONCE(grammar_suite_json_parsing) {
  fs::path root = suites();
  if (root.empty()) return;
  Budget budget = patient_budget();
  GrammarRef any = compile_json_schema("true", {.mode = Mode::kAccept, .assert_formats = false}, budget);
  int files = 0;
  for (const auto& entry : fs::directory_iterator(root / "JSONTestSuite/test_parsing")) {
    std::string name = entry.path().filename();
    bool accepted = suite_accepts(*any, read_text(entry.path()));
    ++files;
    if ((name[0] == 'y' && !accepted) || (name[0] == 'n' && accepted))
      test::fail(__FILE__, __LINE__, name + (accepted ? " is accepted" : " is refused"));
  }
  std::printf("  %d files\n", files);
  CHECK(files > 0);
}

}  // namespace
