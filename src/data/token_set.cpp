#include "data/token_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/digest.h"
#include "base/error.h"

namespace thimble {

namespace {

constexpr std::size_t kBlockTokens = 1 << 16;  // copied at a time
constexpr std::size_t kLookBackTokens = 256;   // copied at a time when searching backward
constexpr std::uint64_t kFingerprintWholeTokens = 1 << 24;
constexpr std::uint64_t kFingerprintBlocks = 64;

// Sets targets outside answers to -1. `in_answer`: whether the first target is inside one.
void keep_answers(const ChatTokens& chat, bool in_answer, std::span<std::int32_t> targets) {
  for (std::int32_t& target : targets) {
    const std::int32_t token = target;
    const bool mark = chat.is_role(token) || token == chat.bos;
    if (!in_answer || mark) target = -1;
    if (mark || token == chat.end_turn) in_answer = token == chat.assistant;
  }
}

}  // namespace

TokenMarks TokenMarks::of(const Tokenizer& tokenizer, DataKind kind, LossOn loss_on,
                          std::string_view layout) {
  if (kind == DataKind::chat && layout != kRolesLayout) {
    const SpecialIds& special = tokenizer.special();  // bos is padding only
    return {.bos = special.bos.value_or(special.eos.value_or(0)),
            .stored = true,
            .marked_only = loss_on == LossOn::assistant,
            .end_turn = ChatLayout(tokenizer, layout).end_id()};
  }
  TokenMarks marks{.bos = bos_of(tokenizer)};
  if (kind == DataKind::chat && loss_on == LossOn::assistant) {
    marks.answers_only = ChatTokens::of(tokenizer);
    marks.end_turn = marks.answers_only->end_turn;
  }
  return marks;
}

std::int64_t Grid::targets() const {
  return std::ranges::count_if(target, [](std::int32_t token) { return token >= 0; });
}

TokenSet::TokenSet(std::vector<ShardReader> shards, TokenMarks marks)
    : shards_(std::move(shards)), marks_(marks) {
  for (const ShardReader& shard : shards_) {
    check((shard.format() == ShardFormat::marked) == marks_.stored,
          Hint{"use the manifest.json that was written with the shards"}, "{} {}", shard.path().string(),
          marks_.stored ? "has no marks of what is learned, which its manifest promises"
                        : "has marks of what is learned, which its manifest does not mention");
    starts_.push_back(size_);
    size_ += shard.tokens();
  }
  check(size_ > 0, "the {} shards contain no tokens", shards_.size());
}

TokenSet::TokenSet(std::vector<std::int32_t> tokens, TokenMarks marks)
    : memory_(std::move(tokens)), size_(memory_.size()), marks_(marks) {
  check(size_ > 0, "the token set is empty");
}

TokenSet TokenSet::open(std::span<const std::filesystem::path> files, TokenMarks marks) {
  std::vector<ShardReader> shards;
  for (const std::filesystem::path& file : files) shards.emplace_back(file);
  return {std::move(shards), marks};
}

void TokenSet::verify_with(std::shared_ptr<const ShardVerification> verification) {
  verification_ = std::move(verification);
}

std::int32_t TokenSet::at(std::uint64_t i) const {
  std::int32_t token = 0;
  copy(i, {&token, 1});
  return token;
}

void TokenSet::copy(std::uint64_t begin, std::span<std::int32_t> out) const {
  read(begin, out);
  if (marks_.stored) std::ranges::transform(out, out.begin(), without_marks);
}

void TokenSet::read(std::uint64_t begin, std::span<std::int32_t> out) const {
  if (verification_) verification_->throw_if_failed();
  check(begin <= size_ && out.size() <= size_ - begin, "cannot read tokens {} to {} of {}", begin,
        begin + out.size(), size_);
  if (shards_.empty()) {
    std::copy_n(memory_.begin() + static_cast<std::ptrdiff_t>(begin), out.size(), out.begin());
    return;
  }
  // The last shard that starts at or before `begin`. Empty ones with this start precede it.
  auto shard = static_cast<std::size_t>(std::ranges::upper_bound(starts_, begin) - starts_.begin()) - 1;
  while (!out.empty()) {
    const std::uint64_t inside = begin - starts_[shard];
    const auto count =
        static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), shards_[shard].tokens() - inside));
    shards_[shard].copy(inside, out.first(count));
    check_tokens(shards_[shard], inside, out.first(count));
    out = out.subspan(count);
    begin += count;
    ++shard;
  }
}

void TokenSet::check_tokens(const ShardReader& shard, std::uint64_t begin,
                            std::span<const std::int32_t> tokens) const {
  const auto wrong = std::ranges::find_if(tokens, [&](std::int32_t token) {
    return token < 0 || (marks_.stored ? without_marks(token) : token) >= vocab_size_;
  });
  if (wrong == tokens.end()) return;
  throw ShardError(
      fmt::format("{}: token {} at position {} is outside the vocabulary of {} tokens", shard.path().string(),
                  marks_.stored && *wrong >= 0 ? without_marks(*wrong) : *wrong,
                  begin + static_cast<std::uint64_t>(wrong - tokens.begin()), vocab_size_),
      Hint{"pass the tokenizer that the shards were written with, or copy the shard again"});
}

