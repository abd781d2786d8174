#include "tokenizer/patterns.h"

#include <array>

namespace thimble {

namespace {

struct KnownPattern {
  Pattern pattern;
  std::string_view name;
  std::string_view regex;
};

constexpr std::array<KnownPattern, 4> kKnown = {{
    {Pattern::gpt2, "gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {Pattern::llama3, "llama3",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {Pattern::qwen2, "qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {Pattern::o200k, "o200k",
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
}};

const KnownPattern& entry(Pattern pattern) {
  return kKnown[static_cast<std::size_t>(pattern)];
}

}  // namespace

std::string_view pattern_name(Pattern pattern) {
  return entry(pattern).name;
}

std::string_view pattern_regex(Pattern pattern) {
  return entry(pattern).regex;
}

std::optional<Pattern> pattern_with_name(std::string_view name) {
  for (const KnownPattern& known : kKnown)
    if (known.name == name) return known.pattern;
  return std::nullopt;
}

std::optional<Pattern> pattern_with_regex(std::string_view regex) {
  for (const KnownPattern& known : kKnown)
    if (known.regex == regex) return known.pattern;
  return std::nullopt;
}

}  // namespace thimble
