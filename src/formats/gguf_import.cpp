#include "formats/gguf_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/architectures.h"
#include "formats/fold.h"
#include "formats/gguf.h"
#include "formats/gguf_model.h"
#include "formats/gguf_tokenizer.h"
#include "formats/safetensors.h"

namespace thimble {

namespace {

// Metadata that does not affect the model. tokenizer.huggingface.json repeats the other keys.
constexpr std::string_view kHarmlessKeys[] = {
    "general.", "quantize.imatrix.", "tokenizer.huggingface.",
    "tokenizer.chat_template"};  // and its variants for other purposes

// One parameter of the model and its tensor in the file.
struct Source {
  std::string name;
  std::vector<std::int64_t> dims;
  std::int64_t offset = 0, count = 0;  // in the block of weights
  std::int64_t first = 0;              // the parameter's first element in the tensor
  bool rotated = false;                // rows of heads, in llama's order for RoPE
  bool optional = false;               // zeros if absent
};

// head_dim is 0 until the config is resolved; the default is dim / heads.
std::int64_t head_dim_of(const ModelConfig& config) {
  return config.head_dim > 0 ? config.head_dim : config.dim / std::max<std::int64_t>(config.heads, 1);
}

class Importer {
 public:
  Importer(const GgufFile& file, const ProgressOutput& progress)
      : file_(file),
        keys_(file),
        progress_(progress),
        architecture_(keys_.text("general.architecture").value_or("")) {
    keys_.throw_problems();
    const auto family = std::ranges::find(all_architectures(), architecture_, &Architecture::gguf);
    if (family != all_architectures().end()) family_ = &*family;
    check(family_ || is_folded_architecture(architecture_),
          "{}: expected general.architecture {}, {} or {}, found {}", file.name(), gguf_architectures(),
          kApertus, kTalkie, quoted_name(architecture_));
  }

  ModelFile read(WeightsAs as) {
    ModelFile out;
    out.path = file_.name();
    out.format = "gguf";
    out.architecture = architecture_;
    GgufTokenizer tokenizer = read_gguf_tokenizer(keys_, file_.name());
    out.config = resolved(Config{read_config(), {}});
    // Folded models are assembled from several tensors, so their weights are always floats.
    if (as == WeightsAs::none)
      check_tensors(sources(out.config.model, ParamTable(out.config.model)), out.config.model);
    else if (as == WeightsAs::stored && !is_folded_architecture(architecture_))
      out.stored = read_stored(out.config.model);
    else
      out.weights = read_weights(out.config.model);
    out.tokenizer = std::move(tokenizer.file);
    out.layout = std::move(tokenizer.layout);
    // As open_tokenizer() checks, without building the tokenizer again.
    check(!out.tokenizer || tokenizer.tokens <= out.config.model.vocab_size,
          Hint{"use the tokenizer that the model was trained with"},
          "{}: tokenizer has {} tokens, the model's vocabulary has {}", file_.name(), tokenizer.tokens,
          out.config.model.vocab_size);
    for (const GgufEntry& entry : file_.entries())
      out.tensors.push_back({entry.name, std::string(info_of(entry.type).name), entry.dims, entry.bytes});
    for (const auto& [key, value] : file_.settings())
      out.metadata.emplace_back(key, gguf_value_json(value).dump());
    return out;
  }

 private:
  std::string key(std::string_view name) const { return fmt::format("{}.{}", architecture_, name); }

  ModelConfig read_config();
  void read_sizes(ModelConfig& config);
  void read_switches(ModelConfig& config);
  void read_rope(ModelConfig& config);
  void read_yarn(double factor, ModelConfig& config);
  void read_longrope(ModelConfig& config);
  double attention_factor(ModelConfig config, double own);
  void read_windows(ModelConfig& config);
  void expect_folded_settings();
  void reject_unsupported_settings(const ModelConfig& config);

