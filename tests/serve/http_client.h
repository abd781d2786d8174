// An HTTP client for tests that sends arbitrary bytes and has a timeout.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/json.h"

namespace thimble {

// Default timeout; much longer than any request takes, even on a busy machine.
inline constexpr double kClientSeconds = 120;

struct HttpAnswer {
  int status = 0;  // 0: no answer
  std::string head = {};
  std::string body = {};  // chunks joined
  bool whole = false;     // the body is complete

  bool has_header(std::string_view line) const { return head.find(line) != std::string::npos; }
  Json json() const { return parse_json(body, "answer"); }
  std::string error() const {
    const Json answer = json();
    const Json* error = answer.find("error");
    if (!error) return "no error: " + body;
    return error->is_string() ? error->as_string() : error->at("message").as_string();
  }
};

inline std::ostream& operator<<(std::ostream& out, const HttpAnswer& answer) {
  return out << answer.head << answer.body.substr(0, 2000);
}

class HttpClient {
 public:
  // `receive_bytes`: size of the socket's receive buffer; 0: the system's default.
  explicit HttpClient(int port, double timeout_seconds = kClientSeconds, int receive_bytes = 0)
      : timeout_(timeout_seconds) {
    socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_bytes > 0) setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~HttpClient() { close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  bool connected() const { return connected_; }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  void half_close() { shutdown(socket_, SHUT_WR); }

  // Returns false if the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }

  // Appends received bytes to buffer(). Returns false at the end of the connection or at the
  // deadline.
  bool receive(double deadline) {
    pollfd watched{socket_, POLLIN, 0};
    const double left = deadline - seconds_now();
    if (left <= 0 || poll(&watched, 1, static_cast<int>(left * 1000) + 1) <= 0) return false;
    std::array<char, 65536> block;
    const ssize_t count = recv(socket_, block.data(), block.size(), 0);
    if (count <= 0) return false;
    buffer_.append(block.data(), static_cast<std::size_t>(count));
    return true;
  }
  const std::string& buffer() const { return buffer_; }

  bool wait_for(std::string_view text) {
    const double deadline = seconds_now() + timeout_;
    while (buffer_.find(text) == std::string::npos)
      if (!receive(deadline)) return false;
    return true;
  }

  // Whether the server closes the connection before the timeout without sending more bytes.
  bool ends_here() {
    const double deadline = seconds_now() + timeout_;
    const std::size_t before = buffer_.size();
    while (receive(deadline)) continue;
    return buffer_.size() == before && seconds_now() < deadline;
  }

  HttpAnswer read_answer() {
    const double deadline = seconds_now() + timeout_;
    HttpAnswer answer;
    std::size_t end;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos)
      if (!receive(deadline)) return answer;
    answer.head = buffer_.substr(0, end + 2);
    buffer_.erase(0, end + 4);
    std::from_chars(answer.head.data() + 9, answer.head.data() + 12, answer.status);
    if (answer.status == 100) return read_answer();
    if (answer.has_header("Transfer-Encoding: chunked"))
      answer.whole = read_chunks(answer.body, deadline);
    else
      answer.whole = read_length(answer, deadline);
    return answer;
  }

 private:
  bool read_length(HttpAnswer& answer, double deadline) {
    constexpr std::string_view kLength = "Content-Length: ";
    const std::size_t at = answer.head.find(kLength);
    if (at == std::string::npos) return answer.status == 204;
    std::size_t length = 0;
    std::from_chars(answer.head.data() + at + kLength.size(), answer.head.data() + answer.head.size(),
                    length);
    while (buffer_.size() < length)
      if (!receive(deadline)) return false;
    answer.body = buffer_.substr(0, length);
    buffer_.erase(0, length);
    return true;
  }

  bool read_chunks(std::string& body, double deadline) {
    for (;;) {
      std::size_t line;
      while ((line = buffer_.find("\r\n")) == std::string::npos)
        if (!receive(deadline)) return false;
      std::size_t size = 0;
      std::from_chars(buffer_.data(), buffer_.data() + line, size, 16);
      while (buffer_.size() < line + 2 + size + 2)
        if (!receive(deadline)) return false;
      body += buffer_.substr(line + 2, size);
      buffer_.erase(0, line + 2 + size + 2);
      if (size == 0) return true;
    }
  }

  int socket_ = -1;
  double timeout_;
  bool connected_ = false;
  std::string buffer_;
};

// A well-formed HTTP/1.1 request.
inline std::string http_text(std::string_view method, std::string_view path, std::string_view body,
                             std::string_view headers = "") {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n{}", method, path, headers);
  if (!body.empty()) text += fmt::format("Content-Length: {}\r\n", body.size());
  return text + "\r\n" + std::string(body);
}

inline HttpAnswer ask(int port, std::string_view text) {
  HttpClient client(port);
  client.send(text);
  return client.read_answer();
}
inline HttpAnswer get(int port, std::string_view path, std::string_view headers = "") {
  return ask(port, http_text("GET", path, "", headers));
}
inline HttpAnswer post(int port, std::string_view path, std::string_view body,
                       std::string_view headers = "") {
  return ask(port, http_text("POST", path, body, headers));
}

// The events of a stream, including "[DONE]".
inline std::vector<std::string> events_of(std::string_view body) {
  std::vector<std::string> events;
  for (std::size_t at = 0; (at = body.find("data: ", at)) != std::string_view::npos;) {
    const std::size_t end = std::min(body.find("\n\n", at), body.size());
    events.emplace_back(body.substr(at + 6, end - at - 6));
    at = end;
  }
  return events;
}

}  // namespace thimble
