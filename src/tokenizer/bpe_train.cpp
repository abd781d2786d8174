#include "tokenizer/bpe_train.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/parallel.h"
#include "base/signals.h"
#include "tokenizer/unicode.h"

namespace thimble {

namespace {

// Words are short, so a simple loop over 8 bytes at a time is sufficient.
std::uint64_t hash_of(std::string_view word) {
  std::uint64_t hash = word.size() * 0x9E3779B97F4A7C15u;
  auto mix = [&](std::uint64_t piece) {
    hash = (hash ^ piece) * 0xBF58476D1CE4E5B9u;
    hash ^= hash >> 29;
  };
  while (word.size() >= 8) {
    std::uint64_t piece;
    std::memcpy(&piece, word.data(), 8);
    mix(piece);
    word.remove_prefix(8);
  }
  std::uint64_t piece = 0;
  std::memcpy(&piece, word.data(), word.size());
  mix(piece);
  return hash ^ hash >> 32;
}

}  // namespace

WordCounts::WordCounts() : slots_(1 << 12) {}

WordCounts::Slot& WordCounts::slot_of(std::string_view word, std::uint64_t hash) {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
    Slot& slot = slots_[at];
    if (slot.count == 0) return slot;
    if (slot.hash == hash && slot.bytes == word.size() &&
        std::memcmp(letters_.data() + slot.start, word.data(), word.size()) == 0)
      return slot;
  }
}

void WordCounts::add(std::string_view word, std::uint64_t count) {
  if ((size_ + 1) * 2 > slots_.size()) grow();
  const std::uint64_t hash = hash_of(word);
  Slot& slot = slot_of(word, hash);
  if (slot.count == 0) {
    slot = {hash, 0, letters_.size(), static_cast<std::uint32_t>(word.size())};
    letters_ += word;
    ++size_;
  }
  slot.count += count;
}

void WordCounts::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  const std::size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.count == 0) continue;
    std::size_t at = slot.hash & mask;
    while (slots_[at].count != 0) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

void WordCounts::add(const WordCounts& other) {
  for (const Slot& slot : other.slots_)
    if (slot.count) add(std::string_view(other.letters_).substr(slot.start, slot.bytes), slot.count);
}

std::vector<WordCounts::Word> WordCounts::sorted() const {
  std::vector<Word> words;
  words.reserve(size_);
  for (const Slot& slot : slots_)
    if (slot.count) words.push_back({std::string_view(letters_).substr(slot.start, slot.bytes), slot.count});
  std::sort(words.begin(), words.end(), [](const Word& a, const Word& b) { return a.text < b.text; });
  return words;
}

namespace {

constexpr std::size_t kBatchBytes = 32 << 20;
constexpr std::size_t kChunkBytes = 256 << 10;

// Appends views into `text` of about kChunkBytes each, cut between words.
void cut_into_chunks(std::string_view text, std::vector<std::string_view>& chunks) {
  while (text.size() > kChunkBytes * 2) {
    const std::size_t cut = safe_cut(text, 0, kChunkBytes);
    if (cut == 0) break;
    chunks.push_back(text.substr(0, cut));
    text.remove_prefix(cut);
  }
  if (!text.empty()) chunks.push_back(text);
}

// Small documents concatenated in one buffer; `ends` contains the end of each.
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
  // Chunks can be as short as a line, so each task takes many: about 512 tasks in total.
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
        Hint{fmt::format("pass a vocabulary size of at least {}", least)},
        "a vocabulary of {} is too small for {} special tokens and the 256 bytes", options.vocab_size,
        options.special_tokens.size());
  check(options.vocab_size <= 1 << 22, "a vocabulary of {} is too large: the limit is {}", options.vocab_size,
        1 << 22);
}

