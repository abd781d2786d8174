// Memorization: how much of the text that a model generates occurs verbatim in its training data.
//
//   Memorization result = measure_memorization(model, *tokenizer, data, {}, progress, &interrupt);
//   console.print(result.text());
//
// Every text shares short runs of tokens with the training data, so the same figures are measured
// for held-out text. Only the difference between the two says something about the model.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/progress.h"
#include "base/signals.h"
#include "data/token_set.h"
#include "eval/eval_data.h"
#include "model/model.h"
#include "tokenizer/chat_layout.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// The tokens that delimit documents and turns, and the number of characters of every other token.
struct VerbatimAlphabet {
  TokenId bos = 0;
  std::vector<std::uint8_t> is_boundary;  // by id; no run contains a boundary
  std::vector<std::uint32_t> characters;  // by id; of the same size

  // All control tokens are boundaries.
  explicit VerbatimAlphabet(const Tokenizer& tokenizer);
  VerbatimAlphabet(TokenId vocab_size, TokenId bos);  // every token is one character
};

// The longest run of tokens that ends at one token of a text and occurs in the stream.
struct VerbatimMatch {
  std::uint32_t tokens = 0;  // 0: not even the token itself occurs
  // Where it was found first: the document, counted from 1, and the number of its characters up to
  // the end of the run.
  std::uint64_t document = 0, end = 0;
};

struct VerbatimMatches {
  std::vector<VerbatimMatch> ending_at;  // one per token of the text
  bool is_complete = false;              // the text is equal to a whole document or turn of the stream
};

// Finds texts in a stream of tokens, such as a training set.
//
//   VerbatimSearch search(texts, VerbatimAlphabet(*tokenizer));
//   for (...) search.read(block);  // the stream, in order, in blocks of any size
//   std::vector<VerbatimMatches> found = search.finish();
//
// The stream runs through a suffix automaton of the texts. The result is exact, the time is linear
// in the stream, and memory grows with the texts only.
class VerbatimSearch {
 public:
  VerbatimSearch(std::span<const std::vector<TokenId>> texts, VerbatimAlphabet alphabet);

  void read(std::span<const TokenId> tokens);
  std::vector<VerbatimMatches> finish();  // call it once, after the last read()

 private:
  // A state stands for the runs that end at the same places of the texts: one of each length from
  // length(link) + 1 to length.
  struct State {
    std::int32_t length = 0, link = -1;
    std::int32_t first_edge = -1;         // in edges_; -1: none, and for the root
    std::int32_t found = 0;               // length of the longest of these runs that the stream has
    std::uint64_t document = 0, end = 0;  // of its first occurrence
  };
  struct Edge {
    TokenId token;
    std::int32_t next;  // of the same state
  };
  struct Slot {
    std::uint64_t key = 0;  // 0: empty
    std::int32_t target = 0;
  };
  // A whole text, which its state and length identify.
  struct Whole {
    std::uint64_t key = 0;
    bool found = false;
  };

  bool is_boundary(TokenId token) const {
    return token < 0 || token >= separator_ || alphabet_.is_boundary[static_cast<std::size_t>(token)] != 0;
  }
  State& at(std::int32_t state) { return states_[static_cast<std::size_t>(state)]; }
  std::size_t slot_of(std::int32_t state, TokenId token) const;
  std::int32_t target(std::int32_t state, TokenId token) const;  // -1: none
  void set_target(std::int32_t state, TokenId token, std::int32_t target);
  void append(TokenId token);
  std::int32_t state_for(std::int32_t from, TokenId token);
  std::uint64_t key_of(std::span<const TokenId> text) const;
  void end_segment();
  void pass_to_shorter_runs();