template <class Body>
void TokenSet::for_blocks(std::uint64_t begin, std::uint64_t end, Body&& body) const {
  std::vector<std::int32_t> block(std::min<std::uint64_t>(kBlockTokens, end - std::min(begin, end)));
  while (begin < end) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), end - begin));
    const auto part = std::span(block).first(count);
    read(begin, part);
    body(std::span<const std::int32_t>(part), begin);
    begin += count;
  }
}

// Whether the token after i is inside an answer: the last role token, bos or <end_turn> decides.
bool TokenSet::in_answer_after(std::uint64_t i) const {
  const ChatTokens& chat = *marks_.answers_only;
  std::vector<std::int32_t> block(kLookBackTokens);
  for (std::uint64_t end = i + 1; end > 0;) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(kLookBackTokens, end));
    end -= count;
    copy(end, std::span(block).first(count));
    for (std::size_t k = count; k-- > 0;) {
      if (chat.is_role(block[k]) || block[k] == chat.bos || block[k] == chat.end_turn)
        return block[k] == chat.assistant;
    }
  }
  return false;
}

void TokenSet::append(std::uint64_t begin, std::uint64_t count, AfterLast after_last, Grid& grid) const {
  if (count == 0) return;
  const bool ring = after_last == AfterLast::first_token;
  check(begin < size_ && (ring || count <= size_ - begin), "cannot read tokens {} to {} of {}", begin,
        begin + count, size_);
  // The inputs, and one more token that is only a target.
  std::vector<std::int32_t> tokens(count + 1, marks_.stored ? marks_.bos | kDocumentMark : marks_.bos);
  std::span<std::int32_t> rest(tokens);
  for (std::uint64_t from = begin; !rest.empty(); from = 0) {
    const auto inside = static_cast<std::size_t>(std::min<std::uint64_t>(rest.size(), size_ - from));
    read(from, rest.first(inside));
    rest = rest.subspan(inside);
    if (!ring) break;
  }
  grid.tokens += static_cast<std::int64_t>(count);
  for (std::size_t i = 0; i < count; ++i) grid.doc_start.push_back(starts_document(tokens[i]) ? 1 : 0);
  if (marks_.stored) return append_marked(tokens, grid);
  const auto old = static_cast<std::ptrdiff_t>(grid.target.size());
  grid.input.insert(grid.input.end(), tokens.begin(), tokens.end() - 1);
  grid.target.insert(grid.target.end(), tokens.begin() + 1, tokens.end());
  if (marks_.answers_only)
    keep_answers(*marks_.answers_only, in_answer_after(begin),
                 std::span(grid.target.begin() + old, grid.target.end()));
}

void TokenSet::append_marked(std::span<const std::int32_t> tokens, Grid& grid) const {
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    grid.input.push_back(without_marks(tokens[i]));
    const std::int32_t next = tokens[i + 1];
    const bool learned = marks_.marked_only ? (next & kLearnedMark) != 0 : !starts_document(next);
    grid.target.push_back(learned ? without_marks(next) : -1);
  }
}

void TokenSet::append_window(std::uint64_t begin, std::int64_t T, bool isolate, Grid& grid) const {
  const auto count = std::min<std::uint64_t>(static_cast<std::uint64_t>(T), size_ - std::min(begin, size_));
  const std::size_t row = grid.input.size();
  append(begin, count, AfterLast::bos, grid);
  grid.input.resize(row + static_cast<std::size_t>(T), marks_.bos);
  grid.target.resize(row + static_cast<std::size_t>(T), -1);
  grid.doc_start.resize(row + static_cast<std::size_t>(T), 1);
  if (!isolate) std::fill(grid.doc_start.begin() + static_cast<std::ptrdiff_t>(row), grid.doc_start.end(), 0);
}

std::vector<std::uint64_t> TokenSet::document_starts() const {
  std::vector<std::uint64_t> starts = {0};
  for_blocks(1, size_, [&](std::span<const std::int32_t> tokens, std::uint64_t first) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      if (starts_document(tokens[i])) starts.push_back(first + i);
  });
  return starts;
}

std::string TokenSet::fingerprint() const {
  Digester digester;
  digester.add(std::as_bytes(std::span(&size_, 1)));
  const auto add = [&](std::uint64_t begin, std::uint64_t end) {
    for_blocks(begin, end, [&](std::span<const std::int32_t> tokens, std::uint64_t) {
      digester.add(std::as_bytes(tokens));
    });
  };
  if (size_ <= kFingerprintWholeTokens) {
    add(0, size_);
  } else {
    for (std::uint64_t i = 0; i < kFingerprintBlocks; ++i) {
      const std::uint64_t begin =
          i * (size_ - kBlockTokens) / (kFingerprintBlocks - 1);  // the last block ends at size_
      add(begin, begin + kBlockTokens);
    }
  }
  return digester.result().hex();
}

}  // namespace thimble
