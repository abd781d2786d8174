#include "tokenizer/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/text.h"
#include "base/utf8.h"

namespace thimble::jinja {

const std::string* Value::text() const {
  const auto* text = as<std::shared_ptr<const std::string>>();
  return text ? text->get() : nullptr;
}

List* Value::list() const {
  const auto* list = as<List*>();
  return list ? *list : nullptr;
}

Dict* Value::dict() const {
  const auto* dict = as<Dict*>();
  return dict ? *dict : nullptr;
}

Dict* Value::mapping() const {
  Dict* found = dict();
  return found && !found->is_namespace ? found : nullptr;
}

std::optional<std::int64_t> Value::integer() const {
  if (const auto* number = as<std::int64_t>()) return *number;
  if (const auto* boolean = as<bool>()) return *boolean ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const auto* real = as<double>()) return *real;
  if (const auto whole = integer()) return static_cast<double>(*whole);
  return std::nullopt;
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (const auto value = number()) return *value != 0;
  if (const std::string* found = text()) return !found->empty();
  if (const List* found = list()) return !found->items.empty();
  if (const Dict* found = mapping()) return !found->members.empty();
  return true;
}

std::string_view Value::type() const {
  constexpr std::array<std::string_view, 10> kNames = {
      "an undefined value", "none",   "a boolean", "an integer", "a number",
      "a string",           "a list", "a dict",    "a loop",     "a function"};
  return kNames[value_.index()];
}

const Value* Dict::find(std::string_view key) const {
  const auto found = index.find(key);
  return found == index.end() ? nullptr : &members[found->second].second;
}

void Dict::set(std::string_view key, Value value) {
  if (const auto found = index.find(key); found != index.end()) {
    members[found->second].second = std::move(value);
    return;
  }
  index.emplace(key, members.size());
  members.emplace_back(key, std::move(value));
}

Value Dict::key_value(Workspace& workspace, const std::string& key) const {
  const auto number = integer_keys ? parse_number<std::int64_t>(key) : std::nullopt;
  return number ? Value(*number) : workspace.text(key);
}

Value Loop::attribute(std::string_view name) const {
  const auto count = static_cast<std::int64_t>(items.size()), at = static_cast<std::int64_t>(index);
  if (name == "index") return Value(at + 1);
  if (name == "index0") return Value(at);
  if (name == "revindex") return Value(count - at);
  if (name == "revindex0") return Value(count - at - 1);
  if (name == "first") return Value(at == 0);
  if (name == "last") return Value(at + 1 == count);
  if (name == "length") return Value(count);
  if (name == "previtem" && index > 0) return items[index - 1];
  if (name == "nextitem" && index + 1 < items.size()) return items[index + 1];
  return {};
}

const Value* Arguments::get(std::size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  const auto found = std::ranges::find(named, name, &std::pair<std::string, Value>::first);
  return found == named.end() ? nullptr : &found->second;
}

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope; scope = scope->parent)
    if (const auto found = scope->names.find(name); found != scope->names.end()) return &found->second;
  return nullptr;
}

void Workspace::spend(std::uint64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps) fail(fmt::format("the template takes more than {} steps", limits_.steps));
}

void Workspace::take(std::uint64_t bytes) {
  bytes_ += bytes;
  if (bytes_ > limits_.bytes)
    fail(fmt::format("the template makes more than {} bytes of text and lists", limits_.bytes));
}

Workspace::Level::Level(Workspace& where) : workspace(where) {
  if (workspace.depth_ >= workspace.limits_.depth) workspace.fail("calls or values are nested too deeply");
  ++workspace.depth_;
}

Value Workspace::text(std::string text) {
  take(text.size());
  return Value(std::make_shared<const std::string>(std::move(text)));
}

Value Workspace::list(std::vector<Value> items) {
  take(sizeof(List) + items.size() * sizeof(Value));
  lists_.push_back(std::make_unique<List>(List{.items = std::move(items)}));
  return Value(lists_.back().get());
}

Dict* Workspace::dict() {
  take(sizeof(Dict));
  dicts_.push_back(std::make_unique<Dict>());
  return dicts_.back().get();
}

