// One request on its way through the service, with what is worth logging about it.
#pragma once

#include "base/json.h"
#include "serve/service.h"

namespace thimble {

enum class ErrorShape { openai, microgpt };

struct Service::Exchange {
  const HttpRequest& request;
  HttpReply& reply;
  double started;                    // seconds_now()
  std::string_view route = "other";  // of the table
  ErrorShape errors = ErrorShape::openai;
  Json log = Json::object();  // more for the access log

  void send_json(const Json& json, int status = 200) {
    reply.send({.status = status, .body = json.dump() + "\n"});
  }
};

struct Service::Route {
  std::string_view method, path;  // a path that ends in * stands for all that begin so and go on
  void (Service::*handler)(Exchange&);
  bool open = false;  // to everybody, key or not, and never rate-limited
};

}  // namespace thimble
