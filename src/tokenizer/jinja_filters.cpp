#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/text.h"
#include "tokenizer/jinja_value.h"
#include "tokenizer/unicode.h"

namespace thimble::jinja {

namespace {

// --- arguments ---

const std::string& text_argument(const Workspace& workspace, const Value* value, std::string_view what) {
  const std::string* text = value ? value->text() : nullptr;
  if (!text)
    workspace.fail(fmt::format("expected a string as {}, found {}", what, value ? value->type() : "nothing"));
  return *text;
}

std::int64_t integer_argument(const Workspace& workspace, const Value* value, std::string_view what,
                              std::int64_t otherwise) {
  if (!value || value->is_none()) return otherwise;
  const auto number = value->integer();
  if (!number) workspace.fail(fmt::format("expected an integer as {}, found {}", what, value->type()));
  return *number;
}

bool flag(const Value* value) {
  return value && value->truth();
}

// --- texts ---

std::string map_case(std::string_view text, bool upper) {
  std::string out;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const Utf8Char c = decode_utf8(at, end);
    if (!c.valid)
      out.append(at, c.bytes);
    else if (upper && c.code == U'ß')
      out += "SS";
    else
      append_utf8(out, upper ? upper_case(c.code) : lower_case(c.code));
    at += c.bytes;
  }
  return out;
}

std::string title_case(std::string_view text, bool first_only) {
  std::string out;
  bool inside = false;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const Utf8Char c = decode_utf8(at, end);
    const bool letter = c.valid && (class_of(c.code) & kLetters) != 0;
    out += map_case(std::string_view(at, c.bytes), letter && !inside);
    inside = letter || (first_only && !out.empty());
    at += c.bytes;
  }
  return out;
}

enum class Side { left, right, both };

std::string_view strip(std::string_view text, Side side, const std::string* characters) {
  const auto drops = [&](std::string_view c) {
    if (characters) return characters->find(c) != characters->npos;
    return (classed_char(c.data(), c.data() + c.size()).cls & kSpaces) != 0;
  };
  while (side != Side::right && !text.empty()) {
    const std::size_t bytes = decode_utf8(text.data(), text.data() + text.size()).bytes;
    if (!drops(text.substr(0, bytes))) break;
    text.remove_prefix(bytes);
  }
  while (side != Side::left && !text.empty()) {
    std::size_t start = text.size() - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    if (!drops(text.substr(start))) break;
    text.remove_suffix(text.size() - start);
  }
  return text;
}

std::string replace_all(Workspace& workspace, const std::string& text, const std::string& from,
                        const std::string& to, std::int64_t count) {
  std::string out;
  std::size_t at = 0;
  for (; count != 0; --count) {
    const std::size_t found = text.find(from, at);
    if (found == text.npos) break;
    out.append(text, at, found - at);
    out += to;
    workspace.take(to.size() + 1);
    at = found + from.size();
    if (from.empty()) {  // between all characters
      if (at == text.size()) return out;
      const std::size_t bytes = decode_utf8(text.data() + at, text.data() + text.size()).bytes;
      out.append(text, at, bytes);
      at += bytes;
    }
  }
  return out.append(text, at);
}

Value split(Workspace& workspace, const std::string& text, const Arguments& arguments, bool from_right) {
  const Value* separator = arguments.get(0, "sep");
  std::int64_t left = integer_argument(workspace, arguments.get(1, "maxsplit"), "maxsplit", -1);
  std::vector<Value> parts;
  std::string_view rest = text;
  const auto add = [&](std::string_view part) { parts.push_back(workspace.text(std::string(part))); };
  if (!separator || separator->is_none()) {
    rest = strip(rest, Side::both, nullptr);
    while (!rest.empty()) {
      const std::size_t blank = left-- == 0 ? rest.npos : rest.find_first_of(kBlanks);
      add(rest.substr(0, blank));
      rest = blank == rest.npos ? "" : strip(rest.substr(blank), Side::left, nullptr);
    }
    return workspace.list(std::move(parts));
  }
  const std::string& mark = text_argument(workspace, separator, "the separator of split()");
  if (mark.empty()) workspace.fail("split() has an empty separator");
  for (; left != 0; --left) {
    const std::size_t found = from_right ? rest.rfind(mark) : rest.find(mark);
    if (found == rest.npos) break;
    add(from_right ? rest.substr(found + mark.size()) : rest.substr(0, found));
    rest = from_right ? rest.substr(0, found) : rest.substr(found + mark.size());
  }
  add(rest);
  if (from_right) std::ranges::reverse(parts);
  return workspace.list(std::move(parts));
}

