#include "base/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/utf8.h"

namespace thimble {

namespace {

constexpr std::size_t kSmallObject = 16;

void append_escaped(std::string& out, std::string_view character) {
  const char c = character[0];
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      break;
  }
  const auto byte = static_cast<unsigned char>(character.back());
  // Escape control characters, including the two-byte ones: U+009B starts an escape sequence in a
  // terminal.
  const bool control = character.size() == 1 ? byte < 0x20 || byte == 0x7F : c == '\xC2' && byte < 0xA0;
  if (control)
    out += fmt::format("\\u{:04x}", byte);
  else
    out += character;
}

void append_double(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  std::array<char, 32> digits;  // the longest double takes 24
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  const std::string_view text(digits.data(), end);
  out += text;
  // Without ".0", "3" would be parsed as an integer.
  if (text.find_first_of(".e") == text.npos) out += ".0";
}

void append_line(std::string& out, int indent, int level) {
  if (indent <= 0) return;
  out += '\n';
  out.append(static_cast<std::size_t>(indent) * static_cast<std::size_t>(level), ' ');
}

// Calls use(character, valid) for each character of the text and for each invalid byte sequence.
template <class Use>
void for_each_character(std::string_view text, Use use) {
  while (!text.empty()) {
    const Utf8Char character = decode_utf8(text.data(), text.data() + text.size());
    const std::size_t bytes = character.valid ? character.bytes : broken_utf8(text).bytes;
    use(text.substr(0, bytes), character.valid);
    text.remove_prefix(bytes);
  }
}

// The first `bytes` bytes of the text as valid UTF-8 on one line, for use in a message.
std::string clipped(std::string_view text, std::size_t bytes) {
  std::string out;
  for_each_character(text.substr(0, bytes), [&](std::string_view character, bool valid) {
    if (valid && character != "\"" && character != "\\")
      append_escaped(out, character);
    else
      out += valid ? character : kReplacementCharacter;
  });
  if (text.size() > bytes) out += "...";
  return out;
}

}  // namespace

// Defined here because Json must be a complete type.
JsonObject::JsonObject() = default;
JsonObject::JsonObject(JsonObject&&) noexcept = default;
JsonObject& JsonObject::operator=(JsonObject&&) noexcept = default;
JsonObject::~JsonObject() = default;
std::size_t JsonObject::size() const {
  return members_.size();
}
JsonObject::Iterator JsonObject::begin() const {
  return members_.begin();
}
JsonObject::Iterator JsonObject::end() const {
  return members_.end();
}

Json::Json() noexcept = default;
Json::Json(const Json&) = default;
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(const Json&) = default;
Json& Json::operator=(Json&&) noexcept = default;
Json::~Json() = default;
Json::Json(double value) noexcept : value_(value) {}
Json::Json(std::string value) noexcept : value_(std::move(value)) {}
// A Scalar always has a value, so visit() does not throw.
Json::Json(Scalar value) noexcept {  // NOLINT(bugprone-exception-escape)
  std::visit([this](auto scalar) { value_ = scalar; }, value);
}

JsonObject::JsonObject(const JsonObject& other)
    : members_(other.members_), index_(other.index_ ? std::make_unique<Index>(*other.index_) : nullptr) {}

JsonObject& JsonObject::operator=(const JsonObject& other) {
  if (this != &other) *this = JsonObject(other);
  return *this;
}

std::size_t JsonObject::position(std::string_view key) const {
  if (index_) {
    const auto found = index_->find(key);
    return found == index_->end() ? size() : found->second;
  }
  const auto found = std::find_if(begin(), end(), [&](const Member& member) { return member.first == key; });
  return static_cast<std::size_t>(found - begin());
}