  std::vector<Source> sources(const ModelConfig& config, const ParamTable& table) const;
  std::vector<Source> folded_sources(const ModelConfig& config, const ParamTable& table) const;
  void check_tensors(std::span<const Source> sources, const ModelConfig& config) const;
  void read_part(const Source& source, std::span<float> values) const;
  std::vector<float> read_weights(const ModelConfig& config);
  std::shared_ptr<const StoredWeights> read_stored(const ModelConfig& config);
  void read_output_scales(const ModelConfig& config, const ParamTable& table, std::span<float> block) const;

  const GgufFile& file_;
  GgufKeyReader keys_;
  const ProgressOutput& progress_;
  std::string architecture_;
  const Architecture* family_ = nullptr;  // nullptr: folded
};

void Importer::read_sizes(ModelConfig& config) {
  config.context = keys_.required_count(key("context_length"));
  config.dim = keys_.required_count(key("embedding_length"));
  config.layers = keys_.required_count(key("block_count"));
  config.mlp_hidden = keys_.required_count(key("feed_forward_length"));
  config.heads = keys_.required_count(key("attention.head_count"));
  config.kv_heads = keys_.count(key("attention.head_count_kv")).value_or(config.heads);
  config.norm_eps = keys_.required_number(key(norm_eps_key(config.norm)));
  config.rope_base = keys_.number(key("rope.freq_base")).value_or(10000);
  config.head_dim = keys_.count(key("attention.key_length")).value_or(0);
  const auto value_length = keys_.count(key("attention.value_length"));
  if (value_length && *value_length != head_dim_of(config))
    keys_.problem(fmt::format("{} is {}, expected the same as the key length, {}",
                              key("attention.value_length"), *value_length, head_dim_of(config)));
  const GgufEntry* embedding = file_.find("token_embd.weight");
  if (!embedding || embedding->dims.size() != 2)
    keys_.problem("token_embd.weight is missing or not a matrix");
  else
    config.vocab_size = embedding->dims[0];
  // The ParamTable has rows for every layer: bound its size by that of the file.
  if (std::cmp_greater(config.layers, file_.entries().size()))
    keys_.problem(fmt::format("{} is {}, but there are {} tensors", key("block_count"), config.layers,
                              file_.entries().size()));
}

void Importer::read_switches(ModelConfig& config) {
  const auto has = [&](std::string_view name) {
    return file_.find(fmt::format("blk.0.{}", name)) != nullptr;
  };
  config.tie_embeddings = file_.find("output.weight") == nullptr;
  read_rope(config);
  read_windows(config);
  if (family_->switches.bias) return;
  config.bias = has("attn_output.bias") || has("ffn_gate.bias") || has("ffn_up.bias") || has("ffn_down.bias");
  config.qkv_bias = !config.bias && (has("attn_q.bias") || has("attn_k.bias") || has("attn_v.bias"));
}

void Importer::read_rope(ModelConfig& config) {
  if (config.position != PositionKind::rope) return;
  if (family_->partial_rope) {
    config.rope_dims = keys_.count(key("rope.dimension_count")).value_or(0);
    keys_.take(key("rope.scaling.original_context_length"));
  }
  config.nope_every = family_->gguf_nope_every;
  const auto scaling = keys_.text(key("rope.scaling.type"));
  const double factor = keys_.number(key("rope.scaling.factor")).value_or(1);
  if (scaling == "linear" || (!scaling && factor != 1))
    config.rope_scaling = RopeScaling::linear, config.rope_factor = factor;
  else if (scaling == "yarn")
    read_yarn(factor, config);
  else if (scaling && scaling != "none" && scaling != "longrope")
    keys_.problem(
        fmt::format("{} = {} is not supported, expected \"none\", \"linear\", \"yarn\" or \"longrope\"",
                    key("rope.scaling.type"), quoted_name(*scaling)));
  if (file_.find(kRopeShortFactors) || file_.find(kRopeLongFactors) || scaling == "longrope")
    read_longrope(config);
  const GgufEntry* divisors = file_.find(kRopeDivisors);
  if (!divisors) return;
  const std::int64_t columns = config.rope_dims > 0 ? config.rope_dims : head_dim_of(config);
  ModelConfig scaled = config;
  scaled.rope_dims = columns;
  bool fits = config.rope_scaling == RopeScaling::none && columns > 1 &&
              divisors->dims == std::vector<std::int64_t>{columns / 2};
  if (fits) {
    std::vector<float> values(static_cast<std::size_t>(columns / 2));
    file_.read_f32(kRopeDivisors, values);
    fits = set_rope_divisors(scaled, values);
  }
  scaled.rope_dims = config.rope_dims;
  if (fits)
    config = scaled;
  else
    keys_.problem(
        fmt::format("{} does not have the {} divisors of Llama 3.1's rule", kRopeDivisors, columns / 2));
}

// The factor of the file, or 0 if it is that of the formula. llama.cpp multiplies yarn's with
// `own`.
double Importer::attention_factor(ModelConfig config, double own) {
  const double factor = keys_.number(key("rope.scaling.attn_factor")).value_or(1) * own;
  config.rope_attention_factor = 0;
  const double by_formula = rope_attention_factor(config, false);
  return std::abs(factor - by_formula) <= 1e-6 * by_formula ? 0 : factor;
}

void Importer::read_yarn(double factor, ModelConfig& config) {
  config.rope_scaling = RopeScaling::yarn;
  config.rope_factor = factor;
  config.rope_original_context =
      keys_.count(key("rope.scaling.original_context_length")).value_or(config.context);
  config.rope_beta_fast = keys_.number(key("rope.scaling.yarn_beta_fast")).value_or(config.rope_beta_fast);
  config.rope_beta_slow = keys_.number(key("rope.scaling.yarn_beta_slow")).value_or(config.rope_beta_slow);
  config.rope_attention_factor = attention_factor(config, factor > 1 ? 0.1 * std::log(factor) + 1 : 1);
}

// As of Hugging Face's files, the context is the one up to which the short factors apply.
void Importer::read_longrope(ModelConfig& config) {
  const std::int64_t pairs = (config.rope_dims > 0 ? config.rope_dims : head_dim_of(config)) / 2;
  config.rope_scaling = RopeScaling::longrope;
  config.rope_original_context =
      keys_.count(key("rope.scaling.original_context_length")).value_or(config.context);
  if (config.rope_original_context < 1) return keys_.problem("the original context is 0");
  config.rope_factor =
      std::max(1.0, static_cast<double>(config.context) / static_cast<double>(config.rope_original_context));
  config.context = std::min(config.context, config.rope_original_context);
  config.rope_attention_factor = attention_factor(config, 1);
  for (const auto& [name, list] : {std::pair{kRopeShortFactors, &config.rope_short_factors},
                                   std::pair{kRopeLongFactors, &config.rope_long_factors}}) {
    const GgufEntry* entry = file_.find(name);
    if (!entry || pairs < 1 || entry->dims != std::vector<std::int64_t>{pairs}) {
      keys_.problem(fmt::format("{} is {}, expected {} numbers", name,
                                entry ? dims_text(entry->dims) : std::string("missing"), pairs));
      continue;
    }
    std::vector<float> factors(static_cast<std::size_t>(pairs));
    file_.read_f32(name, factors);
    list->clear();
    for (const float factor : factors) *list += fmt::format("{}{}", list->empty() ? "" : ",", factor);
  }
}

void Importer::read_windows(ModelConfig& config) {
  config.query_scalar = config.layers > 0 && config.layers == family_->gguf_scale_layers && config.heads > 0
                            ? static_cast<double>(config.dim / config.heads)
                            : 0;
  const auto window = keys_.count(key("attention.sliding_window"));
  if (family_->gguf_period == 0) {
    // llama.cpp has no windows here, but files of models that have one may contain the key.
    config.window = window.value_or(0);
    return;
  }
  config.window = window.value_or(family_->switches.attention_softcap > 0 ? family_->switches.window : 0);
  config.global_every = keys_.count(key("attention.sliding_window_pattern")).value_or(family_->gguf_period);
  if (config.global_every == 1) config.window = 0;  // every layer is global
  if (family_->switches.local_rope_base > 0)
    config.local_rope_base = keys_.number(key("rope.freq_base_swa")).value_or(config.local_rope_base);
  if (config.window == 0) config.global_every = 0, config.local_rope_base = 0;
  const auto cap = [&](std::string_view name, double& member) {
    member = keys_.number(key(name)).value_or(member);
  };
  cap("attn_logit_softcapping", config.attention_softcap);
  cap("final_logit_softcapping", config.logit_softcap);
}

void Importer::expect_folded_settings() {
  for (const auto& [name, expected] : folded_settings(architecture_)) {
    const GgufValue* found = keys_.take(name);
    if (!found || *found != expected)
      keys_.problem(fmt::format("{} is {}, expected {}", name, found ? gguf_value_text(*found) : "missing",
                                gguf_value_text(expected)));
  }
}

// Rejects keys whose values change what the model computes in a way that thimble does not support.
void Importer::reject_unsupported_settings(const ModelConfig& config) {
  const auto expect_count = [&](std::string_view name, std::int64_t expected) {
    const auto found = keys_.count(key(name));
    if (found && *found != expected)
      keys_.problem(fmt::format("{} = {} is not supported, expected {}", key(name), *found, expected));
  };
  const auto expect_text = [&](std::string_view name, std::string_view expected) {
    const auto found = keys_.text(key(name));
    if (found && *found != expected)
      keys_.problem(
          fmt::format("{} = {} is not supported, expected \"{}\"", key(name), quoted_name(*found), expected));
  };
  expect_count("vocab_size", config.vocab_size);
  expect_count("rope.dimension_count", config.rope_dims > 0 ? config.rope_dims : head_dim_of(config));
  expect_count("expert_count", 0);
  expect_count("expert_used_count", 0);
  if (!family_) {
    expect_count("attention.sliding_window", 0);
    expect_text("rope.scaling.type", "none");
  }
  if (!keys_.flag(key("attention.causal")).value_or(true))
    keys_.problem(key("attention.causal") + " = false is not supported");
  const auto type = keys_.text("general.type");
  if (type && *type != "model")
    keys_.problem(fmt::format("general.type = {} is not supported", quoted_name(*type)));
  if (file_.parts() != file_.parts_expected())
    keys_.problem(fmt::format("the file is one of {} parts (split.count), and the others are missing",
                              file_.parts_expected()));
  keys_.take("split.count");
  keys_.take("split.no");
  keys_.take("split.tensors.count");
}

ModelConfig Importer::read_config() {
  ModelConfig config = family_ ? family_->switches : ModelConfig();
  read_sizes(config);
  if (is_folded_architecture(architecture_))
    expect_folded_settings();
  else
    read_switches(config);
  reject_unsupported_settings(config);
  keys_.reject_unread_keys(kHarmlessKeys);
  keys_.throw_problems();
  try {
    return is_folded_architecture(architecture_) ? folded_config(architecture_, config) : resolved(config);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", file_.name(), error.what()), Hint{error.hint()}, error.where());
  }
}

std::vector<Source> Importer::sources(const ModelConfig& config, const ParamTable& table) const {
  if (is_folded_architecture(architecture_)) return folded_sources(config, table);
  std::vector<Source> out;
  out.resize(table.all().size());
  for (const FileTensor& tensor : file_tensors(*family_, table, Naming::gguf)) {
    std::int64_t first = 0;
    for (const Param* part : tensor.parts) {
      const bool bias = part->name.ends_with(".bias") && !family_->switches.bias;
      out[static_cast<std::size_t>(part - table.all().data())] = {
          tensor.name,   tensor.dims, part->offset,
          part->count(), first,       family_->neighbours && is_rotated(part->role),
          bias};
      first += part->count();
    }
  }
  return out;
}

std::vector<Source> Importer::folded_sources(const ModelConfig& config, const ParamTable& table) const {
  std::vector<Source> out;
  for (FoldedTensor& tensor : folded_tensors(architecture_, config)) {
    Source source{std::move(tensor.name), std::move(tensor.dims)};
    if (!tensor.output_scale) {  // output scales are read by read_output_scales()
      const ParamView view = table.view(tensor.role, std::max(tensor.layer, 0));
      source.offset = view.offset;
      source.count = view.count();
    }
    out.push_back(std::move(source));
  }
  return out;
}

void Importer::check_tensors(std::span<const Source> sources, const ModelConfig& config) const {
  std::vector<std::string> problems;
  std::set<std::string, std::less<>> known;
  for (const Source& source : sources) {
    known.insert(source.name);
    const GgufEntry* entry = file_.find(source.name);
    if (!entry && !source.optional) problems.push_back(fmt::format("{} is missing", source.name));
    if (entry && entry->dims != source.dims)
      problems.push_back(
          fmt::format("{} is {}, expected {}", source.name, dims_text(entry->dims), dims_text(source.dims)));
  }
  if (config.rope_scaling == RopeScaling::llama3) known.emplace(kRopeDivisors);
  if (config.rope_scaling == RopeScaling::longrope)
    known.emplace(kRopeShortFactors), known.emplace(kRopeLongFactors);
  for (const GgufEntry& entry : file_.entries())
    if (!known.contains(entry.name))
      problems.push_back(fmt::format("{} is not part of the model", quoted_name(entry.name)));
  check(problems.empty(), Hint{"tensors and settings do not match: convert the model again"}, "{}: {}",
        file_.name(), listed(problems));
  check(config.head_dim % 2 == 0, "{}: expected an even head size, found {}", file_.name(), config.head_dim);
}

// Reads the elements of one parameter of a tensor.
void Importer::read_part(const Source& source, std::span<float> values) const {
  const auto all = static_cast<std::size_t>(file_.at(source.name).count());
  if (values.size() == all) return file_.read_f32(source.name, values);
  std::vector<float> whole(all);
  file_.read_f32(source.name, whole);
  std::ranges::copy(std::span(whole).subspan(static_cast<std::size_t>(source.first), values.size()),
                    values.begin());
}

std::vector<float> Importer::read_weights(const ModelConfig& config) {
  const ParamTable table(config);
  const std::vector<Source> all = sources(config, table);
  check_tensors(all, config);  // before allocating: now the file is as large as the block
  std::vector<float> block(static_cast<std::size_t>(table.block_size()));
  ProgressBar bar(progress_, "reading", "numbers", block.size());
  for (const Source& source : all) {
    if (source.count == 0 || !file_.find(source.name)) continue;
    bar.advance(static_cast<std::uint64_t>(source.count));
    const auto to = std::span(block).subspan(static_cast<std::size_t>(source.offset),
                                             static_cast<std::size_t>(source.count));
    read_part(source, to);
    if (!source.rotated) continue;
    const std::int64_t columns = source.dims.size() == 2 ? source.dims[1] : 1;
    std::ranges::copy(halves_from_neighbours(to, config.head_dim, columns), to.begin());
  }
  if (architecture_ == kTalkie) read_output_scales(config, table, block);
  return block;
}

// Matrices stay in the blocks of the file; vectors are copied.
std::shared_ptr<const StoredWeights> Importer::read_stored(const ModelConfig& config) {
  const ParamTable table(config);
  const std::vector<Source> all = sources(config, table);  // one per param, in the table's order
  check_tensors(all, config);
  auto stored = std::make_shared<StoredWeights>(table, std::vector(all.size(), WeightFormat::blocks));
  for (const auto& mapping : file_.mappings()) stored->keep(mapping);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Source& source = all[i];
    const Param& param = table.all()[i];
    const GgufEntry* entry = file_.find(source.name);
    if (!entry) continue;  // an absent bias: the memory is zeroed
    if (is_matrix(param.role)) {
      const std::int64_t row_bytes = static_cast<std::int64_t>(entry->bytes) / (entry->count() / param.cols);
      stored->set_rows(param,
                       {.data = file_.bytes(source.name).data() + source.first / param.cols * row_bytes,
                        .rows = param.rows,
                        .cols = param.cols,
                        .type = entry->type,
                        .head_dim = source.rotated ? config.head_dim : 0});
      continue;
    }
    std::vector<float> values(static_cast<std::size_t>(source.count));
    read_part(source, values);
    if (source.rotated) values = halves_from_neighbours(values, config.head_dim, 1);
    store_floats(values, stored->tensor(param).values);
  }
  return stored;
}

// talkie adds a share of the embedding after a layer; thimble mixes it in at the start of the next.
void Importer::read_output_scales(const ModelConfig& config, const ParamTable& table,
                                  std::span<float> block) const {
  const auto mix = [&](std::int64_t layer) {
    return block.subspan(static_cast<std::size_t>(table.resid_mix(static_cast<int>(layer)).offset), 2);
  };
  for (std::int64_t layer = 0; layer < config.layers; ++layer) mix(layer)[0] = 1;
  for (const FoldedTensor& tensor : folded_tensors(architecture_, config)) {
    if (!tensor.output_scale) continue;
    float scale = 0;
    file_.read_f32(tensor.name, std::span(&scale, 1));
    if (tensor.layer < config.layers)
      mix(tensor.layer)[1] = scale;
    else
      check(scale == 0,
            "{}: {} is {}, expected 0: thimble does not mix in the embedding after the last layer",
            file_.name(), tensor.name, scale);
  }
}

}  // namespace

