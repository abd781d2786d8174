#include "qa/checks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/table.h"
#include "base/utf8.h"
#include "qa/model_facts.h"

namespace thimble {

namespace {

constexpr double kRounding = 0.05;  // fraction of the logits' standard deviation

double row_difference(std::span<const float> a, std::span<const float> b) {
  double difference = 0, largest = 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, std::abs(double{a[i]} - double{b[i]}));
    largest = std::max(largest, std::abs(double{a[i]}));
  }
  return difference / largest;
}

}  // namespace

LogitComparison compare_logits(std::span<const float> a, std::span<const float> b, std::size_t V) {
  check(a.size() == b.size() && a.size() % V == 0, "[qa] cannot compare {} logits with {}", a.size(),
        b.size());
  LogitComparison result;
  for (std::size_t row = 0; row < a.size() / V; ++row) {
    const double difference = row_difference(a.subspan(row * V, V), b.subspan(row * V, V));
    if (difference > result.largest) result = {difference, row};
  }
  return result;
}

TokenId likeliest_id(std::span<const float> logits) {
  return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
}

bool is_as_likely(std::span<const float> logits, TokenId id) {
  const TensorStats stats = stats_of(logits);
  if (stats.not_finite > 0) return false;
  return stats.most - double{logits[static_cast<std::size_t>(id)]} <= kRounding * stats.deviation;
}

namespace {

constexpr int kRandomTexts = 500;
constexpr std::uint64_t kLongestText = 40;  // characters
constexpr std::size_t kShownBytes = 60;

// Text that normalizers change: a ligature, a decomposed letter, capitals, repeated spaces, line
// ends.
constexpr std::string_view kProbe = "\uFB01 e\u0301 ABC  x\n\ny\t\u00A0z ";

std::string shown(const std::string& text) {
  std::string out;
  append_json_string(out, text);
  return shortened(out, kShownBytes);
}

std::string plain_text(Rng& random) {
  std::string text;
  for (std::uint64_t left = 1 + random.below(kLongestText); left > 0; --left) {
    const bool blank = !text.empty() && text.back() != ' ' && left > 1 && random.below(5) == 0;
    text += blank ? ' ' : "etaoinshrdlucmfwypvbgkjqxz0123456789"[random.below(36)];
  }
  return text;
}

std::string any_text(Rng& random) {
  std::string text;
  for (std::uint64_t left = 1 + random.below(kLongestText); left > 0; --left) {
    const auto code = static_cast<char32_t>(random.below(random.below(3) == 0 ? 0x3000 : 0x250));
    append_utf8(text, std::max<char32_t>(code, 1));
  }
  return text;
}

class Checker {
 public:
  explicit Checker(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    result_.exact = round_trip(std::string(kProbe)) == kProbe;
  }

  RoundTrip run() {
    for (TokenId id = 0; id < tokenizer_.vocab_size(); ++id) check_id(id);
    Rng random(1);
    for (int i = 0; i < kRandomTexts; ++i) {
      expect_same(plain_text(random));
      check_text(any_text(random));
    }
    return result_;
  }

 private:
  std::string round_trip(const std::string& text) const { return tokenizer_.decode(tokenizer_.encode(text)); }

  void expect_same(const std::string& text) {
    const std::string back = round_trip(text);
    check(back == text, "encoding and decoding changes the text {} to {}", shown(text), shown(back));
    ++result_.texts;
  }

  // If the tokenizer normalizes, its output must at least be unchanged by a second round trip.
  void check_text(const std::string& text) { expect_same(result_.exact ? text : round_trip(text)); }

  void check_id(TokenId id) {
    ++result_.ids;
    const TokenType type = tokenizer_.token_type(id);
    if (type == TokenType::unused) return;
    if (type == TokenType::control) {
      const std::string name = tokenizer_.token_text(id);
      check(std::ranges::count(tokenizer_.encode(name), id) == 0,
            "the text {} is encoded as the control token {}, so users could type it", shown(name), id);
      return;
    }
    const std::string text = tokenizer_.decode(std::span(&id, 1));
    if (text.empty() || !is_utf8(text)) return;  // byte tokens are covered by the random texts
    const std::string expected = result_.exact ? text : round_trip(text), back = round_trip(expected);
    check(back == expected, "encoding and decoding changes the text of token {}, {}, to {}", id, shown(text),
          shown(back));
  }

  const Tokenizer& tokenizer_;
  RoundTrip result_;
};

}  // namespace

RoundTrip check_round_trip(const Tokenizer& tokenizer) {
  return Checker(tokenizer).run();
}

}  // namespace thimble
