// Routing, access checks and error handling of the HTTP API.
//
// A route is a handler function and an entry in the table of its file:
//
//   void send_health(Exchange& exchange) {
//     exchange.send_json(Json::object().set("status", "ok"));
//   }
//   ... {"GET", "/health", send_health} ...
//
// all_routes() concatenates the tables of the routes_*.cpp files.
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

// Counters for Prometheus. Thread-safe.
class Metrics {
 public:
  // `route` must be a path of the route table, not a client's path, so that the number of time
  // series is bounded.
  void count_request(std::string_view route, int status, double seconds);
  void count_answer(const Usage& usage);

  // Returns the metrics in Prometheus text format 0.0.4.
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

// One request, its reply, its shares of memory, and extra fields for the access log.
struct Exchange {
  Service& service;
  const HttpRequest& request;
  HttpReply& reply;
  double started;                    // seconds_now()
  std::string_view route = "other";  // path in the route table
  ErrorShape errors = ErrorShape::openai;
  MemoryBudget::Share reading, answering;  // of the memory for all requests
  Json log = Json::object();               // extra fields for the access log

  // The share for reading the body is taken before the handler is called. When the handler has read
  // the body, it gives that back, except for what it keeps until its answer is sent.
  void finish_reading(std::size_t bytes_kept);
  // Does the same, and takes a share for the answer. Throws Overloaded if other requests have it.
  void reserve_answer(std::size_t bytes);
  void send_json(const Json& json, int status = 200) {
    reply.send({.status = status, .body = json.dump() + "\n"});
  }
  // Calls `on_event` with every event until the job is done. Throws if the client disconnects (499)
  // or request_seconds is exceeded (504). `idle` is called after 10 s without an event.
  void follow(Job& job, const std::function<void(JobEvent)>& on_event,
              const std::function<void()>& idle = {});

 private:
  friend class Service;
  void check_client() const;
};

struct Route {
  std::string_view method, path;  // a trailing * matches any non-empty suffix
  void (*handler)(Exchange&);
  bool open = false;  // needs no API key and is never rate-limited
};

std::vector<Route> all_routes();

struct ServiceOptions {
  std::vector<std::string> api_keys = {};
  double requests_per_second = 0;  // per client; 0: no limit
  double request_seconds = 600;    // maximum duration of an answer, queueing included
  // For all requests in progress: a quarter for bodies that arrive, half for parsing and tokenizing
  // them, and a quarter for answers, of which one answer may take an eighth.
  std::size_t memory_bytes = 1 << 30;
  bool log_prompts = false;
  std::function<void(const std::string& line)> access_log =
      {};  // one JSON object per call; called by any thread
  std::vector<Route> routes = all_routes();
};

class Service {
 public:
  // `model` and `engine` must outlive the service.
  Service(const ServedModel& model, Engine& engine, ServiceOptions options);

  // May be called by any thread.
  void handle(const HttpRequest& request, HttpReply& reply);
  void refuse(const HttpError& problem, const HttpRequest& request, HttpReply& reply);
  void check_head(const HttpHead& head) const;  // throws HttpError for a body without a valid key

  // Accessors for the routes.
  const ServedModel& model() const { return model_; }
  Engine& engine() { return engine_; }
  const ServiceOptions& options() const { return options_; }
  Metrics& metrics() { return metrics_; }

  std::function<int()> connections = [] { return 0; };  // for /metrics
  // Whether the server listens on loopback only. If so, and no API key is configured, requests with
  // a non-local Host header are rejected (protection against DNS rebinding).
  std::function<bool()> local_only = [] { return true; };

 private:
  const Route& find_route(const HttpRequest& request) const;
  void check_access(const Route& route, const HttpRequest& request);
  bool set_cross_origin(const HttpRequest& request, HttpReply& reply) const;
  Exchange begin(const HttpRequest& request, HttpReply& reply);
  void dispatch(Exchange& exchange);
  void reserve_reading(Exchange& exchange);
  void send_error(Exchange& exchange, const class ApiError& error) const;
  void finish(Exchange& exchange);

  const ServedModel& model_;
  Engine& engine_;
  ServiceOptions options_;
  ApiKeys keys_;
  RateLimit rate_limit_;
  MemoryBudget reading_, answering_;
  Metrics metrics_;
};

// Serves a model over HTTP; used by `thimble serve`.
//
//   Server server(model, served_model, options);
//   announce(server.address());
//   // Runs on the decode thread and returns once drained.
//   server.run([&] { return interrupt.requested(); });
struct ServerOptions {
  EngineOptions engine = {};
  HttpServerOptions http = {};
  ServiceOptions service = {};
  double drain_seconds = 30;  // time to finish running answers after a stop
};

class Server {
 public:
  // Starts listening. `model` must outlive the server.
  Server(Model& model, ServedModel served, ServerOptions options);
  ~Server();

  int port() const { return http_->port(); }
  const std::string& address() const { return http_->address(); }
  bool loopback() const { return http_->loopback(); }

  // Runs the decode loop on this thread until `stop` returns true. Then rejects new requests,
  // finishes running answers within drain_seconds, and returns. Throws if the engine fails.
  void run(const std::function<bool()>& stop);

  const Engine& engine() const { return engine_; }

 private:
  ServerOptions options_;
  ServedModel served_;
  Engine engine_;
  Service service_;
  std::unique_ptr<HttpServer> http_;
};

// The chat page, serve/web/index.html, of `serve` and of `export --format html`. Each field is
// inserted for the mark of its name, such as @head@.
struct PageParts {
  std::string_view nonce;
  std::string_view head = {};
  std::string_view backend;  // a script, such as serve/web/http.js
  std::string_view parts = {};
};
std::string chat_page(const PageParts& parts);

}  // namespace thimble
