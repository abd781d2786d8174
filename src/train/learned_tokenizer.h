// A tokenizer made for the data at hand: `--tokenizer bpe:4096` or `sentencepiece:1024`.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "base/interrupt.h"
#include "base/progress.h"
#include "tokenizer/tokenizer.h"
#include "train/data_settings.h"

namespace thimble {

struct TokenizerWish {
  TokenizerKind kind;
  TokenId vocab_size;

  // Nothing if the text is not of the form KIND:N. A number that no vocabulary can have is an Error.
  static std::optional<TokenizerWish> parse(std::string_view text);
};

// Learned from the training inputs: of JSON from its texts or contents, not from its punctuation. Chats bring the
// role tokens.
std::unique_ptr<Tokenizer> learn_tokenizer(const TokenizerWish& wish, const DataSettings& data,
                                           const ProgressOutput& progress, const Interrupt& interrupt);

}  // namespace thimble