// Whether the text begins (or ends) with the argument, or with one of a list.
bool matches_edge(Workspace& workspace, const std::string& text, const Value* edge, bool at_start) {
  if (edge && edge->list())
    return std::ranges::any_of(edge->list()->items, [&](const Value& item) {
      workspace.spend(1);
      return !item.list() && matches_edge(workspace, text, &item, at_start);
    });
  const std::string& part = text_argument(workspace, edge, at_start ? "the prefix" : "the suffix");
  return at_start ? text.starts_with(part) : text.ends_with(part);
}

// "{}", "{0}" and "{name}", without format specifications.
std::string format_braces(Workspace& workspace, const std::string& text, const Arguments& arguments) {
  std::string out;
  std::size_t next = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((text[i] == '{' || text[i] == '}') && i + 1 < text.size() && text[i + 1] == text[i]) {
      out += text[i++];
      continue;
    }
    if (text[i] != '{') {
      out += text[i];
      continue;
    }
    const std::size_t end = text.find('}', i);
    if (end == text.npos) workspace.fail("format() has a '{' without '}'");
    const std::string_view name = std::string_view(text).substr(i + 1, end - i - 1);
    const auto position = name.empty() ? std::optional<std::size_t>(next++) : parse_number<std::size_t>(name);
    const Value* value =
        position ? (*position < arguments.positional.size() ? &arguments.positional[*position] : nullptr)
                 : arguments.named_only(name);
    if (!value) workspace.fail(fmt::format("format() has no argument for '{{{}}}'", name));
    out += text_of(workspace, *value);
    workspace.take(out.size());
    i = end;
  }
  return out;
}

// "%s" and "%d" of the filter `format`.
std::string format_percent(Workspace& workspace, const std::string& text, std::span<const Value> values) {
  std::string out;
  std::size_t next = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char kind = text[++i];
    if (kind == '%') {
      out += '%';
      continue;
    }
    if (kind != 's' && kind != 'd' && kind != 'i') workspace.fail("format supports %s and %d only");
    if (next == values.size()) workspace.fail("format has fewer arguments than places");
    out += text_of(workspace, values[next++]);
    workspace.take(out.size());
  }
  return out;
}

std::string indented(Workspace& workspace, const std::string& text, const Arguments& arguments) {
  const Value* width = arguments.get(0, "width");
  std::string margin;
  if (width && width->text()) {
    margin = *width->text();
  } else {
    const std::int64_t count = integer_argument(workspace, width, "the width of indent", 4);
    if (count < 0 || count > 1000) workspace.fail("the width of indent must be 0 to 1000");
    margin.assign(static_cast<std::size_t>(count), ' ');
  }
  const bool first = flag(arguments.get(1, "first")), blank = flag(arguments.get(2, "blank"));
  std::string out;
  for (std::size_t start = 0, line = 0; start <= text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    if ((line > 0 || first) && (blank || end > start)) {
      workspace.take(margin.size());
      out += margin;
    }
    out.append(text, start, end - start);
    if (end < text.size()) out += '\n';
    start = end + 1;
  }
  return out;
}

// --- lists and dicts ---

// The value of a dotted path, such as "function.name" or "0.name".
Value attribute_of(const Value& value, std::string_view path) {
  const std::string_view name = path.substr(0, path.find('.'));
  Value found;
  if (const Dict* dict = value.dict()) {
    if (const Value* member = dict->find(name)) found = *member;
  } else if (const List* list = value.list()) {
    const auto index = parse_number<std::size_t>(name);
    if (index && *index < list->items.size()) found = list->items[*index];
  }
  return name.size() == path.size() ? found : attribute_of(found, path.substr(name.size() + 1));
}

Value attribute_argument(const Workspace& workspace, const Value& item, const Value* attribute) {
  if (!attribute || attribute->is_none()) return item;
  if (const auto index = attribute->integer()) return attribute_of(item, std::to_string(*index));
  return attribute_of(item, text_argument(workspace, attribute, "the attribute"));
}

