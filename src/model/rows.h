// Rows: the model's input. Training and scoring see a grid of B x T rows; decoding sees a few rows of
// different slots.
//
// Attention, positions, the smear gate and the bigram hash all restart where a document starts. Starts are
// given, never guessed from token ids. Everything is checked here, once: kernels trust it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/config.h"

namespace thimble {

struct Rows {
  // [M]: the N rows' tokens; when decoding with a smear gate, M = 2N and the tokens before them follow.
  std::vector<std::int32_t> token, bucket, embedded_position;
  std::vector<std::int32_t> previous;  // [N] row of the token before, -1 at a document's start
  std::vector<std::int32_t> position;  // [N] counted from the document's start
  std::vector<std::int32_t> first;     // [N] grid: the row where the document starts
  std::vector<std::int32_t> slot;      // [N] decoding
  std::vector<std::int32_t> gather;    // rows whose logits are wanted; empty: all
  std::vector<std::int32_t> target;    // [N] -1: not scored
  std::vector<float> weight;           // [N] what the row counts in the loss
  std::vector<std::int32_t> token_order, bucket_order,
      position_order;  // rows sorted by index: gradients of embeddings

  std::int64_t count() const { return static_cast<std::int64_t>(previous.size()); }
};

// input, target [B T], row after row of length T. doc_start [B T]: non-zero where a document starts (empty:
// nowhere but at each row's first token). target may be empty (nothing is scored). Every target counts 1 /
// (number of targets).
Rows grid_rows(const ModelConfig& config, std::int64_t T, std::span<const std::int32_t> input,
               std::span<const std::int32_t> target = {}, std::span<const std::uint8_t> doc_start = {});

// One token to be decoded, and the two before it (-1: none).
struct DecodeRow {
  std::int32_t token = 0, previous = -1, before_previous = -1;
  std::int32_t position = 0, slot = 0;
  bool wants_logits = true;
};

Rows decode_rows(const ModelConfig& config, std::int64_t slots, std::span<const DecodeRow> rows);

// Decoded rows filled up to `count`, and those whose logits are wanted to `gathered`, so that steps of different sizes
// have one shape: the rows that are added belong to no slot (ops/attention.h), and their logits mean nothing.
Rows filled_up(Rows rows, std::int64_t count, std::int64_t gathered);

}  // namespace thimble
