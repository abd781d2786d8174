// The loop at the heart of BPE training, one merge a step.
//
// It follows Hugging Face's trainer to the letter, also where two paths lead to the same token ("a"+"bc"
// after "ab"+"c"): such a merge adds no token, and the counts of pairs that were merged before are not
// forgotten.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tokenizer/bpe_train.h"
#include "tokenizer/pair_table.h"

namespace thimble {

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
