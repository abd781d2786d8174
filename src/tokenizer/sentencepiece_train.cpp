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
// On long words it crashes: it took those of 32,768 characters, and none of 40,000.
constexpr std::size_t kMaxWordBytes = 1 << 14;

// Is there a space between two characters? A normaliser drops those at the ends and beside control characters.
bool has_inner_space(std::string_view text, std::string_view spaces) {
  const auto is_shown = [](char c) { return static_cast<unsigned char>(c) > ' ' && c != 0x7F; };
  for (std::size_t at = text.find_first_of(spaces, 1); at < text.size() - 1;
       at = text.find_first_of(spaces, at + 1))
    if (is_shown(text[at - 1]) && is_shown(text[at + 1])) return true;
  return false;
}

class Sentences final : public sentencepiece::SentenceIterator {
 public:
  // spaces: the characters that end a word
  Sentences(TextSource& source, std::string_view spaces, const Interrupt* interrupt)
      : source_(source), spaces_(spaces), interrupt_(interrupt) {
    Next();
  }

  bool done() const override { return done_; }
  const std::string& value() const override { return sentence_; }
  sentencepiece::util::Status status() const override { return {}; }

  void Next() override {
    while (rest_.empty()) {
      if (interrupt_) interrupt_->throw_if_asked();
      const auto document = source_.next();
      if (!document) return finish();
      document_ = document->text;
      rest_ = document_;
    }
    const std::size_t end = sentence_end();
    sentence_.assign(rest_.substr(0, end));
    rest_.remove_prefix(end);
    any_ = true;
    spaced_ = spaced_ || has_inner_space(sentence_, spaces_);
  }

  bool any() const { return any_; }

 private:
  std::size_t sentence_end() const {
    const std::string_view near = rest_.substr(0, 2 * kMaxSentenceBytes);
    for (std::size_t word = 0; word < std::min(near.size(), kMaxSentenceBytes);) {
      const std::size_t end = std::min(near.find_first_of(spaces_, word), near.size());
      if (end - word > kMaxWordBytes) return character_boundary(rest_, word + kMaxWordBytes);
      word = end + 1;
    }
    if (rest_.size() <= kMaxSentenceBytes) return rest_.size();
    const std::size_t space = rest_.rfind(' ', kMaxSentenceBytes);
    if (space != rest_.npos && space > 0) return space;
    return character_boundary(rest_, kMaxSentenceBytes);
  }

  // A text without a space would make the trainer end the program: it must count one, because a space is always to have
  // a token.
  void finish() {
    done_ = spaced_ || !any_;
    if (done_) return;
    sentence_ = "a a";
    spaced_ = true;
  }

  TextSource& source_;
  std::string_view spaces_;
  const Interrupt* interrupt_;
  std::string document_, sentence_;
  std::string_view rest_;
  bool done_ = false, any_ = false, spaced_ = false;
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

  Sentences sentences(source, identity ? " " : " \t\r\n", interrupt);
  check(sentences.any(), "there is no text to train on: {} files, all empty", source.files().size());
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(settings, &sentences, &model);
  check(status.ok(), "SentencePiece could not train: {}", status.ToString());
  return model;
}

}  // namespace thimble
