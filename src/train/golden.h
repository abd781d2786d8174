// The golden output: what a model says greedily after bos. It is written into every checkpoint, so that whoever holds
// the file later (`thimble qa`) can see that it still says the same, whatever program or machine computes it.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "train/checkpoint.h"

namespace thimble {

inline constexpr std::int64_t kGoldenTokens = 32;  // or the context, where that is less

struct GoldenOutput {
  std::vector<TokenId> ids;  // empty: logits were not finite
  double nats = 0;           // of all of them, each after those before it

  double mean_nats() const { return ids.empty() ? 0 : nats / static_cast<double>(ids.size()); }
};

// Of the weights that are saved as the model: the averaged ones where there are any. The raw weights are back in their
// place afterwards, bit for bit.
GoldenOutput golden_output(const Trained& trained, const Tokenizer& tokenizer);

// Into the metadata of a checkpoint, under kGoldenKey ("17 4 260 ...") and kGoldenNatsKey; nothing for an empty one.
void append_golden(const GoldenOutput& golden, CheckpointRecord& record);
// An Error for texts that are no such thing, or hold ids outside the vocabulary.
GoldenOutput golden_from(std::string_view ids, std::string_view nats, TokenId vocab_size);

// -log p of an id, over all logits.
double nats_of(std::span<const float> logits, TokenId id);

}  // namespace thimble
