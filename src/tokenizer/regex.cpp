#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/regex.h"

#include <pcre2.h>

#include <array>
#include <string>

#include "base/error.h"

namespace thimble {

namespace {

// Unlike Hugging Face's, PCRE2's \s matches U+180E, which is not white space since Unicode 6.3.
constexpr std::string_view kSpaceSet =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

constexpr std::size_t kJitStackBytes = 8 << 20;
// Backtracking steps per match, so that a hostile pattern ends with an error.
constexpr std::uint32_t kMatchLimit = 50'000'000;

std::string with_unicode_spaces(std::string_view pattern) {
  std::string out;
  bool in_set = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's')
        out += in_set ? std::string(kSpaceSet) : fmt::format("[{}]", kSpaceSet);
      else if (next == 'S' && !in_set)
        out += fmt::format("[^{}]", kSpaceSet);
      else
        out += {'\\', next};
      continue;
    }
    if (c == '[') in_set = true;
    if (c == ']') in_set = false;
    out += c;
  }
  return out;
}

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

std::string shortened_pattern(std::string_view pattern) {
  constexpr std::size_t kShown = 80;
  return std::string(pattern.substr(0, kShown)) + (pattern.size() > kShown ? "..." : "");
}

template <auto release>
struct Release {
  template <class T>
  void operator()(T* object) const {
    release(object);
  }
};
using MatchData = std::unique_ptr<pcre2_match_data, Release<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Release<pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Release<pcre2_jit_stack_free>>;

}  // namespace

struct Regex::Code {
  std::string pattern;
  std::unique_ptr<pcre2_code, Release<pcre2_code_free>> compiled;
};

Regex::Regex(std::string_view pattern) : code_(std::make_unique<Code>()) {
  const std::string translated = with_unicode_spaces(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->pattern = pattern;
  code_->compiled.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                      PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
  check(code_->compiled != nullptr, "invalid regular expression \"{}\": {}", shortened_pattern(pattern),
        code_->compiled ? "" : message_of(error));
  pcre2_jit_compile(code_->compiled.get(), PCRE2_JIT_COMPLETE);  // on failure matching is slower
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::for_each_valid_match(std::string_view text, std::size_t offset, const Use& use) const {
  const MatchData data(pcre2_match_data_create_from_pattern(code_->compiled.get(), nullptr));
  const MatchContext context(pcre2_match_context_create(nullptr));
  const JitStack stack(pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr));
  pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  pcre2_set_match_limit(context.get(), kMatchLimit);
  std::size_t at = 0;
  while (at <= text.size()) {
    auto match = [&](std::uint32_t options) {
      return pcre2_match(code_->compiled.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                         options | PCRE2_NO_UTF_CHECK, data.get(), context.get());
    };
    int result = match(0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) return;
    check(result > 0, "the regular expression \"{}\" failed on a text of {} bytes: {}",
          shortened_pattern(code_->pattern), text.size(), message_of(result));
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
    const std::size_t begin = bounds[0], end = bounds[1];
    use(offset + begin, offset + end);
    if (end > begin)
      at = end;
    else if (end == text.size())
      return;
    else
      at = end + decode_utf8(text.data() + end, text.data() + text.size()).bytes;
  }
}

}  // namespace thimble