void JsonObject::set(std::string key, Json value) {
  const std::size_t found_at = position(key);
  if (found_at < size()) {
    members_[found_at].second = std::move(value);
    return;
  }
  if (!index_ && size() == kSmallObject) {
    index_ = std::make_unique<Index>();
    for (std::size_t i = 0; i < size(); ++i) index_->emplace(members_[i].first, i);
  }
  if (index_) index_->emplace(key, found_at);
  members_.emplace_back(std::move(key), std::move(value));
}

const Json* JsonObject::find(std::string_view key) const {
  const std::size_t found_at = position(key);
  return found_at < size() ? &members_[found_at].second : nullptr;
}

Json Json::object() {
  Json json;
  json.value_ = Object();
  return json;
}

Json Json::array(Array items) {
  Json json;
  json.value_ = std::move(items);
  return json;
}

bool Json::is_uint() const {
  return holds<std::uint64_t>() || (is_int() && std::get<std::int64_t>(value_) >= 0);
}

bool Json::is_number() const {
  return is_int() || holds<std::uint64_t>() || holds<double>();
}

std::string Json::describe() const {
  constexpr std::size_t kShown = 40;
  if (is_null()) return "null";
  if (is_array()) return fmt::format("an array of size {}", size());
  if (is_object()) return fmt::format("an object of size {}", size());
  if (is_string()) return fmt::format("the string \"{}\"", clipped(std::get<std::string>(value_), kShown));
  return dump();
}

template <class T>
const T& Json::get(std::string_view expected) const {
  const T* found = std::get_if<T>(&value_);
  if (!found) fail("expected {}, found {}", expected, describe());
  return *found;
}

bool Json::as_bool() const {
  return get<bool>("true or false");
}

std::int64_t Json::as_int() const {
  return get<std::int64_t>("an integer of at most 64 bits");
}

std::uint64_t Json::as_uint() const {
  if (holds<std::uint64_t>()) return std::get<std::uint64_t>(value_);
  check(is_uint(), "expected an integer of at least 0, found {}", describe());
  return static_cast<std::uint64_t>(std::get<std::int64_t>(value_));
}

double Json::as_double() const {
  if (is_int()) return static_cast<double>(std::get<std::int64_t>(value_));
  if (holds<std::uint64_t>()) return static_cast<double>(std::get<std::uint64_t>(value_));
  return get<double>("a number");
}

const std::string& Json::as_string() const {
  return get<std::string>("a string");
}

const Json::Array& Json::as_array() const {
  return get<Array>("an array");
}

const Json::Object& Json::as_object() const {
  return get<Object>("an object");
}

const Json* Json::find(std::string_view key) const {
  const Object* members = std::get_if<Object>(&value_);
  return members ? members->find(key) : nullptr;
}

const Json& Json::at(std::string_view key) const {
  if (!is_object()) fail("expected an object with the key \"{}\", found {}", key, describe());
  const Json* value = find(key);
  if (!value) fail("the key \"{}\" is missing", key);
  return *value;
}

Json& Json::set(std::string key, Json value) {
  if (!is_object()) fail("expected an object to set \"{}\" in, found {}", key, describe());
  std::get<Object>(value_).set(std::move(key), std::move(value));
  return *this;
}

Json& Json::push(Json value) {
  if (!is_array()) fail("expected an array to push to, found {}", describe());
  std::get<Array>(value_).push_back(std::move(value));
  return *this;
}

std::size_t Json::size() const {
  if (is_array()) return std::get<Array>(value_).size();
  if (is_object()) return std::get<Object>(value_).size();
  return 0;
}

bool Json::operator==(const Json& other) const {
  if (!is_object() || !other.is_object()) {
    if (value_.index() != other.value_.index()) return false;
    return std::visit(
        [&]<class T>(const T& mine) {
          if constexpr (std::same_as<T, Object>)
            return false;
          else
            return mine == std::get<T>(other.value_);
        },
        value_);
  }
  const Object& members = std::get<Object>(value_);
  return size() == other.size() && std::all_of(members.begin(), members.end(), [&](const auto& member) {
           const Json* theirs = other.find(member.first);
           return theirs && member.second == *theirs;
         });
}

