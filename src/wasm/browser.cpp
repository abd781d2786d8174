// What the browser, or Node, does for the tokenizers: regular expressions and Unicode's normal
// forms. Classes and cases of characters come from a table of the build (make_unicode.cpp), so that
// they do not depend on the browser's version of Unicode.
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>

#include "base/error.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

// Provided by thimble.mjs. Results are in memory from malloc. A pattern that the browser cannot run
// is an exception of JavaScript, which leaves the runtime.
#define THIMBLE_IMPORT(name) __attribute__((import_module("thimble"), import_name(name)))
extern "C" {
THIMBLE_IMPORT("normalize")
char* browser_normalize(int form, const char* text, std::size_t size, std::size_t* bytes);
THIMBLE_IMPORT("compile") int browser_compile(const char* pattern, std::size_t size);
THIMBLE_IMPORT("release") void browser_release(int regex);
// Begin and end of each match.
THIMBLE_IMPORT("matches")
std::uint32_t* browser_matches(int regex, const char* text, std::size_t size, std::size_t* count);
}

namespace thimble {

namespace {

#include "unicode_runs.h"

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

char32_t mapped(std::span<const CaseRun> runs, char32_t code) {
  const auto run = std::ranges::lower_bound(runs, code, {}, &CaseRun::last);
  const bool inside = run != runs.end() && code >= run->first && (code - run->first) % run->step == 0;
  return inside ? code + static_cast<char32_t>(run->distance) : code;
}

}  // namespace

void read_char_properties(char32_t first, std::span<std::uint16_t> properties) {
  constexpr int kShift = 11;
  constexpr std::uint32_t kKind = (1u << kShift) - 1;
  const std::uint32_t* run = std::ranges::upper_bound(kCharRuns, first << kShift | kKind) - 1;
  for (std::size_t i = 0; i < properties.size(); ++i) {
    if (run + 1 < std::end(kCharRuns) && run[1] >> kShift == first + i) ++run;
    properties[i] = kCharKinds[*run & kKind];
  }
}

char32_t lower_case(char32_t code) {
  return mapped(kToLower, code);
}

char32_t upper_case(char32_t code) {
  return mapped(kToUpper, code);
}

void append_normalized(std::string_view text, UnicodeForm form, std::string& out) {
  std::size_t bytes = 0;
  const std::unique_ptr<char, Free> normalized(
      browser_normalize(static_cast<int>(form), text.data(), text.size(), &bytes));
  out.append(normalized.get(), bytes);
}

struct Regex::Code {
  int number;
  ~Code() { browser_release(number); }
};

Regex::Regex(std::string_view pattern) : code_(new Code{browser_compile(pattern.data(), pattern.size())}) {}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::for_each_valid_match(std::string_view text, std::size_t offset, const Use& use) const {
  std::size_t count = 0;
  const std::unique_ptr<std::uint32_t, Free> bounds(
      browser_matches(code_->number, text.data(), text.size(), &count));
  for (std::size_t i = 0; i < count; ++i) use(offset + bounds.get()[2 * i], offset + bounds.get()[2 * i + 1]);
}

}  // namespace thimble