// A spec with the special tokens and the bytes.
BpeSpec starting_spec(const BpeTrainOptions& options) {
  BpeSpec spec;
  for (const std::string& token : options.special_tokens) {
    check(!token.empty() && std::find(spec.vocab.begin(), spec.vocab.end(), token) == spec.vocab.end(),
          "the special token \"{}\" is empty or a duplicate", token);
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

WordCounts count_words(TextStream& source, Pattern pattern, const ProgressOutput& progress,
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
    if (interrupt) interrupt->throw_if_interrupted();
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
    if (interrupt) interrupt->throw_if_interrupted();
  }
  learner.finish(spec);
  return spec;
}

BpeTrainResult train_bpe(TextStream& source, const BpeTrainOptions& options, const ProgressOutput& progress,
                         const Interrupt* interrupt) {
  check_size(options);
  BpeTrainResult result;
  const WordCounts words = count_words(source, options.pattern, progress, interrupt);
  check(words.size() > 0, "there is no text to train on: all {} files are empty", source.file_count());
  result.text_bytes = source.text_bytes();
  result.distinct_words = words.size();
  result.spec = learn_merges(words, options, progress, interrupt);
  return result;
}

namespace {

TokenId left_of(std::uint64_t pair) {
  return static_cast<TokenId>(pair >> 32);
}
TokenId right_of(std::uint64_t pair) {
  return static_cast<TokenId>(pair & 0xFFFFFFFF);
}

}  // namespace

MergeLearner::MergeLearner(const std::vector<WordCounts::Word>& words, const BpeSpec& spec,
                           const BpeTrainOptions& options)
    : min_frequency_(std::max<std::uint64_t>(options.min_frequency, 1)), ties_(options.ties) {
  std::array<TokenId, 256> byte_ids{};
  bytes_.resize(spec.vocab.size());
  for (std::size_t id = spec.added_tokens.size(); id < spec.vocab.size(); ++id) {
    bytes_[id] = byte_level_bytes(spec.vocab[id]).value();
    byte_ids[static_cast<unsigned char>(bytes_[id][0])] = static_cast<TokenId>(id);
  }
  // If a merge spells a special token, Hugging Face's trainer gives it that token's id, so that
  // text could produce a control token. Here they are mapped to -1, and step() skips such a merge.
  for (std::size_t id = spec.added_tokens.size(); id < bytes_.size(); ++id)
    ids_.emplace(bytes_[id], static_cast<TokenId>(id));
  for (std::size_t id = 0; id < spec.added_tokens.size(); ++id) ids_.emplace(spec.vocab[id], -1);

  std::size_t letters = 0;
  for (const auto& word : words) letters += word.text.size();
  symbols_.reserve(letters);
  words_.reserve(words.size());
  for (const auto& word : words) {
    words_.push_back({symbols_.size(), static_cast<std::uint32_t>(word.text.size()),
                      static_cast<std::int64_t>(word.count)});
    for (const char c : word.text) symbols_.push_back(byte_ids[static_cast<unsigned char>(c)]);
  }
  count_initial_pairs();
}

void MergeLearner::count_initial_pairs() {
  for (std::uint32_t w = 0; w < words_.size(); ++w) {
    const TokenId* symbols = symbols_.data() + words_[w].start;
    for (std::uint32_t i = 0; i + 1 < words_[w].length; ++i)
      change(symbols[i], symbols[i + 1], words_[w].count, w);
  }
  for (const Fresh& fresh : fresh_) {
    PairState& state = pairs_[fresh.pair];
    state.pending = -1;
    heap_.push_back({fresh.pair, state.count, fresh.words});
  }
  fresh_.clear();
  std::make_heap(heap_.begin(), heap_.end(),
                 [this](const auto& a, const auto& b) { return has_lower_priority(a, b); });
}

bool MergeLearner::has_lower_priority(const Candidate& a, const Candidate& b) const {
  if (a.count != b.count) return a.count < b.count;
  if (ties_ == Ties::smaller_ids) return a.pair > b.pair;
  auto text = [&](TokenId id) -> const std::string& { return bytes_[static_cast<std::size_t>(id)]; };
  if (const int order = text(left_of(a.pair)).compare(text(left_of(b.pair)))) return order < 0;
  return text(right_of(a.pair)) < text(right_of(b.pair));
}

void MergeLearner::push(Candidate candidate) {
  heap_.push_back(candidate);
  std::push_heap(heap_.begin(), heap_.end(),
                 [this](const auto& a, const auto& b) { return has_lower_priority(a, b); });
}

MergeLearner::Candidate MergeLearner::pop() {
  std::pop_heap(heap_.begin(), heap_.end(),
                [this](const auto& a, const auto& b) { return has_lower_priority(a, b); });
  const Candidate top = heap_.back();
  heap_.pop_back();
  return top;
}

TokenId MergeLearner::token_for(BpeSpec& spec, TokenId left, TokenId right) {
  std::string bytes = bytes_[static_cast<std::size_t>(left)] + bytes_[static_cast<std::size_t>(right)];
  const auto [found, is_new] = ids_.emplace(bytes, static_cast<TokenId>(spec.vocab.size()));
  if (is_new) {
    spec.vocab.push_back(byte_level_text(bytes));
    bytes_.push_back(std::move(bytes));
  }
  return found->second;
}

bool MergeLearner::step(BpeSpec& spec) {
  while (!heap_.empty()) {
    Candidate top = pop();
    if (const std::int64_t now = pairs_[top.pair].count; now != top.count) {
      top.count = now;
      push(top);
      continue;
    }
    if (top.count < static_cast<std::int64_t>(min_frequency_)) return false;
    const TokenId left = left_of(top.pair), right = right_of(top.pair);
    const TokenId result = token_for(spec, left, right);
    if (result < 0) continue;
    spec.merges.push_back({left, right, result});
    const std::vector<std::uint32_t> words = std::exchange(word_lists_[top.words], {});
    free_word_lists_.push_back(top.words);
    for (const std::uint32_t word : words) merge_in_word(word, left, right, result);
    for (const Fresh& fresh : fresh_) {
      PairState& state = pairs_[fresh.pair];
      state.pending = -1;
      if (state.count > 0) push({fresh.pair, state.count, fresh.words});
    }
    fresh_.clear();
    return true;
  }
  return false;
}

void MergeLearner::change(TokenId left, TokenId right, std::int64_t amount, std::uint32_t word) {
  const std::uint64_t key = pair_key(left, right);
  PairState& state = pairs_[key];
  state.count += amount;
  if (amount < 0) return;
  if (state.pending < 0) {
    state.pending = static_cast<std::int32_t>(fresh_.size());
    std::uint32_t list = static_cast<std::uint32_t>(word_lists_.size());
    if (free_word_lists_.empty()) {
      word_lists_.emplace_back();
    } else {
      list = free_word_lists_.back();
      free_word_lists_.pop_back();
    }
    fresh_.push_back({key, list});
  }
  auto& list = word_lists_[fresh_[static_cast<std::size_t>(state.pending)].words];
  if (list.empty() || list.back() != word) list.push_back(word);  // words are visited in order
}

void MergeLearner::merge_in_word(std::uint32_t word, TokenId left, TokenId right, TokenId result) {
  WordState& state = words_[word];
  TokenId* symbols = symbols_.data() + state.start;
  std::uint32_t written = 0;
  for (std::uint32_t read = 0; read < state.length; ++read) {
    if (symbols[read] != left || read + 1 >= state.length || symbols[read + 1] != right) {
      symbols[written++] = symbols[read];
      continue;
    }
    if (written > 0) {
      change(symbols[written - 1], left, -state.count, word);
      change(symbols[written - 1], result, state.count, word);
    }
    ++read;
    symbols[written++] = result;
    if (read + 1 < state.length) {
      change(right, symbols[read + 1], -state.count, word);
      change(result, symbols[read + 1], state.count, word);
    }
  }
  state.length = written;
}

void MergeLearner::finish(BpeSpec& spec) {
  PairTable<std::size_t> last(spec.merges.size());
  for (std::size_t rank = 0; rank < spec.merges.size(); ++rank)
    last[pair_key(spec.merges[rank].left, spec.merges[rank].right)] = rank;
  std::size_t kept = 0;
  for (std::size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const Merge merge = spec.merges[rank];
    if (last[pair_key(merge.left, merge.right)] == rank) spec.merges[kept++] = merge;
  }
  spec.merges.resize(kept);
}

}  // namespace thimble
