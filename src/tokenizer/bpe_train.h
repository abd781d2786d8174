// Training of byte-level BPE: count the words, then join the most frequent pair of neighbours until the
// vocabulary is full.
//
// All 256 bytes are in the vocabulary from the start, so every input can be encoded. The order of merges is
// that of Hugging Face's trainer, merge for merge; the number of threads changes nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/progress.h"
#include "tokenizer/bpe_spec.h"
#include "tokenizer/patterns.h"
#include "tokenizer/text_source.h"
#include "tokenizer/word_counts.h"

namespace thimble {

class Interrupt;

// Which of two equally frequent pairs comes first.
enum class Ties {
  smaller_ids,    // as Hugging Face: the pair whose ids are smaller
  greater_bytes,  // as Sennrich's script and its descendants: the pair whose bytes are greater
};

struct BpeTrainOptions {
  TokenId vocab_size = 4096;
  std::uint64_t min_frequency = 2;
  Pattern pattern = Pattern::qwen2;
  std::vector<std::string> special_tokens = {"<bos>"};  // ids 0, 1, 2, ...
  Ties ties = Ties::smaller_ids;
};

struct BpeTrainResult {
  BpeSpec spec;
  std::uint64_t text_bytes = 0;
  std::uint64_t distinct_words = 0;
};

// Throws when the vocabulary cannot hold alphabet and special tokens, and when there is no text. A corpus
// with too few pairs gives a smaller vocabulary than asked for.
BpeTrainResult train_bpe(TextSource& source, const BpeTrainOptions& options, const ProgressOutput& progress,
                         const Interrupt* interrupt = nullptr);

// The two halves of it.
WordCounts count_words(TextSource& source, Pattern pattern, const ProgressOutput& progress,
                       const Interrupt* interrupt = nullptr);
BpeSpec learn_merges(const WordCounts& words, const BpeTrainOptions& options, const ProgressOutput& progress,
                     const Interrupt* interrupt = nullptr);

}  // namespace thimble
