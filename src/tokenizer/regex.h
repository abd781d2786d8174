// Regular expressions as tokenizer.json files mean them: Unicode classes, leftmost match, on UTF-8.
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

  // use(begin, end) for each match from left to right, none of them overlapping, empty ones too. Bytes that
  // are no UTF-8 never match. May be called by many threads.
  void for_each_match(std::string_view text, const std::function<void(std::size_t, std::size_t)>& use) const;

  static std::string escape(std::string_view literal);

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace thimble