int compare_folded(Workspace& workspace, const Value& a, const Value& b, bool case_sensitive) {
  if (case_sensitive || !a.text() || !b.text()) return compare(workspace, a, b);
  workspace.take(a.text()->size() + b.text()->size());
  return map_case(*a.text(), false).compare(map_case(*b.text(), false));
}

template <class Key>
void sort_items(Workspace& workspace, std::vector<Value>& items, bool reverse, bool case_sensitive,
                const Key& key) {
  std::ranges::stable_sort(items, [&](const Value& a, const Value& b) {
    workspace.spend(1);
    const int order = compare_folded(workspace, key(a), key(b), case_sensitive);
    return reverse ? order > 0 : order < 0;
  });
}

std::vector<Value> pairs_of(Workspace& workspace, const Dict& dict) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict.members) {
    workspace.spend(1);
    pairs.push_back(workspace.list({dict.key_value(workspace, key), value}));
  }
  return pairs;
}

const Dict& mapping_of(const Workspace& workspace, const Value& value, std::string_view what) {
  const Dict* dict = value.mapping();
  if (!dict) workspace.fail(fmt::format("{} expects a dict, found {}", what, value.type()));
  return *dict;
}

Value dict_sorted(Workspace& workspace, const Value& input, const Arguments& arguments) {
  std::vector<Value> pairs = pairs_of(workspace, mapping_of(workspace, input, "dictsort"));
  const Value* by = arguments.get(1, "by");
  const std::size_t place = by && by->text() && *by->text() == "value" ? 1 : 0;
  sort_items(workspace, pairs, flag(arguments.get(2, "reverse")), flag(arguments.get(0, "case_sensitive")),
             [&](const Value& pair) { return pair.list()->items[place]; });
  return workspace.list(std::move(pairs));
}

// What select, reject and map read: as in Python, any value that counts as false has no items.
std::vector<Value> candidates(Workspace& workspace, const Value& input) {
  return input.truth() ? items_of(workspace, input) : std::vector<Value>{};
}

// select, reject, selectattr and rejectattr: `first` is the position of the test's name.
Value selected(Workspace& workspace, const Value& input, const Arguments& arguments, bool by_attribute,
               bool keeps) {
  const std::size_t first = by_attribute ? 1 : 0;
  std::string_view test;
  Arguments rest;
  if (arguments.positional.size() > first) {
    test = text_argument(workspace, &arguments.positional[first], "the name of a test");
    rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                           arguments.positional.end());
  }
  if (by_attribute && arguments.positional.empty()) workspace.fail("expected the name of an attribute");
  std::vector<Value> kept;
  for (const Value& item : candidates(workspace, input)) {
    workspace.spend(1);
    const Value value = by_attribute ? attribute_argument(workspace, item, &arguments.positional[0]) : item;
    if ((test.empty() ? value.truth() : apply_test(workspace, test, value, rest)) == keeps)
      kept.push_back(item);
  }
  return workspace.list(std::move(kept));
}

Value mapped(Workspace& workspace, const Value& input, const Arguments& arguments) {
  const Value* attribute = arguments.named_only("attribute");
  const Value* otherwise = arguments.named_only("default");
  Arguments rest = arguments;
  if (!attribute) {
    text_argument(workspace, arguments.get(0, ""), "the name of a filter");
    rest.positional.erase(rest.positional.begin());
  }
  std::vector<Value> out;
  for (const Value& item : candidates(workspace, input)) {
    workspace.spend(1);
    Value value = attribute ? attribute_argument(workspace, item, attribute)
                            : apply_filter(workspace, *arguments.positional[0].text(), item, rest);
    out.push_back(value.is_undefined() && otherwise ? *otherwise : std::move(value));
  }
  return workspace.list(std::move(out));
}

Value extreme(Workspace& workspace, const Value& input, const Arguments& arguments, int sign) {
  const Value* attribute = arguments.named_only("attribute");
  Value best;
  for (const Value& item : items_of(workspace, input)) {
    workspace.spend(1);
    const Value key = attribute_argument(workspace, item, attribute);
    if (best.is_undefined() ||
        sign * compare_folded(workspace, key, attribute_argument(workspace, best, attribute), false) > 0)
      best = item;
  }
  return best;
}

