// Languages of the known string formats. Where a format's full definition is wider than what validators agree on, the language is the
// part that all take.
#include <map>

#include "grammar/regex.h"
#include "grammar/schema.h"

namespace tandem::grammar {
namespace {

constexpr char kOctet[] = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
constexpr char kLabel[] = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";

std::string date() {
  std::string leap = "(([0-9][0-9](0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)";
  std::string common = "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])))";
  return "(" + common + "|" + leap + ")";
}
// Leap seconds are left out: whether one is valid depends on the offset.
std::string time() { return "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"; }

std::string duration() {
  std::string clock = "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)";
  std::string days = "([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)";
  return "P(" + days + "(" + clock + ")?|" + clock + "|[0-9]+W)";
}

std::string ipv4() { return std::string("(") + kOctet + "\\.){3}" + kOctet; }

std::string ipv6() {
  const std::string hex = "[0-9A-Fa-f]{1,4}";
  const std::string last = "(" + hex + ":" + hex + "|" + ipv4() + ")";
  std::string out = "(" + hex + ":){6}" + last;
  out += "|::(" + hex + ":){5}" + last;
  for (int before = 1; before <= 5; ++before) {
    std::string left = "(" + hex + ":){0," + std::to_string(before - 1) + "}" + hex;
    out += "|(" + left + ")?::(" + hex + ":){" + std::to_string(5 - before) + "}" + last;
  }
  out += "|((" + hex + ":){0,5}" + hex + ")?::" + hex + "|((" + hex + ":){0,6}" + hex + ")?::";
  return "(" + out + ")";
}

std::string hostname() { return std::string("(") + kLabel + "\\.)*" + kLabel; }
std::string email() {
  std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  std::string domain = std::string("(") + kLabel + "\\.)+[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  return atom + "(\\." + atom + ")*@" + domain;
}

std::string uri_tail() {
  const std::string pchar = "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
  return "(\\?(" + pchar + "|[/?])*)?(#(" + pchar + "|[/?])*)?";
}
std::string authority_path() {
  const std::string pchar = "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
  const std::string name = "([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*";
  return "//(([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?(" + name + "|\\[" + ipv6() + "\\])(:[0-9]*)?(/" + pchar + "*)*";
}
std::string uri() {
  const std::string pchar = "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
  return "[A-Za-z][A-Za-z0-9+.-]*:(" + authority_path() + "|/(" + pchar + "+(/" + pchar + "*)*)?|" + pchar + "+(/" + pchar + "*)*)" +
         uri_tail();
}
std::string uri_reference() {
  const std::string pchar = "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})", first = "([A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})";
  return "(" + uri() + "|(" + authority_path() + "|/(" + pchar + "+(/" + pchar + "*)*)?|" + first + "+(/" + pchar + "*)*|)" + uri_tail() +
         ")";
}
std::string uri_template() {
  const std::string name = "([A-Za-z0-9_]|%[0-9A-Fa-f]{2})(\\.?([A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*", var = name + "(\\*|:[1-9][0-9]{0,3})?";
  return "([!#$&(-;=?-\\[\\]_a-z~]|%[0-9A-Fa-f]{2}|\\{[+#./;?&]?" + var + "(," + var + ")*\\})*";
}

using Maker = std::string (*)();
const std::map<std::string, Maker>& makers() {
  static const std::map<std::string, Maker> known = {
      {"date", date},
      {"time", time},
      {"duration", duration},
      {"ipv4", ipv4},
      {"ipv6", ipv6},
      {"hostname", hostname},
      {"email", email},
      {"uri", uri},
      {"uri-reference", uri_reference},
      {"uri-template", uri_template},
      {"date-time", [] { return date() + "[tT]" + time(); }},
      {"uuid", [] { return std::string("[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"); }},
      {"json-pointer", [] { return std::string("(/([^/~]|~[01])*)*"); }},
      {"relative-json-pointer", [] { return std::string("(0|[1-9][0-9]*)(#|(/([^/~]|~[01])*)*)"); }}};
  return known;
}

}  // namespace

DfaRef format_language(const std::string& format, Budget& budget) {
  auto found = makers().find(format);
  if (found == makers().end()) return nullptr;
  DfaRef language = compile_regex(found->second(), Anchoring::kWhole, budget);
  // A host name has at most 253 characters; every label at most 63.
  if (format == "hostname") language = intersect(language, utf8_strings(1, 253, budget), budget);
  return language;
}

}  // namespace tandem::grammar
