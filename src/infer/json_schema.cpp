#include "infer/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "base/text.h"

namespace thimble {

namespace {

constexpr std::size_t kMaxSchemaBytes = 1 << 20;
constexpr std::size_t kMaxClauses = 256;        // combinations of branches of one schema
constexpr std::size_t kMaxCombinations = 5000;  // different combinations in total
constexpr std::size_t kMaxProperties = 1000;    // of one object
constexpr std::size_t kMaxCountedStates = 20'000;
constexpr std::size_t kMaxPatterns = 6;  // of one object
constexpr std::size_t kMaxPrefix = 1000;
constexpr std::size_t kMaxReferences = 200;  // that lead from one to the next

enum Type : unsigned {
  null_type = 1,
  boolean_type = 2,
  number_type = 4,
  string_type = 8,
  array_type = 16,
  object_type = 32,
  all_types = 63
};

// Annotations, and keywords that only hold definitions.
constexpr std::string_view kWithoutEffect[] = {
    "$schema",          "$comment",        "$defs",        "definitions", "$anchor",   "title",
    "description",      "default",         "examples",     "readOnly",    "writeOnly", "deprecated",
    "contentMediaType", "contentEncoding", "contentSchema"};

// Keywords whose value is a count, a number, a schema, ...; read where they apply.
constexpr std::string_view kSupported[] = {"$id",
                                           "$ref",
                                           "type",
                                           "enum",
                                           "const",
                                           "allOf",
                                           "anyOf",
                                           "oneOf",
                                           "properties",
                                           "required",
                                           "additionalProperties",
                                           "patternProperties",
                                           "propertyNames",
                                           "minProperties",
                                           "maxProperties",
                                           "items",
                                           "prefixItems",
                                           "minItems",
                                           "maxItems",
                                           "uniqueItems",
                                           "minLength",
                                           "maxLength",
                                           "pattern",
                                           "format",
                                           "minimum",
                                           "maximum",
                                           "exclusiveMinimum",
                                           "exclusiveMaximum",
                                           "multipleOf"};

// JSON values are equal in JSON Schema if their numbers are: 1 and 1.0.
bool equal_values(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) {
    const Decimal x = decimal_of(a), y = decimal_of(b);
    return x.negative == y.negative && x.integer == y.integer && x.fraction == y.fraction;
  }
  if (a.is_array() && b.is_array()) return std::ranges::equal(a.as_array(), b.as_array(), equal_values);
  if (a.is_object() && b.is_object())
    return a.size() == b.size() && std::ranges::all_of(a.as_object(), [&](const auto& member) {
             const Json* other = b.find(member.first);
             return other && equal_values(member.second, *other);
           });
  return a == b;
}

unsigned type_of(const Json& value) {
  return value.is_null()     ? null_type
         : value.is_bool()   ? boolean_type
         : value.is_number() ? number_type
         : value.is_string() ? string_type
         : value.is_array()  ? array_type
                             : object_type;
}

// A schema is a conjunction of nodes of the document. Its branches (anyOf, oneOf) are multiplied
// out, so that a clause is a list of nodes whose own keywords all apply. Equal clauses are compiled
// once, and a clause that contains itself becomes a rule.
class SchemaCompiler {
 public:
  SchemaCompiler(Grammar& grammar, const Json& root) : grammar_(grammar), terminals_(grammar), root_(root) {
    id_of(root, "#");
  }

  Expr compile() { return schema_expr({0}); }

 private:
  using NodeId = std::size_t;
  using Clause = std::vector<NodeId>;  // sorted
  struct Node {
    const Json* json;
    std::string path;
    bool checked = false;
  };
  struct Entry {
    bool done = false;
    std::optional<std::uint32_t> rule;
    Expr expr = kNothing;
  };

  // Errors and access.

  [[noreturn]] void wrong(NodeId node, std::string_view problem) const {
    fail("schema {}: {}", nodes_[node].path, problem);
  }
  const Json& json(NodeId node) const { return *nodes_[node].json; }
  const Json* keyword(NodeId node, std::string_view name) const { return json(node).find(name); }

  static std::string pointer_part(std::string_view name) {
    std::string part;
    for (const char c : name) part += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return part;
  }

