#include "infer/text_request.h"

#include "base/error.h"
#include "infer/end_ids.h"

namespace thimble {

Request text_request(const Tokenizer& tokenizer, std::string_view prompt) {
  Request request;
  const auto bos = tokenizer.special().bos;
  if (bos && (prompt.empty() || tokenizer.adds_bos())) request.prompt.push_back(*bos);
  tokenizer.encode(prompt, request.prompt);
  check(!request.prompt.empty(), Hint{"give a prompt"},
        "the tokenizer has no bos token, and there is no prompt to begin with");
  request.stop_ids = end_ids(tokenizer);
  request.starts_text = prompt.empty();
  return request;
}

}  // namespace thimble
