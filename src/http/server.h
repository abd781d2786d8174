// A small HTTP/1.1 server: one thread that accepts, one per connection, bounded in all it takes.
//
//   HttpServer server({.host = "127.0.0.1", .port = 0}, handler, refusal);
//   server.start();
//   ... server.port() ...
//   server.close();     // no new connections or requests; returns when those at hand are answered
//
// Why not a library: docs/serving.md, "The HTTP layer".
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "http/message.h"

namespace thimble {

// One client's connection: requests in, answers out, each with its limits and deadlines.
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

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // a name or an address
  int port = 0;                    // 0: any that is free
  int max_connections = 512;       // more are told 503
  HttpLimits limits = {};
};

class HttpServer {
 public:
  // Binds; an address that cannot be had is an error.
  HttpServer(const HttpServerOptions& options, HttpHandler handler, HttpRefusal refusal, HttpGate gate = {});
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const { return port_; }
  const std::string& address() const { return address_; }  // "127.0.0.1:8080", "[::1]:8080"
  bool loopback() const { return loopback_; }              // only this machine can reach it

  void start();
  // From here on nothing is accepted and connections end with their answer.
  void stop_accepting();
  // The same, and waits until all connections are done.
  void close();
  int connections() const { return connections_; }

 private:
  struct Worker;

  void bind_to(const std::string& host, int port);
  void accept_loop();
  void accept_one();
  void serve(int socket, std::string client, bool full);
  void reap(bool all);

  HttpServerOptions options_;
  HttpHandler handler_;
  HttpRefusal refusal_;
  HttpGate gate_;
  int listener_ = -1;
  int closing_ = -1;  // an eventfd: readable once it is time to end
  int port_ = 0;
  std::string address_;
  bool loopback_ = false;
  std::thread acceptor_;
  std::list<std::unique_ptr<Worker>> workers_;  // of the accepting thread, then of close()
  std::atomic<int> connections_ = 0;
};

}  // namespace thimble
