#include "http/server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/signals.h"

namespace thimble {

namespace {

constexpr std::size_t kReadBytes = 16 << 10;
constexpr std::size_t kLongestChunkLine = 256;
constexpr double kLingerSeconds = 2;
constexpr std::size_t kMostLingerBytes = 64 << 20;

int milliseconds_until(double deadline) {
  return static_cast<int>(std::clamp((deadline - seconds_now()) * 1000 + 1, 0.0, 1e6));
}

}  // namespace

HttpConnection::HttpConnection(int socket, std::string client, const HttpLimits& limits, int closing)
    : socket_(socket), client_(std::move(client)), limits_(limits), closing_(closing) {}

HttpConnection::~HttpConnection() {
  close(socket_);
}

void HttpConnection::serve(const HttpHandler& handler, const HttpRefusal& refusal, const HttpGate& gate) {
  do {
    if (!wait_for_request()) return;
  } while (serve_one(handler, refusal, gate));
  linger();
}

void HttpConnection::refuse(const HttpError& problem, const HttpRefusal& refusal) {
  keep_alive_ = false;
  refusal(problem, HttpRequest{.client = client_}, *this);
  linger();
}

bool HttpConnection::wait_for_request() {
  if (!buffer_.empty()) return true;
  const double deadline = seconds_now() + limits_.idle_seconds;
  return wait_until_readable(deadline, true) == Wait::ready && fill(deadline);
}

// Returns false if the connection must be closed.
bool HttpConnection::serve_one(const HttpHandler& handler, const HttpRefusal& refusal, const HttpGate& gate) {
  headers_.clear();
  status_ = 0;
  bytes_sent_ = 0;
  keep_alive_ = head_only_ = false;
  chunked_ = true;
  HttpHead head;
  head.request.client = client_;
  try {
    head = read_head();
    head.request.client = client_;
    head_only_ = head.request.method == "HEAD";
    chunked_ = head.supports_chunked;
    if (gate) gate(head);
    read_body(head, head.request.body);
    keep_alive_ = head.keep_alive;
  } catch (const HttpError& problem) {
    refusal(problem, head.request, *this);
    return false;
  }
  handler(head.request, *this);
  return keep_alive_ && !broken_;
}

HttpHead HttpConnection::read_head() {
  const double deadline = seconds_now() + limits_.head_seconds;
  std::size_t end = head_end(buffer_);
  while (end == std::string::npos || end > limits_.head_bytes) {
    if (buffer_.size() > limits_.head_bytes)
      throw HttpError(431,
                      fmt::format("the head of a request must have at most {} bytes", limits_.head_bytes));
    if (!fill(deadline)) throw HttpError(400, "the request ended before its head was complete");
    end = head_end(buffer_);
  }
  HttpHead head = parse_http_head(std::string_view(buffer_).substr(0, end));
  buffer_.erase(0, end);
  return head;
}

void HttpConnection::read_body(const HttpHead& head, std::string& body) {
  const double deadline = seconds_now() + limits_.body_seconds;
  if (head.content_length > limits_.body_bytes)
    throw HttpError(413, fmt::format("the body must have at most {} bytes, got {}", limits_.body_bytes,
                                     head.content_length));
  if (head.expects_continue && buffer_.empty()) send_bytes("HTTP/1.1 100 Continue\r\n\r\n");
  bytes_sent_ = 0;
  if (head.chunked) return read_chunks(body, deadline);
  read_at_least(head.content_length, deadline);
  take(head.content_length, body);
}

void HttpConnection::read_chunks(std::string& body, double deadline) {
  while (const std::uint64_t size = parse_chunk_size(read_chunk_line(deadline))) {
    if (size > limits_.body_bytes - body.size())
      throw HttpError(413, fmt::format("the body must have at most {} bytes", limits_.body_bytes));
    read_at_least(size + 2, deadline);
    take(size, body);
    if (!read_chunk_line(deadline).empty())
      throw HttpError(400, "a body chunk must have the size given in its first line");
  }
  for (std::size_t trailers = 0; !read_chunk_line(deadline).empty(); ++trailers)
    if (trailers == kMaxHeaders) throw HttpError(431, "the request has too many lines after its body");
}

std::string HttpConnection::read_chunk_line(double deadline) {
  std::size_t end = buffer_.find('\n');
  while (end == std::string::npos) {
    if (buffer_.size() > kLongestChunkLine) break;
    if (!fill(deadline)) throw HttpError(400, "the request ended before its body was complete");
    end = buffer_.find('\n');
  }
  if (end == std::string::npos || end > kLongestChunkLine || end == 0 || buffer_[end - 1] != '\r')
    throw HttpError(400, "a line between body chunks must be short and end in CR LF");
  std::string line = buffer_.substr(0, end - 1);
  buffer_.erase(0, end + 1);
  return line;
}

void HttpConnection::read_at_least(std::size_t bytes, double deadline) {
  while (buffer_.size() < bytes)
    if (!fill(deadline)) throw HttpError(400, "the request ended before its body was complete");
}

bool HttpConnection::fill(double deadline) {
  std::array<char, kReadBytes> block;
  for (;;) {
    const ssize_t count = recv(socket_, block.data(), block.size(), 0);
    if (count > 0) {
      buffer_.append(block.data(), static_cast<std::size_t>(count));
      // The deadline also applies to a client that sends many small pieces.
      if (seconds_now() > deadline) throw HttpError(408, "the request took too long to arrive");
      return true;
    }
    if (count == 0) return false;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      broken_ = true;
      return false;
    }
    if (wait_until_readable(deadline, false) == Wait::timeout)
      throw HttpError(408, "the request took too long to arrive");
  }
}