Value unique(Workspace& workspace, const Value& input) {
  std::vector<Value> out;
  for (const Value& item : items_of(workspace, input))
    if (std::ranges::none_of(out, [&](const Value& seen) { return equal(workspace, seen, item); }))
      out.push_back(item);
  return workspace.list(std::move(out));
}

Value total(Workspace& workspace, const Value& input, const Arguments& arguments) {
  double real = 0;
  std::int64_t whole = 0;
  bool integers = true;
  for (const Value& item : items_of(workspace, input)) {
    workspace.spend(1);
    const Value value = attribute_argument(workspace, item, arguments.get(0, "attribute"));
    const auto number = value.number();
    if (!number) workspace.fail(fmt::format("sum expects numbers, found {}", value.type()));
    integers = integers && value.integer() && !__builtin_add_overflow(whole, *value.integer(), &whole);
    real += *number;
  }
  return integers ? Value(whole) : Value(real);
}

Value joined_text(Workspace& workspace, const Value& input, const Arguments& arguments) {
  const Value* between = arguments.get(0, "d");
  if (!between) between = arguments.named_only("separator");
  const std::string separator = between ? text_of(workspace, *between) : "";
  const Value* attribute = arguments.get(1, "attribute");
  std::string out;
  bool first = true;
  for (const Value& item : items_of(workspace, input)) {
    if (!std::exchange(first, false)) out += separator;
    out += text_of(workspace, attribute_argument(workspace, item, attribute));
    workspace.take(separator.size() + 1);
  }
  return workspace.text(std::move(out));
}

Value to_json(Workspace& workspace, const Value& input, const Arguments& arguments) {
  JsonStyle style{.indent = integer_argument(workspace, arguments.get(0, "indent"), "indent", 0),
                  .ascii = flag(arguments.named_only("ensure_ascii")),
                  .sorted = flag(arguments.named_only("sort_keys"))};
  if (style.indent < 0 || style.indent > 100) workspace.fail("the indent of tojson must be 0 to 100");
  if (style.indent > 0) style.item = std::string(1, ',');
  if (const Value* separators = arguments.named_only("separators"); separators && separators->list()) {
    const std::vector<Value>& pair = separators->list()->items;
    if (pair.size() != 2) workspace.fail("expected two separators of tojson");
    style.item = text_argument(workspace, &pair[0], "a separator");
    style.key = text_argument(workspace, &pair[1], "a separator");
  }
  return workspace.text(json_text(workspace, input, std::move(style)));
}

Value to_integer(const Value& input, const Arguments& arguments) {
  const Value* given = arguments.get(0, "default");
  const Value otherwise = given ? *given : Value(std::int64_t{0});
  if (const auto whole = input.integer()) return Value(*whole);
  std::optional<double> real = input.number();
  if (const std::string* text = input.text()) {
    std::string_view digits = trim(*text);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    if (const auto whole = parse_number<std::int64_t>(digits)) return Value(*whole);
    real = parse_number<double>(digits);
  }
  if (!real || !(std::abs(*real) < 9e18)) return otherwise;
  return Value(static_cast<std::int64_t>(*real));
}

Value to_real(const Value& input, const Arguments& arguments) {
  std::optional<double> real = input.number();
  if (const std::string* text = input.text()) real = parse_number<double>(trim(*text));
  if (real) return Value(*real);
  const Value* given = arguments.get(0, "default");
  return given ? *given : Value(0.0);
}

Value absolute(const Workspace& workspace, const Value& input, const Arguments&) {
  if (const auto whole = input.integer(); whole && *whole > INT64_MIN)
    return Value(*whole < 0 ? -*whole : *whole);
  const auto real = input.number();
  if (!real) workspace.fail(fmt::format("abs expects a number, found {}", input.type()));
  return Value(std::abs(*real));
}

Value rounded(const Workspace& workspace, const Value& input, const Arguments& arguments) {
  const auto real = input.number();
  if (!real) workspace.fail(fmt::format("round expects a number, found {}", input.type()));
  const std::int64_t digits = integer_argument(workspace, arguments.get(0, "precision"), "the precision", 0);
  const double scale = std::pow(10.0, static_cast<double>(std::clamp<std::int64_t>(digits, -20, 20)));
  return Value(std::nearbyint(*real * scale) / scale);
}