bool is_gguf(std::string_view first_bytes) {
  return first_bytes.starts_with("GGUF");
}

bool is_gguf_folder(const std::filesystem::path& folder) {
  return std::filesystem::is_regular_file(folder / "model.gguf");
}

ModelFile read_gguf(const GgufFile& file, WeightsAs as, const ProgressOutput& progress) {
  return Importer(file, progress).read(as);
}

ModelFile open_gguf(const std::filesystem::path& path, WeightsAs as, const ProgressOutput& progress) {
  const bool folder = std::filesystem::is_directory(path);
  const GgufFile file = GgufFile::open(folder ? path / "model.gguf" : path);
  ModelFile out = read_gguf(file, as, progress);
  file.check_intact();
  out.path = path;
  return out;
}

namespace {

template <class T>
constexpr bool kIsWhole = std::is_integral_v<T> && !std::is_same_v<T, bool>;

std::optional<std::int64_t> whole_of(const GgufValue& value) {
  return std::visit(
      []<class T>(const T& content) -> std::optional<std::int64_t> {
        if constexpr (kIsWhole<T>) {
          if (content >= T{0} && std::in_range<std::int64_t>(content))
            return static_cast<std::int64_t>(content);
        } else if constexpr (kIsGgufArray<T>) {
          if constexpr (kIsWhole<typename T::value_type>)
            if (!content.empty() && std::ranges::count(content, content.front()) == std::ssize(content))
              return whole_of(GgufValue(content.front()));
        }
        return std::nullopt;
      },
      value);
}

// A file stores 1e-5 as the nearest f32. Returns the double with the shortest decimal text that
// rounds to that f32, which is most likely the original number.
double shortest_decimal(float value) {
  double shortest = value;
  const std::string text = fmt::format("{}", value);
  std::from_chars(text.data(), text.data() + text.size(), shortest);
  return shortest;
}

std::string key_problem(std::string_view key, const GgufValue& value, std::string_view expected) {
  return fmt::format("{} is {}, expected {}", key, gguf_value_text(value), expected);
}

}  // namespace

