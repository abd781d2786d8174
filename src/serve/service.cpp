#include "serve/service.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "serve/fields.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

namespace {

template <class Number>
void write_value(std::string& out, std::string_view name, std::string_view type, std::string_view help,
                 Number value) {
  out += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n{0} {3}\n", name, type, help, value);
}

}  // namespace

void Metrics::Histogram::add(double value) {
  const auto bound = std::ranges::lower_bound(kBounds, value);
  ++counts[static_cast<std::size_t>(bound - kBounds.begin())];
  sum += value;
}

void Metrics::Histogram::write(std::string& out, std::string_view name, std::string_view help) const {
  out += fmt::format("# HELP {0} {1}\n# TYPE {0} histogram\n", name, help);
  std::int64_t below = 0;
  for (std::size_t i = 0; i < kBounds.size(); ++i) {
    below += counts[i];
    out += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[i], below);
  }
  below += counts.back();
  out += fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, below, sum);
}

void Metrics::count_request(std::string_view route, int status, double seconds) {
  const std::lock_guard lock(mutex_);
  ++requests_[{std::string(route), status}];
  duration_.add(seconds);
}

void Metrics::count_answer(const Usage& usage) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += usage.prompt_tokens;
  cached_tokens_ += usage.cached_tokens;
  generated_tokens_ += usage.generated_tokens;
  prompt_seconds_ += usage.prompt_seconds;
  decode_seconds_ += usage.decode_seconds;
  first_token_.add(usage.seconds_to_first_token());
}

std::string Metrics::text(const Engine& engine, int connections) const {
  const EngineStats stats = engine.stats();
  const double mean_busy =
      stats.steps ? static_cast<double>(stats.busy_slot_steps) / static_cast<double>(stats.steps) : 0;
  std::string out;
  const std::lock_guard lock(mutex_);
  out += "# HELP thimble_requests_total HTTP requests answered\n# TYPE thimble_requests_total counter\n";
  for (const auto& [key, count] : requests_)
    out += fmt::format("thimble_requests_total{{route=\"{}\",status=\"{}\"}} {}\n", key.first, key.second,
                       count);
  write_value(out, "thimble_prompt_tokens_total", "counter", "Prompt tokens", prompt_tokens_);
  write_value(out, "thimble_prompt_tokens_cached_total", "counter", "Prompt tokens reused from a slot",
              cached_tokens_);
  write_value(out, "thimble_tokens_predicted_total", "counter", "Generated tokens", generated_tokens_);
  write_value(out, "thimble_prompt_seconds_total", "counter", "Seconds spent processing prompts",
              prompt_seconds_);
  write_value(out, "thimble_tokens_predicted_seconds_total", "counter", "Seconds spent generating answers",
              decode_seconds_);
  write_value(out, "thimble_requests_processing", "gauge", "Samples that have a slot", stats.active);
  write_value(out, "thimble_requests_deferred", "gauge", "Samples that wait for a slot", stats.waiting);
  write_value(out, "thimble_slots", "gauge", "Slots", engine.slots());
  write_value(out, "thimble_connections", "gauge", "Open connections", connections);
  write_value(out, "thimble_decode_steps_total", "counter", "Calls of the model", stats.steps);
  write_value(out, "thimble_busy_slots_per_decode", "gauge",
              "Mean number of busy slots per call of the model", mean_busy);
  first_token_.write(out, "thimble_time_to_first_token_seconds", "Seconds from a request to its first token");
  duration_.write(out, "thimble_request_duration_seconds", "Seconds from a request to the end of its answer");
  return out;
}