std::string Json::dump(int indent) const {
  std::string out;
  write(out, indent, 0);
  return out;
}

void Json::write(std::string& out, int indent, int level) const {
  auto write_all = [&](char open, char close, const auto& items, auto write_one) {
    out += open;
    bool first = true;
    for (const auto& item : items) {
      if (!first) out += ',';
      first = false;
      append_line(out, indent, level + 1);
      write_one(item);
    }
    if (!first) append_line(out, indent, level);
    out += close;
  };
  if (is_null()) {
    out += "null";
  } else if (is_bool()) {
    out += std::get<bool>(value_) ? "true" : "false";
  } else if (is_int()) {
    out += std::to_string(std::get<std::int64_t>(value_));
  } else if (holds<std::uint64_t>()) {
    out += std::to_string(std::get<std::uint64_t>(value_));
  } else if (holds<double>()) {
    append_double(out, std::get<double>(value_));
  } else if (is_string()) {
    append_json_string(out, std::get<std::string>(value_));
  } else if (is_array()) {
    write_all('[', ']', std::get<Array>(value_),
              [&](const Json& item) { item.write(out, indent, level + 1); });
  } else {
    write_all('{', '}', std::get<Object>(value_), [&](const JsonObject::Member& member) {
      append_json_string(out, member.first);
      out += indent > 0 ? ": " : ":";
      member.second.write(out, indent, level + 1);
    });
  }
}

void append_json_string(std::string& out, std::string_view text) {
  const auto is_plain = [](char c) { return c >= ' ' && c < 0x7F && c != '"' && c != '\\'; };
  out += '"';
  while (!text.empty()) {
    // Most text is copied in long runs. An ASCII character is never part of another one.
    const auto plain = static_cast<std::size_t>(std::ranges::find_if_not(text, is_plain) - text.begin());
    out += text.substr(0, plain);
    text.remove_prefix(plain);
    const auto other = static_cast<std::size_t>(std::ranges::find_if(text, is_plain) - text.begin());
    for_each_character(text.substr(0, other), [&](std::string_view character, bool valid) {
      if (valid)
        append_escaped(out, character);
      else
        out += kReplacementCharacter;
    });
    text.remove_prefix(other);
  }
  out += '"';
}

namespace {

// Iterates over the text for nlohmann's lexer and records the position, which its callbacks do not
// receive.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(const char* at, const char** reached) : at_(at), reached_(reached) {}

