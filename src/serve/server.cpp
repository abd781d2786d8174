#include "serve/server.h"

#include <limits>
#include <utility>

#include "base/clock.h"

namespace thimble {

Server::Server(Model& model, ServedModel served, ServerOptions options)
    : options_(std::move(options)),
      served_(std::move(served)),
      engine_(model, served_.tokenizer, options_.engine),
      service_(served_, engine_, options_.service),
      http_(std::make_unique<HttpServer>(
          options_.http,
          [this](const HttpRequest& request, HttpReply& reply) { service_.handle(request, reply); },
          [this](const HttpProblem& problem, const HttpRequest& request, HttpReply& reply) {
            service_.refuse(problem, request, reply);
          },
          [this](const HttpHead& head) { service_.check_head(head); })) {
  service_.connections = [this] { return http_->connections(); };
  service_.local_only = [this] { return http_->loopback(); };
  http_->start();
}

Server::~Server() = default;

void Server::run(const std::function<bool()>& stop) {
  double last_moment = std::numeric_limits<double>::infinity();
  bool draining = false;
  try {
    engine_.run([&] {
      if (!draining && stop()) {
        draining = true;
        last_moment = seconds_now() + options_.drain_seconds;
        engine_.close();
        http_->stop_accepting();
      }
      return draining && (engine_.idle() || seconds_now() > last_moment);
    });
  } catch (...) {
    http_->close();
    throw;
  }
  http_->close();
}

}  // namespace thimble
