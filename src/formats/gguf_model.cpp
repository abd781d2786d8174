#include "formats/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"
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
bool is_read(std::string_view architecture, Role role) {
  using enum Role;
  if (architecture == "llama") return true;
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

ExportedTensor exported_tensor(const Param& param, const ModelFile& file, bool neighbours) {
  const ModelConfig& config = file.config.model;
  const auto values = param.in(std::span(file.weights));
  ExportedTensor tensor{gguf_name(param), param.dims, {values.begin(), values.end()}};
  if (!is_rotated(param.role)) return tensor;
  const std::int64_t columns = param.dims.size() == 2 ? param.cols : 1;
  if (config.rope_direction < 0) negate_second_halves(tensor.values, config.head_dim, columns);
  if (neighbours) tensor.values = neighbours_from_halves(tensor.values, config.head_dim, columns);
  return tensor;
}

}  // namespace

std::string_view gguf_architecture(ModelConfig config) {
  config.rope_direction = 1;
  // qwen3's loader accepts biases of q, k and v; Transformers' qwen3 does not have them.
  if (config.qk_norm && config.qkv_bias && !config.bias) config.qkv_bias = false;
  const std::string_view architecture = architecture_of(config);
  // qwen2's loader requires a square q; llama's accepts the same biases with any head size.
  if (architecture == "qwen2" && config.q_width() != config.dim) return "llama";
  const bool known = architecture == "llama" || architecture == "qwen2" || architecture == "qwen3";
  return known ? architecture : std::string_view();
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
      {key("attention.layer_norm_rms_epsilon"), static_cast<float>(config.norm_eps)},
      {key("rope.dimension_count"), count_of(config.head_dim)},
      {key("rope.freq_base"), static_cast<float>(config.rope_base)},
      {key("vocab_size"), count_of(config.vocab_size)},
  };
  if (config.head_dim * config.heads != config.dim) {
    settings.emplace_back(key("attention.key_length"), count_of(config.head_dim));
    settings.emplace_back(key("attention.value_length"), count_of(config.head_dim));
  }
  return settings;
}

ExportedModel exported_model(const ModelFile& file) {
  const ModelConfig& config = file.config.model;
  const std::string architecture(gguf_architecture(config));
  check(!architecture.empty(), "{} is a {} model; expected llama, qwen2 or qwen3", file.path.string(),
        architecture_of(config));
  ExportedModel model{architecture, common_settings(architecture, config), {}, {}};
  std::vector<std::string> problems;
  const ParamTable table(config);
  for (const Param& param : table.all()) {
    if (is_read(architecture, param.role))
      model.tensors.push_back(exported_tensor(param, file, architecture == "llama"));
    else if (!is_zero(param, file.weights))  // an import fills absent biases with zeros
      problems.push_back(param.name);
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

namespace {

using enum Role;

constexpr GgufName kTensorNames[] = {
    {token_embedding, kEmbeddingName},
    {head, kHeadName},
    {final_norm, "output_norm.weight"},
    {attn_norm, "blk.{}.attn_norm.weight"},
    {query, "blk.{}.attn_q.weight"},
    {query_bias, "blk.{}.attn_q.bias"},
    {key, "blk.{}.attn_k.weight"},
    {key_bias, "blk.{}.attn_k.bias"},
    {value, "blk.{}.attn_v.weight"},
    {value_bias, "blk.{}.attn_v.bias"},
    {query_norm, "blk.{}.attn_q_norm.weight"},
    {key_norm, "blk.{}.attn_k_norm.weight"},
    {attn_proj, "blk.{}.attn_output.weight"},
    {attn_proj_bias, "blk.{}.attn_output.bias"},
    {mlp_norm, "blk.{}.ffn_norm.weight"},
    {mlp_gate, "blk.{}.ffn_gate.weight"},
    {mlp_gate_bias, "blk.{}.ffn_gate.bias"},
    {mlp_up, "blk.{}.ffn_up.weight"},
    {mlp_up_bias, "blk.{}.ffn_up.bias"},
    {mlp_proj, "blk.{}.ffn_down.weight"},
    {mlp_proj_bias, "blk.{}.ffn_down.bias"},
};

}  // namespace

std::span<const GgufName> gguf_names() {
  return kTensorNames;
}

std::string GgufName::of(int layer) const {
  return fmt::format(fmt::runtime(name), layer);
}

std::string gguf_name(const Param& param) {
  for (const GgufName& known : kTensorNames)
    if (known.role == param.role) return known.of(param.layer);
  fail("[gguf] llama.cpp has no name for {}", param.name);
}

bool is_rotated(Role role) {
  return role == query || role == key || role == query_bias || role == key_bias;
}

namespace {

// Neither a softcap nor a loop prevents an export: the cap can be dropped, and the loop is unrolled
// into layers.
ModelConfig without_softcap_and_loop(ModelConfig config) {
  config.logit_softcap = 0;
  config.loop_first = config.loop_last = config.loop_count = 0;
  return config;
}

// Exports as llama, qwen2 or qwen3. A softcap is dropped if that was requested.
ExportedModel plain_model(const ModelFile& model, std::string_view architecture, bool drop_softcap) {
  const double cap = model.config.model.logit_softcap;
  if (cap == 0 && model.config.model.loop_count == 0) return exported_model(model);
  check(cap == 0 || drop_softcap,
        Hint{"pass --drop-softcap to export without it: greedy text is unchanged, probabilities change"},
        "llama.cpp's {} has no logit_softcap, this model has {}", architecture, cap);
  FoldedModel plain = unrolled_model(model);
  plain.model.config.model.logit_softcap = 0;
  if (cap > 0) plain.steps.push_back(softcap_dropped(cap));
  ExportedModel exported = exported_model(plain.model);
  for (const FoldStep& step : plain.steps) exported.folded.push_back(step.line());
  return exported;
}

// Exports every model that llama.cpp can run: llama, qwen2 and qwen3 directly, golf models folded
// (fold.h).
ExportReport export_gguf(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  const std::string_view own = gguf_architecture(without_softcap_and_loop(model.config.model)),
                         requested = request.architecture;
  const bool plain = !own.empty() && (requested.empty() || requested == own);
  check(plain || requested.empty() || is_folded_architecture(requested), "expected architecture {}, found {}",
        requested, own.empty() ? "none of llama, qwen2 and qwen3" : fmt::format("{}", own));
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
