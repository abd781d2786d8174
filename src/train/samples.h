// What a model says while it learns: at every validation a few short texts, kept in metrics.jsonl for the report.
//
// Texts begin at bos and are drawn with a seed that stays the same, so that two steps differ by the weights alone. Of
// chats, the first questions of the validation set are answered greedily.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/token_set.h"
#include "tokenizer/tokenizer.h"
#include "train/checkpoint.h"

namespace thimble {

struct SaidText {
  std::string prompt;  // special tokens are spelled out; empty: bos alone
  std::string text;    // bytes that are no UTF-8 are possible: it is what the tokens stand for
};

struct SampleSettings {
  std::int64_t count = 0;
  std::uint64_t seed = 0;
};

inline constexpr std::int64_t kSampleTokens = 64;  // prompt included, or the context where that is less

// Of the weights that are validated: the averaged ones where there are any. The raw weights are back in their place
// afterwards, bit for bit. `val`: where chats take their questions from; may be null. Fewer texts than asked for where
// there are fewer questions, none where logits are not finite.
std::vector<SaidText> say_samples(const Trained& trained, const Tokenizer& tokenizer, const TokenSet* val,
                                  const SampleSettings& settings);

}  // namespace thimble
