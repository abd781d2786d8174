// Arbitrary bytes, sent to a server connection: requests one after the other until one is refused.
//
// Every request is answered once. Requests that reach the handler are valid: the method is a token,
// the path is printable, header names are lower-case, the body is within its limit, and writing and
// parsing the request gives the same request. Bodies are passed to the parsers of completions,
// which fail with status 400 or return requests that the model can run.
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
  std::optional<CompletionRequest> completion;
  try {
    completion = parse(parse_body(body), served_model());
  } catch (const ApiError& error) {
    require(error.status() == 400, "a bad body is status 400");
    require(parse_json(error.body().dump(), "error").size() == 1, "an error is one object");
    return;
  }
  require(
      !completion->prompts.empty() && completion->hidden_prompt_tokens.size() == completion->prompts.size(),
      "there is a prompt");
  require(completion->prompts.size() * static_cast<std::size_t>(completion->samples) <= kMaxChoices,
          "choices are bounded");
  for (const Request& request : completion->prompts)
    check_request(request, served_model().config, served_model().tokenizer);
}

void check_request_is_clean(const HttpRequest& request) {
  const auto printable = [](char c) { return c > ' ' && c < 0x7f; };
  require(!request.method.empty() && std::ranges::all_of(request.method, printable), "a method is a token");
  require(request.path.starts_with('/') || request.path == "*", "a path begins with /");
  require(std::ranges::all_of(request.path + request.query, printable), "a path is printable");
  require(request.body.size() <= kMostBodyBytes, "a body is within its limit");
  require(request.headers.size() <= kMaxHeaders, "headers are within their limit");
  for (const auto& [name, value] : request.headers) {
    require(std::ranges::none_of(name, [](char c) { return c >= 'A' && c <= 'Z'; }), "names are lower case");
    require(value.find_first_of(std::string_view("\r\n\0", 3)) == value.npos, "a value is one line");
  }
}

// Request smuggling needs two parsers that disagree; ours must at least be consistent.
void check_reads_the_same_again(const HttpRequest& request) {
  const std::string query = request.query.empty() ? "" : "?" + request.query;
  const char* version = request.header("host") ? "1.1" : "1.0";  // only HTTP/1.0 allows requests without Host
  std::string head = fmt::format("{} {}{} HTTP/{}\r\n", request.method, request.path, query, version);
  for (const auto& [name, value] : request.headers) head += fmt::format("{}: {}\r\n", name, value);
  head += "\r\n";
  require(head_end(head) == head.size(), "the end of the head is found");
  const HttpHead again = parse_http_head(head);
  require(again.request.method == request.method && again.request.path == request.path &&
              again.request.query == request.query,
          "the request line is unchanged by a round trip");
  require(again.request.headers == request.headers, "headers are unchanged by a round trip");
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
  const HttpClosing closing{.event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  MemoryBudget bodies(1 << 20, 1 << 20);
  const bool sent = send(ends[0], bytes.data(), bytes.size(), MSG_NOSIGNAL) == std::ssize(bytes);
  shutdown(ends[0], SHUT_WR);
  std::size_t handled = 0, refused = 0;
  std::string answers;
  if (sent) {
    HttpConnection connection(ends[1], "127.0.0.1", {.body_bytes = kMostBodyBytes}, closing, bodies);
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
          receive_all(ends[0], answers);  // there is no client thread that reads
        },
        [&](const HttpError& problem, const HttpRequest&, HttpReply& reply) {
          ++refused;
          require(reason_of(problem.status()) != "Unknown", "a refusal has a known status");
          reply.send({.status = problem.status(), .body = "{}\n"});
        });
    require(refused <= 1, "nothing is read after a refused request");
    receive_all(ends[0], answers);
    const std::size_t continues = count_of(answers, "HTTP/1.1 100 ");
    require(count_of(answers, "HTTP/1.1 ") == handled + refused + continues,
            "every request is answered once");
  } else {
    close(ends[1]);
  }
  close(ends[0]);
  close(closing.event);
}

}  // namespace thimble
