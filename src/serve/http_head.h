// The head of an HTTP/1.1 request: its first line and its headers, read strictly.
//
// Whatever two programs could understand differently is refused: that is how requests are smuggled past a proxy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "serve/http_message.h"

namespace thimble {

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
