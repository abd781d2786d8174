#include "data/json_elements.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace thimble {

namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::uint64_t count_lines(std::string_view text) {
  return static_cast<std::uint64_t>(std::ranges::count(text, '\n'));
}

}  // namespace

JsonElements::JsonElements(ByteStream& stream, std::string name, std::size_t max_bytes)
    : stream_(stream), name_(std::move(name)), max_bytes_(max_bytes) {}

void JsonElements::fail_here(std::string_view expected, std::string_view found) const {
  fail("{}:{}: expected {}, found {}", name_, line_, expected, found);
}

bool JsonElements::more(std::size_t at) {
  while (at >= buffer_.size()) {
    check(buffer_.size() - begin_ <= max_bytes_,
          "{}:{}: the element that begins here is longer than {} bytes", name_, line_, max_bytes_);
    if (!reads_.append(stream_, buffer_)) return false;
  }
  return true;
}

char JsonElements::skip_space() {
  for (; more(begin_); ++begin_) {
    const char c = buffer_[begin_];
    if (kSpace.find(c) == kSpace.npos) return c;
    if (c == '\n') ++line_;
  }
  return '\0';
}

std::size_t JsonElements::quoted_end(std::size_t open) {
  for (std::size_t at = open + 1; more(at); ++at) {
    if (buffer_[at] == '"') return at + 1;
    if (buffer_[at] == '\\') ++at;
  }
  return buffer_.size();  // cut short: the parser will say so
}

std::size_t JsonElements::element_end() {
  std::size_t depth = 0;
  for (std::size_t at = begin_; more(at);) {
    const char c = buffer_[at];
    if (c == '"') {
      at = quoted_end(at);
      if (depth == 0) return at;
      continue;
    }
    const bool opens = c == '{' || c == '[', closes = c == '}' || c == ']';
    if (depth == 0 && !opens && at > begin_ && (closes || c == ',' || kSpace.find(c) != kSpace.npos))
      return at;
    ++at;
    if (opens) ++depth;
    if (closes && depth > 0 && --depth == 0) return at;
  }
  return buffer_.size();
}

std::optional<JsonElements::Element> JsonElements::next() {
  if (ended_) return std::nullopt;
  if (begin_ >= GrowingReads::kMostBytes) {  // seldom: moving the rest to the front takes its time
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  if (!opened_) {
    opened_ = true;
    if (more(kByteOrderMark.size() - 1) && buffer_.starts_with(kByteOrderMark))
      begin_ = kByteOrderMark.size();
    array_ = skip_space() == '[';
    if (array_) ++begin_;
  }
  char c = skip_space();
  if (array_) {
    if (c == ']') {
      ++begin_;
      if (skip_space() != '\0') fail_here("nothing behind the array", "more");
      ended_ = true;
      return std::nullopt;
    }
    if (c == '\0') fail_here("the array's ']'", "the end of the file");
    if (!first_) {
      if (c != ',') fail_here("',' or ']' in the array", fmt::format("'{}'", c));
      ++begin_;
      c = skip_space();
      if (c == '\0' || c == ']') fail_here("another element behind ','", "none");
    }
  } else if (c == '\0') {
    ended_ = true;
    return std::nullopt;
  }
  first_ = false;
  const std::uint64_t line = line_;
  const std::size_t end = element_end();
  const std::string_view text = std::string_view(buffer_).substr(begin_, end - begin_);
  line_ += count_lines(text);
  begin_ = end;
  return Element{text, line};
}

}  // namespace thimble
