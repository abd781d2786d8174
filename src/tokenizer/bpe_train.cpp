#include "tokenizer/bpe_train.h"

#include "base/error.h"
#include "base/interrupt.h"
#include "base/parallel.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/merge_learner.h"

namespace thimble {

namespace {

constexpr std::size_t kBatchBytes = 32 << 20;
constexpr std::size_t kChunkBytes = 256 << 10;

// Views into `text`, each about a chunk long, cut where no word is.
void cut_into_chunks(std::string_view text, std::vector<std::string_view>& chunks) {
  while (text.size() > kChunkBytes * 2) {
    const std::size_t cut = safe_cut(text, 0, kChunkBytes);
    if (cut == 0) break;
    chunks.push_back(text.substr(0, cut));
    text.remove_prefix(cut);
  }
  if (!text.empty()) chunks.push_back(text);
}

// Small documents lie one after the other in one buffer; `ends` says where each stops.
struct Batch {
  std::string text;
  std::vector<std::size_t> ends;

  void clear() {
    text.clear();
    ends.clear();
  }
  std::vector<std::string_view> chunks() const {
    std::vector<std::string_view> out;
    std::size_t start = 0;
    for (const std::size_t end : ends) {
      cut_into_chunks(std::string_view(text).substr(start, end - start), out);
      start = end;
    }
    return out;
  }
};

void count_batch(const Batch& batch, Pattern pattern, std::vector<WordCounts>& counts) {
  const std::vector<std::string_view> chunks = batch.chunks();
  // Documents may be lines: a few hundred at once, so that threads do not meet at every one.
  const auto grain = std::max<std::int64_t>(1, static_cast<std::int64_t>(chunks.size()) / 512);
  parallel_for(static_cast<std::int64_t>(chunks.size()), grain, [&](std::int64_t begin, std::int64_t end) {
    WordCounts& mine = counts[static_cast<std::size_t>(thread_index())];
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      for_each_word(pattern, chunks[i], [&](std::string_view word) { mine.add(word); });
  });
}

void check_size(const BpeTrainOptions& options) {
  const std::size_t least = options.special_tokens.size() + 256;
  check(static_cast<std::size_t>(options.vocab_size) >= least && options.vocab_size > 0,
        Hint{fmt::format("ask for at least {}", least)},
        "a vocabulary of {} cannot hold {} special tokens and the 256 bytes", options.vocab_size,
        options.special_tokens.size());
  check(options.vocab_size <= 1 << 22, "a vocabulary of {} is too large; at most {}", options.vocab_size,
        1 << 22);
}

// Special tokens, then the bytes.
BpeSpec starting_spec(const BpeTrainOptions& options) {
  BpeSpec spec;
  for (const std::string& token : options.special_tokens) {
    check(!token.empty() && std::find(spec.vocab.begin(), spec.vocab.end(), token) == spec.vocab.end(),
          "the special token \"{}\" is empty or given twice", token);
    spec.added_tokens.push_back({.id = static_cast<TokenId>(spec.vocab.size()), .content = token});
    spec.vocab.push_back(token);
  }
  for (const unsigned char byte : byte_level_alphabet())
    spec.vocab.push_back(byte_level_text(std::string(1, static_cast<char>(byte))));
  if (options.pattern == Pattern::gpt2)
    spec.pre_tokenizer = {ByteLevel{.add_prefix_space = false, .use_regex = true}};
  else
    spec.pre_tokenizer = {Split{{std::string(pattern_regex(options.pattern)), true}},
                          ByteLevel{.add_prefix_space = false, .use_regex = false}};
  spec.decoder = {ByteLevelDecoder{}};
  if (!options.special_tokens.empty()) spec.post_processor.before = {0};
  return spec;
}

}  // namespace

WordCounts count_words(TextSource& source, Pattern pattern, const ProgressOutput& progress,
                       const Interrupt* interrupt) {
  ProgressBar bar(progress, "counting words", "bytes", source.stored_bytes());
  std::vector<WordCounts> counts(static_cast<std::size_t>(max_threads()));
  Batch batch;
  while (true) {
    const auto document = source.next();
    if (document) {
      batch.text += document->text;
      batch.ends.push_back(batch.text.size());
    }
    if (batch.text.size() < kBatchBytes && document) continue;
    count_batch(batch, pattern, counts);
    batch.clear();
    bar.update(source.stored_bytes_read());
    if (interrupt) interrupt->throw_if_asked();
    if (!document) break;
  }
  for (std::size_t i = 1; i < counts.size(); ++i) counts[0].add(counts[i]);
  return std::move(counts[0]);
}

BpeSpec learn_merges(const WordCounts& words, const BpeTrainOptions& options, const ProgressOutput& progress,
                     const Interrupt* interrupt) {
  check_size(options);
  BpeSpec spec = starting_spec(options);
  MergeLearner learner(words.sorted(), spec, options);
  ProgressBar bar(progress, "learning merges", "merges",
                  static_cast<std::uint64_t>(options.vocab_size) - spec.vocab.size());
  std::uint64_t done = 0;
  while (spec.vocab.size() < static_cast<std::size_t>(options.vocab_size) && learner.step(spec)) {
    if (++done % 64 != 0) continue;
    bar.update(done);
    if (interrupt) interrupt->throw_if_asked();
  }
  learner.finish(spec);
  return spec;
}

BpeTrainResult train_bpe(TextSource& source, const BpeTrainOptions& options, const ProgressOutput& progress,
                         const Interrupt* interrupt) {
  check_size(options);
  BpeTrainResult result;
  const WordCounts words = count_words(source, options.pattern, progress, interrupt);
  check(words.size() > 0, "there is no text to train on: {} files, all empty", source.files().size());
  result.text_bytes = source.text_bytes();
  result.distinct_words = words.size();
  result.spec = learn_merges(words, options, progress, interrupt);
  return result;
}

}  // namespace thimble