Loop* Workspace::loop(std::vector<Value> items) {
  take(sizeof(Loop) + items.size() * sizeof(Value));
  loops_.push_back(std::make_unique<Loop>(Loop{.items = std::move(items)}));
  return loops_.back().get();
}

Callable* Workspace::callable(Callable made) {
  take(sizeof(Callable));
  callables_.push_back(std::make_unique<Callable>(std::move(made)));
  return callables_.back().get();
}

Scope* Workspace::scope(Scope* parent) {
  take(sizeof(Scope));
  scopes_.push_back(std::make_unique<Scope>(Scope{.parent = parent, .names = {}}));
  return scopes_.back().get();
}

Value Workspace::from_json(const Json& json) {
  const Level level(*this);
  spend(1);
  if (json.is_null()) return Value(None{});
  if (json.is_bool()) return Value(json.as_bool());
  if (json.is_int()) return Value(json.as_int());
  if (json.is_number()) return Value(json.as_double());
  if (json.is_string()) return text(json.as_string());
  if (json.is_array()) {
    std::vector<Value> items;
    for (const Json& item : json.as_array()) items.push_back(from_json(item));
    return list(std::move(items));
  }
  Dict* made = dict();
  for (const auto& [key, member] : json.as_object()) {
    take(2 * key.size() + sizeof(Value));
    made->set(key, from_json(member));
  }
  return Value(made);
}

namespace {

std::string number_text(double value) {
  const bool whole = std::nearbyint(value) == value && std::abs(value) < 1e16;
  return whole ? fmt::format("{:.1f}", value) : fmt::format("{}", value);
}

// --- JSON ---

class JsonWriter {
 public:
  JsonWriter(Workspace& workspace, JsonStyle style) : workspace_(workspace), style_(std::move(style)) {}

  std::string write(const Value& value) {
    append(value, 0);
    return std::move(out_);
  }

 private:
  void new_line(std::int64_t level) {
    if (style_.indent == 0) return;
    workspace_.take(static_cast<std::uint64_t>(level * style_.indent));
    out_ += '\n';
    out_.append(static_cast<std::size_t>(level * style_.indent), ' ');
  }

  void quoted(const std::string& text) {
    workspace_.take(text.size());
    std::string json;
    append_json_string(json, text);
    if (!style_.ascii) {
      out_ += json;
      return;
    }
    for (const char *at = json.data(), *end = at + json.size(); at < end;) {
      const Utf8Char c = decode_utf8(at, end);
      at += c.bytes;
      if (c.code < 0x7F)
        out_ += static_cast<char>(c.code);
      else if (c.code < 0x10000)
        out_ += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c.code));
      else
        out_ +=
            fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((static_cast<std::uint32_t>(c.code) - 0x10000) >> 10),
                        0xDC00 + (static_cast<std::uint32_t>(c.code) & 0x3FF));
    }
  }

  void append(const Value& value, std::int64_t level) {
    const Workspace::Level nested(workspace_);
    workspace_.spend(1);
    if (const std::string* text = value.text()) return quoted(*text);
    if (const List* list = value.list()) return append_list(*list, level);
    if (const Dict* dict = value.dict()) return append_dict(*dict, level);
    if (const bool* boolean = value.as<bool>())
      out_ += *boolean ? "true" : "false";
    else if (const auto* integer = value.as<std::int64_t>())
      out_ += fmt::format("{}", *integer);
    else if (const auto* real = value.as<double>())
      out_ += number_text(*real);
    else if (value.is_undefined() || value.is_none())
      out_ += "null";
    else
      workspace_.fail(fmt::format("{} cannot be written as JSON", value.type()));
  }

  void append_list(const List& list, std::int64_t level) {
    out_ += '[';
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_ += style_.item;
      new_line(level + 1);
      append(list.items[i], level + 1);
    }
    if (!list.items.empty()) new_line(level);
    out_ += ']';
  }

  void append_dict(const Dict& dict, std::int64_t level) {
    std::vector<const std::pair<std::string, Value>*> members;
    for (const auto& member : dict.members) members.push_back(&member);
    if (style_.sorted)
      std::ranges::sort(members, [](const auto* a, const auto* b) { return a->first < b->first; });
    out_ += '{';
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i > 0) out_ += style_.item;
      new_line(level + 1);
      quoted(members[i]->first);
      out_ += style_.key;
      append(members[i]->second, level + 1);
    }
    if (!members.empty()) new_line(level);
    out_ += '}';
  }

  Workspace& workspace_;
  JsonStyle style_;
  std::string out_;
};

}  // namespace

