#include "report/dashboard.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <map>

#include "base/clock.h"
#include "base/error.h"
#include "http/access.h"
#include "http/server.h"
#include "report/report.h"

namespace thimble {

namespace {

constexpr double kRefreshSeconds = 1;  // minimum time between two reads of the folder
constexpr int kMaxViewers = 32;

std::string policy(std::string_view nonce) {
  return fmt::format(
      "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; img-src data:; connect-src 'self'; "
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
      nonce);
}

void refuse(int status, std::string_view why, HttpReply& reply) {
  reply.send(
      {.status = status, .content_type = "text/plain; charset=utf-8", .body = std::string(why) + "\n"});
}

}  // namespace

Dashboard::Dashboard(std::filesystem::path run, int port) : run_(run), follower_(std::move(run)) {
  HttpServerOptions options{.host = "127.0.0.1", .port = port, .max_connections = kMaxViewers};
  options.limits.body_bytes = 0;
  // Disconnect slow readers early: all clients are local, and a stalled one would delay shutdown.
  options.limits.write_seconds = 2;
  options.limits.write_bytes_per_second = 1 << 20;
  try {
    server_ = std::make_unique<HttpServer>(
        options, [this](const HttpRequest& request, HttpReply& reply) { answer(request, reply); },
        [](const HttpError& problem, const HttpRequest&, HttpReply& reply) {
          refuse(problem.status(), problem.what(), reply);
        });
  } catch (const Error& error) {
    fail(Hint{"pass --dashboard 0 to use any free port"}, "cannot start the dashboard: {}", error.what());
  }
  server_->start();
}

Dashboard::~Dashboard() {
  end();
}

int Dashboard::port() const {
  return server_->port();
}

std::string Dashboard::address() const {
  return "http://" + server_->address();
}

void Dashboard::end() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    latest_.reset();
  }
  change_.notify_all();
  server_->close();
}

void Dashboard::answer(const HttpRequest& request, HttpReply& reply) {
  const std::string* host = request.header("host");
  // A non-local Host header means that another site's page makes the request (DNS rebinding).
  if (!host || !is_local_host(*host)) return refuse(403, "the dashboard accepts local requests only", reply);
  if (request.method != "GET" && request.method != "HEAD")
    return refuse(405, "the dashboard is read-only", reply);
  reply.add_header("Cache-Control", "no-store");
  reply.add_header("Referrer-Policy", "no-referrer");
  reply.add_header("X-Content-Type-Options", "nosniff");
  if (request.path == "/") return send_page(reply);
  if (request.path == "/events" && request.method == "GET") return send_events(reply);
  refuse(404, "not found; the dashboard is at /", reply);
}

std::shared_ptr<const Dashboard::View> Dashboard::view() {
  const std::lock_guard lock(mutex_);
  if (latest_ && seconds_now() < drawn_at_ + kRefreshSeconds) return latest_;
  View next{.title = "thimble", .ended = ended_};
  try {
    const RunData& run = follower_.refresh();
    next.sections = report_sections(run, {.running = !ended_});
    next.title = fmt::format("{} - thimble", run.name());
  } catch (const std::exception&) {  // a file is being written; the next read will succeed
    if (latest_) next.sections = latest_->sections;
    if (next.sections.empty()) next.sections = report_sections({.folder = run_}, {.running = !ended_});
  }
  latest_ = std::make_shared<const View>(std::move(next));
  // Set after rendering, so that clients that waited for a slow page share it instead of rendering
  // it again.
  drawn_at_ = seconds_now();
  return latest_;
}

void Dashboard::send_page(HttpReply& reply) {
  const std::string nonce = new_id("");
  const std::shared_ptr<const View> now = view();
  reply.add_header("Content-Security-Policy", policy(nonce));
  reply.send(
      {.content_type = "text/html; charset=utf-8",
       .body = page_html({.title = now->title, .sections = now->sections, .live = true, .nonce = nonce})});
}

void Dashboard::send_events(HttpReply& reply) {
  reply.begin_stream(200, "text/event-stream");
  std::map<std::string, std::string> sent;
  for (bool ended = false; !ended && !reply.gone();) {
    const std::shared_ptr<const View> now = view();
    ended = now->ended;
    Json sections = Json::object();
    for (const auto& [id, html] : now->sections)
      if (const auto before = sent.find(id); before == sent.end() || before->second != html) {
        sections.set(id, html);
        sent[id] = html;
      }
    if (sections.size() > 0 || ended)
      reply.write(fmt::format(
          "data: {}\n\n",
          Json::object().set("title", now->title).set("sections", sections).set("ended", ended).dump()));
    else
      reply.write(":\n\n");  // keep-alive comment; detects closed connections
    std::unique_lock lock(mutex_);
    if (!ended)
      change_.wait_for(lock, std::chrono::duration<double>(kRefreshSeconds), [this] { return ended_; });
  }
  reply.end_stream();
}

}  // namespace thimble
