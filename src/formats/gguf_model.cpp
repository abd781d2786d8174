#include "formats/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "config/keys.h"
#include "formats/architectures.h"
#include "formats/export.h"
#include "formats/fold.h"
#include "formats/gguf_tokenizer.h"
#include "formats/model_file.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

namespace {

constexpr std::string_view kEmbeddingName = "token_embd.weight", kHeadName = "output.weight";

std::uint32_t count_of(std::int64_t value) {
  return static_cast<std::uint32_t>(value);  // validate() keeps sizes far below 2^32
}

// llama.cpp rejects a file with tensors that the architecture's loader does not read.
bool is_read(const Architecture& family, Role role) {
  using enum Role;
  if (family.gguf == "llama" || family.switches.bias) return true;
  return role != attn_proj_bias && role != mlp_gate_bias && role != mlp_up_bias && role != mlp_proj_bias;
}

// Negating the second half of every head turns -theta into +theta and leaves q . k unchanged.
void negate_second_halves(std::span<float> values, std::int64_t head_dim, std::int64_t columns) {
  const std::int64_t half = head_dim / 2 * columns, head = head_dim * columns;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (static_cast<std::int64_t>(i) % head >= half) values[i] = -values[i];
}

bool is_zero(const Param& param, std::span<const float> weights) {
  return std::ranges::all_of(param.in(weights), [](float value) { return value == 0; });
}

enum class Direction { to_neighbours, to_halves };

std::vector<float> reordered(std::span<const float> values, std::int64_t head_dim, std::int64_t columns,
                             Direction direction) {
  check(head_dim > 0 && head_dim % 2 == 0 && std::cmp_equal(values.size() % (head_dim * columns), 0),
        "[gguf] {} numbers cannot be split into heads of {} x {}", values.size(), head_dim, columns);
  std::vector<float> out(values.size());
  const std::int64_t rows = static_cast<std::int64_t>(values.size()) / columns;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t in_head = row % head_dim, half = in_head % (head_dim / 2),
                       second = in_head / (head_dim / 2);
    const std::int64_t neighbour = row - in_head + 2 * half + second;
    const std::int64_t from = direction == Direction::to_neighbours ? row : neighbour;
    const std::int64_t to = direction == Direction::to_neighbours ? neighbour : row;
    std::copy_n(values.begin() + from * columns, columns, out.begin() + to * columns);
  }
  return out;
}

// llama.cpp divides scores by the square root of this.
double gguf_query_scalar(const Architecture& family, const ModelConfig& config) {
  const bool scales = family.gguf_scale_layers > 0 && config.layers == family.gguf_scale_layers;
  return static_cast<double>(scales ? config.dim / config.heads : config.head_dim);
}

// The factor for q, or for its norm, that makes llama.cpp's scores those of query_scalar.
float query_factor(const Architecture& family, const ModelConfig& config) {
  const double own = config.query_scalar > 0 ? config.query_scalar : static_cast<double>(config.head_dim);
  return static_cast<float>(std::sqrt(gguf_query_scalar(family, config) / own));
}

std::vector<float> exported_values(const Param& param, const ModelFile& file, const Architecture& family) {
  using enum Role;
  const ModelConfig& config = file.config.model;
  const auto own = param.in(std::span(file.weights));
  std::vector<float> values(own.begin(), own.end());
  if (config.qk_norm ? param.role == query_norm : param.role == query || param.role == query_bias)
    if (const float factor = query_factor(family, config); factor != 1)
      for (float& one : values) one *= factor;
  if (!is_rotated(param.role)) return values;
  const std::int64_t columns = param.dims.size() == 2 ? param.cols : 1;
  if (config.rope_direction < 0) negate_second_halves(values, config.head_dim, columns);
  return family.neighbours ? neighbours_from_halves(values, config.head_dim, columns) : values;
}

ExportedTensor exported_tensor(const FileTensor& tensor, const ModelFile& file, const Architecture& family) {
  ExportedTensor out{tensor.name, tensor.dims, {}};
  for (const Param* part : tensor.parts) {
    const std::vector<float> values = exported_values(*part, file, family);
    out.values.insert(out.values.end(), values.begin(), values.end());
  }
  return out;
}

bool has_local_layer(const ModelConfig& config) {
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    if (config.is_local(layer)) return true;
  return false;
}

