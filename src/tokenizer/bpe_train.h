// Training of byte-level BPE: count the words, then merge the most frequent adjacent pair until the
// vocabulary is full.
//
// All 256 bytes are in the vocabulary from the start, so every input can be encoded. Merges and
// their order equal those of Hugging Face's trainer, for any number of threads.
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

// Counts how often each distinct word occurs. All words are in one buffer; memory use grows only
// with the number of distinct words.
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
  // Sorted by bytes, so the result does not depend on the order of counting.
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

// Which of two equally frequent pairs is merged first.
enum class Ties {
  smaller_ids,    // as Hugging Face: the pair with the smaller ids
  greater_bytes,  // as Sennrich's subword-nmt: the pair with the greater bytes
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

// Throws if vocab_size is too small for the bytes and special tokens, or if there is no text. If
// the corpus has too few pairs, the vocabulary is smaller than requested.
BpeTrainResult train_bpe(TextStream& source, const BpeTrainOptions& options, const ProgressOutput& progress,
                         const Interrupt* interrupt = nullptr);

// The two parts of train_bpe().
WordCounts count_words(TextStream& source, Pattern pattern, const ProgressOutput& progress,
                       const Interrupt* interrupt = nullptr);
BpeSpec learn_merges(const WordCounts& words, const BpeTrainOptions& options, const ProgressOutput& progress,
                     const Interrupt* interrupt = nullptr);

// The inner loop of BPE training: each step adds one merge.
//
// It reproduces Hugging Face's trainer exactly, including the case of two paths to the same token
// ("a"+"bc" after "ab"+"c"): the second merge adds no token, and counts of pairs merged earlier are
// kept.
class MergeLearner {
 public:
  // `spec` contains the special tokens and the bytes.
  MergeLearner(const std::vector<WordCounts::Word>& words, const BpeSpec& spec,
               const BpeTrainOptions& options);

  // Appends one merge to spec.merges, and its token to spec.vocab if it is new. Returns false if no
  // remaining pair is frequent enough.
  bool step(BpeSpec& spec);

  // Removes duplicate merges: a pair that was merged twice keeps its later rank.
  static void finish(BpeSpec& spec);

 private:
  struct PairState {
    std::int64_t count = 0;
    std::int32_t pending = -1;  // index in fresh_ during a step
  };
  struct Candidate {
    std::uint64_t pair;
    std::int64_t count;
    std::uint32_t words;  // index in word_lists_
  };
  // The symbols of a word are symbols_[start, start + length); merging shortens the range in place.
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
  bool has_lower_priority(const Candidate& a, const Candidate& b) const;
  TokenId token_for(BpeSpec& spec, TokenId left, TokenId right);

  std::uint64_t min_frequency_;
  Ties ties_;
  std::vector<TokenId> symbols_;
  std::vector<WordState> words_;
  std::vector<std::string> bytes_;                // of each token
  std::unordered_map<std::string, TokenId> ids_;  // of tokens that consist of bytes
  PairTable<PairState> pairs_;
  std::vector<std::vector<std::uint32_t>> word_lists_;  // the words of each pair
  std::vector<std::uint32_t> free_word_lists_;
  std::vector<Candidate> heap_;
  struct Fresh {
    std::uint64_t pair;
    std::uint32_t words;
  };
  std::vector<Fresh> fresh_;  // pairs whose count increased in this step
};

}  // namespace thimble