const GgufValue* GgufKeyReader::take(std::string_view key) {
  taken_.emplace(key);
  return file_.find_setting(key);
}

std::optional<std::string> GgufKeyReader::text(std::string_view key) {
  const GgufValue* value = take(key);
  if (!value) return std::nullopt;
  if (const auto* found = std::get_if<std::string>(value)) return *found;
  problem(key_problem(key, *value, "a string"));
  return std::nullopt;
}

std::optional<bool> GgufKeyReader::flag(std::string_view key) {
  const GgufValue* value = take(key);
  if (!value) return std::nullopt;
  if (const auto* found = std::get_if<bool>(value)) return *found;
  problem(key_problem(key, *value, "a bool"));
  return std::nullopt;
}

std::optional<std::int64_t> GgufKeyReader::count(std::string_view key) {
  const GgufValue* value = take(key);
  if (!value) return std::nullopt;
  const auto found = whole_of(*value);
  if (!found) problem(key_problem(key, *value, "a whole number"));
  return found;
}

std::optional<double> GgufKeyReader::number(std::string_view key) {
  const GgufValue* value = take(key);
  if (!value) return std::nullopt;
  if (const auto* single = std::get_if<float>(value)) return shortest_decimal(*single);
  if (const auto* wide = std::get_if<double>(value)) return *wide;
  problem(key_problem(key, *value, "an f32"));
  return std::nullopt;
}