// Windows, softcaps and RoPE, with the keys of gemma 2 and 3, phi-3 and llama.
void add_family_settings(const Architecture& family, const ModelConfig& c, GgufSettings& settings) {
  const auto key = [&](std::string_view name) { return fmt::format("{}.{}", family.gguf, name); };
  if (family.gguf_period > 0) {
    const bool windows = has_local_layer(c);
    settings.emplace_back(key("attention.sliding_window"), count_of(windows ? c.window : c.context));
    if (c.global_every != family.gguf_period && windows)
      settings.emplace_back(key("attention.sliding_window_pattern"), count_of(c.global_every));
    if (c.local_rope_base > 0)
      settings.emplace_back(key("rope.freq_base_swa"), static_cast<float>(c.local_rope_base));
    // Without these keys, llama.cpp uses the caps of gemma 2.
    if (c.attention_softcap > 0 || family.switches.attention_softcap > 0)
      settings.emplace_back(key("attn_logit_softcapping"), static_cast<float>(c.attention_softcap));
    if (c.logit_softcap > 0 || family.switches.logit_softcap > 0)
      settings.emplace_back(key("final_logit_softcapping"), static_cast<float>(c.logit_softcap));
  }
  const bool yarn = c.rope_scaling == RopeScaling::yarn, by_lists = c.rope_scaling == RopeScaling::longrope;
  if (family.partial_rope || yarn)
    settings.emplace_back(key("rope.scaling.original_context_length"),
                          count_of(yarn || by_lists ? c.rope_original_context : c.context));
  if (by_lists)
    settings.emplace_back(key("rope.scaling.attn_factor"),
                          static_cast<float>(rope_attention_factor(c, false)));
  if (yarn) {
    settings.emplace_back(key("rope.scaling.type"), std::string("yarn"));
    settings.emplace_back(key("rope.scaling.factor"), static_cast<float>(c.rope_factor));
    settings.emplace_back(key("rope.scaling.yarn_beta_fast"), static_cast<float>(c.rope_beta_fast));
    settings.emplace_back(key("rope.scaling.yarn_beta_slow"), static_cast<float>(c.rope_beta_slow));
    // llama.cpp multiplies with the factor of the formula itself.
    if (c.rope_attention_factor > 0)
      settings.emplace_back(
          key("rope.scaling.attn_factor"),
          static_cast<float>(c.rope_attention_factor / (0.1 * std::log(c.rope_factor) + 1)));
  }
  if (c.rope_scaling == RopeScaling::linear) {
    settings.emplace_back(key("rope.scaling.type"), std::string("linear"));
    settings.emplace_back(key("rope.scaling.factor"), static_cast<float>(c.rope_factor));
  }
}

// What llama.cpp's architecture cannot do, although the family has it.
void check_for_llama_cpp(const Architecture& family, const ModelConfig& c) {
  check(c.nope_every == family.gguf_nope_every, "llama.cpp's {} has nope_every = {}, this model has {}",
        family.gguf, family.gguf_nope_every, c.nope_every);
  check(family.gguf_period == 0 || c.window_from == 0, "llama.cpp's {} has no window_from, this model has {}",
        family.gguf, c.window_from);
  check(family.gguf_period == 0 || (c.attention_softcap > 0) == (family.switches.attention_softcap > 0),
        "llama.cpp's {} {} attention_softcap, this model has {}", family.gguf,
        family.switches.attention_softcap > 0 ? "needs an" : "has no", c.attention_softcap);
}

}  // namespace

const Architecture* gguf_family(ModelConfig config) {
  config.rope_direction = 1;
  // qwen3's loader accepts biases of q, k and v; Transformers' qwen3 does not have them.
  if (config.qk_norm && config.qkv_bias && !config.bias) config.qkv_bias = false;
  const Architecture* family = family_of(config);
  // qwen2's loader requires a square q; llama's accepts the same biases with any head size.
  if (family && family->gguf == "qwen2" && config.q_width() != config.dim)
    return &all_architectures().front();
  return family;
}

std::string_view gguf_architecture(const ModelConfig& config) {
  const Architecture* family = gguf_family(config);
  return family ? family->gguf : std::string_view();
}

std::string gguf_architectures() {
  std::vector<std::string_view> names;
  for (const Architecture& family : all_architectures())
    if (std::ranges::count(names, family.gguf) == 0) names.push_back(family.gguf);
  return joined(names, ", ");
}

