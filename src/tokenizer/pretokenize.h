// From a normalised text to the words that merges do not cross: the pre-tokenizer of tokenizer.json.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe_spec.h"
#include "tokenizer/patterns.h"
#include "tokenizer/regex.h"

namespace thimble {

class PreTokenizer {
 public:
  explicit PreTokenizer(const std::vector<PreTokenizerStep>& steps);

  // use(word) for each word that is not empty. Words are valid during the call only.
  template <class Use>
  void for_each(std::string_view text, Use&& use) const {
    if (pattern_) return for_each_word(*pattern_, text, use);
    Pieces pieces = split(text);
    for (const std::string_view piece : pieces.views)
      if (!piece.empty()) use(piece);
  }

  // The hand-written scanner that does all the work, where there is one.
  std::optional<Pattern> pattern() const { return pattern_; }

 private:
  struct Step {
    PreTokenizerStep step;
    std::shared_ptr<const Regex> regex;  // of a Split without a scanner
    std::optional<Pattern> pattern;      // of a Split or ByteLevel with one
  };
  struct Pieces {
    std::vector<std::string_view> views;
    std::vector<std::unique_ptr<std::string>> owned;  // texts that a prefix space was put before
  };

  Pieces split(std::string_view text) const;
  static void run(const Step& step, std::string_view piece, Pieces& out);

  std::vector<Step> steps_;
  std::optional<Pattern> pattern_;
};

}  // namespace thimble