std::string text_of(Workspace& workspace, const Value& value) {
  workspace.spend(1);
  if (const std::string* text = value.text()) {
    workspace.take(text->size());
    return *text;
  }
  if (value.is_undefined() || value.is_none()) return {};
  if (const auto* real = value.as<double>()) return number_text(*real);
  return json_text(workspace, value);
}

bool equal(Workspace& workspace, const Value& a, const Value& b) {
  const Workspace::Level level(workspace);
  workspace.spend(1);
  if (a.text() && b.text()) return *a.text() == *b.text();
  if (a.integer() && b.integer()) return *a.integer() == *b.integer();
  if (a.number() && b.number()) return *a.number() == *b.number();
  if (a.is_none() || a.is_undefined()) return a.is_none() ? b.is_none() : b.is_undefined();
  if (const List* x = a.list(), *y = b.list(); x && y)
    return std::ranges::equal(x->items, y->items,
                              [&](const Value& i, const Value& j) { return equal(workspace, i, j); });
  if (const Dict* x = a.mapping(), *y = b.mapping(); x && y)
    return x->members.size() == y->members.size() && std::ranges::all_of(x->members, [&](const auto& member) {
             const Value* other = y->find(member.first);
             return other && equal(workspace, member.second, *other);
           });
  return false;
}

int compare(Workspace& workspace, const Value& a, const Value& b) {
  workspace.spend(1);
  if (a.text() && b.text()) return a.text()->compare(*b.text());
  if (a.integer() && b.integer()) return *a.integer() < *b.integer() ? -1 : *a.integer() > *b.integer();
  if (a.number() && b.number()) return *a.number() < *b.number() ? -1 : *a.number() > *b.number();
  workspace.fail(fmt::format("{} and {} have no order", a.type(), b.type()));
}

bool contains(Workspace& workspace, const Value& container, const Value& item) {
  if (container.is_undefined()) return false;
  if (const List* list = container.list())
    return std::ranges::any_of(list->items,
                               [&](const Value& other) { return equal(workspace, item, other); });
  if (const std::string* text = container.text()) {
    if (item.is_undefined()) return false;
    workspace.spend(text->size() / 64);
    if (!item.text())
      workspace.fail(fmt::format("expected a string to the left of 'in', found {}", item.type()));
    return text->find(*item.text()) != text->npos;
  }
  if (const Dict* dict = container.mapping()) {
    if (dict->integer_keys && item.integer()) return dict->find(std::to_string(*item.integer())) != nullptr;
    return item.text() && dict->find(*item.text());
  }
  workspace.fail(fmt::format("'in' expects a list, a dict or a string, found {}", container.type()));
}

std::vector<Value> characters_of(Workspace& workspace, const std::string& text) {
  std::vector<Value> characters;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = decode_utf8(text.data() + at, text.data() + text.size()).bytes;
    workspace.take(sizeof(Value) + sizeof(std::string));
    characters.push_back(workspace.text(text.substr(at, bytes)));
    at += bytes;
  }
  return characters;
}

std::vector<Value> items_of(Workspace& workspace, const Value& value) {
  if (const List* list = value.list()) {
    workspace.take(list->items.size() * sizeof(Value));
    return list->items;
  }
  std::vector<Value> items;
  if (const Dict* dict = value.mapping())
    for (const auto& member : dict->members) items.push_back(dict->key_value(workspace, member.first));
  else if (const std::string* text = value.text())
    items = characters_of(workspace, *text);
  else if (!value.is_undefined())
    workspace.fail(fmt::format("expected a list, found {}", value.type()));
  return items;
}

std::string json_text(Workspace& workspace, const Value& value, JsonStyle style) {
  return JsonWriter(workspace, std::move(style)).write(value);
}

}  // namespace thimble::jinja