std::string_view norm_eps_key(NormKind norm) {
  return norm == NormKind::layer ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
}

GgufSettings common_settings(const std::string& architecture, const ModelConfig& config) {
  const auto key = [&](std::string_view name) { return fmt::format("{}.{}", architecture, name); };
  GgufSettings settings = {
      {key("context_length"), count_of(config.context)},
      {key("embedding_length"), count_of(config.dim)},
      {key("block_count"), count_of(config.layers)},
      {key("feed_forward_length"), count_of(config.mlp_hidden)},
      {key("attention.head_count"), count_of(config.heads)},
      {key("attention.head_count_kv"), count_of(config.kv_heads)},
      {key(norm_eps_key(config.norm)), static_cast<float>(config.norm_eps)},
      {key("vocab_size"), count_of(config.vocab_size)},
  };
  if (config.position == PositionKind::rope) {
    settings.emplace_back(key("rope.dimension_count"), count_of(config.rope_dims));
    settings.emplace_back(key("rope.freq_base"), static_cast<float>(config.rope_base));
  }
  if (config.head_dim * config.heads != config.dim) {
    settings.emplace_back(key("attention.key_length"), count_of(config.head_dim));
    settings.emplace_back(key("attention.value_length"), count_of(config.head_dim));
  }
  return settings;
}

ExportedModel exported_model(const ModelFile& file) {
  ModelConfig config = file.config.model;
  const Architecture* found = gguf_family(config);
  check(found, "{} is a {} model; expected one of {}", file.path.string(), architecture_of(config),
        gguf_architectures());
  const Architecture& family = *found;
  const std::string architecture(family.gguf);
  check_for_llama_cpp(family, config);
  std::vector<std::string> folded;
  const std::int64_t longest = scaled_context(config);
  if (family.gguf_period == 0 && has_local_layer(config) && config.window < config.context) {
    folded.push_back(
        fmt::format("window = {} -> context_length = {}, because llama.cpp's {} has no windows: exact",
                    config.window, config.window, architecture));
    config.context = config.window;
  } else {
    config.context = longest;
  }
  if (query_factor(family, config) != 1)
    folded.push_back(fmt::format("query_scalar = {} -> {}, scaled: exact but for rounding",
                                 config.query_scalar, config.qk_norm ? "the norm of q" : "q"));
  ExportedModel model{architecture, common_settings(architecture, config), {}, std::move(folded)};
  add_family_settings(family, config, model.settings);
  std::vector<std::string> problems;
  const ParamTable table(file.config.model);
  for (const FileTensor& tensor : file_tensors(family, table, Naming::gguf)) {
    if (is_read(family, tensor.parts.front()->role))
      model.tensors.push_back(exported_tensor(tensor, file, family));
    else
      for (const Param* part : tensor.parts)
        if (!is_zero(*part, file.weights)) problems.push_back(part->name);  // an import fills in zeros
  }
  if (config.rope_scaling == RopeScaling::llama3) {
    const std::vector<float> divisors = rope_divisors(config);
    model.tensors.push_back({std::string(kRopeDivisors), {std::ssize(divisors)}, divisors});
  }
  if (config.rope_scaling == RopeScaling::longrope)
    for (const auto& [name, list] : {std::pair{kRopeLongFactors, &config.rope_long_factors},
                                     std::pair{kRopeShortFactors, &config.rope_short_factors}}) {
      const std::vector<double> factors = numbers_in(*list).value();
      model.tensors.push_back(
          {std::string(name), {std::ssize(factors)}, std::vector<float>(factors.begin(), factors.end())});
    }
  check(problems.empty(), Hint{"train without `bias`; `qkv_bias` is supported"},
        "llama.cpp's {} does not have these tensors, which are not zero: {}", architecture, listed(problems));
  if (config.rope_direction < 0)
    model.folded.push_back(
        "rope_direction = -1 -> second half of each head's rows of q and k, negated: exact");
  return model;
}

