// The definition of the forward pass. Training, scoring and decoding all record it. They differ in
// what attention reads (the batch, or a slot's KV cache) and in the output (nats or logits).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "graph/tape.h"
#include "model/adapter.h"
#include "model/params.h"
#include "model/stored_weights.h"

namespace thimble {

// training: a grid of rows, forward and backward. scoring: forward to the loss. decoding: rows of
// slots, attention through the KV cache.
enum class Mode : std::uint8_t { training, scoring, decoding };

struct GptOptions {
  Mode mode = Mode::training;
  std::int64_t rows = 0;      // N
  std::int64_t gathered = 0;  // decoding: maximum number of rows with logits; 0: all rows
  std::int64_t slots = 0;     // decoding: slots of the KV cache
  bool loop_on = true;        // the layer loop, if the model has one
  int qat_bits = 0;           // training: bits of fake quantization; 0: off
  bool logits = false;        // scoring: keep the logits as well as the nats (for tracing)
  DType dtype = DType::f32;
  int head_chunk = 1024;  // number of rows whose logits are in memory at the same time
  // The stored weights, which are not trained; nullptr: f32 master weights.
  const StoredWeights* stored = nullptr;
  const AdapterTable* adapters = nullptr;  // may be null; training stored weights needs it
};

// A recorded forward pass with its inputs and outputs. Inputs that the model does not use are
// Value{}.
struct GptGraph {
  Tape tape;
  Value token, token_order, bucket, bucket_order, embedded_position, position_order;
  Value previous, position, first, slot, gather, target, weight, turns, local_turns, dropout_seed;
  std::vector<Value> k_cache, v_cache;  // decoding: one of each per pass of a layer, [slots context, K D]
  std::vector<std::pair<Value, ParamView>> parameters;  // each parameter's position in the block
  std::vector<std::pair<Value, ParamView>> scales;      // scales of stored integer matrices
  std::vector<std::pair<Value, ParamView>> adapters;    // positions in the block of the AdapterTable
  Value nats, logits;

  // The parameters that have gradients.
  const std::vector<std::pair<Value, ParamView>>& trained() const {
    return adapters.empty() ? parameters : adapters;
  }
};

GptGraph record_gpt(const ModelConfig& config, const ParamTable& params, const GptOptions& options);

}  // namespace thimble
