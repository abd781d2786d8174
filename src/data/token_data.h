// A whole text as one document, for what scores a single file.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace thimble {

inline constexpr std::uint64_t kMaxTextBytes = std::uint64_t{4} << 30;

// bos at both ends: the target of the last token is bos (DESIGN 8.1).
std::vector<std::int32_t> encode_document(const Tokenizer& tokenizer, std::string_view text);

}  // namespace thimble
