// A server with a small model of random weights, for tests that do not depend on the content of
// answers.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "eval/small_model.h"
#include "serve/http_client.h"
#include "serve/service.h"

namespace thimble {

struct TestServerOptions {
  ServerOptions server = {};
  std::int64_t context = 256;
  bool chats = true;
  std::string layout = "roles";
  bool runs = true;  // false: the decode loop starts when run() is called
};

// Returns false after kClientSeconds.
inline bool wait_until(const std::function<bool()>& condition) {
  for (const double end = seconds_now() + kClientSeconds; !condition(); usleep(1000))
    if (seconds_now() > end) return false;
  return true;
}

class TestServer {
 public:
  explicit TestServer(TestServerOptions options = {}) {
    model_ = small_model(context_, tokenizer_->vocab_size(), options.context, "llama");
    ServedModel served{
        .name = "small", .config = model_->config(), .tokenizer = tokenizer_.get(), .created = 1};
    if (options.chats) served.layout.emplace(*tokenizer_, options.layout);
    options.server.service.access_log = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      log_.push_back(line);
    };
    server_ = std::make_unique<Server>(*model_, std::move(served), options.server);
    if (options.runs) run();
  }
  ~TestServer() { stop(); }

  int port() const { return server_->port(); }
  const Server& server() const { return *server_; }
  Model& model() { return *model_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

  void run() {
    decoder_ = std::thread([this] { server_->run([this] { return stop_.load(); }); });
  }
  void ask_to_stop() { stop_ = true; }
  void stop() {
    stop_ = true;
    if (!decoder_.joinable()) run();
    decoder_.join();
    decoder_ = {};
  }

  std::vector<std::string> log() const {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  // Waits for the lines of this many requests. A line is written after its answer was sent, so
  // lines of different connections can be in any order.
  std::vector<std::string> log_of(std::size_t requests) const {
    wait_until([&] { return log().size() >= requests; });
    return log();
  }

  HttpAnswer complete(const std::string& body) const { return post(port(), "/v1/completions", body); }
  HttpAnswer chat(const std::string& body) const { return post(port(), "/v1/chat/completions", body); }

 private:
  Context context_;
  std::unique_ptr<Tokenizer> tokenizer_ = load_tokenizer("bytes:chat");
  std::unique_ptr<Model> model_;
  mutable std::mutex mutex_;
  std::vector<std::string> log_;
  std::unique_ptr<Server> server_;
  std::atomic<bool> stop_ = false;
  std::thread decoder_;
};

// The text of a complete answer; streamed_text returns that of a stream.
inline std::string text_of(const HttpAnswer& answer) {
  const Json choice = answer.json().at("choices").as_array().at(0);
  return choice.find("text") ? choice.at("text").as_string() : choice.at("message").at("content").as_string();
}
inline std::string streamed_text(std::string_view body, int index = 0) {
  std::string text;
  for (const std::string& event : events_of(body)) {
    if (event == "[DONE]") continue;
    const Json chunk = parse_json(event, "event");
    if (!chunk.find("choices")) return "an error: " + event;
    for (const Json& choice : chunk.at("choices").as_array()) {
      if (choice.at("index").as_int() != index) continue;
      const Json* piece = choice.find("text") ? choice.find("text") : choice.at("delta").find("content");
      if (piece) text += piece->as_string();
    }
  }
  return text;
}

}  // namespace thimble