  NodeId id_of(const Json& schema, std::string path) {
    const auto [found, added] = ids_.try_emplace(&schema, nodes_.size());
    if (added) nodes_.push_back({&schema, std::move(path)});
    return found->second;
  }
  NodeId child(NodeId node, std::string_view key, const Json& schema) {
    return id_of(schema, fmt::format("{}/{}", nodes_[node].path, key));
  }

  std::optional<std::uint32_t> count(NodeId node, std::string_view name) const {
    const Json* value = keyword(node, name);
    if (!value) return std::nullopt;
    const double number = value->is_number() ? value->as_double() : -1;
    if (number < 0 || number != std::floor(number))
      wrong(node, fmt::format("{} must be a whole number >= 0", name));
    return static_cast<std::uint32_t>(std::min(number, static_cast<double>(kUnbounded)));
  }
  const Json* typed(NodeId node, std::string_view name, bool (Json::*is)() const,
                    std::string_view expected) const {
    const Json* value = keyword(node, name);
    if (value && !(value->*is)()) wrong(node, fmt::format("{} must be {}", name, expected));
    return value;
  }
  const Json* number(NodeId node, std::string_view name) const {
    return typed(node, name, &Json::is_number, "a number");
  }
  const Json* object(NodeId node, std::string_view name) const {
    return typed(node, name, &Json::is_object, "an object");
  }
  const Json* array(NodeId node, std::string_view name) const {
    return typed(node, name, &Json::is_array, "an array");
  }

  void check_order(NodeId node, std::string_view least, std::string_view most) const {
    const Json *a = keyword(node, least), *b = keyword(node, most);
    if (a && b && a->is_number() && b->is_number() && less(decimal_of(*b), decimal_of(*a)))
      wrong(node, fmt::format("{} {} is greater than {} {}", least, a->dump(), most, b->dump()));
  }

