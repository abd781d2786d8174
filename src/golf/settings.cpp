#include "golf/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "model/params.h"

namespace thimble {

namespace {

std::string random_uuid() {
  std::random_device device;
  const auto word = [&] { return static_cast<std::uint32_t>(device()); };
  const std::uint32_t a = word(), b = word(), c = word(), d = word();
  return fmt::format("{:08x}-{:04x}-4{:03x}-{:04x}-{:04x}{:08x}", a, b >> 16, b & 0xFFF, 0x8000 | (c >> 18),
                     c & 0xFFFF, d);
}

// What train_gpt_mlx.py does otherwise than train_gpt.py, put on another preset.
void take_differences(std::string_view of, std::string_view from, ConfigBuilder& settings) {
  ConfigBuilder base, other;
  base.preset(from);
  other.preset(of);
  for (const Key& key : all_keys())
    if (const KeyValue value = key.get(other.current()); value != key.get(base.current()))
      settings.derive(key.name, value);
}

ConfigBuilder preset_for(const GolfRequest& request) {
  ConfigBuilder settings;
  const bool mlx = request.script == GolfScript::mlx;
  settings.preset(request.plus ? "golf-plus" : mlx ? "golf-mlx" : "golf");
  if (request.plus && mlx) take_differences("golf-mlx", "golf", settings);
  return settings;
}

void put_model(const GolfEnvironment& environment, const GolfRequest& request, ConfigBuilder& settings) {
  const bool tied = settings.current().model.tie_embeddings;
  check(tied || request.script == GolfScript::torch, Hint{"--like torch has them"},
        "train_gpt_mlx.py only supports tied embeddings");
  if (!tied) {
    settings.derive("embed_init_std", 1.0);  // what nn.Embedding starts from
    settings.derive("embed_lr", environment.number("EMBED_LR"));
    settings.derive("head_lr", environment.number("HEAD_LR"));
  } else {
    if (environment.is_set("TIED_EMBED_INIT_STD"))
      settings.derive("embed_init_std", environment.number("TIED_EMBED_INIT_STD"));
    if (environment.is_set("TIED_EMBED_LR")) settings.derive("embed_lr", environment.number("TIED_EMBED_LR"));
  }
  // A width that follows another is settled when that is known.
  const std::int64_t times =
      environment.is_set("MLP_MULT") || !request.plus ? environment.integer("MLP_MULT") : 3;
  constexpr std::int64_t kMostTimes = 1024;
  check(times > 0 && times <= kMostTimes, "MLP_MULT is {}, expected 1 to {}", times, kMostTimes);
  settings.derive("mlp_hidden", times * settings.current().model.dim);
}

void check_heads(const ModelConfig& model) {
  check(model.heads > 0 && model.dim % model.heads == 0, Hint{"MODEL_DIM and NUM_HEADS say so"},
        "model_dim must be divisible by num_heads: {} / {}", model.dim, model.heads);
  check(model.kv_heads > 0 && model.heads % model.kv_heads == 0, Hint{"NUM_HEADS and NUM_KV_HEADS say so"},
        "num_heads must be divisible by num_kv_heads: {} / {}", model.heads, model.kv_heads);
  check(model.dim / model.heads % 2 == 0, Hint{"MODEL_DIM / NUM_HEADS is the size of a head"},
        "head_dim must be even for RoPE: {}", model.dim / model.heads);
}

// Whole rows in each of the micro-steps; the MLX script leaves out what is over.
void settle_batch(const GolfSettings& golf, Config& config) {
  const std::int64_t T = config.model.context, micro = golf.microbatch_tokens();
  check(micro >= T, Hint{"raise TRAIN_BATCH_TOKENS, or lower GRAD_ACCUM_STEPS or TRAIN_SEQ_LEN"},
        "token budget too small for seq_len={}: TRAIN_BATCH_TOKENS={} in {} micro-steps is {} tokens each", T,
        golf.train_batch_tokens, golf.grad_accum_steps, micro);
  check(golf.script == GolfScript::mlx || micro % T == 0, Hint{"make it a multiple of 8 * TRAIN_SEQ_LEN"},
        "TRAIN_BATCH_TOKENS={} in {} micro-steps is {} tokens each, which is not whole rows of "
        "TRAIN_SEQ_LEN={}",
        golf.train_batch_tokens, golf.grad_accum_steps, micro, T);
  const std::int64_t usable = micro / T * T;
  config.train.batch_size = 0;
  config.train.batch_tokens = usable * golf.grad_accum_steps;
  config.train.span_tokens = usable;
}

void settle_validation(const GolfEnvironment& environment, std::int64_t T, GolfSettings& golf) {
  golf.val_batch_size = environment.integer("VAL_BATCH_SIZE");
  golf.val_batch_tokens = golf.val_batch_size / golf.grad_accum_steps / T * T;
  check(golf.val_batch_tokens > 0,
        "VAL_BATCH_SIZE must provide at least one sequence; got VAL_BATCH_SIZE={}, GRAD_ACCUM_STEPS={}, "
        "TRAIN_SEQ_LEN={}",
        golf.val_batch_size, golf.grad_accum_steps, T);
}

bool holds_any(std::string_view name, std::span<const std::string> patterns) {
  return std::ranges::any_of(patterns, [&](const std::string& part) { return name.find(part) != name.npos; });
}

// Which tensors Muon trains follows from the model here: patterns that mean others cannot be honoured.
void check_patterns(const ModelConfig& model, std::span<const std::string> patterns) {
  const ParamTable table(model);
  for (const Param& param : table.all()) {
    if (!param.name.starts_with("blocks.") || param.dims.size() != 2) continue;
    const bool control = holds_any(param.name, patterns);
    check(control == (param.group != ParamGroup::matrix), Hint{"leave CONTROL_TENSOR_NAME_PATTERNS as it is"},
          "CONTROL_TENSOR_NAME_PATTERNS would have {} trained by {}, which is not possible here", param.name,
          control ? "Adam" : "Muon");
  }
}

void check_world(const GolfEnvironment& environment) {
  if (environment.script() != GolfScript::torch) return;
  const std::int64_t ranks = environment.integer("WORLD_SIZE");
  check(ranks == 1, Hint{"start one: thimble golf without torchrun"},
        "WORLD_SIZE is {}: thimble golf is one process, which reads the same data as 8 would", ranks);
}

void take_outputs(const GolfEnvironment& environment, GolfSettings& golf) {
  golf.data_text = environment.text("DATA_PATH");
  golf.tokenizer_text = environment.text("TOKENIZER_PATH");
  golf.data = golf.data_text;
  golf.tokenizer = golf.tokenizer_text;
  golf.out = environment.text("OUT_DIR");
  golf.run_id = environment.is_set("RUN_ID") ? environment.text("RUN_ID") : random_uuid();
  check(!golf.run_id.empty() && golf.run_id != "." && golf.run_id != ".." &&
            golf.run_id.find('/') == std::string::npos,
        Hint{"it names a file below OUT_DIR"}, "RUN_ID is '{}', expected a file name", golf.run_id);
}

}  // namespace

std::filesystem::path GolfSettings::raw_model() const {
  return script == GolfScript::mlx ? out / (run_id + "_mlx_model.npz") : "final_model.pt";
}

std::filesystem::path GolfSettings::int8_model() const {
  return script == GolfScript::mlx ? out / (run_id + "_mlx_model.int8.ptz") : "final_model.int8.ptz";
}

GolfSettings golf_settings(const GolfRequest& request) {
  const GolfEnvironment environment(request.script, request.environment);
  check_world(environment);
  GolfSettings golf;
  golf.script = request.script;
  golf.plus = request.plus;
  take_outputs(environment, golf);

  ConfigBuilder settings = preset_for(request);
  environment.apply(settings);
  if (request.script == GolfScript::mlx && environment.is_set("TRAIN_MAX_SEQ_LEN") &&
      !environment.is_set("TRAIN_SEQ_LEN"))
    settings.derive("context", environment.integer("TRAIN_MAX_SEQ_LEN"));
  golf.max_wallclock_seconds = environment.number("MAX_WALLCLOCK_SECONDS");
  check(std::isfinite(golf.max_wallclock_seconds), Hint{"0: no cap"},
        "MAX_WALLCLOCK_SECONDS is '{}', expected a number of seconds",
        environment.text("MAX_WALLCLOCK_SECONDS"));
  settings.derive("max_seconds", std::max(golf.max_wallclock_seconds, 0.0));
  if (request.flags) request.flags(settings);
  if (settings.given("max_seconds")) golf.max_wallclock_seconds = settings.current().train.max_seconds;

  put_model(environment, request, settings);
  check_heads(settings.current().model);
  check(settings.current().train.steps > 0, "ITERATIONS is 0, expected 1 or more");
  if (request.script == GolfScript::mlx) {
    golf.grad_accum_steps = environment.integer("GRAD_ACCUM_STEPS");
    golf.sub_batch_tokens = environment.integer("MLX_MAX_MICROBATCH_TOKENS");
  }
  check(golf.grad_accum_steps > 0, "GRAD_ACCUM_STEPS is {}, expected 1 or more", golf.grad_accum_steps);
  Config wanted = settings.current();
  golf.train_batch_tokens = wanted.train.batch_size > 0 ? wanted.train.batch_size * wanted.model.context
                                                        : wanted.train.batch_tokens;
  golf.train_log_every = environment.integer("TRAIN_LOG_EVERY");
  settle_batch(golf, wanted);
  settle_validation(environment, wanted.model.context, golf);
  golf.config = resolved(wanted);

  const std::vector<std::string> control = environment.list("CONTROL_TENSOR_NAME_PATTERNS");
  check_patterns(golf.config.model, control);
  golf.keep_f32 = environment.is_set("INT8_KEEP_FLOAT_FP32_NAME_PATTERNS")
                      ? environment.list("INT8_KEEP_FLOAT_FP32_NAME_PATTERNS")
                      : control;
  golf.environment = environment.known();
  golf.notes = environment.without_effect();
  golf.warnings = environment.suspects();
  return golf;
}

}  // namespace thimble
