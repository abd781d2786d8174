// Normalizers of tokenizer.json: a list of steps over UTF-8. Bytes that are no UTF-8 pass unchanged.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe_spec.h"
#include "tokenizer/regex.h"

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

}  // namespace thimble
