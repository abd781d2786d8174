// What the server answers: every route, every check before it, one place where errors become JSON.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "serve/access.h"
#include "serve/completion_request.h"
#include "serve/engine.h"
#include "serve/http_head.h"
#include "serve/http_message.h"
#include "serve/metrics.h"
#include "serve/served_model.h"

namespace thimble {

struct ServiceOptions {
  std::vector<std::string> api_keys = {};
  double requests_per_second = 0;  // of one client; 0: no limit
  double request_seconds = 600;    // that an answer may take, waiting included
  bool log_prompts = false;
  std::function<void(const std::string& line)> access_log = {};  // JSON; by any thread
};

class Service {
 public:
  // All of them outlive it.
  Service(const ServedModel& model, Engine& engine, ServiceOptions options);

  // By any thread.
  void handle(const HttpRequest& request, HttpReply& reply);
  void refuse(const HttpProblem& problem, const HttpRequest& request, HttpReply& reply);
  void check_head(const HttpHead& head) const;  // throws HttpProblem: nobody without a key sends a body

  std::function<int()> connections = [] { return 0; };  // for /metrics
  // Can nobody but this machine reach it? Then what comes under a foreign name is refused (DNS rebinding) while no key
  // is needed.
  std::function<bool()> local_only = [] { return true; };

 private:
  struct Exchange;
  struct Route;

  static const std::vector<Route>& routes();
  const Route& find_route(const HttpRequest& request) const;
  void check_access(const Route& route, const HttpRequest& request);
  bool set_cross_origin(const HttpRequest& request, HttpReply& reply) const;
  void dispatch(Exchange& exchange);
  void send_error(Exchange& exchange, const class ApiError& error) const;
  void finish(Exchange& exchange);

  void page(Exchange& exchange);
  void health(Exchange& exchange);
  void models(Exchange& exchange);
  void model(Exchange& exchange);
  void props(Exchange& exchange);
  void metrics(Exchange& exchange);
  void chat_completions(Exchange& exchange);
  void text_completions(Exchange& exchange);
  void tokenize(Exchange& exchange);
  void detokenize(Exchange& exchange);
  void apply_template(Exchange& exchange);
  void microgpt_generate(Exchange& exchange);
  void microgpt_chat(Exchange& exchange);

  void complete(Exchange& exchange, const CompletionRequest& asked);
  void stream(Exchange& exchange, const CompletionRequest& asked, class CompletionAnswer& answer, Job& job);
  Job submit(std::vector<Request> requests);
  // Every event of the job, until it is done. Throws when the client is gone (499) or the time is over (504).
  // `idle`: called when there was no news for a while.
  void follow(Exchange& exchange, Job& job, const std::function<void(JobEvent)>& on_event,
              const std::function<void()>& idle = {});
  void check_accepts_json(const HttpRequest& request) const;

  const ServedModel& model_;
  Engine& engine_;
  ServiceOptions options_;
  ApiKeys keys_;
  RateLimit rate_limit_;
  Metrics metrics_;
};

}  // namespace thimble