Value length(Workspace& workspace, const Value& input) {
  if (const std::string* text = input.text()) return Value(static_cast<std::int64_t>(character_count(*text)));
  if (const List* list = input.list()) return Value(static_cast<std::int64_t>(list->items.size()));
  if (const Dict* dict = input.mapping()) return Value(static_cast<std::int64_t>(dict->members.size()));
  if (input.is_undefined()) return Value(std::int64_t{0});
  workspace.fail(fmt::format("{} has no length", input.type()));
}

using Filter = Value (*)(Workspace&, const Value&, const Arguments&);

struct NamedFilter {
  std::string_view name;
  Filter filter;
};

constexpr auto kUpperCase = [](Workspace& w, const Value& v, const Arguments&) {
  return w.text(map_case(text_of(w, v), true));
};
constexpr auto kLowerCase = [](Workspace& w, const Value& v, const Arguments&) {
  return w.text(map_case(text_of(w, v), false));
};
constexpr auto kTitle = [](Workspace& w, const Value& v, const Arguments&) {
  return w.text(title_case(text_of(w, v), false));
};
constexpr auto kCapitalize = [](Workspace& w, const Value& v, const Arguments&) {
  return w.text(title_case(text_of(w, v), true));
};

template <Side side>
Value stripped(Workspace& workspace, const Value& input, const Arguments& arguments) {
  const Value* characters = arguments.get(0, "chars");
  const std::string text = text_of(workspace, input);
  return workspace.text(
      std::string(strip(text, side, characters && !characters->is_none() ? characters->text() : nullptr)));
}

Value replaced(Workspace& workspace, const Value& input, const Arguments& arguments) {
  return workspace.text(replace_all(workspace, text_of(workspace, input),
                                    text_argument(workspace, arguments.get(0, "old"), "the text to replace"),
                                    text_argument(workspace, arguments.get(1, "new"), "the replacement"),
                                    integer_argument(workspace, arguments.get(2, "count"), "count", -1)));
}

template <bool at_end>
Value edge_item(Workspace& workspace, const Value& input, const Arguments&) {
  const std::vector<Value> items = items_of(workspace, input);
  return items.empty() ? Value() : at_end ? items.back() : items.front();
}

constexpr Filter kItems = [](Workspace& w, const Value& v, const Arguments&) {
  return v.is_undefined() ? w.list({}) : w.list(pairs_of(w, mapping_of(w, v, "items")));
};
constexpr Filter kLength = [](Workspace& w, const Value& v, const Arguments&) { return length(w, v); };
constexpr Filter kSame = [](Workspace&, const Value& v, const Arguments&) { return v; };

