#include "tokenizer/merge_learner.h"

#include <algorithm>

#include "tokenizer/byte_level.h"

namespace thimble {

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
  // A merge that spells a special token gets that token's id in Hugging Face's trainer, which would let text
  // become control. Special tokens are not in this map: such a merge is skipped (see token_for).
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
    heap_.push_back({fresh.pair, state.count, fresh.places});
  }
  fresh_.clear();
  std::make_heap(heap_.begin(), heap_.end(),
                 [this](const auto& a, const auto& b) { return comes_later(a, b); });
}

bool MergeLearner::comes_later(const Candidate& a, const Candidate& b) const {
  if (a.count != b.count) return a.count < b.count;
  if (ties_ == Ties::smaller_ids) return a.pair > b.pair;
  auto text = [&](TokenId id) -> const std::string& { return bytes_[static_cast<std::size_t>(id)]; };
  if (const int order = text(left_of(a.pair)).compare(text(left_of(b.pair)))) return order < 0;
  return text(right_of(a.pair)) < text(right_of(b.pair));
}

void MergeLearner::push(Candidate candidate) {
  heap_.push_back(candidate);
  std::push_heap(heap_.begin(), heap_.end(),
                 [this](const auto& a, const auto& b) { return comes_later(a, b); });
}

MergeLearner::Candidate MergeLearner::pop() {
  std::pop_heap(heap_.begin(), heap_.end(),
                [this](const auto& a, const auto& b) { return comes_later(a, b); });
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
    const std::vector<std::uint32_t> places = std::exchange(places_[top.places], {});
    free_places_.push_back(top.places);
    for (const std::uint32_t word : places) merge_in_word(word, left, right, result);
    for (const Fresh& fresh : fresh_) {
      PairState& state = pairs_[fresh.pair];
      state.pending = -1;
      if (state.count > 0) push({fresh.pair, state.count, fresh.places});
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
    std::uint32_t list = static_cast<std::uint32_t>(places_.size());
    if (free_places_.empty()) {
      places_.emplace_back();
    } else {
      list = free_places_.back();
      free_places_.pop_back();
    }
    fresh_.push_back({key, list});
  }
  auto& list = places_[fresh_[static_cast<std::size_t>(state.pending)].places];
  if (list.empty() || list.back() != word) list.push_back(word);  // words come in order: no other doubles
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
