// What the server answers: every route, every check before it, one place where errors become JSON.
//
// A route is a function and a row of the table of its file:
//
//   void send_health(Exchange& exchange) { exchange.send_json(Json::object().set("status", "ok")); }
//   ... {"GET", "/health", send_health} ...
//
// all_routes() joins the tables of the routes_*.cpp files.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "http/access.h"
#include "http/message.h"
#include "http/server.h"
#include "infer/request.h"
#include "serve/completion_request.h"
#include "serve/engine.h"

namespace thimble {

// Counters for Prometheus. Any thread may count.
class Metrics {
 public:
  // `route` comes from the table of routes, never from a client: the number of series is bounded.
  void count_request(std::string_view route, int status, double seconds);
  void count_answer(const Usage& usage);

  // The text format, version 0.0.4.
  std::string text(const Engine& engine, int connections) const;

 private:
  static constexpr std::array kBounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0};
  struct Histogram {
    std::array<std::int64_t, kBounds.size() + 1> counts = {};
    double sum = 0;
    void add(double value);
    void write(std::string& out, std::string_view name, std::string_view help) const;
  };

  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::int64_t> requests_;
  Histogram first_token_, duration_;
  std::int64_t prompt_tokens_ = 0, cached_tokens_ = 0, generated_tokens_ = 0;
  double prompt_seconds_ = 0, decode_seconds_ = 0;
};

class Service;
enum class ErrorShape { openai, microgpt };

// One request on its way through the service, with what is worth logging about it.
struct Exchange {
  Service& service;
  const HttpRequest& request;
  HttpReply& reply;
  double started;                    // seconds_now()
  std::string_view route = "other";  // of the table
  ErrorShape errors = ErrorShape::openai;
  Json log = Json::object();  // more for the access log

  void send_json(const Json& json, int status = 200) {
    reply.send({.status = status, .body = json.dump() + "\n"});
  }
  // Every event of the job, until it is done. Throws when the client is gone (499) or the time is over (504).
  // `idle`: called when there was no news for a while.
  void follow(Job& job, const std::function<void(JobEvent)>& on_event,
              const std::function<void()>& idle = {});
};

struct Route {
  std::string_view method, path;  // a path that ends in * stands for all that begin so and go on
  void (*handler)(Exchange&);
  bool open = false;  // to everybody, key or not, and never rate-limited
};

std::vector<Route> all_routes();

struct ServiceOptions {
  std::vector<std::string> api_keys = {};
  double requests_per_second = 0;  // of one client; 0: no limit
  double request_seconds = 600;    // that an answer may take, waiting included
  bool log_prompts = false;
  std::function<void(const std::string& line)> access_log = {};  // JSON; by any thread
  std::vector<Route> routes = all_routes();
};

class Service {
 public:
  // All of them outlive it.
  Service(const ServedModel& model, Engine& engine, ServiceOptions options);

  // By any thread.
  void handle(const HttpRequest& request, HttpReply& reply);
  void refuse(const HttpProblem& problem, const HttpRequest& request, HttpReply& reply);
  void check_head(const HttpHead& head) const;  // throws HttpProblem: nobody without a key sends a body

  // What routes answer with.
  const ServedModel& model() const { return model_; }
  Engine& engine() { return engine_; }
  const ServiceOptions& options() const { return options_; }
  Metrics& metrics() { return metrics_; }

  std::function<int()> connections = [] { return 0; };  // for /metrics
  // Can nobody but this machine reach it? Then what comes under a foreign name is refused (DNS rebinding) while no key
  // is needed.
  std::function<bool()> local_only = [] { return true; };

 private:
  const Route& find_route(const HttpRequest& request) const;
  void check_access(const Route& route, const HttpRequest& request);
  bool set_cross_origin(const HttpRequest& request, HttpReply& reply) const;
  void dispatch(Exchange& exchange);
  void send_error(Exchange& exchange, const class ApiError& error) const;
  void finish(Exchange& exchange);

  const ServedModel& model_;
  Engine& engine_;
  ServiceOptions options_;
  ApiKeys keys_;
  RateLimit rate_limit_;
  Metrics metrics_;
};

// `thimble serve`, without the command line: a model behind HTTP.
//
//   Server server(model, served_model, options);
//   announce(server.address());
//   server.run([&] { return interrupt.asked(); });     // on the thread that may compute; returns when it has drained
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