constexpr auto kFilters = std::to_array<NamedFilter>({
    {"abs", [](Workspace& w, const Value& v, const Arguments& a) { return absolute(w, v, a); }},
    {"capitalize", kCapitalize},
    {"count", kLength},
    {"default",
     [](Workspace&, const Value& v, const Arguments& a) {
       const Value* given = a.get(0, "default_value");
       const bool absent = v.is_undefined() || (flag(a.get(1, "boolean")) && !v.truth());
       return absent && given ? *given : v;
     }},
    {"dictsort", dict_sorted},
    {"first", edge_item<false>},
    {"float", [](Workspace&, const Value& v, const Arguments& a) { return to_real(v, a); }},
    {"format",
     [](Workspace& w, const Value& v, const Arguments& a) {
       return w.text(format_percent(w, text_of(w, v), a.positional));
     }},
    {"from_json",
     [](Workspace& w, const Value& v, const Arguments&) {
       try {
         return w.from_json(parse_json(text_argument(w, &v, "the input of from_json"), "from_json"));
       } catch (const Error& error) {
         if (error.field() == "chat_template") throw;
         w.fail(error.what());
       }
     }},
    {"indent",
     [](Workspace& w, const Value& v, const Arguments& a) { return w.text(indented(w, text_of(w, v), a)); }},
    {"int", [](Workspace&, const Value& v, const Arguments& a) { return to_integer(v, a); }},
    {"items", kItems},
    {"join", joined_text},
    {"last", edge_item<true>},
    {"length", kLength},
    {"list", [](Workspace& w, const Value& v, const Arguments&) { return w.list(items_of(w, v)); }},
    {"lower", kLowerCase},
    {"map", mapped},
    {"max", [](Workspace& w, const Value& v, const Arguments& a) { return extreme(w, v, a, 1); }},
    {"min", [](Workspace& w, const Value& v, const Arguments& a) { return extreme(w, v, a, -1); }},
    {"reject", [](Workspace& w, const Value& v, const Arguments& a) { return selected(w, v, a, false, false); }},
    {"rejectattr", [](Workspace& w, const Value& v, const Arguments& a) { return selected(w, v, a, true, false); }},
    {"replace", replaced},
    {"reverse",
     [](Workspace& w, const Value& v, const Arguments&) {
       std::vector<Value> items = items_of(w, v);
       std::ranges::reverse(items);
       return v.text() ? joined_text(w, w.list(std::move(items)), {}) : w.list(std::move(items));
     }},
    {"round", [](Workspace& w, const Value& v, const Arguments& a) { return rounded(w, v, a); }},
    {"safe", kSame},
    {"select", [](Workspace& w, const Value& v, const Arguments& a) { return selected(w, v, a, false, true); }},
    {"selectattr", [](Workspace& w, const Value& v, const Arguments& a) { return selected(w, v, a, true, true); }},
    {"sort",
     [](Workspace& w, const Value& v, const Arguments& a) {
       std::vector<Value> items = items_of(w, v);
       sort_items(w, items, flag(a.get(0, "reverse")), flag(a.get(1, "case_sensitive")),
                  [&](const Value& item) { return attribute_argument(w, item, a.get(2, "attribute")); });
       return w.list(std::move(items));
     }},
    {"string", [](Workspace& w, const Value& v, const Arguments&) { return w.text(text_of(w, v)); }},
    {"sum", total},
    {"title", kTitle},
    {"tojson", to_json},
    {"trim", stripped<Side::both>},
    {"unique", [](Workspace& w, const Value& v, const Arguments&) { return unique(w, v); }},
    {"upper", kUpperCase},
});

// --- tests ---

using Test = bool (*)(Workspace&, const Value&, const Value&);

struct NamedTest {
  std::string_view name;
  Test test;
  bool compares = false;  // needs an argument
};

template <int... wanted>
constexpr Test kOrder = [](Workspace& w, const Value& a, const Value& b) {
  const int order = compare(w, a, b);
  return (((order > 0) - (order < 0) == wanted) || ...);
};
constexpr Test kEqual = [](Workspace& w, const Value& a, const Value& b) { return equal(w, a, b); };
constexpr Test kNotEqual = [](Workspace& w, const Value& a, const Value& b) { return !equal(w, a, b); };

template <int remainder>
bool has_parity(Workspace& workspace, const Value& value, const Value&) {
  const auto number = value.integer();
  if (!number) workspace.fail(fmt::format("odd and even expect an integer, found {}", value.type()));
  return (*number & 1) == remainder;
}

// Also an undefined value: in Jinja it is an empty sequence.
bool is_iterable(Workspace&, const Value& value, const Value&) {
  return value.text() || value.list() || value.mapping() || value.is_undefined();
}

