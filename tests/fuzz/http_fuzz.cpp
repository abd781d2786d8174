// Any bytes at all, sent to the server's connection: requests one after the other, until one is refused.
//
// Every request is answered once. What the handler sees is clean: a token as method, a printable path, lower-case names,
// a body within its limit; and it says the same when it is written down and read again. Bodies go to the parsers of
// completions, which refuse them with status 400 or give requests that the model can run.
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "http/access.h"
#include "http/server.h"
#include "serve/completion_request.h"
#include "serve/fields.h"
#include "targets.h"

namespace thimble {

namespace {

constexpr std::size_t kMostBodyBytes = 1 << 16;

const ServedModel& served_model() {
  static const auto tokenizer = load_tokenizer("bytes:chat");
  static const ServedModel model{
      .name = "fuzz",
      .config = resolved(ModelConfig{
          .vocab_size = tokenizer->vocab_size(), .context = 64, .layers = 1, .dim = 8, .heads = 1}),
      .tokenizer = tokenizer.get(),
      .layout = ChatLayout::roles(*tokenizer)};
  return model;
}

using BodyParser = CompletionRequest (*)(const Json& body, const ServedModel& model);

void try_body(const std::string& body, BodyParser parse) {
  std::optional<CompletionRequest> asked;
  try {
    asked = parse(parse_body(body), served_model());
  } catch (const ApiError& error) {
    promise(error.status() == 400, "a bad body is status 400");
    promise(parse_json(error.body().dump(), "error").size() == 1, "an error is one object");
    return;
  }
  promise(!asked->prompts.empty() && asked->unshown.size() == asked->prompts.size(), "there is a prompt");
  promise(asked->prompts.size() * static_cast<std::size_t>(asked->samples) <= kMostChoices,
          "choices are bounded");
  for (const Request& request : asked->prompts)
    check_request(request, served_model().config, served_model().tokenizer);
}

void check_request_is_clean(const HttpRequest& request) {
  const auto printable = [](char c) { return c > ' ' && c < 0x7f; };
  promise(!request.method.empty() && std::ranges::all_of(request.method, printable), "a method is a word");
  promise(request.path.starts_with('/') || request.path == "*", "a path begins with /");
  promise(std::ranges::all_of(request.path + request.query, printable), "a path is printable");
  promise(request.body.size() <= kMostBodyBytes, "a body is within its limit");
  promise(request.headers.size() <= kMostHeaders, "headers are within their limit");
  for (const auto& [name, value] : request.headers) {
    promise(std::ranges::none_of(name, [](char c) { return c >= 'A' && c <= 'Z'; }), "names are lower case");
    promise(value.find_first_of(std::string_view("\r\n\0", 3)) == value.npos, "a value is one line");
  }
}

// Smuggling begins where two readers disagree: ours must at least agree with itself.
void check_reads_the_same_again(const HttpRequest& request) {
  const std::string query = request.query.empty() ? "" : "?" + request.query;
  const char* version = request.header("host") ? "1.1" : "1.0";  // only the older may come without
  std::string head = fmt::format("{} {}{} HTTP/{}\r\n", request.method, request.path, query, version);
  for (const auto& [name, value] : request.headers) head += fmt::format("{}: {}\r\n", name, value);
  head += "\r\n";
  promise(head_end(head) == head.size(), "a head ends where it ends");
  const HttpHead again = parse_http_head(head);
  promise(again.request.method == request.method && again.request.path == request.path &&
              again.request.query == request.query,
          "a first line comes back");
  promise(again.request.headers == request.headers, "headers come back");
}

void handle(const HttpRequest& request) {
  static const ApiKeys keys({"secret"});
  check_request_is_clean(request);
  check_reads_the_same_again(request);
  keys.admits(request);
  if (const std::string* host = request.header("host")) is_local_host(*host);
  if (const std::string* origin = request.header("origin")) is_local_origin(*origin);
  try_body(request.body, request.path == "/v1/completions" ? parse_text_completion : parse_chat_completion);
}

std::size_t count_of(std::string_view text, std::string_view word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++count;
  return count;
}

void receive_all(int socket, std::string& text) {
  std::array<char, 4096> block;
  for (ssize_t count; (count = recv(socket, block.data(), block.size(), MSG_DONTWAIT)) > 0;)
    text.append(block.data(), static_cast<std::size_t>(count));
}

}  // namespace

void fuzz_http(FuzzBytes bytes) {
  std::array<int, 2> ends{};  // the client's, the server's
  check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0, "no sockets");
  const int closing = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const bool sent = send(ends[0], bytes.data(), bytes.size(), MSG_NOSIGNAL) == std::ssize(bytes);
  shutdown(ends[0], SHUT_WR);
  std::size_t handled = 0, refused = 0;
  std::string answers;
  if (sent) {
    HttpConnection connection(ends[1], "127.0.0.1", {.body_bytes = kMostBodyBytes}, closing);
    connection.serve(
        [&](const HttpRequest& request, HttpReply& reply) {
          ++handled;
          handle(request);
          if (request.query == "stream") {
            reply.begin_stream(200, "text/event-stream");
            reply.write("data: {}\n\n");
            reply.end_stream();
          } else {
            reply.send({.body = "{}\n"});
          }
          receive_all(ends[0], answers);  // there is no other thread to do it
        },
        [&](const HttpProblem& problem, const HttpRequest&, HttpReply& reply) {
          ++refused;
          promise(reason_of(problem.status()) != "Unknown", "a refusal has a known status");
          reply.send({.status = problem.status(), .body = "{}\n"});
        });
    promise(refused <= 1, "nothing is read behind what is refused");
    receive_all(ends[0], answers);
    const std::size_t continues = count_of(answers, "HTTP/1.1 100 ");
    promise(count_of(answers, "HTTP/1.1 ") == handled + refused + continues,
            "every request is answered once");
  } else {
    close(ends[1]);
  }
  close(ends[0]);
  close(closing);
}

}  // namespace thimble
