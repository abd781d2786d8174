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
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/signals.h"

namespace thimble {

namespace {

constexpr std::string_view kEmptyLine = "\r\n";
constexpr std::size_t kReadBytes = 16 << 10;
constexpr std::size_t kLongestChunkLine = 256;
constexpr double kLingerSeconds = 2;
constexpr std::size_t kMostLingerBytes = 64 << 20;
constexpr std::size_t kTrimBytes = 1 << 20;

int milliseconds_until(double deadline) {
  return static_cast<int>(std::clamp((deadline - seconds_now()) * 1000 + 1, 0.0, 1e6));
}

}  // namespace

HttpConnection::HttpConnection(int socket, std::string client, const HttpLimits& limits,
                               const HttpClosing& closing, MemoryBudget& bodies)
    : socket_(socket), client_(std::move(client)), limits_(limits), closing_(closing), bodies_(bodies) {}

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

// Skips one empty line, which some clients send after a body.
bool HttpConnection::wait_for_request() {
  const double deadline = seconds_now() + limits_.idle_seconds;
  for (bool skipped = false;;) {
    if (!skipped && buffer_.starts_with(kEmptyLine)) {
      buffer_.erase(0, kEmptyLine.size());
      skipped = true;
    }
    if (!buffer_.empty() && (skipped || buffer_ != "\r")) return true;
    if (wait_for(POLLIN, deadline, true) != Wait::ready || !fill(deadline)) return false;
  }
}

// Returns false if the connection must be closed.
bool HttpConnection::serve_one(const HttpHandler& handler, const HttpRefusal& refusal, const HttpGate& gate) {
  headers_.clear();
  status_ = 0;
  bytes_sent_ = 0;
  keep_alive_ = head_only_ = false;
  chunked_ = true;
  MemoryBudget::Share memory(bodies_);  // outlives the body
  HttpHead head;
  head.request.client = client_;
  try {
    head = read_head();
    head.request.client = client_;
    head_only_ = head.request.method == "HEAD";
    chunked_ = head.supports_chunked;
    if (gate) gate(head);
    read_body(head, head.request.body, memory);
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
  const auto find_end = [&] {
    return buffer_.starts_with(kEmptyLine) ? kEmptyLine.size() : head_end(buffer_);
  };
  std::size_t end = find_end();
  while (end == std::string::npos || end > limits_.head_bytes) {
    if (buffer_.size() > limits_.head_bytes)
      throw HttpError(431,
                      fmt::format("the head of a request must have at most {} bytes", limits_.head_bytes));
    if (!fill(deadline)) throw HttpError(400, "the request ended before its head was complete");
    end = find_end();
  }
  HttpHead head = parse_http_head(std::string_view(buffer_).substr(0, end));
  buffer_.erase(0, end);
  return head;
}

void HttpConnection::read_body(const HttpHead& head, std::string& body, MemoryBudget::Share& memory) {
  const double deadline = seconds_now() + limits_.body_seconds;
  if (head.content_length > limits_.body_bytes)
    throw HttpError(413, fmt::format("the body must have at most {} bytes, got {}", limits_.body_bytes,
                                     head.content_length));
  if (head.expects_continue && buffer_.empty()) send_bytes("HTTP/1.1 100 Continue\r\n\r\n");
  bytes_sent_ = 0;
  if (head.chunked) return read_chunks(body, memory, deadline);
  body.reserve(head.content_length);  // uses no memory until the bytes arrive
  read_bytes(head.content_length, body, memory, deadline);
}

void HttpConnection::read_chunks(std::string& body, MemoryBudget::Share& memory, double deadline) {
  while (const std::uint64_t size = parse_chunk_size(read_chunk_line(deadline))) {
    if (size > limits_.body_bytes - body.size())
      throw HttpError(413, fmt::format("the body must have at most {} bytes", limits_.body_bytes));
    read_bytes(size, body, memory, deadline);
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

void HttpConnection::read_bytes(std::size_t bytes, std::string& body, MemoryBudget::Share& memory,
                                double deadline) {
  while (bytes > 0) {
    if (buffer_.empty() && !fill(deadline))
      throw HttpError(400, "the request ended before its body was complete");
    const std::size_t count = std::min(bytes, buffer_.size());
    if (!memory.resize(body.size() + count))
      throw HttpError(503, fmt::format("all requests together must have at most {} bytes", bodies_.bytes()));
    take(count, body);
    bytes -= count;
  }
}

bool HttpConnection::fill(double deadline) {
  std::array<char, kReadBytes> block;
  for (;;) {
    deadline = std::min(deadline, closing_.deadline.load());
    const ssize_t count = recv(socket_, block.data(), block.size(), 0);
    if (count > 0) {
      buffer_.append(block.data(), static_cast<std::size_t>(count));
      // The deadline also applies to a client that sends many small pieces.
      if (seconds_now() > deadline) throw_late();
      return true;
    }
    if (count == 0) return false;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      broken_ = true;
      return false;
    }
    if (wait_for(POLLIN, deadline, false) == Wait::timeout) throw_late();
  }
}

void HttpConnection::throw_late() const {
  if (closing_now()) throw HttpError(503, "the server is shutting down");
  throw HttpError(408, "the request took too long to arrive");
}

HttpConnection::Wait HttpConnection::wait_for(short events, double deadline, bool stop_on_closing) {
  std::array<pollfd, 2> watched = {pollfd{socket_, events, 0}, pollfd{closing_.event, POLLIN, 0}};
  for (nfds_t size = watched.size();;) {
    const int count = poll(watched.data(), size, milliseconds_until(deadline));
    if (count > 0 && watched[0].revents) return Wait::ready;
    if (count > 0 && stop_on_closing) return Wait::closing;
    if (count > 0) {
      deadline = std::min(deadline, closing_.deadline.load());
      size = 1;
    } else if (count == 0 || errno != EINTR) {
      return Wait::timeout;
    }
  }
}

void HttpConnection::take(std::size_t bytes, std::string& out) {
  out.append(buffer_, 0, bytes);
  buffer_.erase(0, bytes);
}

bool HttpConnection::closing_now() const {
  pollfd watched{closing_.event, POLLIN, 0};
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
  const auto next_deadline = [&] {
    return std::min({seconds_now() + limits_.write_seconds, last_moment, closing_.deadline.load()});
  };
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
    const bool full = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    const bool late = seconds_now() > deadline;
    if (!full || late || wait_for(POLLOUT, deadline, false) != Wait::ready) broken_ = true;
  }
}

// Closing the socket while the client still sends would cause a reset, which could discard the
// response.
void HttpConnection::linger() {
  if (broken_) return;
  shutdown(socket_, SHUT_WR);
  const double deadline = std::min(seconds_now() + kLingerSeconds, closing_.deadline.load());
  std::array<char, kReadBytes> block;
  for (std::size_t read = 0; read < kMostLingerBytes && seconds_now() < deadline;) {
    const ssize_t count = recv(socket_, block.data(), block.size(), 0);
    if (count > 0)
      read += static_cast<std::size_t>(count);
    else if (count == 0 || (errno != EAGAIN && errno != EINTR))
      return;
    else if (wait_for(POLLIN, deadline, false) != Wait::ready)
      return;
  }
}

namespace {

constexpr int kBacklog = 512;
constexpr int kMostRefusals = 64;  // connections beyond the limit that may wait for their status 503
constexpr int kPortAttempts = 16;  // to find a port that is free on all addresses

std::string numeric_host(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> host = {};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(), nullptr, 0,
                  NI_NUMERICHOST) != 0)
    return "unknown";
  return host.data();
}

sockaddr_storage with_port(const addrinfo& address, int port) {
  sockaddr_storage result{};
  std::memcpy(&result, address.ai_addr, address.ai_addrlen);
  const in_port_t number = htons(static_cast<std::uint16_t>(port));
  if (address.ai_family == AF_INET6)
    reinterpret_cast<sockaddr_in6&>(result).sin6_port = number;
  else
    reinterpret_cast<sockaddr_in&>(result).sin_port = number;
  return result;
}

int port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
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
    : options_(options),
      handler_(std::move(handler)),
      refusal_(std::move(refusal)),
      gate_(std::move(gate)),
      bodies_(options.total_body_bytes, kTrimBytes) {
  closing_.event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  check(closing_.event >= 0, "cannot create an eventfd: {}", std::strerror(errno));
  try {
    bind_to(options.host, options.port);
  } catch (...) {
    ::close(closing_.event);
    throw;
  }
}

HttpServer::~HttpServer() {
  close();
  ::close(closing_.event);
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

  int reason = listen_on_all(found, port);
  for (int i = 1; port == 0 && reason == EADDRINUSE && i < kPortAttempts; ++i)
    reason = listen_on_all(found, port);
  if (reason != 0)
    fail(
        Hint{reason == EADDRINUSE ? "another program uses this port; pass --port 0 to use any free one" : ""},
        "cannot listen on {} port {}: {}", host, port, std::strerror(reason));
  describe_address();
}

// Listens on all addresses of a host, with the same port: localhost is usually 127.0.0.1 and ::1,
// and clients may use either. Returns 0 or an error number. Addresses that this machine does not
// have, such as ::1 without IPv6, are skipped unless there is no other.
int HttpServer::listen_on_all(const addrinfo* addresses, int port) {
  int missing = 0;
  std::set<std::string> names;
  for (const addrinfo* each = addresses; each; each = each->ai_next) {
    const sockaddr_storage address = with_port(*each, port);
    if (!names.insert(numeric_host(address, each->ai_addrlen)).second) continue;
    const int listener = socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int on = 1;
    if (listener >= 0) setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (listener >= 0 && bind(listener, reinterpret_cast<const sockaddr*>(&address), each->ai_addrlen) == 0 &&
        listen(listener, kBacklog) == 0) {
      listeners_.push_back(listener);
      port = port_of(listener);
      continue;
    }
    missing = errno;
    if (listener >= 0) ::close(listener);
    if (missing == EAFNOSUPPORT || missing == EADDRNOTAVAIL) continue;
    close_listeners();
    return missing;
  }
  return listeners_.empty() ? missing : 0;
}

void HttpServer::describe_address() {
  loopback_ = true;
  for (const int listener : listeners_) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    loopback_ = loopback_ && is_loopback(address);
    if (listener != listeners_.front()) continue;
    port_ = port_of(listener);
    const std::string name = numeric_host(address, size);
    address_ = fmt::format(fmt::runtime(address.ss_family == AF_INET6 ? "[{}]:{}" : "{}:{}"), name, port_);
  }
}

