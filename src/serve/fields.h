// Reads the fields of a request's JSON object by name. finish() rejects fields that were not read.
//
//   Fields fields(body);
//   const double temperature = fields.number("temperature").value_or(0.8);
//   ...
//   fields.finish({"tools"});   // throws "unknown field 'temprature'; did you mean 'temperature'?"
//
// null counts as absent, as in OpenAI's API. Errors are ApiErrors with status 400 that name the
// field.
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
  // `object` must outlive the Fields. `prefix` is prepended to field names in errors, such as
  // "messages[0]."
  explicit Fields(const Json& object, std::string prefix = "");

  bool has(std::string_view name) const;  // present and not null
  // Returns nullptr if the field is absent or null.
  const Json* find(std::string_view name);
  const Json& required(std::string_view name);

  std::optional<bool> boolean(std::string_view name);
  std::optional<std::int64_t> integer(std::string_view name);
  std::optional<double> number(std::string_view name);  // finite
  std::optional<std::string> string(std::string_view name);

  // "messages[0].role"
  std::string full_name(std::string_view name) const { return prefix_ + std::string(name); }
  // Records that the client sent `name` for the field that the library calls `library_name`.
  void sent_as(std::string_view library_name, std::string_view name);
  // Converts a library error to an ApiError that uses the client's field name, or names no field if
  // the error's field is not part of the request.
  ApiError to_api_error(const Error& error) const;

  // Throws if a field was not read. `unsupported`: fields of other servers that this one does not
  // support; they get a different message.
  void finish(std::span<const std::string_view> unsupported = {}) const;

 private:
  [[noreturn]] void wrong_type(std::string_view name, std::string_view expected, const Json& found) const;

  const Json& object_;
  std::string prefix_;
  std::vector<std::string_view> known_;
  std::map<std::string_view, std::string_view> names_sent_;  // keyed by the library's name
};

// "a string", "null", ...; for error messages.
std::string_view kind_of(const Json& value);

// Parses the body of a request as JSON. Throws an ApiError with status 400.
Json parse_body(std::string_view text);
// An upper bound of the memory that a body takes while it is parsed and tokenized.
std::size_t reading_bytes(std::string_view body);

// An error response in the format of OpenAI's API.
class ApiError : public std::runtime_error {
 public:
  ApiError(int status, std::string_view type, const std::string& message)
      : std::runtime_error(message), status_(status), type_(type) {}

  // Sets the invalid field: "messages[0].role".
  ApiError&& about(std::string field) && {
    field_ = std::move(field);
    return std::move(*this);
  }
  ApiError&& retry_after(int seconds) && {
    retry_after_ = seconds;
    return std::move(*this);
  }
  // Adds a key to the error object.
  ApiError&& with(std::string key, Json value) && {
    more_.set(std::move(key), std::move(value));
    return std::move(*this);
  }

  int status() const { return status_; }
  const std::string& field() const { return field_; }
  int retry_after() const { return retry_after_; }  // seconds; 0: do not retry
  Json body() const;  // {"error":{"message":...,"type":...,"param":...,"code":...}}

 private:
  int status_;
  std::string type_, field_;
  int retry_after_ = 0;
  Json more_ = Json::object();
};

// Status 400 for an invalid field; `message` begins with the field's name.
ApiError bad_field(std::string field, const std::string& message);

// The default error type of a status: 404 -> "not_found_error".
std::string_view error_type_of(int status);

}  // namespace thimble