namespace {

constexpr double kPollSeconds = 0.02;     // seconds between checks for a disconnected client
constexpr double kKeepAliveSeconds = 10;  // a silent stream sends a comment this often
constexpr std::size_t kMaxPathShown = 200;
constexpr std::size_t kTrimBytes = 16 << 20;
constexpr const char* kKeyIsMissing = "the API key is missing or wrong; send Authorization: Bearer KEY";

bool is_local_name(const HttpRequest& request) {
  const std::string* host = request.header("host");
  return !host || is_local_host(*host);
}

// Whether the requesting page was served by this server, under any host name.
bool is_same_origin(const HttpRequest& request, std::string_view origin) {
  const std::string* host = request.header("host");
  return host && (origin == "http://" + *host || origin == "https://" + *host);
}

bool matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with('*')) return pattern == path;
  pattern.remove_suffix(1);
  return path.size() > pattern.size() && path.starts_with(pattern);
}

std::string time_text() {
  const auto now = std::chrono::system_clock::now();
  const auto millis =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)),
                     millis);
}

}  // namespace

// Route tables of the routes_*.cpp files.
std::span<const Route> about_routes();
std::span<const Route> completion_routes();
std::span<const Route> microgpt_routes();

std::vector<Route> all_routes() {
  std::vector<Route> routes;
  for (const auto table : {about_routes, completion_routes, microgpt_routes})
    routes.insert(routes.end(), table().begin(), table().end());
  return routes;
}

Service::Service(const ServedModel& model, Engine& engine, ServiceOptions options)
    : model_(model),
      engine_(engine),
      options_(std::move(options)),
      keys_(options_.api_keys),
      rate_limit_(options_.requests_per_second),
      reading_(options_.memory_bytes / 2, kTrimBytes),
      answering_(options_.memory_bytes / 4, kTrimBytes) {}

const Route& Service::find_route(const HttpRequest& request) const {
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  const Route* other_method = nullptr;
  for (const Route& route : options_.routes) {
    if (!matches(route.path, request.path)) continue;
    if (route.method == method) return route;
    other_method = &route;
  }
  const std::string path = request.path.substr(0, kMaxPathShown);
  if (other_method)
    throw ApiError(405, error_type_of(405),
                   fmt::format("{} expects {}, got {}", path, other_method->method, request.method));
  throw ApiError(404, error_type_of(404), fmt::format("there is no route {}", path));
}

void Service::check_access(const Route& route, const HttpRequest& request) {
  if (local_only() && !keys_.needed() && !is_local_name(request))
    throw ApiError(403, error_type_of(403), "this server accepts local requests only; use http://localhost");
  if (route.open) return;
  if (!keys_.admits(request)) throw ApiError(401, error_type_of(401), kKeyIsMissing);
  if (const double wait = rate_limit_.wait_for(request.client, seconds_now()); wait > 0)
    throw ApiError(
        429, error_type_of(429),
        fmt::format("rate limit exceeded: more than {} requests per second", options_.requests_per_second))
        .retry_after(static_cast<int>(std::ceil(wait)));
}