namespace {

// "blk.12.attn_v.weight" is 12; nullopt for tensors of no layer.
std::optional<std::int64_t> layer_of(std::string_view tensor) {
  constexpr std::string_view kStart = "blk.";
  if (!tensor.starts_with(kStart)) return std::nullopt;
  std::int64_t layer = 0;
  const auto [end, error] =
      std::from_chars(tensor.data() + kStart.size(), tensor.data() + tensor.size(), layer);
  return error == std::errc() ? std::optional(layer) : std::nullopt;
}

// The first and the last eighth of the layers, and every third one between them.
bool is_sensitive(std::int64_t layer, std::int64_t layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

std::string fallback_text(GgufType meant, GgufType stored, const std::vector<std::string>& tensors) {
  constexpr std::size_t kShown = 3;
  std::vector<std::string> shown(
      tensors.begin(), tensors.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, tensors.size())));
  std::string text = joined(shown, ", ");
  if (tensors.size() > kShown) text += fmt::format(" and {} more", tensors.size() - kShown);
  return fmt::format("{}: the row length is not a multiple of the block size of {}, stored as {}", text,
                     info_of(meant).name, info_of(stored).name);
}

}  // namespace

GgufType mixed_type(GgufType type, std::string_view tensor, std::int64_t layers, bool tied) {
  if (type != GgufType::q4_k && type != GgufType::q5_k) return type;
  if (tensor == (tied ? kEmbeddingName : kHeadName)) return GgufType::q6_k;
  const auto layer = layer_of(tensor);
  if (!layer || !(tensor.ends_with(".attn_v.weight") || tensor.ends_with(".ffn_down.weight"))) return type;
  return is_sensitive(*layer, layers) ? GgufType::q6_k : type;
}

GgufReport write_gguf(FileOps& ops, const std::filesystem::path& path, Existing existing,
                      const ExportedModel& model, const GgufSettings& tokenizer, GgufType type,
                      const Inspector& inspect, const ProgressOutput& progress) {
  GgufReport report{.architecture = model.architecture, .tensors = model.tensors.size()};
  GgufWriter writer;
  writer.set("general.architecture", model.architecture);
  writer.set("general.type", std::string("model"));
  std::string name = path.stem().string();  // may be any bytes, but strings in a GGUF are UTF-8
  writer.set("general.name", take_text(name, true));
  writer.set("general.file_type", info_of(type).file_type);
  if (info_of(type).block > 1) writer.set("general.quantization_version", std::uint32_t{2});
  for (const auto& [key, value] : model.settings) writer.set(key, value);
  for (const auto& [key, value] : tokenizer) writer.set(key, value);
  const auto layers = std::ranges::count_if(
      model.tensors, [](const auto& tensor) { return tensor.name.ends_with(".attn_v.weight"); });
  const bool tied = std::ranges::count(model.tensors, kHeadName, &ExportedTensor::name) == 0;
  std::map<std::pair<GgufType, GgufType>, std::vector<std::string>> fallbacks;
  for (const ExportedTensor& tensor : model.tensors) {
    // llama.cpp's kernels for norms, biases and scales are F32 only.
    const bool vector = tensor.plain || tensor.dims.size() == 1;
    const GgufType meant = vector ? GgufType::f32 : mixed_type(type, tensor.name, layers, tied);
    const GgufType stored = fitting_type(meant, tensor.dims.back());
    if (stored != meant) fallbacks[{meant, stored}].push_back(tensor.name);
    writer.add(tensor.name, stored, tensor.dims, tensor.values);
  }
  for (const auto& [types, tensors] : fallbacks)
    report.fallbacks.push_back(fallback_text(types.first, types.second, tensors));
  writer.write(ops, path, existing, inspect, progress);
  report.bytes = writer.bytes();
  return report;
}

std::vector<float> neighbours_from_halves(std::span<const float> values, std::int64_t head_dim,
                                          std::int64_t columns) {
  return reordered(values, head_dim, columns, Direction::to_neighbours);
}

std::vector<float> halves_from_neighbours(std::span<const float> values, std::int64_t head_dim,
                                          std::int64_t columns) {
  return reordered(values, head_dim, columns, Direction::to_halves);
}

bool is_rotated(Role role) {
  using enum Role;
  return role == query || role == key || role == query_bias || role == key_bias;
}

