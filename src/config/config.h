// All settings: of the model (ModelConfig), the optimizer (OptimizerConfig), the run (TrainConfig)
// its adapters (LoraConfig) and the packing of its result (PackConfig).
//
// Each member is a key of TOML files, of --set and, with dashes, a flag; the table in keys.cpp
// gives the meaning of each key. Keys of PackConfig and LoraConfig have the prefixes `pack_` and
// `lora_`. A size of zero means "derived": resolved() replaces it. The default values describe a
// plain llama.
//
//   ConfigBuilder settings;                      // builder.h
//   settings.preset("golf");
//   settings.set("layers=11");
//   const Config config = settings.resolve();    // derived and validated
#pragma once

#include <cstdint>
#include <string>

namespace thimble {

enum class MlpKind { relu, relu2, leaky_relu2, gelu, swiglu, geglu };  // activation
enum class NormKind { rms, rms_weight, layer };  // layer: LayerNorm; has biases if `bias` is set
enum class PositionKind { rope, learned, none };
enum class RopeScaling { none, linear, llama3, longrope, yarn };
enum class GainKind { none, shared, head };
enum class MixKind { none, scalar, channel };
enum class InitKind { golf, orthogonal, normal };

struct ModelConfig {
  std::int64_t vocab_size = 1024;
  std::int64_t context = 512;
  std::int64_t layers = 4;
  std::int64_t dim = 256;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 0;    // 0: heads
  std::int64_t head_dim = 0;    // 0: dim / heads
  std::int64_t mlp_hidden = 0;  // 0: 2 dim (relu2), 4 dim (relu, gelu), 8/3 dim rounded up to 64 (swiglu)
  MlpKind mlp = MlpKind::swiglu;

  NormKind norm = NormKind::rms_weight;
  double norm_eps = 1e-5;
  bool post_norm = false;  // norms on the outputs of attention and MLP
  bool embed_norm = false;
  bool embed_scale = false;
  bool final_norm = true;
  bool layer_scale = false;

  PositionKind position = PositionKind::rope;
  double rope_base = 10000;
  std::int64_t rope_dims = 0;  // 0: head_dim
  std::int64_t rope_direction = 1;
  RopeScaling rope_scaling = RopeScaling::none;
  double rope_factor = 1;
  double rope_low_factor = 1;  // of llama3
  double rope_high_factor = 4;
  std::int64_t rope_original_context = 8192;
  double rope_beta_fast = 32, rope_beta_slow = 1;  // of yarn
  double rope_attention_factor = 0;                // of longrope and yarn; 0: by their formula
  // Of longrope: divisors of the frequencies, separated by commas, for contexts up to
  // rope_original_context and for longer ones.
  std::string rope_short_factors = {}, rope_long_factors = {};
  double local_rope_base = 0;   // of layers with a window, without scaling; 0: as in the other layers
  std::int64_t nope_every = 0;  // layers nope_every - 1, 2 nope_every - 1, ... have no RoPE; 0: none

  // Layers from window_from on attend to the last `window` tokens, except layers global_every - 1,
  // 2 global_every - 1, ...
  std::int64_t window = 0;  // 0: no window
  std::int64_t window_from = 0;
  std::int64_t global_every = 0;  // 0: no exceptions
  double attention_softcap = 0;
  double query_scalar = 0;  // attention scores are divided by its square root; 0: head_dim

  bool qk_norm = false;  // has weights if norm = rms_weight
  GainKind q_gain = GainKind::none;
  double q_gain_init = 1.5;
  bool qkv_bias = false;
  bool bias = false;
  bool exclusive_attention = false;
  bool branch_scale = false;
  MixKind residual_mix = MixKind::none;
  bool unet_skips = false;
  bool skip_gates = false;
  std::int64_t parallel_from = -1;  // -1: no layer
  std::int64_t loop_first = 0;      // layers of the loop, which is repeated loop_count times
  std::int64_t loop_last = 0;
  std::int64_t loop_count = 0;  // 0: no loop
  std::int64_t bigram_buckets = 0;
  std::int64_t bigram_dim = 0;
  bool smear_gate = false;
  bool tie_embeddings = true;
  double logit_softcap = 0;
  double dropout = 0;
  bool isolate = true;  // no attention between documents in a row, in training and evaluation