  VerbatimAlphabet alphabet_;
  TokenId separator_;  // follows each text; not in the vocabulary
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<Slot> slots_;                               // targets of all states but the root: a hash table
  std::vector<std::int32_t> root_;                        // targets of the root, by token
  std::int32_t last_ = 0;                                 // state of everything appended so far
  std::vector<std::vector<std::int32_t>> prefix_states_;  // of each text, one per token
  std::vector<std::uint64_t> keys_;                       // of each text; 0: contains a boundary
  std::vector<Whole> whole_;                              // sorted by key

  // The position in the stream.
  std::int32_t state_ = 0, length_ = 0;  // the longest run that ends here and occurs in the texts
  std::uint64_t document_ = 0, characters_ = 0;
  std::uint64_t segment_ = 0;  // tokens since the last boundary
};

inline constexpr std::array<std::int64_t, 3> kVerbatimGrams = {8, 16, 32};
// A run that a reader recognizes as copied.
inline constexpr std::int64_t kVerbatimRun = 50;  // characters

// How much of some texts occurs in the training data.
struct VerbatimShare {
  std::int64_t texts = 0, tokens = 0, characters = 0;
  std::array<std::int64_t, 3> grams = {}, grams_found = {};  // of kVerbatimGrams tokens
  std::int64_t run_characters = 0;  // characters in runs of at least kVerbatimRun characters
  std::int64_t longest_run = 0;     // characters
  double mean_run = 0;              // characters: the longest run of a text, mean over the texts
  // Texts with an end of their own, and how many of these are equal to a whole document or turn.
  std::int64_t whole = 0, whole_found = 0;

  double gram_share(std::size_t i) const { return share(grams_found[i], grams[i]); }
  double run_share() const { return share(run_characters, characters); }
  double whole_share() const { return share(whole_found, whole); }

 private:
  static double share(std::int64_t part, std::int64_t all) {
    return all > 0 ? static_cast<double>(part) / static_cast<double>(all) : 0;
  }
};

// A long run of generated text and its first occurrence in the training data.
struct VerbatimRun {
  std::string text;  // may be invalid UTF-8 at its ends
  std::int64_t characters = 0, tokens = 0;
  std::uint64_t document = 0, offset = 0;  // document counted from 1; characters before the run
};

struct Memorization {
  bool chats = false;
  VerbatimShare sampled = {};
  std::optional<VerbatimShare> held_out = {};  // nullopt: there is no held-out text
  std::vector<VerbatimRun> longest = {};       // of the samples, longest first, without repetitions
  std::uint64_t training_tokens = 0;

  // Whether the texts are so short that whole documents say more than long runs.
  bool has_short_texts() const { return sampled.characters < kVerbatimRun * sampled.texts; }
  // Whether at least 1 % more of the sampled than of the held-out text is in long runs, or at least
  // 5 % more of short texts are whole documents of the training data.
  bool repeats_training_data() const;
  std::string line() const;                       // one line, for the summary of a run
  std::string text(std::size_t width = 0) const;  // tables
  Json to_json() const;
};

struct MemorizationData {
  // Calls its argument with the tokens of the training data, in order, in blocks of any size.
  std::function<void(const TokenSink&)> read_training;
  const TokenSet* held_out = nullptr;  // text that was not trained on; may be null
  bool chats = false;
  std::string layout = std::string(kRolesLayout);  // of chats
};

struct MemorizationOptions {
  std::int64_t tokens = 16384;  // about so many are sampled, and as many of the held-out text read
  std::uint64_t seed = 1;
  std::size_t examples = 5;
};

// Samples text, at temperature 0.8 as `generate` does: one half from bos alone, the other half as
// the continuation of the beginnings of held-out documents. A chat model answers the first
// questions of held-out chats; the answers in the data are then the held-out text.
Memorization measure_memorization(Model& model, const Tokenizer& tokenizer, const MemorizationData& data,
                                  const MemorizationOptions& options, const ProgressOutput& progress,
                                  const Interrupt* interrupt = nullptr);

// For MemorizationData::read_training.
void read_all(const TokenSet& set, const TokenSink& sink, const ProgressOutput& progress,
              const Interrupt* interrupt = nullptr);

}  // namespace thimble
