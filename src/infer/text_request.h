// The request that continues a text: for `thimble generate` and for the server.
#pragma once

#include <string_view>

#include "infer/request.h"

namespace thimble {

// The prompt, bos in front where the tokenizer adds it (or there is nothing else), continued until the text ends
// (end_ids.h).
Request text_request(const Tokenizer& tokenizer, std::string_view prompt);

}  // namespace thimble
