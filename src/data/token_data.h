// One text as tokens, split for training and validation, and the batches read from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "data/window_order.h"
#include "model/rows.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// A document is bos and its tokens; the target of its last token is bos (DESIGN 8.1).
struct TokenData {
  std::vector<std::int32_t> train, val;
  std::uint64_t train_bytes = 0, val_bytes = 0;
  std::int32_t bos = 0;
};

inline constexpr std::uint64_t kMaxTextBytes = std::uint64_t{4} << 30;

// The last `val_fraction` of the text's bytes (cut between characters) is for validation, unless `val_path`
// names another text. Empty files are errors.
TokenData load_text(const std::filesystem::path& path, const std::filesystem::path& val_path,
                    double val_fraction, const Tokenizer& tokenizer);

// A whole text as one document, bos at both ends.
std::vector<std::int32_t> encode_document(const Tokenizer& tokenizer, std::string_view text);

// Windows of T tokens and their targets, read in some order, epoch after epoch.
class Loader {
 public:
  Loader(std::span<const std::int32_t> tokens, std::int32_t bos, std::int64_t T, ReadOrder order,
         std::uint64_t seed);

  struct Position {
    std::uint64_t epoch = 0, window = 0;
    bool operator==(const Position&) const = default;
  };
  const Position& position() const { return position_; }
  void seek(Position position);
  std::uint64_t windows() const { return windows_; }

  // The next `count` windows, as rows of a grid.
  Rows next(const ModelConfig& config, std::int64_t count);

 private:
  std::span<const std::int32_t> tokens_;
  std::int32_t bos_;
  std::int64_t T_;
  ReadOrder order_;
  std::uint64_t seed_, windows_;
  Position position_;
};

}  // namespace thimble
