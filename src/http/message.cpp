#include "http/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/text.h"

namespace thimble {

namespace {

constexpr std::size_t kLongestMethod = 16;
constexpr std::size_t kMostLengthDigits = 15;
constexpr std::size_t kPieceBytes = 64 << 10;

bool is_token_char(char c) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  const bool alphanumeric = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return alphanumeric || kMarks.find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, is_token_char);
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Removes and returns the next line, without its CRLF.
std::string_view take_line(std::string_view& rest) {
  const std::size_t end = rest.find('\n');
  if (end == std::string_view::npos || end == 0 || rest[end - 1] != '\r')
    throw HttpError(400, "lines of a request's head must end in CR LF");
  const std::string_view line = rest.substr(0, end - 1);
  rest.remove_prefix(end + 1);
  return line;
}

void parse_first_line(std::string_view line, HttpHead& head) {
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last)
    throw HttpError(400, "the first line must be METHOD PATH HTTP/1.1");
  const std::string_view method = line.substr(0, first), target = line.substr(first + 1, last - first - 1),
                         version = line.substr(last + 1);
  if (!is_token(method) || method.size() > kLongestMethod)
    throw HttpError(400, "the request method is not a valid token");
  if (version != "HTTP/1.1" && version != "HTTP/1.0")
    throw HttpError(version.starts_with("HTTP/") ? 505 : 400, "the version must be HTTP/1.1 or HTTP/1.0");
  head.supports_chunked = version == "HTTP/1.1";
  if (target.size() > kLongestTarget)
    throw HttpError(
        414, fmt::format("the path must have at most {} bytes, got {}", kLongestTarget, target.size()));
  const bool printable = std::ranges::all_of(target, [](char c) { return c > ' ' && c < 0x7f; });
  const bool everything = target == "*" && method == "OPTIONS";
  if (!printable || (!target.starts_with('/') && !everything))
    throw HttpError(400, "the path must start with / and contain only printable ASCII");
  const std::size_t question = std::min(target.find('?'), target.size());
  head.request.method = method;
  head.request.path = target.substr(0, question);
  head.request.query = target.substr(std::min(question + 1, target.size()));
}

void parse_header(std::string_view line, HttpHeaders& headers) {
  if (headers.size() == kMaxHeaders)
    throw HttpError(431, fmt::format("a request must have at most {} headers", kMaxHeaders));
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon)))
    throw HttpError(400, "a header must be NAME: VALUE");
  const std::string_view value = trimmed(line.substr(colon + 1));
  const bool clean = std::ranges::none_of(
      value, [](char c) { return (static_cast<unsigned char>(c) < ' ' && c != '\t') || c == 0x7f; });
  if (!clean) throw HttpError(400, "a header value must not contain control characters");
  headers.emplace_back(lower_case(line.substr(0, colon)), value);
}

// The value of a header, or nullptr. A repeated header is an error, because a proxy may have used
// the other value.
const std::string* single_header(const HttpHeaders& headers, std::string_view name) {
  const std::string* found = nullptr;
  for (const auto& [key, value] : headers) {
    if (key != name) continue;
    if (found) throw HttpError(400, fmt::format("the header {} must not be repeated", name));
    found = &value;
  }
  return found;
}

void parse_framing(HttpHead& head) {
  const HttpHeaders& headers = head.request.headers;
  const std::string* length = single_header(headers, "content-length");
  const std::string* encoding = single_header(headers, "transfer-encoding");
  if (length && encoding)
    throw HttpError(400, "a request must not have both Content-Length and Transfer-Encoding");
  if (length) {
    const bool digits = std::ranges::all_of(*length, [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || length->empty()) throw HttpError(400, "Content-Length must be a number of bytes");
    if (length->size() > kMostLengthDigits) throw HttpError(413, "Content-Length is too large");
    std::from_chars(length->data(), length->data() + length->size(), head.content_length);
  }
  if (!encoding) return;
  if (!head.supports_chunked) throw HttpError(400, "Transfer-Encoding requires HTTP/1.1");
  if (lower_case(*encoding) != "chunked")
    throw HttpError(501, "the only supported Transfer-Encoding is chunked");
  head.chunked = true;
}

bool list_contains(const std::string* header, std::string_view word) {
  if (!header) return false;
  for (std::string_view rest = *header; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    if (lower_case(trimmed(rest.substr(0, comma))) == word) return true;
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return false;
}

}  // namespace

const std::string* HttpRequest::header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers)
    if (name == lower_case_name) return &value;
  return nullptr;
}

