// A small HTTP/1.1 server: one accepting thread and one thread per connection, with limits on
// memory and time.
//
//   HttpServer server({.host = "127.0.0.1", .port = 0}, handler, refusal);
//   server.start();
//   ... server.port() ...
//   server.close(30);   // accepts no new requests; answers current ones for at most 30 seconds
//
// docs/design.md, "Generating and serving", explains why no library is used.
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "http/access.h"
#include "http/message.h"

struct addrinfo;

namespace thimble {

// The limits and deadlines of one connection.
struct HttpLimits {
  std::size_t head_bytes = 16 << 10;  // first line and headers
  std::size_t body_bytes = 4 << 20;
  double head_seconds = 10;   // from the first byte of a request until its head is complete
  double body_seconds = 30;   // from the end of the head until the body is complete
  double idle_seconds = 60;   // until the first byte of the next request
  double write_seconds = 30;  // disconnect a client that reads nothing for this long
  // Disconnect a client if sending a piece takes longer than write_seconds plus the time at this
  // rate.
  double write_bytes_per_second = 16 << 10;
};

// May be called from many threads at once.
using HttpHandler = std::function<void(const HttpRequest&, HttpReply&)>;
// Answers a request that was refused before it was complete. The request contains the part that was
// parsed.
using HttpRefusal = std::function<void(const HttpError&, const HttpRequest&, HttpReply&)>;

// Called with the head of a request before its body is read. Throws HttpError to refuse it, so that
// an unauthorized client cannot make the server buffer bodies.
using HttpGate = std::function<void(const HttpHead&)>;

// Tells connections that the server stops.
struct HttpClosing {
  int event = -1;  // a descriptor that becomes readable
  // From then on, incomplete requests and unsent answers are given up at this time (seconds_now()).
  std::atomic<double> deadline = std::numeric_limits<double>::infinity();
};

class HttpConnection : private HttpReply {
 public:
  // Takes ownership of `socket`. `bodies` limits the memory for bodies of all connections; it and
  // `closing` must outlive the object.
  HttpConnection(int socket, std::string client, const HttpLimits& limits, const HttpClosing& closing,
                 MemoryBudget& bodies);
  ~HttpConnection() override;
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // Serves requests until the client disconnects or the server closes the connection.
  void serve(const HttpHandler& handler, const HttpRefusal& refusal, const HttpGate& gate = {});
  // Sends an error response without reading a request, and closes the connection.
  void refuse(const HttpError& problem, const HttpRefusal& refusal);

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
  void read_body(const HttpHead& head, std::string& body, MemoryBudget::Share& memory);
  void read_chunks(std::string& body, MemoryBudget::Share& memory, double deadline);
  std::string read_chunk_line(double deadline);
  void read_bytes(std::size_t bytes, std::string& body, MemoryBudget::Share& memory, double deadline);
  bool fill(double deadline);  // attempts to get more bytes; false: the client has closed its side
  [[noreturn]] void throw_late() const;
  Wait wait_for(short events, double deadline, bool stop_on_closing);
  void take(std::size_t bytes, std::string& out);
  void send_bytes(std::string_view bytes);
  std::string head_text(int status, std::string_view content_type, std::string_view framing) const;
  bool closing_now() const;
  void linger();

  int socket_;
  std::string client_;
  HttpLimits limits_;
  const HttpClosing& closing_;
  MemoryBudget& bodies_;
  std::string buffer_;  // received, not yet consumed

  // State of the current response.
  HttpHeaders headers_;
  int status_ = 0;
  std::size_t bytes_sent_ = 0;
  bool keep_alive_ = true, head_only_ = false, broken_ = false, chunked_ = true;
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // a name or an address
  int port = 0;                    // 0: any that is free
  int max_connections = 512;       // further connections get status 503
  // Of all connections together; further bodies get status 503.
  std::size_t total_body_bytes = 256 << 20;
  HttpLimits limits = {};
};

class HttpServer {
 public:
  // Listens on all addresses of the host. Throws an Error if one is not available.
  HttpServer(const HttpServerOptions& options, HttpHandler handler, HttpRefusal refusal, HttpGate gate = {});
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const { return port_; }
  // The first address: "127.0.0.1:8080", "[::1]:8080".
  const std::string& address() const { return address_; }
  bool loopback() const { return loopback_; }  // reachable only from this machine

  void start();
  // Stops accepting connections. Existing ones end after their current response, or after `seconds`
  // if the client has not sent its request or read its answer by then.
  void stop_accepting(double seconds);
  // Calls stop_accepting(), unless that was done, and waits until all connections have ended.
  void close(double seconds = 1);
  int connections() const { return connections_; }

 private:
  struct Worker;

  void bind_to(const std::string& host, int port);
  int listen_on_all(const addrinfo* addresses, int port);
  void describe_address();
  void close_listeners();
  void accept_loop();
  void accept_one(int listener);
  void serve(int socket, std::string client, bool full);
  void reap(bool all);

  HttpServerOptions options_;
  HttpHandler handler_;
  HttpRefusal refusal_;
  HttpGate gate_;
  MemoryBudget bodies_;
  std::vector<int> listeners_;
  HttpClosing closing_;
  int port_ = 0;
  std::string address_;
  bool loopback_ = false;
  std::thread acceptor_;
  std::list<std::unique_ptr<Worker>> workers_;  // owned by the accepting thread, then by close()
  std::atomic<int> connections_ = 0;
};

}  // namespace thimble
