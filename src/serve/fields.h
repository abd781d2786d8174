// The fields of a request's JSON object, each read once and by name; what nobody read is an error.
//
//   Fields fields(body);
//   const double temperature = fields.number("temperature").value_or(0.8);
//   ...
//   fields.finish({"tools", "response_format"});     // "tools is not supported here", "unknown field 'temprature'"
//
// null counts as absent, as OpenAI has it. Errors are ApiErrors of status 400 that name the field.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace thimble {

class ApiError;
class Error;

class Fields {
 public:
  // `object` outlives it. `prefix`: what its fields' names begin with in errors, "messages[0]."
  explicit Fields(const Json& object, std::string prefix = "");

  bool has(std::string_view name) const;  // and is not null
  // nullptr: absent or null.
  const Json* find(std::string_view name);
  const Json& required(std::string_view name);

  std::optional<bool> boolean(std::string_view name);
  std::optional<std::int64_t> integer(std::string_view name);
  std::optional<double> number(std::string_view name);  // finite
  std::optional<std::string> string(std::string_view name);

  // "messages[0].role"
  std::string full_name(std::string_view name) const { return prefix_ + std::string(name); }
  // The client sent `name` for what the library calls `library_name`.
  void sent_as(std::string_view library_name, std::string_view name);
  // An error of the library, about the field as the client calls it. About no field, if the request has none of that name.
  ApiError refusal(const Error& error) const;

  // Every field must have been read by now. `unsupported`: those that others know and this server does not.
  void finish(std::span<const std::string_view> unsupported = {}) const;

 private:
  [[noreturn]] void wrong_type(std::string_view name, std::string_view expected, const Json& found) const;

  const Json& object_;
  std::string prefix_;
  std::vector<std::string_view> known_;
  std::map<std::string_view, std::string_view> names_sent_;  // by the library's
};

// "a string", "null", ...: for errors.
std::string_view kind_of(const Json& value);

// The body of a request: an object, strictly.
Json parse_body(std::string_view text);

// Errors as OpenAI's clients know them.
class ApiError : public std::runtime_error {
 public:
  ApiError(int status, std::string_view type, const std::string& message)
      : std::runtime_error(message), status_(status), type_(type) {}

  // The field that is wrong: "messages[0].role".
  ApiError&& about(std::string field) && {
    field_ = std::move(field);
    return std::move(*this);
  }
  ApiError&& retry_after(int seconds) && {
    retry_after_ = seconds;
    return std::move(*this);
  }
  // More for the error's object.
  ApiError&& with(std::string key, Json value) && {
    more_.set(std::move(key), std::move(value));
    return std::move(*this);
  }

  int status() const { return status_; }
  const std::string& field() const { return field_; }
  int retry_after() const { return retry_after_; }  // seconds; 0: no use
  Json body() const;  // {"error":{"message":...,"type":...,"param":...,"code":...}}

 private:
  int status_;
  std::string type_, field_;
  int retry_after_ = 0;
  Json more_ = Json::object();
};

// 400 about a field; `message` begins with its name.
ApiError bad_field(std::string field, const std::string& message);

// The type that goes with a status where nothing more is known: 404 -> "not_found_error".
std::string_view error_type_of(int status);

}  // namespace thimble
