#include "data/token_data.h"

#include "base/error.h"

namespace thimble {

std::vector<std::int32_t> encode_document(const Tokenizer& tokenizer, std::string_view text) {
  const auto bos = tokenizer.special().bos;
  check(bos.has_value(), Hint{"train a tokenizer with `thimble tokenizer train`, or use --tokenizer bytes"},
        "the tokenizer has no bos token, with which documents begin");
  std::vector<std::int32_t> ids = {*bos};
  tokenizer.encode(text, ids);
  ids.push_back(*bos);
  return ids;
}

}  // namespace thimble