std::int64_t GgufKeyReader::required_count(std::string_view key) {
  if (!file_.find_setting(key)) problem(fmt::format("{} is missing", key));
  return count(key).value_or(0);
}

double GgufKeyReader::required_number(std::string_view key) {
  if (!file_.find_setting(key)) problem(fmt::format("{} is missing", key));
  return number(key).value_or(0);
}

void GgufKeyReader::reject_unread_keys(std::span<const std::string_view> harmless) {
  for (const auto& [key, value] : file_.settings()) {
    const bool known = taken_.contains(key) || std::ranges::any_of(harmless, [&](std::string_view start) {
                         return key.starts_with(start);
                       });
    if (!known) problem(fmt::format("{} = {} is not supported", quoted_name(key), gguf_value_text(value)));
  }
}

void GgufKeyReader::throw_problems() const {
  check(problems_.empty(),
        Hint{"thimble rejects settings that it does not support; use a model without them"}, "{}: {}",
        file_.name(), listed(problems_));
}

Json gguf_value_json(const GgufValue& value) {
  constexpr std::size_t kMaxShown = 100;
  const auto one = []<class T>(const T& content) -> Json {
    if constexpr (std::is_same_v<T, float>)
      return shortest_decimal(content);
    else
      return content;
  };
  return std::visit(
      [&]<class T>(const T& content) -> Json {
        if constexpr (kIsGgufArray<T>) {
          using Item = typename T::value_type;
          if (content.size() > kMaxShown)
            return Json::object()
                .set("type", kGgufValueTypes[gguf_value_type<Item>()])
                .set("count", content.size());
          Json array = Json::array();
          for (const auto& item : content) array.push(one(static_cast<const Item&>(item)));
          return array;
        } else {
          return one(content);
        }
      },
      value);
}

std::string gguf_value_text(const GgufValue& value) {
  return std::visit(
      []<class T>(const T& content) -> std::string {
        if constexpr (std::is_same_v<T, std::string>)
          return quoted_name(content);
        else if constexpr (kIsGgufArray<T>)
          return fmt::format("[{} of {}]", content.size(),
                             kGgufValueTypes[gguf_value_type<typename T::value_type>()]);
        else
          return fmt::format("{}", content);
      },
      value);
}

}  // namespace thimble
