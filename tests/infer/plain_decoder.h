// Reference decoder for comparisons: one sequence, one slot, one row per call.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "model/model.h"

namespace thimble {

class PlainDecoder {
 public:
  explicit PlainDecoder(Model& model) : model_(model), cache_(model.make_cache(1)) {}

  // Returns the logits after the last token.
  std::span<const float> append(std::span<const std::int32_t> tokens) {
    for (const std::int32_t token : tokens) {
      const std::size_t n = tokens_.size();
      const DecodeRow row{.token = token,
                          .previous = n > 0 ? tokens_[n - 1] : -1,
                          .before_previous = n > 1 ? tokens_[n - 2] : -1,
                          .position = static_cast<std::int32_t>(n)};
      tokens_.push_back(token);
      const Tensor logits = model_.decode(decode_rows(model_.config(), 1, std::span(&row, 1)), cache_);
      logits_.assign(logits.row<float>(0), logits.row<float>(0) + logits.cols);
    }
    return logits_;
  }

  // Starts again with an empty cache.
  void restart(std::span<const std::int32_t> tokens) {
    cache_ = model_.make_cache(1);
    tokens_.clear();
    append(tokens);
  }

  std::span<const float> logits() const { return logits_; }
  const std::vector<std::int32_t>& tokens() const { return tokens_; }
  std::int64_t room() const { return model_.config().context - static_cast<std::int64_t>(tokens_.size()); }

  // The most likely token, excluding ids in `never`; nullopt if it is `end`.
  std::optional<std::int32_t> likeliest(std::int32_t end = -1,
                                        std::span<const std::int32_t> never = {}) const {
    std::vector<float> logits = logits_;
    for (const std::int32_t id : never)
      logits[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
    const auto best = static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
    return best == end ? std::nullopt : std::optional(best);
  }

 private:
  Model& model_;
  KvCache cache_;
  std::vector<std::int32_t> tokens_;
  std::vector<float> logits_;
};

}  // namespace thimble
