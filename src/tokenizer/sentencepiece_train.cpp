#include <sentencepiece_trainer.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/interrupt.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/text_source.h"

namespace thimble {

namespace {

// The trainer drops longer sentences without a word: ours are cut instead, at spaces.
constexpr std::size_t kMaxSentenceBytes = 1 << 16;

class Sentences final : public sentencepiece::SentenceIterator {
 public:
  Sentences(TextSource& source, const Interrupt* interrupt) : source_(source), interrupt_(interrupt) {
    Next();
  }

  bool done() const override { return done_; }
  const std::string& value() const override { return sentence_; }
  sentencepiece::util::Status status() const override { return {}; }

  void Next() override {
    while (rest_.empty()) {
      if (interrupt_) interrupt_->throw_if_asked();
      const auto document = source_.next();
      if (!document) {
        done_ = true;
        return;
      }
      document_ = document->text;
      rest_ = document_;
    }
    std::size_t end = rest_.size();
    if (end > kMaxSentenceBytes) {
      const std::size_t space = rest_.rfind(' ', kMaxSentenceBytes);
      end = space == rest_.npos || space == 0 ? kMaxSentenceBytes : space;
    }
    sentence_.assign(rest_.substr(0, end));
    rest_.remove_prefix(end);
    any_ = true;
  }

  bool any() const { return any_; }

 private:
  TextSource& source_;
  const Interrupt* interrupt_;
  std::string document_, sentence_;
  std::string_view rest_;
  bool done_ = false, any_ = false;
};

std::string joined(const std::vector<std::string>& tokens) {
  std::string out;
  for (const std::string& token : tokens) out += (out.empty() ? "" : ",") + token;
  return out;
}

}  // namespace

std::string train_sentencepiece(TextSource& source, const SentencePieceOptions& options,
                                const Interrupt* interrupt) {
  const std::size_t least = 4 + 256 + options.control_tokens.size();
  check(std::cmp_greater(options.vocab_size, least), Hint{fmt::format("ask for more than {}", least)},
        "a vocabulary of {} cannot hold 4 special tokens, 256 bytes and {} control tokens",
        options.vocab_size, options.control_tokens.size());
  check(options.normalization == "nmt_nfkc" || options.normalization == "identity",
        "the normalization must be nmt_nfkc or identity, found \"{}\"", options.normalization);
  const bool identity = options.normalization == "identity";
  std::unordered_map<std::string, std::string> settings = {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(options.vocab_size)},
      {"hard_vocab_limit", "false"},
      {"required_chars", "\xE2\x96\x81"},  // a space without a token would be three bytes
      {"character_coverage", fmt::format("{}", options.character_coverage)},
      {"byte_fallback", "true"},
      {"split_digits", "true"},
      {"normalization_rule_name", options.normalization},
      {"add_dummy_prefix", "false"},
      {"remove_extra_whitespaces", identity ? "false" : "true"},
      {"pad_id", "0"},
      {"bos_id", "1"},
      {"eos_id", "2"},
      {"unk_id", "3"},
      {"max_sentence_length", std::to_string(kMaxSentenceBytes)},
      {"num_threads", std::to_string(options.threads)},
      {"minloglevel", "3"},
  };
  if (!options.control_tokens.empty()) settings["control_symbols"] = joined(options.control_tokens);

  Sentences sentences(source, interrupt);
  check(sentences.any(), "there is no text to train on: {} files, all empty", source.files().size());
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(settings, &sentences, &model);
  check(status.ok(), "SentencePiece could not train: {}", status.ToString());
  return model;
}

}  // namespace thimble
