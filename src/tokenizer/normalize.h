// Normalizers of tokenizer.json: a list of steps over UTF-8. Bytes that are no UTF-8 pass unchanged.
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

  // The text itself, or `buffer` filled with what became of it.
  std::string_view apply(std::string_view text, std::string& buffer) const;

 private:
  struct Step {
    NormalizerStep step;
    std::shared_ptr<const Regex> regex;  // of a Replace by regular expression
  };
  static void run(const Step& step, std::string_view text, std::string& out);

  std::vector<Step> steps_;
};

// Every match becomes `content`. `regex` may be null: then `literal` is looked for.
std::string replace_all(std::string_view text, const Regex* regex, std::string_view literal,
                        std::string_view content);

// Decoders of tokenizer.json that are not byte-level: what a token adds to the text.
// The steps, worked out token by token, so that a stream of tokens needs no memory of its past. A Strip after
// Fuse (that is, of the whole text) concerns the first token only; at the end of a text it is refused.
class TokenDecoder {
 public:
  explicit TokenDecoder(const std::vector<DecoderStep>& steps);

  // `token` as the vocabulary spells it.
  void append(std::string_view token, bool first, std::string& text) const;

 private:
  struct Step {
    DecoderStep step;
    std::shared_ptr<const Regex> regex;
    bool first_only = false;  // comes after Fuse
  };
  std::vector<Step> steps_;
};

}  // namespace thimble
