#include "golf/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "base/table.h"
#include "base/text.h"
#include "model/params.h"

namespace thimble {

namespace {

using enum VariableType;

constexpr std::string_view kControlPatterns =
    "attn_scale,attn_scales,mlp_scale,mlp_scales,resid_mix,resid_mixes,q_gain,skip_weight,skip_weights";

constexpr GolfVariable kVariables[] = {
    {"DATA_PATH", text, "", "./data/datasets/fineweb10B_sp1024", "./data/datasets/fineweb10B_sp1024",
     "folder of fineweb_train_*.bin and fineweb_val_*.bin"},
    {"TOKENIZER_PATH", text, "", "./data/tokenizers/fineweb_1024_bpe.model",
     "./data/tokenizers/fineweb_1024_bpe.model", "SentencePiece .model file"},
    {"RUN_ID", text, "", "", "", "names the log and the outputs (default: a random UUID)"},
    {"OUT_DIR", text, "", "logs", "logs",
     "folder of the log and the outputs (torch: the model's files stay in the current folder if unset)"},
    {"SEED", integer, "seed", "1337", "1337", "seed of all random numbers"},

    {"ITERATIONS", integer, "steps", "20000", "20000", "optimizer steps; 0: only validation and the files"},
    {"MAX_WALLCLOCK_SECONDS", number, "", "600.0", "600.0",
     "max_seconds: time in steps; 0 or less: no limit"},
    {"WARMUP_STEPS", length, "prime_steps", "20", "20", "warm-up steps without update before the first step"},
    {"WARMDOWN_ITERS", length, "warmdown", "1200", "1200",
     "number of last steps in which the learning rates fall to 0; 0 or less: none"},
    {"VAL_LOSS_EVERY", length, "val_every", "0", "1000",
     "steps between validations; 0 or less: only at the end"},
    {"VAL_BATCH_SIZE", integer, "", "524288", "524288",
     "tokens per validation batch, as counted by val_progress"},
    {"VAL_TOKENS", integer, "val_tokens", "0", "0",
     "thimble only: validate on this many tokens; 0: the complete split"},
    {"TRAIN_LOG_EVERY", integer, "", "200", "200", "steps between train lines; 0: none"},
    {"TRAIN_BATCH_TOKENS", integer, "batch_tokens", "524288", "524288", "tokens per optimizer step"},
    {"GRAD_ACCUM_STEPS", integer, "", "8", kUnknown,
     "span_tokens = TRAIN_BATCH_TOKENS / GRAD_ACCUM_STEPS (torch: always 8)"},
    {"TRAIN_SEQ_LEN", integer, "context", "1024", "1024", "tokens per row"},
    {"TRAIN_MAX_SEQ_LEN", integer, "", "1024", kUnknown, "used if TRAIN_SEQ_LEN is not set"},
    {"MLX_MAX_MICROBATCH_TOKENS", integer, "", "8192", kUnknown, "tokens read at a time"},

    {"VOCAB_SIZE", integer, "vocab_size", "1024", "1024",
     "rows of the embedding: must be the tokenizer's size"},
    {"NUM_LAYERS", integer, "layers", "9", "9", "blocks"},
    {"MODEL_DIM", integer, "dim", "512", "512", "width of the residual stream"},
    {"NUM_HEADS", integer, "heads", "8", "8", "query heads"},
    {"NUM_KV_HEADS", integer, "kv_heads", "4", "4", "key and value heads"},
    {"MLP_MULT", integer, "", "2", "2", "mlp_hidden = MLP_MULT * MODEL_DIM (default with --plus: 3)"},
    {"TIE_EMBEDDINGS", flag, "tie_embeddings", "1", "1",
     "the head shares the embedding's weights (mlx: always)"},
    {"TIED_EMBED_INIT_STD", number, "", "0.005", "0.005", "embed_init_std with tied embeddings"},
    {"LOGIT_SOFTCAP", number, "logit_softcap", "30.0", "30.0",
     "logits become cap tanh(logit / cap); must be positive"},
    {"ROPE_BASE", number, "rope_base", "10000.0", "10000.0", "base of the RoPE wavelengths"},
    {"QK_GAIN_INIT", number, "q_gain_init", "1.5", "1.5", "initial gain of q"},

    {"BETA1", number, "beta1", "0.9", "0.9", "Adam's decay of the mean"},
    {"BETA2", number, "beta2", "0.95", "0.95", "Adam's decay of the square"},
    {"ADAM_EPS", number, "adam_eps", "1e-8", "1e-8", "Adam's epsilon"},
    {"TIED_EMBED_LR", rate, "", "0.05", "0.05", "embed_lr with tied embeddings"},
    {"EMBED_LR", rate, "", kUnknown, "0.6", "embed_lr with untied embeddings"},
    {"HEAD_LR", rate, "", kUnknown, "0.008", "head_lr with untied embeddings"},
    {"MATRIX_LR", rate, "matrix_lr", "0.04", "0.04", "learning rate of the blocks' matrices (Muon)"},
    {"SCALAR_LR", rate, "scalar_lr", "0.04", "0.04", "learning rate of vectors and scalars"},
    {"MUON_MOMENTUM", number, "muon_momentum", "0.95", "0.95", "Muon's momentum"},
    {"MUON_BACKEND_STEPS", length, "", "5", "5",
     "muon_steps: Newton-Schulz iterations; 0 or less: the normalized momentum itself"},
    {"MUON_MOMENTUM_WARMUP_START", number, "muon_momentum_start", "0.85", "0.85", "initial momentum"},
    {"MUON_MOMENTUM_WARMUP_STEPS", integer, "muon_momentum_steps", "500", "500",
     "steps until it reaches MUON_MOMENTUM"},
    {"GRAD_CLIP_NORM", norm, "clip", "0.0", "0.0", "maximum gradient norm; 0 or less: off"},

    {"CONTROL_TENSOR_NAME_PATTERNS", text, "", kControlPatterns, kControlPatterns,
     "names of matrices that Adam trains instead of Muon; must select the same tensors as the default"},
    {"INT8_KEEP_FLOAT_FP32_NAME_PATTERNS", text, "", "", "",
     "names of small tensors that the int8 file stores in f32 (default: the control tensors)"},

    {"LOGIT_CHUNK_TOKENS", integer, "", "0", kUnknown, "nothing: logits are always computed in chunks"},
    {"MLX_EAGER_EVAL", flag, "", "1", kUnknown, "nothing: ops are always evaluated eagerly"},
    {"RANK", integer, "", kUnknown, "0", "nothing: set by torchrun, but thimble golf is one process"},
    {"LOCAL_RANK", integer, "", kUnknown, "0", "nothing: set by torchrun, but thimble golf is one process"},
    {"WORLD_SIZE", integer, "", kUnknown, "1", "must be 1: one process reads the same data as 8 ranks"},
};

const GolfVariable& variable(std::string_view name) {
  const auto* const found = std::ranges::find(kVariables, name, &GolfVariable::name);
  check(found != std::end(kVariables), "[golf] {} is not in the table", name);
  return *found;
}

// Like Python's int() and float(), accepts surrounding spaces and underscores between digits.
std::string python_number(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\n"), end = text.find_last_not_of(" \t\n");
  if (begin == text.npos) return {};
  std::string out;
  text = text.substr(begin, end - begin + 1);
  if (text.starts_with('+')) text.remove_prefix(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() &&
                         std::isdigit(static_cast<unsigned char>(text[i - 1])) &&
                         std::isdigit(static_cast<unsigned char>(text[i + 1]));
    if (text[i] != '_' || !between) out += text[i];
  }
  return out;
}

// "20000" or, if the scripts differ, "0 (torch: 1000)".
std::string default_text(const GolfVariable& row) {
  constexpr std::size_t kMost = 24;
  if (row.mlx == row.torch)
    return row.mlx.size() > kMost ? fmt::format("{}...", row.mlx.substr(0, kMost)) : std::string(row.mlx);
  if (row.torch == kUnknown) return fmt::format("{} (mlx only)", row.mlx);
  if (row.mlx == kUnknown) return fmt::format("{} (torch only)", row.torch);
  return fmt::format("{} (torch: {})", row.mlx, row.torch);
}

// Whether the word differs by one or two typos from a name long enough to rule out coincidence.
bool looks_like(std::string_view word, std::string_view name) {
  const std::size_t typos = edit_distance(word, name);
  return typos == 1 ? word.size() >= 4 : typos == 2 && word.size() >= 8;
}

}  // namespace

std::string_view name_of(GolfScript script) {
  return script == GolfScript::mlx ? "train_gpt_mlx.py" : "train_gpt.py";
}

std::span<const GolfVariable> golf_variables() {
  return kVariables;
}

std::string golf_variables_text() {
  Table table({"variable", "default", "key", "meaning"});
  for (const GolfVariable& row : kVariables)
    table.row({std::string(row.name), default_text(row), std::string(row.key), std::string(row.meaning)});
  return table.text();
}

std::string GolfEnvironment::text(std::string_view name) const {
  const auto found = variables_.find(name);
  return found == variables_.end() ? std::string(variable(name).initial(script_)) : found->second;
}

std::int64_t GolfEnvironment::integer(std::string_view name) const {
  const auto value = parse_number<std::int64_t>(python_number(text(name)));
  check(value.has_value(), "{} is '{}', expected an integer", name, text(name));
  return *value;
}

double GolfEnvironment::number(std::string_view name) const {
  const auto value = parse_number<double>(python_number(text(name)));
  check(value.has_value(), "{} is '{}', expected a number", name, text(name));
  return *value;
}

double GolfEnvironment::rate(std::string_view name) const {
  const double value = number(name);
  check(value >= 0, "{} is '{}', expected a learning rate of 0 or more", name, text(name));
  return value > 0 ? value : kFrozen;
}

bool GolfEnvironment::flag(std::string_view name) const {
  const auto value = parse_number<std::int64_t>(python_number(text(name)));
  check(value.has_value(), "{} is '{}', expected 0 or 1", name, text(name));
  return *value != 0;
}

std::vector<std::string> GolfEnvironment::list(std::string_view name) const {
  std::vector<std::string> parts;
  const std::string all = text(name);
  for (std::size_t begin = 0; begin <= all.size();) {
    const std::size_t end = std::min(all.find(',', begin), all.size());
    if (end > begin) parts.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

void GolfEnvironment::apply(ConfigBuilder& settings) const {
  for (const GolfVariable& row : kVariables) {
    if (row.key.empty() || !is_set(row.name)) continue;
    const Key& key = *find_key(row.key);
    std::string value = python_number(text(row.name));
    if (row.type == VariableType::integer) value = fmt::format("{}", integer(row.name));
    if (row.type == VariableType::flag) value = flag(row.name) ? "true" : "false";
    if (row.type == VariableType::length)
      value = fmt::format("{}", std::max<std::int64_t>(integer(row.name), 0));
    if (row.type == VariableType::norm) value = fmt::format("{}", std::max(number(row.name), 0.0));
    if (row.type == VariableType::rate) value = fmt::format("{}", rate(row.name));
    settings.derive(row.key, value_from_text(key, value, fmt::format("{}: ", row.name)));
  }
}

std::vector<std::pair<std::string, std::string>> GolfEnvironment::known() const {
  std::vector<std::pair<std::string, std::string>> set;
  for (const GolfVariable& row : kVariables)
    if (is_set(row.name)) set.emplace_back(row.name, text(row.name));
  return set;
}

std::vector<std::string> GolfEnvironment::without_effect() const {
  std::vector<std::string> sentences;
  for (const GolfVariable& row : kVariables) {
    if (!is_set(row.name)) continue;
    if (row.does_nothing())
      sentences.push_back(fmt::format("{} does {}", row.name, row.meaning));
    else if (row.initial(script_) == kUnknown)
      sentences.push_back(fmt::format("{} does nothing: {} does not read it", row.name, name_of(script_)));
  }
  return sentences;
}

std::vector<std::string> GolfEnvironment::suspects() const {
  std::vector<std::string> sentences;
  for (const auto& [name, value] : variables_) {
    if (std::ranges::find(kVariables, name, &GolfVariable::name) != std::end(kVariables)) continue;
    const auto* const meant =
        std::ranges::find_if(kVariables, [&](const GolfVariable& row) { return looks_like(name, row.name); });
    if (meant != std::end(kVariables))
      sentences.push_back(fmt::format("{} is set but not used: did you mean {}?", name, meant->name));
    else if (name.starts_with("MUON_"))
      sentences.push_back(fmt::format("{} is set but not used", name));
  }
  return sentences;
}

namespace {

std::string random_uuid() {
  std::random_device device;
  const auto word = [&] { return static_cast<std::uint32_t>(device()); };
  const std::uint32_t a = word(), b = word(), c = word(), d = word();
  return fmt::format("{:08x}-{:04x}-4{:03x}-{:04x}-{:04x}{:08x}", a, b >> 16, b & 0xFFF, 0x8000 | (c >> 18),
                     c & 0xFFFF, d);
}

// Applies the settings in which preset `of` differs from preset `from`.
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
  settings.derive("stop_on_divergence", false);  // the scripts train to the end
  return settings;
}

void put_muon(const GolfEnvironment& environment, ConfigBuilder& settings) {
  if (!environment.is_set("MUON_BACKEND_STEPS") || settings.given("muon_steps")) return;
  const std::int64_t rounds = environment.integer("MUON_BACKEND_STEPS");
  const Key& key = *find_key("muon_steps");
  if (rounds > 0)
    settings.derive(key.name, checked_value(key, rounds, "MUON_BACKEND_STEPS: "));
  else
    settings.derive("muon_coefficients", "none");
}

void check_softcap(const GolfEnvironment& environment) {
  const double cap = environment.number("LOGIT_SOFTCAP");
  check(cap > 0, "logit_softcap must be positive, got {}", value_text(cap));
}

void put_model(const GolfEnvironment& environment, const GolfRequest& request, ConfigBuilder& settings) {
  const bool tied = settings.current().model.tie_embeddings;
  check(tied || request.script == GolfScript::torch, Hint{"use --like torch for untied embeddings"},
        "train_gpt_mlx.py only supports tied embeddings");
  if (!tied) {
    settings.derive("embed_init_std", 1.0);  // nn.Embedding's default
    settings.derive("embed_lr", environment.rate("EMBED_LR"));
    settings.derive("head_lr", environment.rate("HEAD_LR"));
  } else {
    if (environment.is_set("TIED_EMBED_INIT_STD"))
      settings.derive("embed_init_std", environment.number("TIED_EMBED_INIT_STD"));
    if (environment.is_set("TIED_EMBED_LR")) settings.derive("embed_lr", environment.rate("TIED_EMBED_LR"));
  }
  // Last, because mlp_hidden depends on the final value of dim.
  const std::int64_t factor =
      environment.is_set("MLP_MULT") || !request.plus ? environment.integer("MLP_MULT") : 3;
  constexpr std::int64_t kMostFactor = 1024;
  check(factor > 0 && factor <= kMostFactor, "MLP_MULT is {}, expected 1 to {}", factor, kMostFactor);
  settings.derive("mlp_hidden", factor * settings.current().model.dim);
}

void check_heads(const ModelConfig& model) {
  check(model.heads > 0 && model.dim % model.heads == 0, Hint{"change MODEL_DIM or NUM_HEADS"},
        "model_dim must be divisible by num_heads: {} / {}", model.dim, model.heads);
  check(model.kv_heads > 0 && model.heads % model.kv_heads == 0, Hint{"change NUM_HEADS or NUM_KV_HEADS"},
        "num_heads must be divisible by num_kv_heads: {} / {}", model.heads, model.kv_heads);
  check(model.dim / model.heads % 2 == 0, Hint{"change MODEL_DIM or NUM_HEADS: head_dim is their quotient"},
        "head_dim must be even for RoPE: {}", model.dim / model.heads);
}

// Each micro-step reads complete rows. The MLX script rounds down; train_gpt.py requires a
// multiple.
void settle_batch(const GolfSettings& golf, Config& config) {
  const std::int64_t T = config.model.context, micro = golf.microbatch_tokens();
  check(micro >= T, Hint{"raise TRAIN_BATCH_TOKENS, or lower GRAD_ACCUM_STEPS or TRAIN_SEQ_LEN"},
        "token budget too small for seq_len={}: TRAIN_BATCH_TOKENS={} in {} micro-steps is {} tokens each", T,
        golf.train_batch_tokens, golf.grad_accum_steps, micro);
  check(golf.script == GolfScript::mlx || micro % T == 0, Hint{"make it a multiple of 8 * TRAIN_SEQ_LEN"},
        "TRAIN_BATCH_TOKENS={} in {} micro-steps is {} tokens each, which is not a multiple of "
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

bool contains_any(std::string_view name, std::span<const std::string> patterns) {
  return std::ranges::any_of(patterns, [&](const std::string& part) { return name.find(part) != name.npos; });
}

// In thimble the model determines which tensors Muon trains; patterns that select others are
// rejected.
void check_patterns(const ModelConfig& model, std::span<const std::string> patterns) {
  const ParamTable table(model);
  for (const Param& param : table.all()) {
    if (!param.name.starts_with("blocks.") || param.dims.size() != 2) continue;
    const bool control = contains_any(param.name, patterns);
    check(control == (param.group != ParamGroup::matrix), Hint{"leave CONTROL_TENSOR_NAME_PATTERNS unset"},
          "CONTROL_TENSOR_NAME_PATTERNS selects {} to be trained by {}, which is not supported", param.name,
          control ? "Adam" : "Muon");
  }
}

void check_world(const GolfEnvironment& environment) {
  if (environment.script() != GolfScript::torch) return;
  const std::int64_t ranks = environment.integer("WORLD_SIZE");
  check(ranks == 1, Hint{"start thimble golf without torchrun"},
        "WORLD_SIZE is {}, expected 1: one thimble golf process reads the same data as 8 ranks", ranks);
}

void take_outputs(const GolfEnvironment& environment, GolfSettings& golf) {
  golf.data_text = environment.text("DATA_PATH");
  golf.tokenizer_text = environment.text("TOKENIZER_PATH");
  golf.data = golf.data_text;
  golf.tokenizer = golf.tokenizer_text;
  golf.out = environment.text("OUT_DIR");
  golf.out_was_named = environment.is_set("OUT_DIR");
  golf.run_id_was_named = environment.is_set("RUN_ID");
  golf.run_id = golf.run_id_was_named ? environment.text("RUN_ID") : random_uuid();
  check(!golf.run_id.empty() && golf.run_id != "." && golf.run_id != ".." &&
            golf.run_id.find('/') == std::string::npos,
        Hint{"use a plain name: outputs are named OUT_DIR/RUN_ID"}, "RUN_ID is '{}', expected a file name",
        golf.run_id);
}

}  // namespace

std::filesystem::path GolfSettings::raw_model() const {
  if (script == GolfScript::mlx) return out / (run_id + "_mlx_model.npz");
  return out_was_named ? out / "final_model.pt" : "final_model.pt";
}

std::filesystem::path GolfSettings::int8_model() const {
  if (script == GolfScript::mlx) return out / (run_id + "_mlx_model.int8.ptz");
  return out_was_named ? out / "final_model.int8.ptz" : "final_model.int8.ptz";
}

GolfSettings golf_settings(const GolfRequest& request) {
  const GolfEnvironment environment(request.script, request.environment);
  check_world(environment);
  GolfSettings golf;
  golf.script = request.script;
  golf.plus = request.plus;
  take_outputs(environment, golf);

  check_softcap(environment);
  ConfigBuilder settings = preset_for(request);
  environment.apply(settings);
  if (request.script == GolfScript::mlx && environment.is_set("TRAIN_MAX_SEQ_LEN") &&
      !environment.is_set("TRAIN_SEQ_LEN"))
    settings.derive("context", environment.integer("TRAIN_MAX_SEQ_LEN"));
  golf.max_wallclock_seconds = environment.number("MAX_WALLCLOCK_SECONDS");
  check(std::isfinite(golf.max_wallclock_seconds), Hint{"use 0 for no limit"},
        "MAX_WALLCLOCK_SECONDS is '{}', expected a number of seconds",
        environment.text("MAX_WALLCLOCK_SECONDS"));
  settings.derive("max_seconds", std::max(golf.max_wallclock_seconds, 0.0));
  if (request.flags) request.flags(settings);
  if (settings.given("max_seconds")) golf.max_wallclock_seconds = settings.current().train.max_seconds;

  put_muon(environment, settings);
  put_model(environment, request, settings);
  check_heads(settings.current().model);
  if (request.script == GolfScript::mlx) {
    golf.grad_accum_steps = environment.integer("GRAD_ACCUM_STEPS");
    golf.sub_batch_tokens = environment.integer("MLX_MAX_MICROBATCH_TOKENS");
  }
  check(golf.grad_accum_steps > 0, "GRAD_ACCUM_STEPS is {}, expected 1 or more", golf.grad_accum_steps);
  Config config = settings.current();
  if (config.train.steps == 0) config.train.max_seconds = 0;  // no step, whatever the time limit
  golf.train_batch_tokens = config.train.batch_size > 0 ? config.train.batch_size * config.model.context
                                                        : config.train.batch_tokens;
  golf.train_log_every = environment.integer("TRAIN_LOG_EVERY");
  settle_batch(golf, config);
  settle_validation(environment, config.model.context, golf);
  golf.config = resolved(config);

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
