// Rows: the model's input. In training and scoring the rows form a grid of B x T; in decoding they
// are single tokens of different slots.
//
// Attention, positions, the smear gate and the bigram hash all restart at document starts, which
// are explicit and never inferred from token ids. All values are validated here; kernels do not
// check them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/config.h"

namespace thimble {

struct Rows {
  // [M] the tokens of the N rows. When decoding with a smear gate, M = 2N: the N previous tokens
  // follow.
  std::vector<std::int32_t> token, bucket, embedded_position;
  std::vector<std::int32_t> previous;  // [N] row of the previous token, -1 at a document start
  std::vector<std::int32_t> position;  // [N] counted from the document start
  std::vector<std::int32_t> first;     // [N] grid: the row where the document starts
  std::vector<std::int32_t> slot;      // [N] decoding
  std::vector<std::int32_t> gather;    // decoding: the rows whose logits are computed
  std::vector<std::int32_t> target;    // [N] -1: not scored
  std::vector<float> weight;           // [N] weight of the row in the loss
  // Rows sorted by index, for the gradients of embeddings.
  std::vector<std::int32_t> token_order, bucket_order, position_order;

  std::int64_t count() const { return static_cast<std::int64_t>(previous.size()); }
};

// input, target [B T]: sequences of length T, one after the other. doc_start [B T]: non-zero where
// a document starts; empty: only at the first token of each sequence. target may be empty (nothing
// is scored). Every target has the weight 1 / (number of targets).
Rows grid_rows(const ModelConfig& config, std::int64_t T, std::span<const std::int32_t> input,
               std::span<const std::int32_t> target = {}, std::span<const std::uint8_t> doc_start = {});

// One token to be decoded and the two tokens before it (-1: none).
struct DecodeRow {
  std::int32_t token = 0, previous = -1, before_previous = -1;
  std::int32_t position = 0, slot = 0;
  bool wants_logits = true;
};

Rows decode_rows(const ModelConfig& config, std::int64_t slots, std::span<const DecodeRow> rows);

// Pads decoding rows to `count` rows and `gathered` rows with logits, so that steps of different
// sizes have the same shape. Padding rows belong to no slot (ops/attention.h); their logits are
// meaningless.
Rows padded_rows(Rows rows, std::int64_t count, std::int64_t gathered);

}  // namespace thimble
