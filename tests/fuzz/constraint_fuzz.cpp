// Arbitrary bytes, read as a constraint. The first byte chooses the kind: s for a JSON Schema, g
// for GBNF, r for a regular expression, c for choices (one per line). The rest up to a zero byte is
// its text, and the bytes after it choose a walk through the automaton.
//
// What is not refused has a state that allows a byte or accepts. On the walk, the mask of each
// state equals a check of every byte, every allowed byte leads to a state, and a text that ends the
// walk of a schema is JSON.
#include <algorithm>
#include <memory>
#include <string>

#include "base/error.h"
#include "infer/constraint.h"
#include "targets.h"

namespace thimble {

namespace {

constexpr std::size_t kMostSteps = 64;
constexpr std::size_t kMostText = 1 << 14;

ConstraintSource source_of(char kind, std::string text) {
  if (kind == 's') return {.kind = ConstraintKind::json_schema, .text = std::move(text)};
  if (kind == 'g') return {.kind = ConstraintKind::gbnf, .text = std::move(text)};
  if (kind == 'r') return {.kind = ConstraintKind::regex, .text = std::move(text)};
  ConstraintSource source{.kind = ConstraintKind::choice};
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    source.choices.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return source;
}

// Objects may contain an unlisted name twice, and nesting is limited by the parser only.
void check_json(const std::string& text) {
  try {
    parse_json(text, "answer");
  } catch (const Error& error) {
    const std::string_view message = error.what();
    require(message.find("twice") != message.npos || message.find("nested") != message.npos,
            "a complete answer is JSON");
  }
}

void walk(Constraint& constraint, const Tokenizer& tokenizer, std::string_view choices, bool json) {
  Expr state = constraint.start();
  std::string text;
  for (std::size_t step = 0; step < kMostSteps; ++step) {
    const auto mask = constraint.mask(state, false);
    std::string allowed;
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
      std::string bytes;
      tokenizer.append_token(id, false, bytes);
      const bool possible = !bytes.empty() && constraint.advance(state, bytes) != kNothing;
      require(mask->has(id) == possible, "a mask equals a check of every token");
      if (possible) allowed += bytes;
    }
    require(constraint.accepts(state) || !allowed.empty(), "a text can be completed");
    if (allowed.empty()) break;
    const auto choice = step < choices.size() ? static_cast<unsigned char>(choices[step]) : 0u;
    text += allowed[choice % allowed.size()];
    state = constraint.advance(state, text.substr(text.size() - 1));
    require(state != kNothing, "an allowed token leads to a state");
  }
  if (json && state == kEpsilon) check_json(text);
}

}  // namespace

void fuzz_constraint(FuzzBytes bytes) {
  static const auto tokenizer = load_tokenizer("bytes");
  if (bytes.empty() || bytes.size() > kMostText) return;
  const std::string all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t end = std::min(all.find('\0'), all.size());
  ConstraintCompiler compiler(*tokenizer);
  try {
    const auto constraint = compiler.compile(source_of(all[0], all.substr(1, end - 1)));
    walk(*constraint, *tokenizer, std::string_view(all).substr(end), all[0] == 's');
  } catch (const Error&) {  // refused, or too much work
  }
}

}  // namespace thimble