// Adds the CORS headers. Returns false if the request comes from a page of another site.
bool Service::set_cross_origin(const HttpRequest& request, HttpReply& reply) const {
  const std::string* origin = request.header("origin");
  if (!origin) return true;
  reply.add_header("Vary", "Origin");
  if (!is_local_origin(*origin)) return is_same_origin(request, *origin);
  reply.add_header("Access-Control-Allow-Origin", *origin);
  reply.add_header("Access-Control-Expose-Headers", "Retry-After");
  if (request.method == "OPTIONS") {
    reply.add_header("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    const std::string* requested = request.header("access-control-request-headers");
    reply.add_header("Access-Control-Allow-Headers", requested ? *requested : "Authorization, Content-Type");
    reply.add_header("Access-Control-Max-Age", "3600");
  }
  return true;
}

Exchange Service::begin(const HttpRequest& request, HttpReply& reply) {
  return {.service = *this,
          .request = request,
          .reply = reply,
          .started = seconds_now(),
          .reading = MemoryBudget::Share(reading_),
          .answering = MemoryBudget::Share(answering_)};
}

void Service::handle(const HttpRequest& request, HttpReply& reply) {
  Exchange exchange = begin(request, reply);
  try {
    dispatch(exchange);
  } catch (const ApiError& error) {
    send_error(exchange, error);
  } catch (const Overloaded& error) {
    send_error(exchange, ApiError(503, error_type_of(503), error.what()).retry_after(1));
  } catch (const Error& error) {
    send_error(exchange, ApiError(400, error_type_of(400), error.what()).about(error.field()));
  } catch (const std::exception& error) {
    send_error(exchange, ApiError(500, error_type_of(500), fmt::format("internal error: {}", error.what())));
  }
  finish(exchange);
}

void Exchange::check_client() const {
  const double limit = service.options().request_seconds;
  if (reply.gone()) throw ApiError(499, error_type_of(499), "the client closed the connection");
  if (seconds_now() - started > limit)
    throw ApiError(504, error_type_of(504), fmt::format("the answer took more than {} seconds", limit));
}

void Exchange::finish_reading(std::size_t bytes_kept) {
  reading.resize(bytes_kept);  // less than reading took, or the budget has room for it
}

void Exchange::reserve_answer(std::size_t bytes) {
  finish_reading(0);
  if (!answering.resize(bytes)) throw Overloaded("the memory for answers is in use");
}

void Exchange::follow(Job& job, const std::function<void(JobEvent)>& on_event,
                      const std::function<void()>& idle) {
  double last_event = seconds_now();
  while (!job.done()) {
    std::vector<JobEvent> events = job.wait(kPollSeconds);
    const double now = seconds_now();
    check_client();
    for (JobEvent& event : events) on_event(std::move(event));
    if (!events.empty()) last_event = now;
    if (now - last_event > kKeepAliveSeconds && idle) {
      idle();
      last_event = now;
    }
  }
}

void Service::check_head(const HttpHead& head) const {
  const bool has_body = head.chunked || head.content_length > 0;
  if (has_body && !keys_.admits(head.request)) throw HttpError(401, kKeyIsMissing);
}

void Service::refuse(const HttpError& problem, const HttpRequest& request, HttpReply& reply) {
  Exchange exchange = begin(request, reply);
  set_cross_origin(request, reply);
  if (request.path.starts_with("/microgpt/")) exchange.errors = ErrorShape::microgpt;
  ApiError error(problem.status(), error_type_of(problem.status()), problem.what());
  send_error(exchange, problem.status() == 503 ? std::move(error).retry_after(1) : error);
  finish(exchange);
}

void Service::dispatch(Exchange& exchange) {
  const HttpRequest& request = exchange.request;
  exchange.reply.add_header("X-Content-Type-Options", "nosniff");
  const bool origin_allowed = set_cross_origin(request, exchange.reply);
  if (request.path.starts_with("/microgpt/")) exchange.errors = ErrorShape::microgpt;
  if (!origin_allowed)
    throw ApiError(403, error_type_of(403), "requests from pages of other sites are not allowed");
  if (request.method == "OPTIONS") return exchange.reply.send({.status = 204});
  const Route& route = find_route(request);
  exchange.route = route.path;
  check_access(route, request);
  if (!request.body.empty()) reserve_reading(exchange);
  route.handler(exchange);
}

// Waits for the memory that reading the body may take. Other requests hold such memory only while
// they parse and tokenize, so the wait is short.
void Service::reserve_reading(Exchange& exchange) {
  const std::size_t bytes = reading_bytes(exchange.request.body);
  if (bytes > reading_.bytes())
    throw ApiError(400, error_type_of(400),
                   fmt::format("this body may take {} bytes to read, but the limit is {}; send a smaller one",
                               bytes, reading_.bytes()));
  while (!exchange.reading.resize(bytes)) {
    exchange.check_client();
    if (engine_.closed()) throw Overloaded("the server is shutting down");
    reading_.wait(kPollSeconds);
  }
}

void Service::send_error(Exchange& exchange, const ApiError& error) const {
  exchange.log.set("error", error.what());
  const Json body =
      exchange.errors == ErrorShape::microgpt ? Json::object().set("error", error.what()) : error.body();
  if (exchange.reply.started()) {  // the stream has begun: send the error as its last event
    exchange.reply.write(fmt::format("data: {}\n\n", body.dump()));
    exchange.reply.end_stream();
    return;
  }
  if (error.retry_after() > 0) exchange.reply.add_header("Retry-After", std::to_string(error.retry_after()));
  if (error.status() == 401) exchange.reply.add_header("WWW-Authenticate", "Bearer");
  if (error.status() == 405) {
    const auto found = std::ranges::find_if(
        options_.routes, [&](const Route& route) { return matches(route.path, exchange.request.path); });
    if (found != options_.routes.end())
      exchange.reply.add_header("Allow", std::string(found->method) + ", OPTIONS");
  }
  exchange.send_json(body, error.status());
}

void Service::finish(Exchange& exchange) {
  const double seconds = seconds_now() - exchange.started;
  metrics_.count_request(exchange.route, exchange.reply.status(), seconds);
  if (!options_.access_log) return;
  Json line = Json::object()
                  .set("time", time_text())
                  .set("client", exchange.request.client)
                  .set("method", exchange.request.method)
                  .set("path", exchange.request.path.substr(0, kMaxPathShown))
                  .set("status", exchange.reply.status())
                  .set("bytes", exchange.reply.bytes_sent())
                  .set("seconds", std::round(seconds * 1e6) / 1e6);
  for (const auto& [key, value] : exchange.log.as_object()) line.set(key, value);
  options_.access_log(line.dump());
}

namespace {

ServedModel with_limits(ServedModel served, const ServiceOptions& options) {
  for (TokenId id = 0; id < served.tokenizer->vocab_size(); ++id)
    served.longest_token = std::max(served.longest_token, bytes_of_token(*served.tokenizer, id).size());
  served.max_answer_bytes = options.memory_bytes / 32;
  served.constraints = std::make_shared<ConstraintCompiler>(*served.tokenizer);
  return served;
}

// Otherwise glibc raises both thresholds when a large block is freed, and each of its arenas then
// keeps up to 64 MiB, which malloc_trim does not return.
void return_large_blocks_at_once() {
#ifdef __GLIBC__
  constexpr int kLarge = 1 << 20;
  mallopt(M_MMAP_THRESHOLD, kLarge);
  mallopt(M_TRIM_THRESHOLD, kLarge);
#endif
}

HttpServerOptions with_limits(HttpServerOptions http, const ServiceOptions& options) {
  http.total_body_bytes = options.memory_bytes / 4;
  return http;
}

}  // namespace

Server::Server(Model& model, ServedModel served, ServerOptions options)
    : options_(std::move(options)),
      served_(with_limits(std::move(served), options_.service)),
      engine_(model, served_.tokenizer, options_.engine),
      service_(served_, engine_, options_.service),
      http_(std::make_unique<HttpServer>(
          with_limits(options_.http, options_.service),
          [this](const HttpRequest& request, HttpReply& reply) { service_.handle(request, reply); },
          [this](const HttpError& problem, const HttpRequest& request, HttpReply& reply) {
            service_.refuse(problem, request, reply);
          },
          [this](const HttpHead& head) { service_.check_head(head); })) {
  return_large_blocks_at_once();
  service_.connections = [this] { return http_->connections(); };
  service_.local_only = [this] { return http_->loopback(); };
  http_->start();
}

Server::~Server() = default;

void Server::run(const std::function<bool()>& stop) {
  double drain_deadline = std::numeric_limits<double>::infinity();
  bool draining = false;
  try {
    engine_.run([&] {
      if (!draining && stop()) {
        draining = true;
        drain_deadline = seconds_now() + options_.drain_seconds;
        engine_.close();
        http_->stop_accepting(options_.drain_seconds);
      }
      return draining && (engine_.idle() || seconds_now() > drain_deadline);
    });
  } catch (...) {
    http_->close();
    throw;
  }
  http_->close();
}

}  // namespace thimble
