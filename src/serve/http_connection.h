// One client's connection: requests in, answers out, each with its limits and deadlines.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "serve/http_head.h"
#include "serve/http_message.h"

namespace thimble {

struct HttpLimits {
  std::size_t head_bytes = 16 << 10;  // first line and headers
  std::size_t body_bytes = 4 << 20;
  double head_seconds = 10;   // from a request's first byte until its head is whole
  double body_seconds = 30;   // from there until the body is
  double idle_seconds = 60;   // until the next request's first byte
  double write_seconds = 30;  // that a client may take nothing of its answer
  // Who takes it in sips is given up when a piece took longer than that and what this pace allows.
  double write_bytes_per_second = 16 << 10;
};

// May be called by many threads at once.
using HttpHandler = std::function<void(const HttpRequest&, HttpReply&)>;
// Answers a request that was refused before it was whole; it holds what was understood of it.
using HttpRefusal = std::function<void(const HttpProblem&, const HttpRequest&, HttpReply&)>;

// Looks at a head before its body is taken, and throws HttpProblem where it is not wanted: strangers fill no memory.
using HttpGate = std::function<void(const HttpHead&)>;

class HttpConnection : private HttpReply {
 public:
  // Owns `socket`. `closing`: a descriptor that becomes readable when no further requests are wanted.
  HttpConnection(int socket, std::string client, const HttpLimits& limits, int closing);
  ~HttpConnection() override;
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // Until the client or the server has enough.
  void serve(const HttpHandler& handler, const HttpRefusal& refusal, const HttpGate& gate = {});
  // For one that cannot be served: tells it why.
  void refuse(const HttpProblem& problem, const HttpRefusal& refusal);

 private:
  enum class Wait { ready, closing, timeout };

  void add_header(std::string name, std::string value) override;
  void send(const HttpResponse& response) override;
  void begin_stream(int status, std::string_view content_type) override;
  void write(std::string_view text) override;
  void end_stream() override;
  bool gone() override;
  bool started() const override { return status_ != 0; }
  int status() const override { return status_; }
  std::size_t bytes_sent() const override { return bytes_sent_; }

  bool wait_for_request();
  bool serve_one(const HttpHandler& handler, const HttpRefusal& refusal, const HttpGate& gate);
  HttpHead read_head();
  void read_body(const HttpHead& head, std::string& body);
  void read_chunks(std::string& body, double deadline);
  std::string read_chunk_line(double deadline);
  void read_at_least(std::size_t bytes, double deadline);
  bool fill(double deadline);  // more bytes into the buffer; false: the client has closed its side
  Wait wait_until_readable(double deadline, bool heeds_closing);
  void take(std::size_t bytes, std::string& out);
  void send_bytes(std::string_view bytes);
  std::string head_text(int status, std::string_view content_type, std::string_view framing) const;
  bool closing_now() const;
  void linger();

  int socket_;
  std::string client_;
  HttpLimits limits_;
  int closing_;
  std::string buffer_;  // read, not yet used

  // Of the answer at hand:
  HttpHeaders headers_;
  int status_ = 0;
  std::size_t bytes_sent_ = 0;
  bool keep_alive_ = true, head_only_ = false, broken_ = false, chunked_ = true;
};

}  // namespace thimble