HttpConnection::Wait HttpConnection::wait_until_readable(double deadline, bool stop_on_closing) {
  std::array<pollfd, 2> watched = {pollfd{socket_, POLLIN, 0}, pollfd{closing_, POLLIN, 0}};
  for (;;) {
    const int count = poll(watched.data(), stop_on_closing ? 2 : 1, milliseconds_until(deadline));
    if (count > 0 && watched[0].revents) return Wait::ready;
    if (count > 0) return Wait::closing;
    if (count == 0 || errno != EINTR) return Wait::timeout;
  }
}

void HttpConnection::take(std::size_t bytes, std::string& out) {
  out.append(buffer_, 0, bytes);
  buffer_.erase(0, bytes);
}

bool HttpConnection::closing_now() const {
  pollfd watched{closing_, POLLIN, 0};
  return poll(&watched, 1, 0) > 0;
}

void HttpConnection::add_header(std::string name, std::string value) {
  headers_.emplace_back(std::move(name), std::move(value));
}

std::string HttpConnection::head_text(int status, std::string_view content_type,
                                      std::string_view framing) const {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\n", status, reason_of(status));
  if (!content_type.empty()) text += fmt::format("Content-Type: {}\r\n", content_type);
  for (const auto& [name, value] : headers_) text += fmt::format("{}: {}\r\n", name, value);
  text += fmt::format("{}Connection: {}\r\n\r\n", framing, keep_alive_ ? "keep-alive" : "close");
  return text;
}

void HttpConnection::send(const HttpResponse& response) {
  if (closing_now()) keep_alive_ = false;
  status_ = response.status;
  for (const auto& [name, value] : response.headers) add_header(name, value);
  const bool bodiless = response.status == 204;
  const std::string length = bodiless ? "" : fmt::format("Content-Length: {}\r\n", response.body.size());
  std::string text = head_text(status_, bodiless ? "" : response.content_type, length);
  if (!head_only_ && !bodiless) text += response.body;
  send_bytes(text);
}

void HttpConnection::begin_stream(int status, std::string_view content_type) {
  if (closing_now() || !chunked_) keep_alive_ = false;
  status_ = status;
  send_bytes(head_text(status, content_type, chunked_ ? "Transfer-Encoding: chunked\r\n" : ""));
}

void HttpConnection::write(std::string_view text) {
  if (text.empty()) return;  // an empty chunk would end the stream
  if (chunked_)
    send_bytes(fmt::format("{:x}\r\n{}\r\n", text.size(), text));
  else
    send_bytes(text);
}

