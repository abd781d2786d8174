// The one definition of the forward pass. Training, scoring and decoding all record it; they differ in what
// attention reads (the batch, or a slot's cache) and in what comes out (nats, or logits).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "graph/tape.h"
#include "model/params.h"
#include "model/stored_weights.h"

namespace thimble {

// training: a grid of rows, forward and backward. scoring: forward to the loss. decoding: rows of slots,
// through the cache.
enum class Mode : std::uint8_t { training, scoring, decoding };

struct GptOptions {
  Mode mode = Mode::training;
  std::int64_t rows = 0;      // N
  std::int64_t gathered = 0;  // decoding: rows whose logits are computed at most; 0: all
  std::int64_t slots = 0;     // decoding
  bool loop_on = true;        // the layer loop, if the model has one
  int qat_bits = 0;           // training: matrices are fake-quantised
  bool logits = false;        // scoring: keep the logits as well as the nats (tracing)
  DType dtype = DType::f32;
  int head_chunk = 1024;  // rows whose logits exist at one time
  const StoredWeights* stored =
      nullptr;  // scoring and decoding: what the matrices lie in; nullptr: f32 masters
};

// A recorded forward pass and the names of its ends. Inputs the model has no use for are Value{}.
struct GptGraph {
  Tape tape;
  Value token, token_order, bucket, bucket_order, embedded_position, position_order;
  Value previous, position, first, slot, gather, target, weight, turns, dropout_seed;
  std::vector<Value> k_cache, v_cache;  // decoding: one of each per pass of a layer, [slots context, K D]
  std::vector<std::pair<Value, ParamView>> parameters;  // where each parameter lies in the block
  std::vector<std::pair<Value, ParamView>> scales;      // the same of stored matrices' scales
  Value nats, logits;
};

GptGraph record_gpt(const ModelConfig& config, const ParamTable& params, const GptOptions& options);

}  // namespace thimble
