// $id, $anchor and $ref. Nothing is ever fetched: a reference out of the document is refused.
#include "grammar/schema.h"

#include <set>

namespace tandem::grammar {
namespace {

struct Uri {
  std::string scheme, authority, path, query;
  bool has_authority = false, has_query = false;
};

Uri split(std::string text) {
  Uri uri;
  size_t colon = text.find_first_of(":/?#");
  if (colon != std::string::npos && colon > 0 && text[colon] == ':') {
    uri.scheme = text.substr(0, colon);
    text = text.substr(colon + 1);
  }
  size_t query = text.find('?');
  if (query != std::string::npos) uri.has_query = true, uri.query = text.substr(query + 1), text.resize(query);
  if (text.rfind("//", 0) == 0) {
    uri.has_authority = true;
    size_t slash = text.find('/', 2);
    uri.authority = text.substr(2, slash == std::string::npos ? std::string::npos : slash - 2);
    text = slash == std::string::npos ? "" : text.substr(slash);
  }
  uri.path = text;
  return uri;
}

std::string without_dots(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= path.size();) {
    size_t slash = std::min(path.find('/', at), path.size());
    std::string part = path.substr(at, slash - at);
    bool last = slash == path.size();
    if (part == "..") {
      if (parts.size() > 1) parts.pop_back();
      if (last) parts.push_back("");
    } else if (part == ".") {
      if (last) parts.push_back("");
    } else {
      parts.push_back(part);
    }
    at = slash + 1;
  }
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) out += (i ? "/" : "") + parts[i];
  return out;
}

std::string unescape(const std::string& token) {
  std::string plain;
  auto hex = [](char c) { return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1; };
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '%' && i + 2 < token.size() && hex(token[i + 1]) >= 0 && hex(token[i + 2]) >= 0) {
      plain += char(hex(token[i + 1]) * 16 + hex(token[i + 2]));
      i += 2;
    } else {
      plain += token[i];
    }
  }
  std::string out;
  for (size_t i = 0; i < plain.size(); ++i) {
    if (plain[i] == '~' && i + 1 < plain.size() && (plain[i + 1] == '0' || plain[i + 1] == '1')) out += plain[++i] == '0' ? '~' : '/';
    else out += plain[i];
  }
  return out;
}

}  // namespace

std::string Locations::join(const std::string& base, const std::string& reference) {
  Uri ref = split(reference), from = split(base);
  if (!ref.scheme.empty()) return reference;
  Uri out = from;
  if (ref.has_authority) {
    out.has_authority = true, out.authority = ref.authority, out.path = without_dots(ref.path);
    out.has_query = ref.has_query, out.query = ref.query;
  } else if (ref.path.empty()) {
    if (ref.has_query) out.has_query = true, out.query = ref.query;
  } else {
    size_t slash = from.path.rfind('/');
    bool absolute = ref.path[0] == '/';
    out.path = without_dots(absolute                     ? ref.path
                            : slash == std::string::npos ? (from.has_authority ? "/" : "") + ref.path
                                                         : from.path.substr(0, slash + 1) + ref.path);
    out.has_query = ref.has_query, out.query = ref.query;
  }
  std::string text = out.scheme.empty() ? "" : out.scheme + ":";
  if (out.has_authority) text += "//" + out.authority;
  return text + out.path + (out.has_query ? "?" + out.query : "");
}

Locations::Locations(const Json& root, bool draft7) : draft7_(draft7) {
  known_[""] = {&root, ""};
  visit(root, "", 0);
}

std::string Locations::base_of(const Json& schema, const std::string& outer) const {
  const Json* id = schema.find("$id");
  if (!id || !id->is(Json::kString) || (draft7_ && schema.find("$ref"))) return outer;
  std::string own = id->text.substr(0, id->text.find('#'));
  return own.empty() ? outer : join(outer, own);
}

// Looks only where schemas stand: an $id within an enum is data.
void Locations::visit(const Json& schema, const std::string& outer, int depth) {
  if (depth > 200) return;
  if (!schema.is(Json::kObject)) return;
  std::string base = base_of(schema, outer);
  if (base != outer || depth == 0) known_.emplace(base, Place{&schema, base});
  if (const Json* id = schema.find("$id"); id && id->is(Json::kString) && draft7_ && !schema.find("$ref")) {
    size_t hash = id->text.find('#');
    if (hash != std::string::npos && hash + 1 < id->text.size()) known_.emplace(base + id->text.substr(hash), Place{&schema, base});
  }
  for (const char* anchor : {"$anchor", "$dynamicAnchor"}) {
    const Json* name = schema.find(anchor);
    if (name && name->is(Json::kString)) known_.emplace(base + "#" + name->text, Place{&schema, base});
  }
  static const std::set<std::string> kMaps = {"properties",  "patternProperties", "$defs",
                                              "definitions", "dependentSchemas",  "dependencies"};
  static const std::set<std::string> kLists = {"allOf", "anyOf", "oneOf", "prefixItems", "items"};
  static const std::set<std::string> kSingle = {
      "additionalProperties", "propertyNames",        "items", "additionalItems", "contains", "not", "if", "then", "else",
      "unevaluatedItems",     "unevaluatedProperties"};
  for (const auto& [keyword, value] : schema.members) {
    if (kSingle.count(keyword)) visit(value, base, depth + 1);
    if (kLists.count(keyword)) {
      for (const Json& item : value.items) visit(item, base, depth + 1);
    }
    if (kMaps.count(keyword)) {
      for (const auto& member : value.members) visit(member.value, base, depth + 1);
    }
  }
}

Locations::Place Locations::follow(const Place& from, const std::string& pointer) const {
  const Json* at = from.schema;
  std::string base = from.base;
  bool first = true;
  for (size_t begin = 1; begin <= pointer.size();) {
    size_t end = std::min(pointer.find('/', begin), pointer.size());
    std::string token = unescape(pointer.substr(begin, end - begin));
    if (!first && at->is(Json::kObject)) base = base_of(*at, base);
    first = false;
    const Json* next = at->find(token);
    if (!next && at->is(Json::kArray) && !token.empty() && token.size() < 9 && token.find_first_not_of("0123456789") == std::string::npos) {
      size_t index = std::stoul(token);
      if (index < at->items.size()) next = &at->items[index];
    }
    if (!next) malformed("$ref: nothing is found at \"" + pointer.substr(0, 200) + '"');
    at = next;
    begin = end + 1;
  }
  return {at, base};
}

Locations::Place Locations::resolve(const std::string& base, const std::string& reference) const {
  size_t hash = reference.find('#');
  std::string target = hash == 0 ? base : join(base, reference.substr(0, hash));
  std::string fragment = hash == std::string::npos ? "" : reference.substr(hash + 1);
  if (!fragment.empty() && fragment[0] != '/') {
    auto anchored = known_.find(target + "#" + unescape(fragment));
    if (anchored == known_.end()) throw Refused("$ref", "\"" + reference.substr(0, 200) + "\" is not in this schema");
    return anchored->second;
  }
  auto found = known_.find(target);
  if (found == known_.end()) throw Refused("$ref", "\"" + reference.substr(0, 200) + "\" lies outside this schema; nothing is fetched");
  Place place = found->second;
  return fragment.empty() ? place : follow(place, fragment);
}

}  // namespace tandem::grammar
