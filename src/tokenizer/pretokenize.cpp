#include "tokenizer/pretokenize.h"

#include <algorithm>
#include <array>

#include "tokenizer/unicode.h"

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

namespace {

// A range of the text: a match of the pattern, or the text between two matches.
struct TextRange {
  std::size_t begin, end;
  bool match;
};

// Calls matches(use) and fills the gaps, so that the ranges cover the text.
template <class Matches>
std::vector<TextRange> find_ranges(std::size_t size, Matches&& matches) {
  std::vector<TextRange> out;
  std::size_t done = 0;
  matches([&](std::size_t begin, std::size_t end) {
    if (begin > done) out.push_back({done, begin, false});
    out.push_back({begin, end, true});
    done = end;
  });
  if (done < size) out.push_back({done, size, false});
  return out;
}

// Applies one of the five behaviors of Hugging Face's Split.
std::vector<TextRange> pieces_of(std::vector<TextRange> ranges, SplitBehaviour behaviour) {
  std::vector<TextRange> out;
  switch (behaviour) {
    case SplitBehaviour::isolated:
      return ranges;
    case SplitBehaviour::removed:
      std::erase_if(ranges, [](const TextRange& s) { return s.match; });
      return ranges;
    case SplitBehaviour::contiguous:
      for (const TextRange& s : ranges) {
        if (!out.empty() && out.back().match == s.match)
          out.back().end = s.end;
        else
          out.push_back(s);
      }
      return out;
    case SplitBehaviour::merged_with_previous:
      for (std::size_t i = 0; i < ranges.size(); ++i) {
        const TextRange& s = ranges[i];
        if (s.match && i > 0 && !ranges[i - 1].match)
          out.back().end = s.end;
        else
          out.push_back(s);
      }
      return out;
    case SplitBehaviour::merged_with_next:
      for (std::size_t i = ranges.size(); i-- > 0;) {
        const TextRange& s = ranges[i];
        if (s.match && i + 1 < ranges.size() && !ranges[i + 1].match)
          out.back().begin = s.begin;
        else
          out.push_back(s);
      }
      std::reverse(out.begin(), out.end());
      return out;
  }
  return ranges;
}

template <class Use>
void for_each_digit_run(std::string_view text, bool individual, Use&& use) {
  const char* const end = text.data() + text.size();
  const detail::Scan scan{end};
  for (const char* p = text.data(); p < end;) {
    const ClassedChar c = classed_char(p, end);
    const char* next = p + c.bytes;
    if (c.cls & kNumber) {
      if (!individual) next = scan.run(next, kNumber);
      use(static_cast<std::size_t>(p - text.data()), static_cast<std::size_t>(next - text.data()));
    }
    p = next;
  }
}

template <class Use>
void for_each_literal(std::string_view text, std::string_view literal, Use&& use) {
  if (literal.empty()) return;
  for (std::size_t at = 0; (at = text.find(literal, at)) != text.npos; at += literal.size())
    use(at, at + literal.size());
}

void push_pieces(std::string_view text, const std::vector<TextRange>& ranges, auto& views) {
  for (const TextRange& s : ranges)
    if (s.end > s.begin) views.push_back(text.substr(s.begin, s.end - s.begin));
}

}  // namespace

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStep>& steps) {
  for (const PreTokenizerStep& step : steps) {
    Step prepared{step, nullptr, std::nullopt};
    if (const auto* split = std::get_if<Split>(&step); split && split->pattern.regex) {
      // A scanner has no gaps between words and covers only `isolated`; others use PCRE2.
      if (split->behaviour == SplitBehaviour::isolated)
        prepared.pattern = pattern_with_regex(split->pattern.text);
      if (!prepared.pattern) prepared.regex = std::make_shared<Regex>(split->pattern.text);
    }
    if (const auto* bytes = std::get_if<ByteLevel>(&step); bytes && bytes->use_regex)
      prepared.pattern = Pattern::gpt2;
    steps_.push_back(std::move(prepared));
  }
  // If one scanner does all of the splitting, its words can be used directly.
  auto splits = [](const Step& s) {
    const auto* bytes = std::get_if<ByteLevel>(&s.step);
    return !bytes || bytes->use_regex || bytes->add_prefix_space;
  };
  const auto first = std::find_if(steps_.begin(), steps_.end(), splits);
  if (first == steps_.end() || std::find_if(first + 1, steps_.end(), splits) != steps_.end()) return;
  const auto* bytes = std::get_if<ByteLevel>(&first->step);
  if (!bytes || !bytes->add_prefix_space) pattern_ = first->pattern;
}

void PreTokenizer::run(const Step& step, std::string_view piece, Pieces& out) {
  if (const auto* bytes = std::get_if<ByteLevel>(&step.step)) {
    if (bytes->add_prefix_space && !piece.starts_with(' ')) {
      out.owned.push_back(std::make_unique<std::string>(" " + std::string(piece)));
      piece = *out.owned.back();
    }
    if (!bytes->use_regex) return out.views.push_back(piece);
  }
  if (step.pattern)
    return for_each_word(*step.pattern, piece, [&](std::string_view w) { out.views.push_back(w); });
  if (const auto* digits = std::get_if<Digits>(&step.step)) {
    return push_pieces(
        piece,
        find_ranges(piece.size(), [&](auto use) { for_each_digit_run(piece, digits->individual, use); }),
        out.views);
  }
  const auto& split = std::get<Split>(step.step);
  auto ranges = find_ranges(piece.size(), [&](auto use) {
    if (step.regex)
      step.regex->for_each_match(piece, use);
    else
      for_each_literal(piece, split.pattern.text, use);
  });
  if (split.invert)
    for (TextRange& s : ranges) s.match = !s.match;
  push_pieces(piece, pieces_of(std::move(ranges), split.behaviour), out.views);
}

PreTokenizer::Pieces PreTokenizer::split(std::string_view text) const {
  Pieces pieces;
  pieces.views.push_back(text);
  for (const Step& step : steps_) {
    Pieces next;
    next.owned = std::move(pieces.owned);
    for (const std::string_view piece : pieces.views) run(step, piece, next);
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace thimble
