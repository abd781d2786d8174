#include "serve/api_error.h"

namespace thimble {

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
