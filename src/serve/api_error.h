// Errors as OpenAI's clients know them.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"

namespace thimble {

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
