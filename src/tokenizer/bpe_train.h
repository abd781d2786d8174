// Training of byte-level BPE: count the words, then join the most frequent pair of neighbours until the
// vocabulary is full.
//
// All 256 bytes are in the vocabulary from the start, so every input can be encoded. The order of merges is
// that of Hugging Face's trainer, merge for merge; the number of threads changes nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/progress.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/text_stream.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {

class Interrupt;

// How often each distinct word occurs. All words lie in one buffer: memory grows with distinct words only.
class WordCounts {
 public:
  WordCounts();

  void add(std::string_view word, std::uint64_t count = 1);
  void add(const WordCounts& other);
  std::size_t size() const { return size_; }

  struct Word {
    std::string_view text;
    std::uint64_t count;
  };
  // In the order of their bytes: the same whoever counted what.
  std::vector<Word> sorted() const;

 private:
  struct Slot {
    std::uint64_t hash = 0, count = 0;  // count 0: free
    std::uint64_t start = 0;
    std::uint32_t bytes = 0;
  };
  Slot& slot_of(std::string_view word, std::uint64_t hash);
  void grow();

  std::vector<Slot> slots_;
  std::string letters_;
  std::size_t size_ = 0;
};

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
BpeTrainResult train_bpe(TextStream& source, const BpeTrainOptions& options, const ProgressOutput& progress,
                         const Interrupt* interrupt = nullptr);

// The two halves of it.
WordCounts count_words(TextStream& source, Pattern pattern, const ProgressOutput& progress,
                       const Interrupt* interrupt = nullptr);
BpeSpec learn_merges(const WordCounts& words, const BpeTrainOptions& options, const ProgressOutput& progress,
                     const Interrupt* interrupt = nullptr);

// The loop at the heart of BPE training, one merge a step.
//
// It follows Hugging Face's trainer to the letter, also where two paths lead to the same token ("a"+"bc"
// after "ab"+"c"): such a merge adds no token, and the counts of pairs that were merged before are not
// forgotten.
class MergeLearner {
 public:
  // `spec` holds special tokens and bytes.
  MergeLearner(const std::vector<WordCounts::Word>& words, const BpeSpec& spec,
               const BpeTrainOptions& options);

  // Appends one merge to spec.merges, and its token to spec.vocab if it is new. False: no pair is left that
  // is frequent enough.
  bool step(BpeSpec& spec);

  // A pair that was merged twice keeps its later rank.
  static void finish(BpeSpec& spec);

 private:
  struct PairState {
    std::int64_t count = 0;
    std::int32_t pending = -1;  // place in fresh_, while a step runs
  };
  struct Candidate {
    std::uint64_t pair;
    std::int64_t count;
    std::uint32_t places;  // in places_
  };
  // A word's symbols lie in symbols_[start, start + length); merging shortens it in place.
  struct WordState {
    std::uint64_t start;
    std::uint32_t length;
    std::int64_t count;
  };

  void count_initial_pairs();
  void merge_in_word(std::uint32_t word, TokenId left, TokenId right, TokenId result);
  void change(TokenId left, TokenId right, std::int64_t amount, std::uint32_t word);
  void push(Candidate candidate);
  Candidate pop();
  bool comes_later(const Candidate& a, const Candidate& b) const;
  TokenId token_for(BpeSpec& spec, TokenId left, TokenId right);

  std::uint64_t min_frequency_;
  Ties ties_;
  std::vector<TokenId> symbols_;
  std::vector<WordState> words_;
  std::vector<std::string> bytes_;                // of each token
  std::unordered_map<std::string, TokenId> ids_;  // of tokens made of bytes
  PairTable<PairState> pairs_;
  std::vector<std::vector<std::uint32_t>> places_;  // lists of words; freed once their pair is merged
  std::vector<std::uint32_t> free_places_;
  std::vector<Candidate> heap_;
  struct Fresh {
    std::uint64_t pair;
    std::uint32_t places;
  };
  std::vector<Fresh> fresh_;  // pairs that this step brought about
};

}  // namespace thimble
