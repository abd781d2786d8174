// The values of a Jinja template, and its filters, tests and methods.
//
// Lists, dicts and scopes belong to a Workspace, which lives as long as one rendering: a template
// can append a list to itself, and reference counts would never free that. Every step and every
// byte is counted there, so no template runs or grows without end.
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "tokenizer/jinja_parser.h"

namespace thimble::jinja {

class Workspace;
struct Scope;
struct List;
struct Dict;
struct Loop;
struct Callable;

struct Undefined {};
struct None {};

class Value {
 public:
  Value() = default;  // undefined
  explicit Value(None) : value_(None{}) {}
  explicit Value(bool value) : value_(value) {}
  explicit Value(std::int64_t value) : value_(value) {}
  explicit Value(double value) : value_(value) {}
  explicit Value(std::shared_ptr<const std::string> text) : value_(std::move(text)) {}
  explicit Value(List* list) : value_(list) {}
  explicit Value(Dict* dict) : value_(dict) {}
  explicit Value(Loop* loop) : value_(loop) {}
  explicit Value(Callable* callable) : value_(callable) {}

  bool is_undefined() const { return std::holds_alternative<Undefined>(value_); }
  bool is_none() const { return std::holds_alternative<None>(value_); }
  bool is_number() const { return as<std::int64_t>() || as<double>(); }
  bool is_callable() const { return as<Callable*>() != nullptr; }
  // nullptr if the value has another type.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&value_);
  }
  const std::string* text() const;
  List* list() const;
  Dict* dict() const;                    // also of a namespace
  Dict* mapping() const;                 // not of a namespace
  std::optional<double> number() const;  // booleans count as 0 and 1, as in Python
  std::optional<std::int64_t> integer() const;

  bool truth() const;
  std::string_view type() const;  // for messages

 private:
  std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const std::string>, List*, Dict*,
               Loop*, Callable*>
      value_;
};

struct List {
  std::vector<Value> items;
};

struct Dict {
  std::vector<std::pair<std::string, Value>> members;  // in order of insertion
  std::map<std::string, std::size_t, std::less<>> index;
  bool is_namespace = false;
  bool integer_keys = false;  // a literal such as {512: "a"}; members hold the digits

  const Value* find(std::string_view key) const;
  void set(std::string_view key, Value value);
  Value key_value(Workspace& workspace, const std::string& key) const;
};

// `loop` inside {% for %}.
struct Loop {
  std::vector<Value> items;
  std::size_t index = 0;

  Value attribute(std::string_view name) const;  // undefined if there is no such attribute
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at a position or with a name; nullptr if absent.
  const Value* get(std::size_t position, std::string_view name) const;
  const Value* named_only(std::string_view name) const { return get(positional.size(), name); }
};

// A macro or the body of a call block, or a function or method of ours by name.
struct Callable {
  const Statement* macro = nullptr;
  Scope* scope = nullptr;  // where the macro was defined
  std::string_view name = {};
  Value self = {};
};

struct Scope {
  Scope* parent = nullptr;
  std::map<std::string, Value, std::less<>> names;

  const Value* find(std::string_view name) const;
};

struct Limits {
  std::uint64_t steps = 10'000'000;    // evaluated nodes, and elements that a filter visits
  std::uint64_t bytes = 256ull << 20;  // of all texts and lists made while rendering
  int depth = 600;                     // of nested evaluations, such as macros that call themselves
};

class Workspace {
 public:
  explicit Workspace(const Limits& limits) : limits_(limits) {}

  int line = 0;  // of the construct under evaluation, for errors
  std::time_t now = 0;

  [[noreturn]] void fail(std::string_view what) const { fail_at(line, what); }
  void spend(std::uint64_t steps);
  void take(std::uint64_t bytes);

  // Nested evaluations and nested values.
  struct Level {
    explicit Level(Workspace& workspace);
    ~Level() { --workspace.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    Workspace& workspace;
  };

  Value text(std::string text);
  Value list(std::vector<Value> items);
  Dict* dict();
  Loop* loop(std::vector<Value> items);
  Callable* callable(Callable callable);
  Scope* scope(Scope* parent);
  Value from_json(const Json& json);

 private:
  Limits limits_;
  std::uint64_t steps_ = 0, bytes_ = 0;
  int depth_ = 0;
  std::vector<std::unique_ptr<List>> lists_;
  std::vector<std::unique_ptr<Dict>> dicts_;
  std::vector<std::unique_ptr<Loop>> loops_;
  std::vector<std::unique_ptr<Callable>> callables_;
  std::vector<std::unique_ptr<Scope>> scopes_;
};

// What {{ value }} writes: nothing for undefined and none; lists and dicts as JSON, true and false
// in lower case, as in @huggingface/jinja.
std::string text_of(Workspace& workspace, const Value& value);

struct JsonStyle {
  std::int64_t indent = 0;  // 0: on one line
  std::string item = ", ", key = ": ";
  bool ascii = false, sorted = false;
};
std::string json_text(Workspace& workspace, const Value& value, JsonStyle style = {});

bool equal(Workspace& workspace, const Value& a, const Value& b);
int compare(Workspace& workspace, const Value& a, const Value& b);  // fails for types without order
bool contains(Workspace& workspace, const Value& container, const Value& item);
// The items of a list, keys of a dict or characters of a text. Fails for other types.
std::vector<Value> items_of(Workspace& workspace, const Value& value);
std::vector<Value> characters_of(Workspace& workspace, const std::string& text);

// Defined in jinja_filters.cpp. They fail for a name outside the subset.
Value apply_filter(Workspace& workspace, std::string_view name, const Value& input,
                   const Arguments& arguments);
bool apply_test(Workspace& workspace, std::string_view name, const Value& input, const Arguments& arguments);
// Whether values of this type have the method.
bool has_method(const Value& self, std::string_view name);
Value call_method(Workspace& workspace, std::string_view name, const Value& self, const Arguments& arguments);

}  // namespace thimble::jinja
