// A model in memory: its config, its weights, and the programs that train, score and decode it.
// Also chooses the dtype a model computes in.
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

// automatic: bf16 if the hardware multiplies it (AVX-512 BF16, AMX, CUDA), else f32, which is
// faster there. bf16 works on every device. f16 is supported on CUDA only; on the CPU it throws
// Error.
DType compute_dtype(ComputeDType requested, Device device);

// Why automatic chose f32 instead of bf16. Empty if it did not, or if a dtype was requested.
std::string dtype_fallback(ComputeDType requested, Device device, const CpuFeatures& features);

// A message if the requested dtype is slower here than another one. Empty otherwise.
std::string dtype_notice(ComputeDType requested, Device device, const CpuFeatures& features);

struct GradientOptions {
  int qat_bits = 0;
  bool recompute = false;
  std::uint64_t dropout_seed = 0;
  const Program::AfterStep* after_step = nullptr;  // called after every step of the program; may be null
};

// Stored weights that stay as they are, and the adapters that are trained; or neither.
struct FrozenBase {
  const StoredWeights* weights = nullptr;
  const AdapterTable* adapters = nullptr;
};

// The memory for forward and backward of `rows` rows, without weights and optimizer. A GPU plan
// requires the CUDA plugin.
MemoryPlan training_plan(const ModelConfig& config, std::int64_t rows, const GradientOptions& options,
                         DType dtype = DType::f32, Device device = Device::cpu, bool loop_on = true,
                         const FrozenBase& base = {});

// The memory for the largest call of decode() on the CPU for one sequence, without weights and KV
// cache.
MemoryPlan decoding_plan(const ModelConfig& config);

// The rows that are scored at a time on the CPU beside training programs of so many rows. Fewer
// than 1024 would be slow, and more than 8192 bring nothing.
std::int64_t score_rows_beside(std::int64_t training_rows);

class Model {
 public:
  // `config` must be resolved; `context` must outlive the model. Weights are f32 and start at 0.
  // `dtype` is the dtype of computations and activations: f32 or bf16, on a GPU also f16.
  Model(const ModelConfig& config, const Context& context, DType dtype = DType::f32);
  // With stored weights. On a GPU they must come from stored_for_gpu(); they are copied to the GPU
  // once. With adapters, which start at 0, these can be trained; without them, the model can only
  // score and decode.
  Model(const ModelConfig& config, const Context& context, DType dtype,
        std::shared_ptr<const StoredWeights> weights, std::shared_ptr<const AdapterTable> adapters = nullptr);
  ~Model();
  Model(Model&&) noexcept;

  const ModelConfig& config() const { return config_; }
  const ParamTable& params() const { return params_; }
  // The table of weights(): of the adapters if there are any, else params().
  const ParamTable& trained_params() const { return adapters_ ? adapters_->params() : params_; }
  const AdapterTable* adapters() const { return adapters_.get(); }
  DType dtype() const { return dtype_; }
  Device device() const { return context_->device(); }
  const std::shared_ptr<DeviceRuntime>& runtime() const { return context_->runtime(); }

  // nullptr: all weights are f32, in weights().
  const StoredWeights* stored_weights() const { return stored_.get(); }

  // The f32 weights in host memory, in the layout of trained_params(). Call weights_changed() after
  // writing them. If training changes them on a device, call device_weights_changed() after each
  // change and fetch_weights() before reading them here.
  std::span<float> weights() { return float_weights(); }
  std::span<const float> weights() const { return float_weights(); }
  void weights_changed();
  void fetch_weights() { weights_.fetch(); }
  float* device_weights() const { return weights_.on_device(); }
  void device_weights_changed() { ++version_; }
  // Turns the layer loop on or off. A KV cache can be used only with the setting it was made for.
  void set_loop(bool on) { loop_on_ = on; }
  bool loop_on() const { return loop_on_; }
  void set_profile(Profile* profile) { profile_ = profile; }  // nullptr: off; must outlive its use

  // Computes the loss, the sum over rows of weight * nats, and adds its gradient to `gradients`
  // (host memory, laid out like the weights). Returns the loss.
  double add_gradients(const Rows& rows, std::span<float> gradients, const GradientOptions& options);

