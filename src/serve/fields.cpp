#include "serve/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace thimble {

namespace {

constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxNameShown = 64;

}  // namespace

Fields::Fields(const Json& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {
  if (!object.is_object()) {
    const std::string name = prefix_.empty() ? "the body" : prefix_.substr(0, prefix_.size() - 1);
    throw bad_field(prefix_.empty() ? "" : name,
                    fmt::format("{} must be an object, got {}", name, kind_of(object)));
  }
}

bool Fields::has(std::string_view name) const {
  const Json* value = object_.find(name);
  return value && !value->is_null();
}

const Json* Fields::find(std::string_view name) {
  known_.push_back(name);
  return has(name) ? object_.find(name) : nullptr;
}

const Json& Fields::required(std::string_view name) {
  const Json* value = find(name);
  if (!value) throw bad_field(full_name(name), fmt::format("{} is required", full_name(name)));
  return *value;
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_bool()) wrong_type(name, "true or false", *value);
  return value->as_bool();
}

std::optional<std::int64_t> Fields::integer(std::string_view name) {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (value->is_int()) return value->as_int();
  // Some clients write integers as 16.0.
  constexpr double kExact = 1LL << 53;
  const double number = value->is_number() ? value->as_double() : NAN;
  if (!(std::abs(number) <= kExact) || number != std::floor(number)) wrong_type(name, "an integer", *value);
  return static_cast<std::int64_t>(number);
}

std::optional<double> Fields::number(std::string_view name) {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->as_double())) wrong_type(name, "a number", *value);
  return value->as_double();
}

std::optional<std::string> Fields::string(std::string_view name) {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_string()) wrong_type(name, "a string", *value);
  return value->as_string();
}

void Fields::wrong_type(std::string_view name, std::string_view expected, const Json& found) const {
  throw bad_field(full_name(name),
                  fmt::format("{} must be {}, got {}", full_name(name), expected,
                              found.is_number() ? found.dump() : std::string(kind_of(found))));
}

void Fields::sent_as(std::string_view library_name, std::string_view name) {
  names_sent_[library_name] = name;
}

ApiError Fields::to_api_error(const Error& error) const {
  const std::string_view field = error.field();
  std::string message = error.what();
  const auto renamed = names_sent_.find(field);
  if (renamed == names_sent_.end())
    return bad_field(std::ranges::count(known_, field) > 0 ? full_name(field) : "", message);
  message.replace(0, field.size(), renamed->second);  // the message begins with the field name
  return bad_field(full_name(renamed->second), message);
}

void Fields::finish(std::span<const std::string_view> unsupported) const {
  for (const auto& [name, value] : object_.as_object()) {
    if (value.is_null() || std::ranges::count(known_, name) > 0) continue;
    if (std::ranges::count(unsupported, name) > 0)
      throw bad_field(full_name(name), fmt::format("{} is not supported by this server", full_name(name)));
    const std::string_view meant = nearest(name, known_);
    const std::string shown = full_name(name.substr(0, kMaxNameShown));
    throw bad_field(shown, meant.empty() ? fmt::format("unknown field '{}'", shown)
                                         : fmt::format("unknown field '{}'; did you mean '{}'?", shown,
                                                       full_name(meant)));
  }
}

std::string_view kind_of(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_bool()) return "a boolean";
  if (value.is_number()) return "a number";
  if (value.is_string()) return "a string";
  return value.is_array() ? "an array" : "an object";
}

Json parse_body(std::string_view text) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos)
    throw ApiError(400, "invalid_request_error", "the body must be a JSON object, got an empty body");
  try {
    return parse_json(text, "body", {.max_depth = kMaxDepth});
  } catch (const Error& error) {
    throw ApiError(400, "invalid_request_error", error.what());
  }
}

std::size_t reading_bytes(std::string_view body) {
  // Per byte: the symbols and the heap of a long word, and copies of the text.
  constexpr std::size_t kRequest = 64 << 10, kPerByte = 64;
  // A Json in an array that doubles its capacity; a member and its entries in two indices of keys.
  constexpr std::size_t kValue = 96, kMember = 384;
  std::size_t values = 0, members = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (c == '"') in_string = !in_string;
    if (in_string && c == '\\') ++i;
    if (in_string) continue;
    values += c == ',' || c == '[' || c == '{' ? 1 : 0;
    members += c == ':' ? 1 : 0;
  }
  return kRequest + kPerByte * body.size() + kValue * values + kMember * members;
}

Json ApiError::body() const {
  Json error = Json::object().set("message", what()).set("type", type_);
  error.set("param", field_.empty() ? Json() : Json(field_)).set("code", status_);
  for (const auto& [key, value] : more_.as_object()) error.set(key, value);
  return Json::object().set("error", error);
}

ApiError bad_field(std::string field, const std::string& message) {
  return ApiError(400, "invalid_request_error", message).about(std::move(field));
}

std::string_view error_type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
    case 504:
      return "timeout_error";
    case 429:
      return "rate_limit_error";
    case 501:
      return "not_supported_error";
    case 503:
      return "unavailable_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace thimble
