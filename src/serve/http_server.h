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
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "serve/http_connection.h"

namespace thimble {

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
