// A model in memory: its config, its weights, and the programs that train, score and decode it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/gpt.h"
#include "model/params.h"
#include "model/program_cache.h"
#include "model/rows.h"
#include "tensor/context.h"

namespace thimble {

// What slots remember: keys and values of every layer, [slots * context, K D] each, contiguous per slot.
class KvCache {
 public:
  KvCache(const ModelConfig& config, std::int64_t slots);

  std::int64_t slots() const { return slots_; }
  Tensor keys(std::int64_t layer) const { return matrix(2 * layer); }
  Tensor values(std::int64_t layer) const { return matrix(2 * layer + 1); }
  const std::byte* memory() const { return arena_.at(0); }  // which cache this is
  // The first `count` positions of one slot into another: a shared prefix.
  void copy_prefix(std::int64_t from, std::int64_t to, std::int64_t count);

 private:
  Tensor matrix(std::int64_t index) const;

  std::int64_t slots_, context_, width_, layers_;
  Arena arena_;
};

struct GradientOptions {
  int qat_bits = 0;
  bool recompute = false;
  std::uint64_t dropout_seed = 0;
};

// What forward and backward of `rows` rows take, beside weights and optimizer.
MemoryPlan training_plan(const ModelConfig& config, std::int64_t rows, const GradientOptions& options);

class Model {
 public:
  Model(const ModelConfig& config, const Context& context);  // resolved; weights start at 0
  ~Model();
  Model(Model&&) noexcept;

  const ModelConfig& config() const { return config_; }
  const ParamTable& params() const { return params_; }
  std::span<float> weights() {
    return weights_.all();
  }  // laid out as params() says; weights_changed() after writing
  std::span<const float> weights() const { return weights_.all(); }
  void weights_changed();

  // Adds the gradient of the loss, sum over rows of weight * nats, to `gradients` (laid out like the
  // weights); returns it.
  double add_gradients(const Rows& rows, std::span<float> gradients, const GradientOptions& options);

  struct Scores {
    std::vector<float> nats;    // [N]
    std::vector<float> logits;  // [N, V], only if asked for
  };
  Scores score(const Rows& rows, bool logits = false);

  // One step for rows of slots: appends to the cache, returns the logits of the rows that want them, [M, V].
  // Valid until the next call.
  Tensor decode(const Rows& rows, KvCache& cache);

 private:
  struct Entry;
  Entry& entry_for(const ProgramKey& key, const GptOptions& options, bool recompute);

  ModelConfig config_;
  ParamTable params_;
  const Context* context_;
  FloatArena weights_;
  std::vector<float> turns_;
  std::unique_ptr<ProgramCache<Entry>> programs_;
  std::uint64_t version_ = 1;  // of the weights: programs prepare again when it moves
};

}  // namespace thimble