  // The same as a program, for steps that are queued on a device; `gradients` is device memory.
  BoundProgram& training_program(std::int64_t rows, const GradientOptions& options);
  void bind_gradients(BoundProgram& bound, float* gradients);
  // Frees all training programs except those for these options and numbers of rows, and on the CPU
  // also the other programs, which may use memory of those.
  void keep_training_programs(std::span<const std::int64_t> rows, const GradientOptions& options);

  struct Scores {
    std::vector<float> nats;    // [N]
    std::vector<float> logits;  // [N, V], only if requested
  };
  Scores score(const Rows& rows, bool logits = false);
  // score() in two parts, so that a GPU computes while the host prepares the next rows. Queuing
  // another score discards one that was not fetched.
  void queue_score(const Rows& rows);
  std::vector<float> queued_nats();  // waits for the queued score

  // Scores rows and calls `observer` for every matrix product with the rows [N, C] that the matrix
  // is multiplied with. They are in device memory and valid during the call. A matrix that is used
  // twice causes two calls.
  using ProductObserver = std::function<void(const ParamView& weight, const Tensor& x)>;
  void observe_products(const Rows& rows, const ProductObserver& observer);

  // A cache on this model's device, in its compute dtype.
  KvCache make_cache(std::int64_t slots) const;

  // One decoding step: appends the rows to the cache and returns the logits of the rows in
  // rows.gather, [M, V], in host memory, valid until the next call. May be called from any thread,
  // but only from one at a time; it uses its own thread pool.
  //
  // On the CPU the other rows of a call do not change the bits of a row's logits. On a GPU this is
  // guaranteed in bf16 for calls of up to 64 rows if all input widths of linears (dim, heads x head
  // size, mlp_hidden) are multiples of 8. Other products use cuBLASLt, whose order of sums depends
  // on the number of rows, so logits may differ by rounding. The same sequence of calls gives the
  // same bits on both.
  Tensor decode(const Rows& rows, KvCache& cache);

  // The largest useful number of rows per call: more rows do not increase the throughput. For a
  // model that is trained on the CPU, about as many as its training programs have, so that scoring
  // needs no further memory.
  std::int64_t max_decode_rows() const;
  // Of one slot in a call: decode() refuses more. Only a cache with rings (kv_cache.h) has a limit.
  std::int64_t max_slot_rows() const;
  std::int64_t max_score_rows();

  // Number of cached programs, each with its own memory. On a GPU at most kMostRecorded decoding
  // programs are kept, each for a different number of rows.
  std::size_t programs() const { return programs_->size(); }
  static constexpr std::size_t kMostRecorded = 32;

 private:
  std::span<float> float_weights() const;
  void fill_turns_table();
  BoundProgram& program_for(ProgramKey key);
  const BoundProgram* largest_training_program() const;
  void bind_parameters(BoundProgram& bound);
  void bind_cache(BoundProgram& bound, const KvCache& cache);
  void check_slot_rows(const Rows& rows) const;
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
  std::shared_ptr<const AdapterTable> adapters_;
  Arena stored_block_;          // GPU copy of the stored weights
  FloatArena weights_, turns_;  // weights_: by trained_params(), empty if all weights are stored;
                                // turns_: the RoPE table
  std::unique_ptr<ProgramCache<BoundProgram>> programs_;
  struct Recorded {
    std::unique_ptr<RecordedDecode> decode;
    std::uint64_t used = 0;  // value of decoded_ at its last use
  };
  std::map<const BoundProgram*, Recorded> recorded_;  // GPU only
  std::uint64_t decoded_ = 0;                         // decoding steps so far
  int threads_;                                       // of the decoding pool; fixed when the model is created
  std::unique_ptr<ThreadPool> pool_;                  // for decoding, created on first use
  BoundProgram* queued_ = nullptr;                    // the queued score
  std::int64_t max_score_rows_ = 0;                   // computed once, because less memory is available later
  Profile* profile_ = nullptr;
  std::uint64_t version_ = 1;  // of the weights; programs prepare again when it changes
};

}  // namespace thimble
