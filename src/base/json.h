// JSON: a value, a strict parser, and a writer that never fails.
//
//   Json config = parse_json(read_file(path, kMaxConfigBytes), path.string());
//   int64_t layers = config.at("layers").as_int();
//   std::string line = Json::object().set("step", 100).set("loss", 2.5).dump();
//   // line is {"step":100,"loss":2.5}
//
// The parser rejects duplicate keys, text after the value, invalid UTF-8, numbers outside the range
// of a double, and nesting beyond a limit. Every error starts with name:line:column (counted from
// 1; columns count bytes).
//
// The writer replaces invalid UTF-8 with U+FFFD and non-finite numbers with null. Equal values give
// equal bytes.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace thimble {

class Json;

// Members in insertion order. Lookup is linear in small objects and logarithmic in large ones.
class JsonObject {
 public:
  using Member = std::pair<std::string, Json>;

  using Iterator = std::vector<Member>::const_iterator;

  JsonObject();
  JsonObject(const JsonObject& other);
  JsonObject(JsonObject&&) noexcept;
  JsonObject& operator=(const JsonObject& other);
  JsonObject& operator=(JsonObject&&) noexcept;
  ~JsonObject();

  void set(std::string key, Json value);  // an existing key keeps its position
  const Json* find(std::string_view key) const;
  std::size_t size() const;
  Iterator begin() const;
  Iterator end() const;

 private:
  // A tree, not a hash table, so that hostile keys cannot collide.
  using Index = std::map<std::string, std::size_t, std::less<>>;

  std::size_t position(std::string_view key) const;  // size() if absent

  std::vector<Member> members_;
  std::unique_ptr<Index> index_;  // null in small objects
};

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = JsonObject;

  // Everything that touches the variant is defined in json.cpp: if inlined, it would make up most
  // of the code of every file that builds objects.
  Json() noexcept;
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();
  Json(std::nullptr_t) noexcept : Json() {}
  template <std::same_as<bool> Bool>
  Json(Bool value) noexcept : Json(Scalar(std::in_place_type<bool>, value)) {}
  template <std::integral Int>
  requires(!std::same_as<Int, bool> && !std::same_as<Int, char>) Json(Int value)
  noexcept
      : Json(std::in_range<std::int64_t>(value)
                 ? Scalar(std::in_place_type<std::int64_t>, static_cast<std::int64_t>(value))
                 : Scalar(std::in_place_type<std::uint64_t>, static_cast<std::uint64_t>(value))) {}
  Json(double value) noexcept;
  Json(std::string value) noexcept;
  Json(std::string_view value) : Json(std::string(value)) {}
  Json(const char* value) : Json(std::string(value)) {}

  static Json object();
  static Json array(Array items = {});

  bool is_null() const { return holds<std::monostate>(); }
  bool is_bool() const { return holds<bool>(); }
  bool is_int() const { return holds<std::int64_t>(); }  // fits std::int64_t
  bool is_uint() const;                                  // an integer that fits std::uint64_t
  bool is_number() const;                                // any of the three
  bool is_string() const { return holds<std::string>(); }
  bool is_array() const { return holds<Array>(); }
  bool is_object() const { return holds<Object>(); }

  // If the value has another type, these throw an Error with the expected and the found type. 1.0
  // is a number, not an integer.
  bool as_bool() const;
  std::int64_t as_int() const;
  std::uint64_t as_uint() const;
  double as_double() const;  // accepts integers
  const std::string& as_string() const;
  const Array& as_array() const;
  const Object& as_object() const;

  const Json* find(std::string_view key) const;  // nullptr if absent or if this is not an object
  const Json& at(std::string_view key) const;    // throws an Error that names the key if absent

  Json& set(std::string key, Json value);  // this must be an object
  Json& push(Json value);                  // this must be an array
  std::size_t size() const;                // of an array or object; 0 for other types

  // The order of members does not matter. 1 and 1.0 are different values.
  bool operator==(const Json& other) const;

  // indent 0: one line without spaces. Otherwise one value per line with `indent` spaces per level.
  std::string dump(int indent = 0) const;

 private:
  using Scalar = std::variant<bool, std::int64_t, std::uint64_t>;
  explicit Json(Scalar value) noexcept;

  template <class T>
  bool holds() const {
    return std::holds_alternative<T>(value_);
  }
  template <class T>
  const T& get(std::string_view expected) const;
  std::string describe() const;
  void write(std::string& out, int indent, int level) const;

  // Integers that fit std::int64_t are stored as such, so that equal integers compare equal.
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array, Object> value_;
};

// Appends the text as a quoted JSON string, for writers of files too large for a Json.
void append_json_string(std::string& out, std::string_view text);

struct JsonLimits {
  int max_depth = 64;            // nesting depth of arrays and objects
  std::uint64_t first_line = 1;  // line number of the text's first line in its file, for errors
};

// `name` is the source of the text, for error messages. Integers beyond 64 bits become doubles,
// because published tokenizer_config.json files contain 1000000000000000019884624838656.
Json parse_json(std::string_view text, std::string_view name, JsonLimits limits = {});

// Callbacks of visit_json, called in text order. Throw from one to stop.
class JsonVisitor {
 public:
  virtual ~JsonVisitor() = default;

  virtual void null() {}
  virtual void boolean(bool) {}
  virtual void integer(std::int64_t) {}
  virtual void big_integer(std::uint64_t) {}  // above the range of std::int64_t
  virtual void number(double) {}
  virtual void string(std::string) {}
  virtual void start_object() {}
  virtual void key(std::string) {}
  virtual void end_object() {}
  virtual void start_array() {}
  virtual void end_array() {}
};

// As strict as parse_json, but builds no value. Callbacks may have been called before an error is
// found.
void visit_json(std::string_view text, std::string_view name, JsonVisitor& visitor, JsonLimits limits = {});

}  // namespace thimble