  InitKind init = InitKind::normal;
  double init_std = 0.02;
  double embed_init_std = 0.02;

  bool gated_mlp() const { return mlp == MlpKind::swiglu || mlp == MlpKind::geglu; }
  bool has_rope(std::int64_t layer) const {
    return position == PositionKind::rope && (nope_every == 0 || (layer + 1) % nope_every != 0);
  }
  // A window that is at least as long as the context hides nothing.
  bool is_local(std::int64_t layer) const {
    return window > 0 && window < context && layer >= window_from &&
           (global_every == 0 || (layer + 1) % global_every != 0);
  }
  std::int64_t q_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  // Number of blocks that a token passes through, with the layer loop and while it is off.
  std::int64_t unrolled() const { return layers + loop_count * (loop_last - loop_first + 1); }
  std::int64_t passes(bool loop_on) const { return loop_on ? unrolled() : layers; }
  // U-Net: of P passes, pass P/2 + i adds skip i, the output of pass P/2 - 1 - i.
  std::int64_t skips() const { return unet_skips ? unrolled() / 2 : 0; }
  bool operator==(const ModelConfig&) const = default;
};

// Groups of parameters with their own learning rates, as in parameter-golf.
enum class ParamGroup { embedding, head, matrix, scalar };
inline constexpr int kParamGroups = 4;

enum class MuonDType { bf16, f32 };
// jordan: the same in every iteration; polar: Polar Express, one set per iteration; none: no
// iterations, the update is the normalized momentum.
enum class MuonCoefficients { jordan, polar, none };

// Value of a group's own rate: its parameters are not trained. 0 is taken: it means lr.
inline constexpr double kFrozen = -1;

// Learning rates, and the settings of each update rule (optim/update_rule.h).
struct OptimizerConfig {
  double lr = 1e-3;     // for groups whose own rate is 0
  double embed_lr = 0;  // 0: lr; kFrozen: 0. The same for the other groups
  double head_lr = 0;
  double matrix_lr = 0;
  double scalar_lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double adam_eps = 1e-8;
  double weight_decay = 0;       // of parameters trained by Adam
  double muon_weight_decay = 0;  // of matrices trained by Muon
  double muon_momentum = 0.95;
  double muon_momentum_start = 0.85;
  std::int64_t muon_momentum_steps = 500;
  std::int64_t muon_steps = 0;  // Newton-Schulz iterations; 0: Adam trains the matrices
  MuonDType muon_dtype = MuonDType::bf16;
  MuonCoefficients muon_coefficients = MuonCoefficients::jordan;
  bool muon_row_norm = false;
  double clip = 0;  // 0: off

  double rate(ParamGroup group) const;  // the rate of the group, or lr; 0 if frozen
  bool uses_muon() const { return muon_steps > 0; }
  bool operator==(const OptimizerConfig&) const = default;
};

enum class ScheduleKind { linear, cosine, wsd, golf };
enum class ComputeDType { automatic, f32, bf16, f16 };
enum class LossOn { assistant, all };

struct TrainConfig {
  ScheduleKind schedule = ScheduleKind::cosine;
  std::int64_t warmup_steps = 0;
  std::int64_t prime_steps = 0;
  double warmdown = 0;            // steps; below 1: fraction of the run
  double min_lr = 0;              // fraction of the peak rate
  std::int64_t steps = 1000;      // 0: until max_seconds; both 0: no step (thimble golf only)
  double epochs = 0;              // of the training data; training replaces it by steps
  double max_seconds = 0;         // 0: no limit
  std::int64_t batch_tokens = 0;  // 0: batch_size * context, or 16 rows
  std::int64_t batch_size = 0;    // rows; resolved() converts it to batch_tokens
  std::int64_t span_tokens = 0;   // 0: batch_tokens / 8 if that is a number of rows, else batch_tokens
  std::int64_t micro_batch = 0;   // rows computed at a time; 0: as many as fit
  ComputeDType dtype = ComputeDType::automatic;
  std::int64_t seed = 1337;
  bool checkpoint_activations = false;  // recompute blocks in backward; same bits

