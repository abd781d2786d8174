// Regular expressions as in tokenizer.json: Unicode classes, leftmost match, on UTF-8.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace thimble {

class Regex {
 public:
  explicit Regex(std::string_view pattern);  // throws an Error that quotes the pattern
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Calls use(begin, end) for each match from left to right. Matches do not overlap and may be
  // empty. Bytes that are not valid UTF-8 never match. Thread-safe.
  void for_each_match(std::string_view text, const std::function<void(std::size_t, std::size_t)>& use) const;

  static std::string escape(std::string_view literal);

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace thimble