void HttpConnection::end_stream() {
  if (chunked_) send_bytes("0\r\n\r\n");
}

bool HttpConnection::gone() {
  if (broken_) return true;
  pollfd watched{socket_, POLLRDHUP, 0};
  return poll(&watched, 1, 0) > 0;
}

void HttpConnection::send_bytes(std::string_view bytes) {
  const double last_moment = seconds_now() + limits_.write_seconds +
                             static_cast<double>(bytes.size()) / limits_.write_bytes_per_second;
  const auto next_deadline = [&] { return std::min(seconds_now() + limits_.write_seconds, last_moment); };
  double deadline = next_deadline();
  while (!bytes.empty() && !broken_) {
    const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
      bytes_sent_ += static_cast<std::size_t>(count);
      deadline = next_deadline();
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    pollfd watched{socket_, POLLOUT, 0};
    const bool full = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    const bool late = seconds_now() > deadline;
    if (!full || late || poll(&watched, 1, milliseconds_until(deadline)) <= 0) broken_ = true;
  }
}

// Closing the socket while the client still sends would cause a reset, which could discard the
// response.
void HttpConnection::linger() {
  if (broken_) return;
  shutdown(socket_, SHUT_WR);
  const double deadline = seconds_now() + kLingerSeconds;
  std::array<char, kReadBytes> block;
  for (std::size_t read = 0; read < kMostLingerBytes && seconds_now() < deadline;) {
    const ssize_t count = recv(socket_, block.data(), block.size(), 0);
    if (count > 0)
      read += static_cast<std::size_t>(count);
    else if (count == 0 || (errno != EAGAIN && errno != EINTR))
      return;
    else if (wait_until_readable(deadline, false) != Wait::ready)
      return;
  }
}

namespace {

constexpr int kBacklog = 512;
constexpr int kMostRefusals = 64;  // connections beyond the limit that may wait for their status 503

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
  check(closing_ >= 0, "cannot create an eventfd: {}", std::strerror(errno));
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
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  check(code == 0, "cannot resolve the address {}: {}", host, gai_strerror(code));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);

  listener_ = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  check(listener_ >= 0, "cannot create a socket: {}", std::strerror(errno));
  const int on = 1;
  setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener_, found->ai_addr, found->ai_addrlen) != 0 || listen(listener_, kBacklog) != 0) {
    const int reason = errno;
    ::close(std::exchange(listener_, -1));
    fail(
        Hint{reason == EADDRINUSE ? "another program uses this port; pass --port 0 to use any free one" : ""},
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
  if (::write(closing_, &one, sizeof one) < 0) return;  // already readable
}

void HttpServer::close() {
  stop_accepting();
  if (acceptor_.joinable()) acceptor_.join();
  if (listener_ >= 0) ::close(std::exchange(listener_, -1));
  reap(true);
}

void HttpServer::accept_loop() {
  const SignalMaskScope held;  // inherited by connection threads: the main thread handles Ctrl-C
  std::array<pollfd, 2> watched = {pollfd{listener_, POLLIN, 0}, pollfd{closing_, POLLIN, 0}};
  while (watched[1].revents == 0) {
    if (poll(watched.data(), watched.size(), -1) < 0) continue;
    if (watched[0].revents) accept_one();
  }
  ::close(std::exchange(listener_, -1));  // the system refuses further connections
}

void HttpServer::accept_one() {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  const int socket =
      accept4(listener_, reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (socket < 0) {
    // Out of descriptors or memory: retry until clients have disconnected.
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
  } catch (const std::system_error&) {  // cannot create more threads
    --connections_;
    ::close(socket);
  }
}

void HttpServer::serve(int socket, std::string client, bool full) {
  HttpConnection connection(socket, std::move(client), options_.limits, closing_);
  try {
    if (full)
      connection.refuse(
          {503, fmt::format("the server has reached its limit of {} connections", options_.max_connections)},
          refusal_);
    else
      connection.serve(handler_, refusal_, gate_);
  } catch (const std::exception&) {
    // Handlers catch their own errors, so this is out of memory. The client sees a closed
    // connection.
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
