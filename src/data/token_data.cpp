#include "data/token_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/files.h"

namespace thimble {

namespace {

std::string read_text(const std::filesystem::path& path) {
  std::string text = read_file(path, kMaxTextBytes);
  check(!text.empty(), "{} is empty", path.string());
  return text;
}

// The nearest place at or before `at` where a character starts.
std::size_t character_start(std::string_view text, std::size_t at) {
  while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

}  // namespace

std::vector<std::int32_t> encode_document(const Tokenizer& tokenizer, std::string_view text) {
  const auto bos = tokenizer.special().bos;
  check(bos.has_value(), Hint{"train a tokenizer with `thimble tokenizer train`, or use --tokenizer bytes"},
        "the tokenizer has no bos token, with which documents begin");
  std::vector<std::int32_t> ids = {*bos};
  tokenizer.encode(text, ids);
  ids.push_back(*bos);
  return ids;
}

TokenData load_text(const std::filesystem::path& path, const std::filesystem::path& val_path,
                    double val_fraction, const Tokenizer& tokenizer) {
  const std::string text = read_text(path);
  std::string_view train = text, val;
  std::string other;
  if (!val_path.empty()) {
    other = read_text(val_path);
    val = other;
  } else {
    const auto cut = character_start(
        text, static_cast<std::size_t>(static_cast<double>(text.size()) * (1 - val_fraction)));
    train = std::string_view(text).substr(0, cut);
    val = std::string_view(text).substr(cut);
  }
  TokenData data;
  data.train = encode_document(tokenizer, train);
  data.val = encode_document(tokenizer, val);
  data.train_bytes = train.size();
  data.val_bytes = val.size();
  data.bos = *tokenizer.special().bos;
  return data;
}

Loader::Loader(std::span<const std::int32_t> tokens, std::int32_t bos, std::int64_t T, ReadOrder order,
               std::uint64_t seed)
    : tokens_(tokens), bos_(bos), T_(T), order_(order), seed_(seed) {
  // A window of T inputs needs T + 1 tokens; the last, incomplete window is not read.
  windows_ = (tokens.size() - 1) / static_cast<std::uint64_t>(T);
  check(windows_ > 0, Hint{"use a longer text, or a smaller context"},
        "the text has {} tokens, one row of context {} needs {}", tokens.size(), T, T + 1);
}

void Loader::seek(Position position) {
  check(position.window < windows_, "the checkpoint continues at window {}, the text has {}", position.window,
        windows_);
  position_ = position;
}

Rows Loader::next(const ModelConfig& config, std::int64_t count) {
  std::vector<std::int32_t> input, target;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t window = order_ == ReadOrder::shuffled
                                     ? permuted(position_.window, windows_, seed_, position_.epoch)
                                     : position_.window;
    const auto begin = tokens_.begin() + static_cast<std::ptrdiff_t>(window) * T_;
    input.insert(input.end(), begin, begin + T_);
    target.insert(target.end(), begin + 1, begin + T_ + 1);
    if (++position_.window == windows_) position_ = {position_.epoch + 1, 0};
  }
  std::vector<std::uint8_t> starts(input.size());
  std::ranges::transform(input, starts.begin(), [&](std::int32_t token) { return token == bos_ ? 1 : 0; });
  return grid_rows(config, T_, input, target, starts);
}

}  // namespace thimble