  double swa_start = 0;  // average while the rate is below this fraction of its peak; 0: off
  std::int64_t swa_every = 50;
  double ema_decay = 0;  // 0: off
  std::int64_t qat_bits = 0;
  double qat_start = 0;   // step; below 1: fraction of the run
  double loop_start = 0;  // step; below 1: fraction of the run
  std::int64_t patience = 0;
  double min_delta = 0;
  std::int64_t min_steps = 0;
  double target_val_loss = 0;  // nats; 0: off
  bool stop_on_divergence = true;
  std::int64_t val_every = 250;
  std::int64_t val_tokens = 0;
  std::int64_t checkpoint_every = 0;
  std::int64_t keep = 2;
  LossOn loss_on = LossOn::assistant;

  bool makes_no_step() const { return steps == 0 && epochs == 0 && max_seconds == 0; }
  bool operator==(const TrainConfig&) const = default;
};

// Defaults for `thimble pack` on models of this run. 0: the default of `pack`.
struct PackConfig {
  std::int64_t bits = 0;
  double prune = 0;
  bool gptq = false;
  bool range = false;
  double clip_std = 0;
  std::int64_t embed_bits = 0;
  double embed_clip_std = 0;
  std::int64_t stride = 0;

  bool operator==(const PackConfig&) const = default;
};

// State that training changes. Checkpoints store it with the config, but it is not a setting.
struct RunState {
  bool loop_on = true;  // false: training has not reached loop_start yet

  bool operator==(const RunState&) const = default;
};

// The linear layers of a block that may have an adapter; `up` is the only input matrix of an MLP
// without a gate. A set of them has bit i for the enumerator with value i.
enum class LoraTarget { q, k, v, o, gate, up, down };
struct LoraTargets {
  std::uint32_t bits = 0x7F;
  bool contains(LoraTarget target) const { return (bits >> static_cast<unsigned>(target) & 1u) != 0; }
  bool operator==(const LoraTargets&) const = default;
};

// Low-rank adapters: training changes only these (model/adapter.h).
struct LoraConfig {
  std::int64_t rank = 0;  // 0: no adapters, all weights are trained
  double alpha = 0;       // 0: 2 rank
  double dropout = 0;
  bool stabilized = false;
  LoraTargets targets = {};

  explicit operator bool() const { return rank > 0; }
  double scale() const;  // alpha / rank; if stabilized alpha / sqrt(rank)
  bool operator==(const LoraConfig&) const = default;
};

struct Config {
  ModelConfig model = {};
  OptimizerConfig optimizer = {};
  TrainConfig train = {};
  PackConfig pack = {};
  LoraConfig lora = {};
  RunState state = {};

  bool operator==(const Config&) const = default;
};

// Replaces zeros that mean "derived", then validates. Idempotent.
ModelConfig resolved(ModelConfig config);
Config resolved(Config config);

// Checks the range of every key and the constraints between keys of a resolved config, which may
// come from a hostile file. Afterwards products of sizes fit 64 bits and the parameter count is
// bounded.
void validate(const ModelConfig& config);
void validate(const Config& config);
// Throws Error if nothing limits the run. Not part of validate(): a golf run may make no step.
void check_has_end(const TrainConfig& config);

// micro_batch, or the number of rows with about 8192 tokens; at most the batch.
std::int64_t micro_batch_rows(const Config& config);

inline constexpr std::int64_t kMaxParameters = std::int64_t{1} << 34;

}  // namespace thimble
