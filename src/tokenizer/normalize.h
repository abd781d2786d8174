// Normalizers of tokenizer.json: a list of steps over UTF-8. Invalid bytes are kept unchanged.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/regex.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {

class Normalizer {
 public:
  explicit Normalizer(const std::vector<NormalizerStep>& steps);

  // Returns the normalized text: `text` if nothing changed, otherwise a view of `buffer`.
  std::string_view apply(std::string_view text, std::string& buffer) const;

 private:
  struct Step {
    NormalizerStep step;
    std::shared_ptr<const Regex> regex;  // for a Replace with a regular expression
  };
  static void run(const Step& step, std::string_view text, std::string& out);

  std::vector<Step> steps_;
};

// Replaces every match by `content`. If `regex` is null, `literal` is searched instead.
std::string replace_all(std::string_view text, const Regex* regex, std::string_view literal,
                        std::string_view content);

// Decoders of tokenizer.json that are not byte-level. They are applied token by token, so that
// streaming needs no state about earlier tokens. A Strip after Fuse refers to the start of the text
// and is applied to the first token only. A Strip at the end of the text is an error.
class TokenDecoder {
 public:
  explicit TokenDecoder(const std::vector<DecoderStep>& steps);

  // Appends the text of `token`, which is spelled as in the vocabulary.
  void append(std::string_view token, bool first, std::string& text) const;

 private:
  struct Step {
    DecoderStep step;
    std::shared_ptr<const Regex> regex;
    bool first_only = false;  // the step comes after Fuse
  };
  std::vector<Step> steps_;
};

}  // namespace thimble
