// `thimble serve`, without the command line: a model behind HTTP.
//
//   Server server(model, served_model, options);
//   announce(server.address());
//   server.run([&] { return interrupt.asked(); });     // on the thread that may compute; returns when it has drained
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "serve/engine.h"
#include "serve/http_server.h"
#include "serve/service.h"

namespace thimble {

struct ServerOptions {
  EngineOptions engine = {};
  HttpServerOptions http = {};
  ServiceOptions service = {};
  double drain_seconds = 30;  // for answers at hand, once the server is told to stop
};

class Server {
 public:
  // Listens from here on. `model` outlives it.
  Server(Model& model, ServedModel served, ServerOptions options);
  ~Server();

  int port() const { return http_->port(); }
  const std::string& address() const { return http_->address(); }
  bool loopback() const { return http_->loopback(); }

  // Computes on this thread until `stop` says so. Then nobody new is served, answers at hand are finished within
  // drain_seconds, and it returns. A failure of the whole is thrown.
  void run(const std::function<bool()>& stop);

  const Engine& engine() const { return engine_; }

 private:
  ServerOptions options_;
  ServedModel served_;
  Engine engine_;
  Service service_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace thimble
