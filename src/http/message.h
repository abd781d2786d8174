// What an HTTP handler sees of a request, and how it answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thimble {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method = {};  // "GET"
  std::string path = {};    // "/v1/models": as sent, without the query
  std::string query = {};
  HttpHeaders headers = {};  // names in lower case, values without blanks around them
  std::string body = {};
  std::string client = {};  // its address, without the port

  // nullptr: absent. Of several the first.
  const std::string* header(std::string_view lower_case_name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  HttpHeaders headers = {};
};

// "Not Found", ...
std::string_view reason_of(int status);

// The way back to one client. Exactly one answer is sent: whole, or as a stream.
//
// Nothing throws when the client is gone: what is sent then goes nowhere.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  // Sent with whatever the answer is: a handler that knows them early sets them here.
  virtual void add_header(std::string name, std::string value) = 0;
  virtual void send(const HttpResponse& response) = 0;

  virtual void begin_stream(int status, std::string_view content_type) = 0;
  virtual void write(std::string_view text) = 0;  // at once
  virtual void end_stream() = 0;                  // without it the client sees that something is missing

  // The client has closed its side: nobody waits for the answer.
  virtual bool gone() = 0;

  virtual bool started() const = 0;  // something was sent
  virtual int status() const = 0;    // that was sent
  virtual std::size_t bytes_sent() const = 0;
};

// The head of an HTTP/1.1 request: its first line and its headers, read strictly.
//
// Whatever two programs could understand differently is refused: that is how requests are smuggled past a proxy.
// A request that HTTP itself forbids, or one beyond a limit.
class HttpProblem : public std::runtime_error {
 public:
  HttpProblem(int status, const std::string& message) : std::runtime_error(message), status_(status) {}
  int status() const { return status_; }

 private:
  int status_;
};

inline constexpr std::size_t kMostHeaders = 100;
inline constexpr std::size_t kLongestTarget = 8192;

struct HttpHead {
  HttpRequest request;  // without body and client
  std::uint64_t content_length = 0;
  bool chunked = false;
  bool chunks_known = true;  // to the client: it speaks HTTP/1.1
  bool keep_alive = true;
  bool expects_continue = false;
};

// Where the head in `text` ends, its empty line included; npos: not yet. Lines may end in a bare LF here, so that a
// request that is wrong in this is refused and not waited for.
std::size_t head_end(std::string_view text);

// `text`: all of a head. Throws HttpProblem.
HttpHead parse_http_head(std::string_view text);

// The size in the first line of a chunk, without its CRLF; extensions are passed over.
std::uint64_t parse_chunk_size(std::string_view line);

}  // namespace thimble
