#include "serve/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/signals_held.h"

namespace thimble {

namespace {

constexpr int kBacklog = 512;
constexpr int kMostRefusals = 64;  // connections that are being told that there are too many

std::string numeric_host(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> host = {};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(), nullptr, 0,
                  NI_NUMERICHOST) != 0)
    return "unknown";
  return host.data();
}

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
  return address.ss_family == AF_INET && ntohl(v4.sin_addr.s_addr) >> 24 == 127;
}

}  // namespace

struct HttpServer::Worker {
  std::thread thread;
  std::atomic<bool> done = false;
};

HttpServer::HttpServer(const HttpServerOptions& options, HttpHandler handler, HttpRefusal refusal,
                       HttpGate gate)
    : options_(options), handler_(std::move(handler)), refusal_(std::move(refusal)), gate_(std::move(gate)) {
  closing_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  check(closing_ >= 0, "cannot make an eventfd: {}", std::strerror(errno));
  try {
    bind_to(options.host, options.port);
  } catch (...) {
    ::close(closing_);
    throw;
  }
}

HttpServer::~HttpServer() {
  close();
  ::close(closing_);
}

void HttpServer::bind_to(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int trouble = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  check(trouble == 0, "cannot find the address {}: {}", host, gai_strerror(trouble));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);

  listener_ = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  check(listener_ >= 0, "cannot make a socket: {}", std::strerror(errno));
  const int on = 1;
  setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener_, found->ai_addr, found->ai_addrlen) != 0 || listen(listener_, kBacklog) != 0) {
    const int reason = errno;
    ::close(std::exchange(listener_, -1));
    fail(Hint{reason == EADDRINUSE ? "another program has it; --port 0 takes any that is free" : ""},
         "cannot listen on {} port {}: {}", host, port, std::strerror(reason));
  }
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  const bool v6 = address.ss_family == AF_INET6;
  port_ = ntohs(v6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<sockaddr_in&>(address).sin_port);
  const std::string name = numeric_host(address, size);
  address_ = v6 ? fmt::format("[{}]:{}", name, port_) : fmt::format("{}:{}", name, port_);
  loopback_ = is_loopback(address);
}

void HttpServer::start() {
  acceptor_ = std::thread([this] { accept_loop(); });
}

void HttpServer::stop_accepting() {
  const std::uint64_t one = 1;
  if (::write(closing_, &one, sizeof one) < 0) return;  // it is readable already
}

void HttpServer::close() {
  stop_accepting();
  if (acceptor_.joinable()) acceptor_.join();
  if (listener_ >= 0) ::close(std::exchange(listener_, -1));
  reap(true);
}

void HttpServer::accept_loop() {
  const SignalsHeld held;  // from those who serve, too: Ctrl-C is the main thread's
  std::array<pollfd, 2> watched = {pollfd{listener_, POLLIN, 0}, pollfd{closing_, POLLIN, 0}};
  while (watched[1].revents == 0) {
    if (poll(watched.data(), watched.size(), -1) < 0) continue;
    if (watched[0].revents) accept_one();
  }
  ::close(std::exchange(listener_, -1));  // who comes now is refused by the system, not left waiting
}

void HttpServer::accept_one() {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  const int socket =
      accept4(listener_, reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (socket < 0) {
    // Out of descriptors: they come back as clients leave.
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return;
  }
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  std::string client = numeric_host(address, size);
  reap(false);
  const bool full = connections_ >= options_.max_connections;
  if (connections_ >= options_.max_connections + kMostRefusals) {
    ::close(socket);
    return;
  }
  ++connections_;
  auto worker = std::make_unique<Worker>();
  try {
    worker->thread = std::thread([this, socket, client, full, done = &worker->done] {
      serve(socket, client, full);
      --connections_;
      *done = true;
    });
    workers_.push_back(std::move(worker));
  } catch (const std::system_error&) {  // no more threads
    --connections_;
    ::close(socket);
  }
}

void HttpServer::serve(int socket, std::string client, bool full) {
  HttpConnection connection(socket, std::move(client), options_.limits, closing_);
  try {
    if (full)
      connection.refuse({503, fmt::format("more than {} connections", options_.max_connections)}, refusal_);
    else
      connection.serve(handler_, refusal_, gate_);
  } catch (const std::exception&) {
    // The handler answers for its own errors; what comes here is a lack of memory. The client sees a closed connection.
  }
}

void HttpServer::reap(bool all) {
  for (auto worker = workers_.begin(); worker != workers_.end();) {
    if (!all && !(*worker)->done) {
      ++worker;
      continue;
    }
    (*worker)->thread.join();
    worker = workers_.erase(worker);
  }
}

}  // namespace thimble
