// What a model computes in: `auto` becomes a dtype, and what a device has no products of is refused.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/machine.h"
#include "base/parallel.h"
#include "config/config.h"
#include "model/gpt.h"
#include "model/gpt_program.h"
#include "model/kv_cache.h"
#include "model/params.h"
#include "model/rows.h"
#include "model/stored_weights.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace thimble {

// automatic: bf16 where the device multiplies it (AVX-512 BF16, AMX, CUDA), else f32, which is faster there. bf16 works on
// every device. f16 is computed in on CUDA only, by request; elsewhere it is for storage.
DType compute_dtype(ComputeDType wanted, Device device);

// Why `auto` is not bf16 here. Empty: it is, or something else was asked for.
std::string dtype_fallback(ComputeDType wanted, Device device, const CpuFeatures& features);

// What to tell whoever asked for a dtype that is slower here than another. Empty: nothing.
std::string dtype_notice(ComputeDType wanted, Device device, const CpuFeatures& features);

// A model in memory: its config, its weights, and the programs that train, score and decode it.

struct GradientOptions {
  int qat_bits = 0;
  bool recompute = false;
  std::uint64_t dropout_seed = 0;
  const Program::AfterStep* after_step = nullptr;  // hears of every step of the program
};

// What forward and backward of `rows` rows take, beside weights and optimizer. A GPU's plan needs its plugin.
MemoryPlan training_plan(const ModelConfig& config, std::int64_t rows, const GradientOptions& options,
                         DType dtype = DType::f32, Device device = Device::cpu, bool loop_on = true);

class Model {
 public:
  // The config is resolved; weights start at 0. They are f32; `dtype` is what programs compute in and keep
  // activations in, f32 or bf16; on a GPU f16, too.
  Model(const ModelConfig& config, const Context& context, DType dtype = DType::f32);
  // For scoring and decoding, with the weights as they are stored; on a GPU they must be stored_for_gpu(), and lie
  // there in one copy.
  Model(const ModelConfig& config, const Context& context, DType dtype,
        std::shared_ptr<const StoredWeights> weights);
  ~Model();
  Model(Model&&) noexcept;

  const ModelConfig& config() const { return config_; }
  const ParamTable& params() const { return params_; }
  DType dtype() const { return dtype_; }
  Device device() const { return context_->device(); }
  const std::shared_ptr<DeviceRuntime>& runtime() const { return context_->runtime(); }

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
  // Training comes to the loop at a step of its own. A cache is of the kind it was made for.
  void set_loop(bool on) { loop_on_ = on; }
  bool loop_on() const { return loop_on_; }
  void set_profile(Profile* profile) { profile_ = profile; }  // nullptr: none; outlives its use here

  // Adds the gradient of the loss, sum over rows of weight * nats, to `gradients` (laid out like the
  // weights, in host memory); returns it.
  double add_gradients(const Rows& rows, std::span<float> gradients, const GradientOptions& options);

  // The same as a program, for steps that are queued on a device: `gradients` is the device's.
  BoundProgram& training_program(std::int64_t rows, const GradientOptions& options);
  void bind_gradients(BoundProgram& bound, float* gradients);
  // All other programs of training go, and their memory.
  void keep_training_programs(std::span<const std::int64_t> rows, const GradientOptions& options);

  struct Scores {
    std::vector<float> nats;    // [N]
    std::vector<float> logits;  // [N, V], only if asked for
  };
  Scores score(const Rows& rows, bool logits = false);
  // The same in two parts, so that a GPU computes while the next rows are made. One that nobody asks for is
  // dropped by the next.
  void queue_score(const Rows& rows);
  std::vector<float> queued_nats();  // waits for them

  // Scores rows, and shows what every matrix is multiplied with: rows [N, C] in the memory of this model's device, valid
  // during the call. A matrix that is used twice is seen twice.
  using SeeProduct = std::function<void(const ParamView& weight, const Tensor& x)>;
  void watch_products(const Rows& rows, const SeeProduct& see);

  // A cache where this model decodes, in what it computes in.
  KvCache make_cache(std::int64_t slots) const;

  // One step for rows of slots: appends to the cache, returns the logits of the rows that want them, [M, V], in host
  // memory. Valid until the next call. Any thread may decode, one at a time: it has threads of its own.
  //
  // On the CPU a row has the same bits whatever rows share the call. On a GPU that holds in bf16 for calls of up to 64
  // rows, where all widths that a linear reads (dim, heads x head size, ffn) are multiples of 8. Others are multiplied
  // by cuBLASLt, whose order of sums depends on their number, so that logits of the same token differ by rounding. The
  // same calls give the same bits on both.
  Tensor decode(const Rows& rows, KvCache& cache);

  // As many rows as suit one call: more use the device no better.
  std::int64_t decoded_at_once() const;
  std::int64_t scored_at_once();

  // Programs that are kept, each with its memory. On a GPU so many of decoding, each for a number of rows.
  std::size_t programs() const { return programs_->size(); }
  static constexpr std::size_t kMostRecorded = 32;

 private:
  std::span<float> float_weights() const;
  void fill_turns_table();
  BoundProgram& program_for(ProgramKey key);
  void bind_parameters(BoundProgram& bound);
  void bind_cache(BoundProgram& bound, const KvCache& cache);
  void prepare(BoundProgram& bound);
  void run(BoundProgram& bound);
  BoundProgram& scoring_program(std::int64_t rows, bool logits);
  BoundProgram& decoding_program(std::int64_t rows, std::int64_t gathered, const KvCache& cache);
  MemoryPlan scoring_plan(std::int64_t rows) const;
  Tensor decode_on_gpu(const Rows& rows, KvCache& cache);
  Tensor decode_on_cpu(const Rows& rows, KvCache& cache);
  void drop_recorded();
  Tensor stored_on_device(Tensor tensor) const;
  void add_gradients_of_device(BoundProgram& bound, std::span<float> gradients);
  Tensor on_device(float* data, std::int64_t rows, std::int64_t cols) const;

  ModelConfig config_;
  bool loop_on_ = true;
  ParamTable params_;
  const Context* context_;
  DType dtype_;
  std::shared_ptr<const StoredWeights> stored_;
  Arena stored_block_;          // their image on a GPU
  FloatArena weights_, turns_;  // no weights where they are stored
  std::unique_ptr<ProgramCache<BoundProgram>> programs_;
  struct Recorded {
    std::unique_ptr<RecordedDecode> decode;
    std::uint64_t used = 0;  // the last of all steps that took it
  };
  std::map<const BoundProgram*, Recorded> recorded_;  // on a GPU
  std::uint64_t decoded_ = 0;
  int threads_;                       // as many as when it was made, whoever decodes
  std::unique_ptr<ThreadPool> pool_;  // of decoding, made when it is first needed
  BoundProgram* queued_ = nullptr;    // a score on its way
  std::int64_t scored_at_once_ = 0;   // settled when it is first asked for: later there is less memory
  Profile* profile_ = nullptr;
  std::uint64_t version_ = 1;  // of the weights: programs prepare again when it moves
};

}  // namespace thimble