constexpr auto kTests = std::to_array<NamedTest>({
    {"!=", kNotEqual, true},
    {"==", kEqual, true},
    {"boolean", [](Workspace&, const Value& v, const Value&) { return v.as<bool>() != nullptr; }},
    {"callable", [](Workspace&, const Value& v, const Value&) { return v.is_callable(); }},
    {"defined", [](Workspace&, const Value& v, const Value&) { return !v.is_undefined(); }},
    {"divisibleby",
     [](Workspace& w, const Value& v, const Value& by) {
       const auto a = v.integer(), b = by.integer();
       if (!a || !b || *b == 0) w.fail("divisibleby expects integers");
       return *b == -1 || *a % *b == 0;
     },
     true},
    {"eq", kEqual, true},
    {"equalto", kEqual, true},
    {"even", has_parity<0>},
    {"false", [](Workspace&, const Value& v, const Value&) { return v.as<bool>() && !*v.as<bool>(); }},
    {"float", [](Workspace&, const Value& v, const Value&) { return v.as<double>() != nullptr; }},
    {"ge", kOrder<0, 1>, true},
    {"gt", kOrder<1>, true},
    {"in", [](Workspace& w, const Value& v, const Value& in) { return contains(w, in, v); }, true},
    {"integer", [](Workspace&, const Value& v, const Value&) { return v.as<std::int64_t>() != nullptr; }},
    {"iterable", is_iterable},
    {"le", kOrder<-1, 0>, true},
    {"lower", [](Workspace&, const Value& v,
                 const Value&) { return v.text() && map_case(*v.text(), false) == *v.text(); }},
    {"lt", kOrder<-1>, true},
    {"mapping", [](Workspace&, const Value& v, const Value&) { return v.mapping() != nullptr; }},
    {"ne", kNotEqual, true},
    {"none", [](Workspace&, const Value& v, const Value&) { return v.is_none(); }},
    {"number", [](Workspace&, const Value& v, const Value&) { return v.is_number(); }},
    {"odd", has_parity<1>},
    {"sequence", is_iterable},
    {"string", [](Workspace&, const Value& v, const Value&) { return v.text() != nullptr; }},
    {"true", [](Workspace&, const Value& v, const Value&) { return v.as<bool>() && *v.as<bool>(); }},
    {"undefined", [](Workspace&, const Value& v, const Value&) { return v.is_undefined(); }},
    {"upper", [](Workspace&, const Value& v,
                 const Value&) { return v.text() && map_case(*v.text(), true) == *v.text(); }},
});

// --- methods ---

enum class Owner { text, list, dict };

struct NamedMethod {
  Owner owner;
  std::string_view name;
  Filter method;
};

Value pop(Workspace& workspace, const Value& self, const Arguments& arguments) {
  std::vector<Value>& items = self.list()->items;
  const auto size = static_cast<std::int64_t>(items.size());
  std::int64_t at = integer_argument(workspace, arguments.get(0, ""), "the index of pop()", -1);
  if (at < 0) at += size;
  if (at < 0 || at >= size) workspace.fail(fmt::format("pop() from a list of {}: no such item", size));
  workspace.spend(items.size());
  Value item = items[static_cast<std::size_t>(at)];
  items.erase(items.begin() + at);
  return item;
}

Value found_at(Workspace& workspace, const Value& self, const Arguments& arguments) {
  const std::string& text = *self.text();
  const std::size_t at = text.find(text_argument(workspace, arguments.get(0, "sub"), "the text to find"));
  if (at == text.npos) return Value(std::int64_t{-1});
  return Value(static_cast<std::int64_t>(character_count(std::string_view(text).substr(0, at))));
}

Value counted(Workspace& workspace, const Value& self, const Arguments& arguments) {
  const std::string& part = text_argument(workspace, arguments.get(0, "sub"), "the text to count");
  if (part.empty()) return Value(static_cast<std::int64_t>(character_count(*self.text()) + 1));
  std::int64_t count = 0;
  for (std::size_t at = self.text()->find(part); at != std::string::npos;
       at = self.text()->find(part, at + part.size()))
    ++count;
  return Value(count);
}

template <bool at_start>
Value without_edge(Workspace& workspace, const Value& self, const Arguments& arguments) {
  std::string_view text = *self.text();
  const std::string& part = text_argument(workspace, arguments.get(0, ""), "the text to remove");
  if (at_start && text.starts_with(part)) text.remove_prefix(part.size());
  if (!at_start && text.ends_with(part)) text.remove_suffix(part.size());
  return workspace.text(std::string(text));
}

