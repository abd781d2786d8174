// Regular expressions as in tokenizer.json: Unicode classes, leftmost match, on UTF-8. PCRE2 runs
// them (regex.cpp); in a browser, JavaScript does (src/wasm/browser.cpp).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include "base/utf8.h"

namespace thimble {

class Regex {
 public:
  using Use = std::function<void(std::size_t begin, std::size_t end)>;

  explicit Regex(std::string_view pattern);  // throws an Error that quotes the pattern
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Calls use(begin, end) for each match from left to right. Matches do not overlap and may be
  // empty. Bytes that are not valid UTF-8 never match. Thread-safe.
  void for_each_match(std::string_view text, const Use& use) const {
    const char *start = text.data(), *const end = start + text.size();
    const auto flush = [&](const char* until) {
      if (until > start)
        for_each_valid_match({start, static_cast<std::size_t>(until - start)},
                             static_cast<std::size_t>(start - text.data()), use);
    };
    for (const char* p = start; p < end;) {
      const Utf8Char c = decode_utf8(p, end);
      if (!c.valid) {
        flush(p);
        start = p + c.bytes;
      }
      p += c.bytes;
    }
    flush(end);
  }

 private:
  // `offset` is added to the bounds.
  void for_each_valid_match(std::string_view text, std::size_t offset, const Use& use) const;

  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace thimble