void ReplyWriter::add(std::string_view text) {
  text_ += text;
  if (text_.size() >= kPieceBytes) flush();
}

void ReplyWriter::flush() {
  if (!reply_.started()) reply_.begin_stream(200, content_type_);
  reply_.write(text_);
  text_.clear();
}

void ReplyWriter::end() {
  if (!reply_.started()) return reply_.send({.content_type = content_type_, .body = std::move(text_)});
  flush();
  reply_.end_stream();
}

std::size_t head_end(std::string_view text) {
  for (std::size_t at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', at + 1)) {
    const std::string_view next = text.substr(at + 1, 2);
    if (next.starts_with('\n')) return at + 2;
    if (next == "\r\n") return at + 3;
  }
  return std::string_view::npos;
}

HttpHead parse_http_head(std::string_view text) {
  HttpHead head;
  parse_first_line(take_line(text), head);
  for (std::string_view line = take_line(text); !line.empty(); line = take_line(text))
    parse_header(line, head.request.headers);
  if (!single_header(head.request.headers, "host") && head.supports_chunked)
    throw HttpError(400, "a request must have the header Host");
  parse_framing(head);
  const std::string* connection = head.request.header("connection");
  head.keep_alive =
      head.supports_chunked ? !list_contains(connection, "close") : list_contains(connection, "keep-alive");
  if (const std::string* expect = head.request.header("expect")) {
    if (lower_case(*expect) != "100-continue") throw HttpError(417, "Expect must be 100-continue");
    head.expects_continue = head.supports_chunked;
  }
  return head;
}

std::uint64_t parse_chunk_size(std::string_view line) {
  const std::string_view digits = trimmed(line.substr(0, line.find(';')));
  std::uint64_t size = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size, 16);
  if (error == std::errc::result_out_of_range) throw HttpError(413, "a body chunk is too large");
  if (error != std::errc{} || end != digits.data() + digits.size())
    throw HttpError(400, "a body chunk must start with its size in hexadecimal digits");
  return size;
}

std::string_view reason_of(int status) {
  struct Reason {
    int status;
    std::string_view text;
  };
  constexpr std::array kReasons = {Reason{200, "OK"},
                                   Reason{204, "No Content"},
                                   Reason{400, "Bad Request"},
                                   Reason{401, "Unauthorized"},
                                   Reason{403, "Forbidden"},
                                   Reason{404, "Not Found"},
                                   Reason{405, "Method Not Allowed"},
                                   Reason{406, "Not Acceptable"},
                                   Reason{408, "Request Timeout"},
                                   Reason{413, "Content Too Large"},
                                   Reason{414, "URI Too Long"},
                                   Reason{417, "Expectation Failed"},
                                   Reason{429, "Too Many Requests"},
                                   Reason{431, "Request Header Fields Too Large"},
                                   Reason{499, "Client Closed Request"},
                                   Reason{500, "Internal Server Error"},
                                   Reason{501, "Not Implemented"},
                                   Reason{503, "Service Unavailable"},
                                   Reason{504, "Gateway Timeout"},
                                   Reason{505, "HTTP Version Not Supported"}};
  const auto found = std::ranges::find(kReasons, status, &Reason::status);
  return found == kReasons.end() ? "Unknown" : found->text;
}

}  // namespace thimble