  reference operator*() const { return *at_; }
  Cursor& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  bool operator==(const Cursor& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// Callbacks for nlohmann's parser: adds the missing checks and forwards the events to the visitor.
class StrictSax {
 public:
  StrictSax(std::string_view text, std::string_view name, JsonVisitor& visitor, JsonLimits limits)
      : text_(text), name_(name), visitor_(visitor), limits_(limits), reached_(text.data()) {}

  void run() {
    // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): it stops at `end`
    const Cursor begin(text_.data(), &reached_);
    const Cursor end(text_.data() + text_.size(), &reached_);
    nlohmann::json::sax_parse(begin, end, this);
    // nlohmann treats a zero byte as the end of the text and ignores everything after it.
    if (reached_[-1] == '\0') fail_here("a zero byte");
  }

  bool null() { return visitor_.null(), true; }
  bool boolean(bool value) { return visitor_.boolean(value), true; }
  bool number_integer(std::int64_t value) { return visitor_.integer(value), true; }
  bool number_unsigned(std::uint64_t value) {
    if (std::in_range<std::int64_t>(value))
      visitor_.integer(static_cast<std::int64_t>(value));
    else
      visitor_.big_integer(value);
    return true;
  }
  bool number_float(double value, const std::string&) { return visitor_.number(value), true; }
  bool string(std::string& value) { return visitor_.string(std::move(value)), true; }
  bool binary(nlohmann::json::binary_t&) { return false; }  // cannot occur in JSON text

  bool start_object(std::size_t) {
    enter();
    visitor_.start_object();
    return true;
  }
  bool key(std::string& key) {
    if (!keys_.back().insert(key).second)
      fail_here(fmt::format("the key \"{}\" appears twice in one object", clipped(key, 80)));
    visitor_.key(std::move(key));
    return true;
  }
  bool end_object() {
    keys_.pop_back();
    visitor_.end_object();
    return true;
  }
  bool start_array(std::size_t) {
    enter();
    visitor_.start_array();
    return true;
  }
  bool end_array() {
    keys_.pop_back();
    visitor_.end_array();
    return true;
  }

  bool parse_error(std::size_t bytes_read, const std::string&, const nlohmann::json::exception& error) {
    // Strip the prefix of "[json.exception.parse_error.101] parse error at line 1, column 2: syntax
    // error ...": fail_at adds the position.
    std::string_view what = error.what();
    what.remove_prefix(std::min(what.size(), what.find("] ") + 2));
    if (const auto found_at = what.find(": "); what.starts_with("parse error at") && found_at != what.npos)
      what.remove_prefix(found_at + 2);
    fail_at(bytes_read, clipped(what, 200));
  }

 private:
  void enter() {
    if (std::cmp_greater_equal(keys_.size(), limits_.max_depth))
      fail_here(fmt::format("nested deeper than {} levels", limits_.max_depth));
    keys_.emplace_back();
  }

  [[noreturn]] void fail_here(const std::string& what) {
    fail_at(static_cast<std::size_t>(reached_ - text_.data()), what);
  }

  // The last byte read is the invalid one.
  [[noreturn]] void fail_at(std::size_t bytes_read, const std::string& what) {
    const std::string_view before =
        text_.substr(0, bytes_read == 0 ? 0 : std::min(bytes_read - 1, text_.size()));
    const auto line =
        limits_.first_line + static_cast<std::uint64_t>(std::count(before.begin(), before.end(), '\n'));
    const auto line_start = before.rfind('\n') + 1;  // npos + 1 is 0
    fail("{}:{}:{}: {}", name_, line, before.size() - line_start + 1, what);
  }

  std::string_view text_, name_;
  JsonVisitor& visitor_;
  JsonLimits limits_;
  const char* reached_;
  std::vector<std::set<std::string>> keys_;  // one set per open object; empty for arrays
};

class Builder : public JsonVisitor {
 public:
  void null() override { add(nullptr); }
  void boolean(bool value) override { add(value); }
  void integer(std::int64_t value) override { add(value); }
  void big_integer(std::uint64_t value) override { add(value); }
  void number(double value) override { add(value); }
  void string(std::string value) override { add(std::move(value)); }
  void start_object() override { open(Json::object()); }
  void key(std::string key) override { open_.back().key = std::move(key); }
  void end_object() override { close(); }
  void start_array() override { open(Json::array()); }
  void end_array() override { close(); }

  Json take() { return std::move(root_); }

 private:
  struct Open {
    Json value;
    std::string key;  // of the next member
  };

  void add(Json value) {
    if (open_.empty())
      root_ = std::move(value);
    else if (Open& parent = open_.back(); parent.value.is_array())
      parent.value.push(std::move(value));
    else
      parent.value.set(std::move(parent.key), std::move(value));
  }

  void open(Json value) { open_.emplace_back().value = std::move(value); }

  void close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    add(std::move(value));
  }

  Json root_;
  std::vector<Open> open_;
};

}  // namespace

void visit_json(std::string_view text, std::string_view name, JsonVisitor& visitor, JsonLimits limits) {
  StrictSax(text, name, visitor, limits).run();
}

Json parse_json(std::string_view text, std::string_view name, JsonLimits limits) {
  Builder builder;
  visit_json(text, name, builder, limits);
  return builder.take();
}

}  // namespace thimble
