// A model in memory: its config, its weights, and the programs that train, score and decode it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "model/bound_program.h"
#include "model/config.h"
#include "model/gpt.h"
#include "model/params.h"
#include "model/program_cache.h"
#include "model/rows.h"
#include "model/stored_weights.h"
#include "tensor/context.h"

namespace thimble {

// What slots remember: keys and values of every layer, [slots * context, K D] each, contiguous per slot.
class KvCache {
 public:
  KvCache(const ModelConfig& config, std::int64_t slots, DType dtype = DType::f32);

  std::int64_t slots() const { return slots_; }
  Tensor keys(std::int64_t layer) const { return matrix(2 * layer); }
  Tensor values(std::int64_t layer) const { return matrix(2 * layer + 1); }
  const std::byte* memory() const { return arena_.at(0); }  // which cache this is
  // The first `count` positions of one slot into another: a shared prefix.
  void copy_prefix(std::int64_t from, std::int64_t to, std::int64_t count);

 private:
  Tensor matrix(std::int64_t index) const;

  std::int64_t slots_, context_, width_, layers_;
  DType dtype_;
  Arena arena_;
};

struct GradientOptions {
  int qat_bits = 0;
  bool recompute = false;
  std::uint64_t dropout_seed = 0;
  const Program::AfterStep* after_step = nullptr;  // hears of every step of the program
};

// What forward and backward of `rows` rows take, beside weights and optimizer.
MemoryPlan training_plan(const ModelConfig& config, std::int64_t rows, const GradientOptions& options,
                         DType dtype = DType::f32);

class Model {
 public:
  // The config is resolved; weights start at 0. They are f32; `dtype` is what programs compute in and keep
  // activations in, f32 or bf16.
  Model(const ModelConfig& config, const Context& context, DType dtype = DType::f32);
  // For scoring and decoding on the CPU alone, with the weights as they are stored.
  Model(const ModelConfig& config, const Context& context, DType dtype,
        std::shared_ptr<const StoredWeights> weights);
  ~Model();
  Model(Model&&) noexcept;

  const ModelConfig& config() const { return config_; }
  const ParamTable& params() const { return params_; }
  DType dtype() const { return dtype_; }

  // nullptr: the weights are f32, and below.
  const StoredWeights* stored_weights() const { return stored_.get(); }

  // Laid out as params() says, in host memory. After writing there: weights_changed(). Where training changes them on a
  // device: device_weights_changed(), and fetch_weights() before they are read here.
  std::span<float> weights() { return float_weights(); }
  std::span<const float> weights() const { return float_weights(); }
  void weights_changed();
  void fetch_weights() { weights_.fetch(); }
  float* device_weights() const { return weights_.on_device(); }
  void device_weights_changed() { ++version_; }
  void set_profile(Profile* profile) { profile_ = profile; }  // nullptr: none; outlives its use here

  // Adds the gradient of the loss, sum over rows of weight * nats, to `gradients` (laid out like the
  // weights, in host memory); returns it.
  double add_gradients(const Rows& rows, std::span<float> gradients, const GradientOptions& options);

  // The same as a program, for steps that are queued on a device: `gradients` is the device's.
  BoundProgram& training_program(std::int64_t rows, const GradientOptions& options);
  void bind_gradients(BoundProgram& bound, float* gradients);

  struct Scores {
    std::vector<float> nats;    // [N]
    std::vector<float> logits;  // [N, V], only if asked for
  };
  Scores score(const Rows& rows, bool logits = false);

  // One step for rows of slots: appends to the cache, returns the logits of the rows that want them, [M, V].
  // Valid until the next call. Any thread may decode, one at a time: it has threads of its own.
  Tensor decode(const Rows& rows, KvCache& cache);

 private:
  std::span<float> float_weights() const;
  void fill_turns_table();
  BoundProgram& program_for(const ProgramKey& key, GptOptions options, bool recompute);
  void bind_parameters(BoundProgram& bound);
  void run(BoundProgram& bound);
  void add_gradients_of_device(BoundProgram& bound, std::span<float> gradients);
  Tensor on_device(float* data, std::int64_t rows, std::int64_t cols) const;

  ModelConfig config_;
  ParamTable params_;
  const Context* context_;
  DType dtype_;
  std::shared_ptr<const StoredWeights> stored_;
  FloatArena weights_, turns_;  // no weights where they are stored
  std::unique_ptr<ProgramCache<BoundProgram>> programs_;
  int threads_;                       // as many as when it was made, whoever decodes
  std::unique_ptr<ThreadPool> pool_;  // of decoding, made when it is first needed
  Profile* profile_ = nullptr;
  std::uint64_t version_ = 1;  // of the weights: programs prepare again when it moves
};

}  // namespace thimble