void HttpServer::close_listeners() {
  for (const int listener : listeners_) ::close(listener);
  listeners_.clear();
}

void HttpServer::start() {
  acceptor_ = std::thread([this] { accept_loop(); });
}

void HttpServer::stop_accepting(double seconds) {
  closing_.deadline = seconds_now() + seconds;
  const std::uint64_t one = 1;
  if (::write(closing_.event, &one, sizeof one) < 0) return;  // already readable
}

void HttpServer::close(double seconds) {
  if (closing_.deadline == std::numeric_limits<double>::infinity()) stop_accepting(seconds);
  if (acceptor_.joinable()) acceptor_.join();
  close_listeners();
  reap(true);
}

void HttpServer::accept_loop() {
  const SignalMaskScope held;  // inherited by connection threads: the main thread handles Ctrl-C
  std::vector<pollfd> watched = {pollfd{closing_.event, POLLIN, 0}};
  for (const int listener : listeners_) watched.push_back({listener, POLLIN, 0});
  while (watched[0].revents == 0) {
    if (poll(watched.data(), watched.size(), -1) < 0) continue;
    for (std::size_t i = 1; i < watched.size(); ++i)
      if (watched[i].revents) accept_one(watched[i].fd);
  }
  close_listeners();  // the system refuses further connections
}

void HttpServer::accept_one(int listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  const int socket =
      accept4(listener, reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
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
  HttpConnection connection(socket, std::move(client), options_.limits, closing_, bodies_);
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