namespace {

// Neither a softcap nor a loop prevents an export: the cap can be dropped, and the loop is unrolled
// into layers.
ModelConfig without_softcap_and_loop(ModelConfig config) {
  if (!config.post_norm) config.logit_softcap = 0;  // gemma has one
  config.loop_first = config.loop_last = config.loop_count = 0;
  return config;
}

// Exports as one of the families. A softcap is dropped if that was requested.
ExportedModel plain_model(const ModelFile& model, std::string_view architecture, bool drop_softcap) {
  const double cap = model.config.model.post_norm ? 0 : model.config.model.logit_softcap;
  if (cap == 0 && model.config.model.loop_count == 0) return exported_model(model);
  check(cap == 0 || drop_softcap,
        Hint{"pass --drop-softcap to export without it: greedy text is unchanged, probabilities change"},
        "llama.cpp's {} has no logit_softcap, this model has {}", architecture, cap);
  FoldedModel plain = unrolled_model(model);
  if (cap > 0) plain.model.config.model.logit_softcap = 0;
  if (cap > 0) plain.steps.push_back(softcap_dropped(cap));
  ExportedModel exported = exported_model(plain.model);
  for (const FoldStep& step : plain.steps) exported.folded.push_back(step.line());
  return exported;
}

// Exports every model that llama.cpp can run: the families directly, golf models folded
// (fold.h).
ExportReport export_gguf(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  const std::string_view own = gguf_architecture(without_softcap_and_loop(model.config.model)),
                         requested = request.architecture;
  const bool plain = !own.empty() && (requested.empty() || requested == own);
  check(plain || requested.empty() || is_folded_architecture(requested), "expected architecture {}, found {}",
        requested, own.empty() ? fmt::format("none of {}", gguf_architectures()) : fmt::format("{}", own));
  const ExportedModel exported =
      plain ? plain_model(model, own, request.drop_softcap)
            : exported_model(fold_model(model, {request.architecture, request.drop_softcap}));
  ExportReport report{.architecture = exported.architecture, .type = *request.type};
  const GgufSettings tokenizer = gguf_tokenizer_settings(model, report.notes);
  const GgufReport written = write_gguf(ops, request.path, request.existing, exported, tokenizer,
                                        *request.type, request.inspect, request.progress);
  report.tensors = written.tensors;
  report.bytes = written.bytes;
  report.folded = exported.folded;
  report.notes.insert(report.notes.end(), written.fallbacks.begin(), written.fallbacks.end());
  return report;
}

constexpr std::string_view kOllamaWeights = "model.gguf", kModelfile = "Modelfile";

// Ollama reads the chat template from the GGUF if the Modelfile has none.
std::string modelfile(const ModelFile& model) {
  std::string text = fmt::format(
      "# Written by thimble. Create the model in Ollama: ollama create NAME -f {}\nFROM ./{}\n"
      "PARAMETER num_ctx {}\n",
      kModelfile, kOllamaWeights, model.config.model.context);
  // A model that only continues texts is passed the prompt as it is.
  if (model.layout.empty()) text += "TEMPLATE \"\"\"{{ .Prompt }}\"\"\"\n";
  return text;
}

std::filesystem::path foreign_to_ollama(const std::filesystem::path& folder) {
  return foreign_entry(folder, [&](const std::filesystem::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    return std::filesystem::is_regular_file(folder / kModelfile) &&
           (name == kOllamaWeights || name == kModelfile);
  });
}

// A GGUF and a Modelfile beside it.
ExportReport export_ollama(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  check(std::filesystem::weakly_canonical(model.path).parent_path() !=
            std::filesystem::weakly_canonical(request.path),
        Hint{"choose another folder with -o"}, "{} contains the model to be exported", request.path.string());
  AtomicFolder folder(ops, request.path, request.existing, foreign_to_ollama);
  ExportRequest file = request;
  file.path = folder.path() / kOllamaWeights;
  file.existing = Existing::refuse;
  ExportReport report;
  naming(request.path / kOllamaWeights, [&] { report = export_gguf(ops, model, file); });
  naming(request.path / kModelfile,
         [&] { write_file(ops, folder.path() / kModelfile, modelfile(model), Existing::refuse); });
  folder.commit();
  return report;
}

}  // namespace

ExportFormat gguf_export();

ExportFormat ollama_export() {
  ExportFormat format = gguf_export();
  format.name = "ollama";
  format.what = "a folder with a GGUF and a Modelfile";
  format.write = export_ollama;
  format.folder = true;
  return format;
}

ExportFormat gguf_export() {
  using enum GgufType;
  return {.name = "gguf",
          .what = "one file for llama.cpp",
          .types = {f16, f32, bf16, q8_0, q6_k, q5_k, q4_k, q4_0},
          .write = export_gguf,
          .folds = true};
}

}  // namespace thimble