  // Every keyword of a schema that applies is read or refused.
  void check_keywords(NodeId node) {
    if (nodes_[node].checked) return;
    nodes_[node].checked = true;
    if (json(node).is_bool()) return;
    if (!json(node).is_object()) wrong(node, "a schema must be an object or a boolean");
    for (const auto& [name, value] : json(node).as_object()) {
      if (std::ranges::find(kWithoutEffect, name) != std::end(kWithoutEffect)) continue;
      if (std::ranges::find(kSupported, name) == std::end(kSupported)) {
        constexpr std::string_view kNot[] = {"not", "if", "then", "else"};
        const bool known = std::ranges::find(kNot, name) != std::end(kNot);
        const std::string_view best = known ? "" : nearest(name, kSupported);
        wrong(node, fmt::format("the keyword '{}' is not supported{}", name.substr(0, 60),
                                best.empty() ? "" : fmt::format("; did you mean '{}'?", best)));
      }
    }
    if (const Json* dialect = keyword(node, "$schema");
        dialect &&
        (!dialect->is_string() || dialect->as_string().find("://json-schema.org/") == std::string::npos))
      wrong(node, "the dialect in '$schema' is not supported");
    if (node != 0 && keyword(node, "$id")) wrong(node, "the keyword '$id' is supported at the root only");
    if (const Json* unique = keyword(node, "uniqueItems"); unique && *unique != Json(false))
      wrong(node, "the keyword 'uniqueItems' is not supported");
    for (const std::string_view name :
         {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
      count(node, name);
    for (const std::string_view name :
         {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
      number(node, name);
    check_order(node, "minLength", "maxLength");
    check_order(node, "minItems", "maxItems");
    check_order(node, "minProperties", "maxProperties");
    check_order(node, "minimum", "maximum");
  }

  // Branches.

  static Clause merged(const Clause& a, const Clause& b) {
    Clause result;
    std::ranges::set_union(a, b, std::back_inserter(result));
    return result;
  }

  std::vector<Clause> product(NodeId node, const std::vector<Clause>& a, const std::vector<Clause>& b) {
    std::set<Clause> all;
    for (const Clause& x : a)
      for (const Clause& y : b) {
        grammar_.spend(1 + x.size() + y.size());
        all.insert(merged(x, y));
        if (all.size() > kMaxClauses)
          wrong(node, fmt::format("more than {} combinations of branches", kMaxClauses));
      }
    return {all.begin(), all.end()};
  }

  // `chain`: the schemas that led here and apply to the same instance.
  std::vector<Clause> expand(NodeId node, std::vector<NodeId>& chain) {
    check_keywords(node);
    if (json(node).is_bool()) return json(node).as_bool() ? std::vector<Clause>{{}} : std::vector<Clause>{};
    if (std::ranges::find(chain, node) != chain.end()) wrong(node, "the schema refers to itself without end");
    chain.push_back(node);
    check_depth(node, chain.size());
    std::vector<Clause> result = {{node}};
    if (const Json* ref = keyword(node, "$ref"))
      result = product(node, result, expand(resolve(node, *ref), chain));
    for (const NodeId part : branches(node, "allOf")) result = product(node, result, expand(part, chain));
    for (const std::string_view name : {"anyOf", "oneOf"}) {
      const std::vector<NodeId> parts = branches(node, name);
      if (parts.empty()) continue;
      std::vector<Clause> any;
      std::vector<std::vector<Clause>> each;
      for (const NodeId part : parts) {
        each.push_back(expand(part, chain));
        any.insert(any.end(), each.back().begin(), each.back().end());
      }
      if (name == "oneOf") check_exclusive(node, result, parts, each);
      result = product(node, result, any);
    }
    chain.pop_back();
    return result;
  }

  std::vector<NodeId> branches(NodeId node, std::string_view name) {
    std::vector<NodeId> ids;
    const Json* list = array(node, name);
    if (!list) return ids;
    if (list->size() == 0) wrong(node, fmt::format("{} must not be empty", name));
    for (std::size_t i = 0; i < list->size(); ++i)
      ids.push_back(child(node, fmt::format("{}/{}", name, i), list->as_array()[i]));
    return ids;
  }

  // Two branches exclude each other if no instance is known to fulfil both.
  void check_exclusive(NodeId node, const std::vector<Clause>& base, const std::vector<NodeId>& parts,
                       const std::vector<std::vector<Clause>>& each) {
    for (std::size_t i = 0; i < each.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        for (const Clause& clause : product(node, base, product(node, each[i], each[j])))
          if (clause_expr(clause) != kNothing)
            wrong(node,
                  fmt::format("oneOf is supported only if its branches exclude each other, and {} and {} may "
                              "both hold; use anyOf",
                              nodes_[parts[j]].path, nodes_[parts[i]].path));
  }

  // References.

  NodeId resolve(NodeId node, const Json& ref) {
    if (!ref.is_string()) wrong(node, "$ref must be a string");
    std::string_view target = ref.as_string();
    if (const Json* id = root_.find("$id"); id && id->is_string() && !id->as_string().empty()) {
      const std::string_view base = std::string_view(id->as_string()).substr(0, id->as_string().find('#'));
      if (target.starts_with(base) && (target.size() == base.size() || target[base.size()] == '#'))
        target.remove_prefix(base.size());
    }
    if (target.empty() || target == "#") return 0;
    if (!target.starts_with('#'))
      wrong(node, fmt::format("$ref '{}' leads out of the schema", target.substr(0, 200)));
    target.remove_prefix(1);
    if (!target.starts_with('/')) return anchor(node, target);
    const Json* at = &root_;
    std::string path = "#";
    while (!target.empty()) {
      target.remove_prefix(1);
      const std::string_view raw = target.substr(0, target.find('/'));
      target.remove_prefix(raw.size());
      const std::string part = unescaped(raw);
      const auto index = parse_number<std::size_t>(part);
      at = at->is_array() ? (index && *index < at->size() ? &at->as_array()[*index] : nullptr)
                          : at->find(part);
      if (!at) wrong(node, fmt::format("$ref '{}' leads to nothing", ref.as_string().substr(0, 200)));
      path += "/" + pointer_part(part);
    }
    return id_of(*at, path);
  }

  // %25 and ~1, as in a URI fragment that is a JSON pointer.
  static std::string unescaped(std::string_view raw) {
    std::string decoded, part;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      unsigned byte = 0;
      const std::string_view hex = raw.substr(std::min(i + 1, raw.size()), 2);
      const bool escaped = raw[i] == '%' && hex.size() == 2 &&
                           std::from_chars(hex.data(), hex.data() + 2, byte, 16).ptr == hex.data() + 2;
      decoded += escaped ? static_cast<char>(byte) : raw[i];
      if (escaped) i += 2;
    }
    for (std::size_t i = 0; i < decoded.size(); ++i) {
      const bool tilde =
          decoded[i] == '~' && i + 1 < decoded.size() && (decoded[i + 1] == '0' || decoded[i + 1] == '1');
      part += tilde ? (decoded[++i] == '0' ? '~' : '/') : decoded[i];
    }
    return part;
  }

  NodeId anchor(NodeId node, std::string_view name) {
    std::vector<std::pair<const Json*, std::string>> open = {{&root_, "#"}};
    while (!open.empty()) {
      const auto [at, path] = open.back();
      open.pop_back();
      if (const Json* here = at->find("$anchor"); here && *here == Json(name)) return id_of(*at, path);
      if (at->is_object())
        for (const auto& [key, value] : at->as_object())
          if (key != "enum" && key != "const") open.emplace_back(&value, path + "/" + pointer_part(key));
      if (at->is_array())
        for (std::size_t i = 0; i < at->size(); ++i)
          open.emplace_back(&at->as_array()[i], fmt::format("{}/{}", path, i));
    }
    wrong(node, fmt::format("$ref '#{}' leads to nothing", name.substr(0, 200)));
  }

  // Expressions.

  Expr schema_expr(const Clause& conjunction) {
    std::vector<Clause> clauses = {{}};
    for (const NodeId node : conjunction) {
      std::vector<NodeId> chain;
      clauses = product(node, clauses, expand(node, chain));
    }
    std::vector<Expr> parts;
    for (const Clause& clause : clauses) parts.push_back(clause_expr(clause));
    return grammar_.alternatives(std::move(parts));
  }

  Expr clause_expr(const Clause& clause) {
    if (clause.empty()) return terminals_.any_value();
    const auto [found, added] = entries_.try_emplace(clause);
    Entry& entry = found->second;  // stays where it is
    if (entry.done) return entry.expr;
    if (!added) {
      if (!entry.rule) entry.rule = grammar_.declare(nodes_[clause.front()].path);
      return grammar_.ref(*entry.rule);
    }
    if (entries_.size() > kMaxCombinations)
      wrong(clause.front(),
            fmt::format("the schema has more than {} different combinations", kMaxCombinations));
    check_depth(clause.front(), ++depth_);
    Expr e = compile_clause(clause);
    --depth_;
    if (entry.rule) {
      grammar_.define(*entry.rule, e);
      if (e != kNothing) e = grammar_.ref(*entry.rule);
    }
    entry.expr = e;
    entry.done = true;
    return e;
  }

  void check_depth(NodeId node, std::size_t depth) const {
    if (depth > kMaxReferences)
      wrong(node, fmt::format("schemas are nested more than {} deep", kMaxReferences));
  }

  Expr compile_clause(const Clause& clause) {
    unsigned types = all_types;
    bool integer = false, listed = false;
    for (const NodeId node : clause) {
      types &= types_of(node, integer);
      listed |= keyword(node, "enum") || keyword(node, "const");
    }
    if (listed) return listed_expr(clause, types, integer);
    std::vector<Expr> parts;
    for (const unsigned type : {object_type, array_type, string_type, number_type, boolean_type, null_type})
      if (types & type) parts.push_back(type_expr(clause, type, integer));
    return grammar_.alternatives(std::move(parts));
  }

  Expr type_expr(const Clause& clause, unsigned type, bool integer) {
    switch (type) {
      case object_type:
        return object_expr(clause);
      case array_type:
        return array_expr(clause);
      case string_type:
        return string_expr(clause);
      case number_type:
        return number_expr(clause, integer);
      case boolean_type:
        return grammar_.alternatives({grammar_.literal("true"), grammar_.literal("false")});
      default:
        return grammar_.literal("null");
    }
  }

  unsigned types_of(NodeId node, bool& integer) const {
    const Json* given = keyword(node, "type");
    if (!given) return all_types;
    std::vector<Json> names = given->is_array() ? given->as_array() : std::vector<Json>{*given};
    unsigned types = 0;
    bool whole = false, any = false;
    for (const Json& name : names) {
      constexpr std::pair<std::string_view, unsigned> kTypes[] = {
          {"null", null_type},      {"boolean", boolean_type}, {"number", number_type},
          {"integer", number_type}, {"string", string_type},   {"array", array_type},
          {"object", object_type}};
      const auto known =
          std::ranges::find_if(kTypes, [&](const auto& type) { return name == Json(type.first); });
      if (known == std::end(kTypes)) wrong(node, fmt::format("unknown type {}", name.dump().substr(0, 60)));
      types |= known->second;
      whole |= known->first == "integer";
      any |= known->first == "number";
    }
    integer |= whole && !any;
    return types;
  }

  // Values of enum and const that all nodes allow.
  Expr listed_expr(const Clause& clause, unsigned types, bool integer) {
    std::optional<std::vector<Json>> values;
    for (const NodeId node : clause) {
      const auto keep = [&](const std::vector<Json>& given) {
        if (!values) {
          values = given;
          return;
        }
        std::erase_if(*values, [&](const Json& value) {
          return std::ranges::none_of(given, [&](const Json& other) { return equal_values(value, other); });
        });
      };
      if (const Json* list = array(node, "enum")) keep(list->as_array());
      if (const Json* value = keyword(node, "const")) keep({*value});
    }
    std::map<unsigned, Expr> others;  // what the other keywords allow, by type
    std::vector<Expr> parts;
    for (const Json& value : *values) {
      const unsigned type = type_of(value);
      if ((types & type) == 0) continue;
      const Expr text = terminals_.value(value);
      if (type == number_type || type == string_type) {
        const auto [rest, added] = others.try_emplace(type);
        if (added) rest->second = type_expr(clause, type, integer);
        if (accepts_text(rest->second, text)) parts.push_back(text);
        continue;
      }
      for (const NodeId node : clause) check_listed_container(node, type);
      parts.push_back(text);
    }
    return grammar_.alternatives(std::move(parts));
  }

  // The text of a number or string is a chain of bytes.
  bool accepts_text(Expr state, Expr text) {
    while (text != kEpsilon && state != kNothing) {
      unsigned byte = 0;
      while (grammar_.step(text, static_cast<unsigned char>(byte)) == kNothing) ++byte;
      state = grammar_.step(state, static_cast<unsigned char>(byte));
      text = grammar_.step(text, static_cast<unsigned char>(byte));
    }
    return state != kNothing && grammar_.accepts(state);
  }

  void check_listed_container(NodeId node, unsigned type) const {
    constexpr std::string_view kObject[] = {"properties",   "patternProperties", "additionalProperties",
                                            "required",     "propertyNames",     "minProperties",
                                            "maxProperties"};
    constexpr std::string_view kArray[] = {"prefixItems", "items", "minItems", "maxItems"};
    const auto refuse = [&](std::string_view name) {
      if (keyword(node, name))
        wrong(node, fmt::format("'{}' next to arrays or objects in enum or const is not supported", name));
    };
    if (type == object_type) std::ranges::for_each(kObject, refuse);
    if (type == array_type) std::ranges::for_each(kArray, refuse);
  }

  Expr string_expr(const Clause& clause) {
    StringLimits limits;
    for (const NodeId node : clause) {
      limits.shortest = std::max(limits.shortest, count(node, "minLength").value_or(0));
      limits.longest = std::min(limits.longest, count(node, "maxLength").value_or(kUnbounded));
      if (const Json* pattern = typed(node, "pattern", &Json::is_string, "a string")) {
        try {
          terminals_.names_with(pattern->as_string());
        } catch (const Error& error) {
          wrong(node, fmt::format("pattern: {}", error.what()));
        }
        limits.patterns.push_back(pattern->as_string());
      }
      if (const Json* format = typed(node, "format", &Json::is_string, "a string")) {
        if (!JsonTerminals::knows_format(format->as_string()))
          wrong(node, fmt::format("the format '{}' is not supported", format->as_string().substr(0, 60)));
        limits.formats.push_back(format->as_string());
      }
    }
    return terminals_.string(limits);
  }

  Expr number_expr(const Clause& clause, bool integer) {
    NumberLimits limits{.integer = integer};
    for (const NodeId node : clause) {
      if (const Json* value = number(node, "minimum")) limits.least.push_back({decimal_of(*value), false});
      if (const Json* value = number(node, "exclusiveMinimum"))
        limits.least.push_back({decimal_of(*value), true});
      if (const Json* value = number(node, "maximum")) limits.most.push_back({decimal_of(*value), false});
      if (const Json* value = number(node, "exclusiveMaximum"))
        limits.most.push_back({decimal_of(*value), true});
      if (const Json* value = number(node, "multipleOf")) {
        if (value->as_double() <= 0) wrong(node, "multipleOf must be > 0");
        limits.multiples.push_back(decimal_of(*value));
      }
    }
    try {
      return terminals_.number(limits);
    } catch (const Error& error) {
      wrong(clause.front(), error.what());
    }
  }

  Expr array_expr(const Clause& clause) {
    std::size_t prefix = 0;
    std::uint32_t least = 0, most = kUnbounded;
    for (const NodeId node : clause) {
      if (const Json* list = array(node, "prefixItems")) prefix = std::max(prefix, list->size());
      least = std::max(least, count(node, "minItems").value_or(0));
      most = std::min(most, count(node, "maxItems").value_or(kUnbounded));
    }
    if (prefix > kMaxPrefix)
      wrong(clause.front(), fmt::format("prefixItems has more than {} items", kMaxPrefix));
    if (least > most) return kNothing;
    prefix = std::min<std::size_t>(prefix, most);
    const auto item = [&](std::size_t index) {
      Clause all;
      for (const NodeId node : clause) {
        const Json *list = array(node, "prefixItems"), *rest = keyword(node, "items");
        if (list && index < list->size())
          all.push_back(child(node, fmt::format("prefixItems/{}", index), list->as_array()[index]));
        else if (rest)
          all.push_back(child(node, "items", *rest));
      }
      std::ranges::sort(all);
      return schema_expr(all);
    };
    Grammar& g = grammar_;
    const Expr comma = g.concat(g.literal(","), terminals_.space()), bracket = g.literal("]");
    const Expr close = g.concat(terminals_.space(), bracket);
    const auto missing = [&](std::size_t have) {
      return least > have ? least - static_cast<std::uint32_t>(have) : 0;
    };
    const auto room = [&](std::size_t have) {
      return most == kUnbounded ? kUnbounded : most - static_cast<std::uint32_t>(have);
    };
    // What follows `have` items, from the last kind of item to the first.
    const std::size_t uniform = std::max<std::size_t>(prefix, 1);
    Expr tail = close;
    if (most != 0 && room(uniform) > 0)
      tail = g.concat(g.repeat(g.concat(comma, item(prefix)), missing(uniform), room(uniform)), close);
    else if (missing(uniform) > 0)
      tail = kNothing;
    for (std::size_t have = uniform; have-- > 1;)
      tail = g.alternatives({missing(have) == 0 ? close : kNothing,
                             room(have) > 0 ? g.concat({comma, item(have), tail}) : kNothing});
    const Expr some = most > 0 ? g.concat(item(0), tail) : kNothing;
    return g.concat(
        {g.literal("["), terminals_.space(), g.alternatives({least == 0 ? bracket : kNothing, some})});
  }

  // Objects.

  struct Property {
    std::string name;
    Expr value = kNothing;  // ":" and the value
    bool required = false;
  };

  Expr pattern_expr(NodeId node, const std::string& pattern) {
    try {
      return terminals_.names_with(pattern);
    } catch (const Error& error) {
      wrong(node, fmt::format("patternProperties '{}': {}", pattern.substr(0, 200), error.what()));
    }
  }

  // The schemas that apply to a property whose name matches exactly these patterns.
  Clause schemas_for(const Clause& clause, const std::string* name, const std::set<std::string>& matching) {
    Clause all;
    for (const NodeId node : clause) {
      bool matched = false;
      const Json *own = object(node, "properties"), *patterned = object(node, "patternProperties");
      if (const Json* schema = own && name ? own->find(*name) : nullptr) {
        all.push_back(child(node, "properties/" + pointer_part(*name), *schema));
        matched = true;
      }
      if (patterned)
        for (const auto& [pattern, schema] : patterned->as_object())
          if (matching.contains(pattern)) {
            all.push_back(child(node, "patternProperties/" + pointer_part(pattern), schema));
            matched = true;
          }
      const Json* rest = keyword(node, "additionalProperties");
      if (!matched && rest) all.push_back(child(node, "additionalProperties", *rest));
    }
    std::ranges::sort(all);
    const auto repeated = std::ranges::unique(all);
    all.erase(repeated.begin(), repeated.end());
    return all;
  }

  Expr member_value(const Clause& schemas) {
    return grammar_.concat({grammar_.literal(":"), terminals_.space(), schema_expr(schemas)});
  }

  // The strings that all propertyNames allow, with the shortest escapes.
  Expr names_expr(const Clause& clause) {
    Clause all;
    for (const NodeId node : clause)
      if (const Json* names = keyword(node, "propertyNames"))
        all.push_back(child(node, "propertyNames", *names));
    if (all.empty()) return terminals_.plain_string();
    return grammar_.intersection({schema_expr(all), terminals_.plain_string()});
  }

  Expr object_expr(const Clause& clause) {
    std::vector<Property> properties;
    std::map<std::string, std::size_t> known;
    std::map<std::string, Expr> patterns;
    const auto add = [&](NodeId node, const std::string& name) {
      if (known.try_emplace(name, properties.size()).second) properties.push_back({.name = name});
      if (properties.size() > kMaxProperties)
        wrong(node, fmt::format("more than {} properties", kMaxProperties));
      return known[name];
    };
    std::uint32_t least = 0, most = kUnbounded;
    bool named = false;
    for (const NodeId node : clause) {
      if (const Json* own = object(node, "properties"))
        for (const auto& [name, schema] : own->as_object()) add(node, name);
      if (const Json* own = object(node, "patternProperties"))
        for (const auto& [pattern, schema] : own->as_object())
          patterns[pattern] = pattern_expr(node, pattern);
      if (patterns.size() > kMaxPatterns)
        wrong(node,
              fmt::format("more than {} patterns in patternProperties are not supported", kMaxPatterns));
      least = std::max(least, count(node, "minProperties").value_or(0));
      most = std::min(most, count(node, "maxProperties").value_or(kUnbounded));
      named |= keyword(node, "propertyNames") != nullptr;
    }
    for (const NodeId node : clause)
      if (const Json* required = array(node, "required"))
        for (const Json& name : required->as_array()) {
          if (!name.is_string()) wrong(node, "required must contain strings");
          properties[add(node, name.as_string())].required = true;
        }
    const Expr names = names_expr(clause);
    for (Property& property : properties) {
      const Expr text = terminals_.literal(property.name);
      if (named && !accepts_text(names, text)) continue;
      std::set<std::string> matching;
      for (const auto& [pattern, expr] : patterns)
        if (accepts_text(expr, text)) matching.insert(pattern);
      property.value = member_value(schemas_for(clause, &property.name, matching));
    }
    return members_expr(clause, properties, other_member(clause, names, patterns, properties), least, most);
  }

  // A property with a name that is not listed, for each set of patterns that such a name can match.
  Expr other_member(const Clause& clause, Expr names, const std::map<std::string, Expr>& patterns,
                    const std::vector<Property>& properties) {
    Grammar& g = grammar_;
    std::vector<Expr> listed, members;
    for (const Property& property : properties) listed.push_back(terminals_.literal(property.name));
    if (!listed.empty()) names = g.difference(names, g.alternatives(listed));
    for (unsigned bits = 0; bits < 1u << patterns.size(); ++bits) {
      std::set<std::string> matching;
      Expr these = names;
      unsigned bit = 1;
      for (const auto& [pattern, expr] : patterns) {
        const bool in = (bits & bit) != 0;
        these = in ? g.intersection({these, expr}) : g.difference(these, expr);
        if (in) matching.insert(pattern);
        bit <<= 1;
      }
      if (these == kNothing) continue;
      members.push_back(g.concat(g.atom(these), member_value(schemas_for(clause, nullptr, matching))));
    }
    return g.alternatives(std::move(members));
  }

  // A chain over the listed properties in order, then any number of others. An unlisted name may be
  // repeated, so others count as one property at least.
  Expr members_expr(const Clause& clause, const std::vector<Property>& properties, Expr other,
                    std::uint32_t least, std::uint32_t most) {
    Grammar& g = grammar_;
    const std::size_t size = properties.size();
    const auto required =
        static_cast<std::uint32_t>(std::ranges::count(properties, true, &Property::required));
    const bool limited = most != kUnbounded;
    least = least <= required ? 0 : least;
    const bool counted = least > 0 || limited;
    const std::size_t counts = counted ? size + 1 : 1;
    if (counts * (size + 1) > kMaxCountedStates)
      wrong(clause.front(), "minProperties and maxProperties are not supported with so many properties");
    const Expr comma = g.concat(g.literal(","), terminals_.space()), brace = g.literal("}");
    const Expr close = g.concat(terminals_.space(), brace);
    // next[have]: a member and the rest; after[have]: the rest. `have`: members so far.
    std::vector<Expr> next(counts), after(counts);
    std::vector<bool> may_end(counts);
    for (std::size_t have = 0; have < counts; ++have) {
      const auto so_far = static_cast<std::uint32_t>(have);
      const std::uint32_t missing = least > so_far ? least - so_far : 0;
      const std::uint32_t room = !limited ? kUnbounded : most > so_far ? most - so_far : 0;
      if (missing > 1 && other != kNothing && room > 0 && reachable(properties, have))
        wrong(clause.front(),
              fmt::format("minProperties {} is supported only without further properties", least));
      if (other != kNothing && room > 0) {
        const Expr more = g.concat(comma, other);
        next[have] = g.concat({other, g.repeat(more, 0, limited ? room - 1 : kUnbounded), close});
      }
      may_end[have] = missing == 0 && (!limited || so_far <= most);
      after[have] = g.alternatives({may_end[have] ? close : kNothing, g.concat(comma, next[have])});
    }
    for (std::size_t i = size; i-- > 0;) {
      const Property& property = properties[i];
      const Expr key = g.concat(terminals_.literal(property.name), property.value);
      std::vector<Expr> earlier_next(counts), earlier_after(counts);
      for (std::size_t have = 0; have < counts; ++have) {
        const std::size_t with = counted ? have + 1 : have;
        const Expr use = with < counts || !counted ? g.concat(key, after[with]) : kNothing;
        earlier_next[have] = property.required ? use : g.alternatives({use, next[have]});
        may_end[have] = may_end[have] && !property.required;
        earlier_after[have] =
            g.alternatives({may_end[have] ? close : kNothing, g.concat(comma, earlier_next[have])});
      }
      next = std::move(earlier_next);
      after = std::move(earlier_after);
    }
    const bool empty = required == 0 && least == 0;
    return g.concat(
        {g.literal("{"), terminals_.space(), g.alternatives({empty ? brace : kNothing, next[0]})});
  }

  // Whether exactly `have` listed properties are possible.
  static bool reachable(const std::vector<Property>& properties, std::size_t have) {
    const auto required = static_cast<std::size_t>(std::ranges::count(properties, true, &Property::required));
    const auto possible = static_cast<std::size_t>(std::ranges::count_if(
        properties, [](const Property& property) { return property.value != kNothing; }));
    return have >= required && have <= possible;
  }

  Grammar& grammar_;
  JsonTerminals terminals_;
  const Json& root_;
  std::vector<Node> nodes_;
  std::map<const Json*, NodeId> ids_;
  std::map<Clause, Entry> entries_;
  std::size_t depth_ = 0;  // of nested schemas
};

}  // namespace

Expr json_object_expr(Grammar& grammar) {
  return JsonTerminals(grammar).any_object();
}

Expr json_schema_expr(Grammar& grammar, std::string_view schema) {
  check(schema.size() <= kMaxSchemaBytes, "schema: it has {} bytes, more than {}", schema.size(),
        kMaxSchemaBytes);
  const Json root = parse_json(schema, "schema");
  return SchemaCompiler(grammar, root).compile();
}

}  // namespace thimble
