// Error messages are sentences: what was expected, what was found, and a hint at what to do.
//
//   check(w.cols == x.cols, "[linear] weight has {} columns, input rows have {}", w.cols, x.cols);
//   fail(Hint{"name another folder with -o, or pass --force"}, "{} already exists", path);
//
// The library throws. Only cli/ and the HTTP server catch.
#pragma once

#include <fmt/core.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace thimble {

struct Hint {
  std::string text;
};

// The request field that is invalid, for the server to report in its response. The message must
// start with the same name.
//
//   check(k >= 0, Field{"top_k"}, "top_k must be >= 0, got {}", k);
struct Field {
  std::string_view name;
  Hint hint = {};
};

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, Hint hint = {},
                 std::source_location where = std::source_location::current());
  Error(const std::string& message, Field field, std::source_location where);
  Error(const Error&) = default;
  Error(Error&&) = default;
  Error& operator=(const Error&) = default;
  Error& operator=(Error&&) = default;
  ~Error() override;

  const std::string& hint() const { return hint_; }
  const std::source_location& where() const { return where_; }
  const std::string& field() const { return field_; }  // empty: not about a request field

 private:
  std::string hint_, field_;
  std::source_location where_;
};

// An invalid command line: exit code 2 instead of 1.
class UsageError : public Error {
 public:
  using Error::Error;
};

// "error: ...", then "hint: ..." if there is a hint. Debug builds append the source location.
std::string describe(const Error& error);

// A format string together with the source location of the call.
template <class... Args>
struct FormatHere {
  fmt::format_string<Args...> format;
  std::source_location where;

  template <class Text>
  requires std::is_convertible_v<const Text&, std::string_view>
  consteval FormatHere(const Text& text, std::source_location here = std::source_location::current())
      : format(text), where(here) {}
};

// Out of line, because fail and check are called in about a thousand places.
[[noreturn]] void throw_error(fmt::string_view format, fmt::format_args args, Hint hint,
                              const std::source_location& where);
[[noreturn]] void throw_error(fmt::string_view format, fmt::format_args args, Field field,
                              const std::source_location& where);

template <class... Args>
[[noreturn]] void fail(FormatHere<std::type_identity_t<Args>...> message, Args&&... args) {
  throw_error(message.format, fmt::make_format_args(args...), Hint{}, message.where);
}

template <class... Args>
[[noreturn]] void fail(Hint hint, FormatHere<std::type_identity_t<Args>...> message, Args&&... args) {
  throw_error(message.format, fmt::make_format_args(args...), std::move(hint), message.where);
}

template <class... Args>
[[noreturn]] void fail(Field field, FormatHere<std::type_identity_t<Args>...> message, Args&&... args) {
  throw_error(message.format, fmt::make_format_args(args...), std::move(field), message.where);
}

template <class... Args>
void check(bool ok, FormatHere<std::type_identity_t<Args>...> message, Args&&... args) {
  if (!ok) [[unlikely]]
    fail<Args...>(message, std::forward<Args>(args)...);
}

// The caller builds the hint even when `ok` is true: use a literal on hot paths.
template <class... Args>
void check(bool ok, Hint hint, FormatHere<std::type_identity_t<Args>...> message, Args&&... args) {
  if (!ok) [[unlikely]]
    fail<Args...>(std::move(hint), message, std::forward<Args>(args)...);
}

template <class... Args>
void check(bool ok, Field field, FormatHere<std::type_identity_t<Args>...> message, Args&&... args) {
  if (!ok) [[unlikely]]
    fail<Args...>(std::move(field), message, std::forward<Args>(args)...);
}

}  // namespace thimble
