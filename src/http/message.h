// HTTP requests and responses, and a strict parser of request heads.
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
  std::string path = {};    // "/v1/models": as received, without the query
  std::string query = {};
  HttpHeaders headers = {};  // names in lower case, values trimmed
  std::string body = {};
  std::string client = {};  // IP address without the port

  // The value of the first header with this name, or nullptr.
  const std::string* header(std::string_view lower_case_name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  HttpHeaders headers = {};
};

// The reason phrase of a status: "Not Found".
std::string_view reason_of(int status);

// Sends the response to one request. Exactly one response must be sent, either complete or as a
// stream.
//
// No method throws if the client has disconnected; the data is then dropped.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  // Adds a header to the response, whatever its status. Must be called before the response is
  // started.
  virtual void add_header(std::string name, std::string value) = 0;
  virtual void send(const HttpResponse& response) = 0;

  virtual void begin_stream(int status, std::string_view content_type) = 0;
  virtual void write(std::string_view text) = 0;  // sent immediately
  virtual void end_stream() = 0;                  // if omitted, the client sees a truncated stream

  // Whether the client has closed its side of the connection, so that no response is needed.
  virtual bool gone() = 0;

  virtual bool started() const = 0;  // whether the response has been started
  virtual int status() const = 0;    // of the response; 0 if not started
  virtual std::size_t bytes_sent() const = 0;
};

// Sends a response in pieces of about 64 KiB, so that a large one is never in memory as a whole. A
// response that fits one piece is sent with its length.
class ReplyWriter {
 public:
  // `reply` must outlive the object.
  ReplyWriter(HttpReply& reply, std::string content_type)
      : reply_(reply), content_type_(std::move(content_type)) {}

  void add(std::string_view text);
  void flush();  // sends what was added so far; the response is then a stream
  void end();    // sends the rest

 private:
  HttpReply& reply_;
  std::string content_type_, text_;
};

// The parser of HTTP/1.1 request heads (first line and headers) rejects anything that two programs
// could parse differently, because such differences allow requests to be smuggled past a proxy.

// A request that violates HTTP or exceeds a limit, with the status of the response.
class HttpError : public std::runtime_error {
 public:
  HttpError(int status, const std::string& message) : std::runtime_error(message), status_(status) {}
  int status() const { return status_; }

 private:
  int status_;
};

inline constexpr std::size_t kMaxHeaders = 100;
inline constexpr std::size_t kLongestTarget = 8192;

struct HttpHead {
  HttpRequest request;  // without body and client
  std::uint64_t content_length = 0;
  bool chunked = false;
  bool supports_chunked = true;  // the client uses HTTP/1.1, so the response may be chunked
  bool keep_alive = true;
  bool expects_continue = false;
};

// The end of the head in `text`, including its empty line, or npos if the head is incomplete. Also
// recognizes lines that end in a bare LF, so that the parser rejects such a request instead of
// waiting for more bytes.
std::size_t head_end(std::string_view text);

// Parses a complete head. Throws HttpError.
HttpHead parse_http_head(std::string_view text);

// Parses the size in the first line of a chunk, given without its CRLF. Chunk extensions are
// ignored.
std::uint64_t parse_chunk_size(std::string_view line);

}  // namespace thimble