constexpr auto kMethods = std::to_array<NamedMethod>({
    {Owner::text, "capitalize", kCapitalize},
    {Owner::text, "count", counted},
    {Owner::text, "endswith",
     [](Workspace& w, const Value& v, const Arguments& a) {
       return Value(matches_edge(w, *v.text(), a.get(0, "suffix"), false));
     }},
    {Owner::text, "find", found_at},
    {Owner::text, "format",
     [](Workspace& w, const Value& v, const Arguments& a) { return w.text(format_braces(w, *v.text(), a)); }},
    {Owner::text, "join",
     [](Workspace& w, const Value& v, const Arguments& a) {
       const Value* items = a.get(0, "iterable");
       return joined_text(w, items ? *items : Value(), {.positional = {v}, .named = {}});
     }},
    {Owner::text, "lower", kLowerCase},
    {Owner::text, "lstrip", stripped<Side::left>},
    {Owner::text, "removeprefix", without_edge<true>},
    {Owner::text, "removesuffix", without_edge<false>},
    {Owner::text, "replace", replaced},
    {Owner::text, "rsplit",
     [](Workspace& w, const Value& v, const Arguments& a) { return split(w, *v.text(), a, true); }},
    {Owner::text, "rstrip", stripped<Side::right>},
    {Owner::text, "split",
     [](Workspace& w, const Value& v, const Arguments& a) { return split(w, *v.text(), a, false); }},
    {Owner::text, "splitlines",
     [](Workspace& w, const Value& v, const Arguments&) {
       std::string text = *v.text();
       if (text.ends_with('\n')) text.pop_back();
       if (v.text()->empty()) return w.list({});
       return split(w, text, {.positional = {w.text("\n")}, .named = {}}, false);
     }},
    {Owner::text, "startswith",
     [](Workspace& w, const Value& v, const Arguments& a) {
       return Value(matches_edge(w, *v.text(), a.get(0, "prefix"), true));
     }},
    {Owner::text, "strip", stripped<Side::both>},
    {Owner::text, "title", kTitle},
    {Owner::text, "upper", kUpperCase},
    {Owner::list, "append",
     [](Workspace& w, const Value& v, const Arguments& a) {
       const Value* item = a.get(0, "");
       if (!item) w.fail("append() expects a value");
       w.take(sizeof(Value));
       v.list()->items.push_back(*item);
       return Value(None{});
     }},
    {Owner::list, "pop", pop},
    {Owner::dict, "get",
     [](Workspace& w, const Value& v, const Arguments& a) {
       const Value* found = v.dict()->find(text_argument(w, a.get(0, "key"), "the key of get()"));
       const Value* otherwise = a.get(1, "default");
       return found ? *found : otherwise ? *otherwise : Value(None{});
     }},
    {Owner::dict, "items", kItems},
    {Owner::dict, "keys",
     [](Workspace& w, const Value& v, const Arguments&) { return w.list(items_of(w, v)); }},
    {Owner::dict, "values",
     [](Workspace& w, const Value& v, const Arguments&) {
       std::vector<Value> values;
       for (const auto& member : v.dict()->members) values.push_back(member.second);
       return w.list(std::move(values));
     }},
});

Filter method_of(const Value& self, std::string_view name) {
  const auto owns = [&](Owner owner) {
    return owner == Owner::text   ? self.text() != nullptr
           : owner == Owner::list ? self.list() != nullptr
                                  : self.mapping() != nullptr;
  };
  for (const NamedMethod& method : kMethods)
    if (method.name == name && owns(method.owner)) return method.method;
  return nullptr;
}

}  // namespace

Value apply_filter(Workspace& workspace, std::string_view name, const Value& input,
                   const Arguments& arguments) {
  const Workspace::Level level(workspace);
  if (name == "d") name = "default";
  const auto found = std::ranges::lower_bound(kFilters, name, {}, &NamedFilter::name);
  if (found == kFilters.end() || found->name != name)
    workspace.fail(fmt::format("the filter '{}' is not supported", name));
  return found->filter(workspace, input, arguments);
}

bool apply_test(Workspace& workspace, std::string_view name, const Value& input, const Arguments& arguments) {
  const auto found = std::ranges::lower_bound(kTests, name, {}, &NamedTest::name);
  if (found == kTests.end() || found->name != name)
    workspace.fail(fmt::format("the test '{}' is not supported", name));
  if (found->compares && arguments.positional.empty())
    workspace.fail(fmt::format("the test '{}' expects an argument", name));
  return found->test(workspace, input, arguments.positional.empty() ? Value() : arguments.positional[0]);
}

bool has_method(const Value& self, std::string_view name) {
  return method_of(self, name) != nullptr;
}

Value call_method(Workspace& workspace, std::string_view name, const Value& self,
                  const Arguments& arguments) {
  const Filter method = method_of(self, name);
  if (!method) workspace.fail(fmt::format("{} has no method '{}'", self.type(), name));
  return method(workspace, self, arguments);
}

}  // namespace thimble::jinja
