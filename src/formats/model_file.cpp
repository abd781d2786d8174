#include "formats/model_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "config/toml.h"
#include "formats/adapters.h"
#include "formats/architectures.h"
#include "formats/artifact.h"
#include "formats/gguf_import.h"
#include "formats/hugging_face.h"
#include "formats/int8_state.h"
#include "formats/npz.h"
#include "formats/safetensors.h"
#include "formats/weights_file.h"
#include "model/params.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

std::optional<std::int64_t> read_count(const SafetensorsFile& file, std::string_view key, std::int64_t most) {
  const std::string* text = file.find_metadata(key);
  if (!text) return std::nullopt;
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  check(error == std::errc() && end == text->data() + text->size() && value >= 0 && value <= most,
        "{}: metadata {} is '{}', expected a whole number up to {}", file.name(), key, text->substr(0, 40),
        most);
  return value;
}

std::optional<TokenizerFile> read_tokenizer(const SafetensorsFile& file, const ModelConfig& config) {
  if (!file.find(kTokenizerTensor)) return std::nullopt;
  check(file.dtype(kTokenizerTensor) == DType::u8, "{}: expected {} as U8, found {}", file.name(),
        kTokenizerTensor, file.at(kTokenizerTensor).dtype);
  const auto bytes = file.bytes(kTokenizerTensor);
  const auto id = [&](std::string_view key) -> std::optional<TokenId> {
    const auto value = read_count(file, key, config.vocab_size - 1);
    return value ? std::optional(static_cast<TokenId>(*value)) : std::nullopt;
  };
  const auto adds_bos = read_count(file, kAddsBosKey, 1);
  return TokenizerFile{.name = fmt::format("{}: {}", file.name(), kTokenizerTensor),
                       .content = {reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                       .special = {.bos = id(kBosKey), .eos = id(kEosKey), .unk = {}, .pad = {}},
                       .adds_bos = adds_bos ? std::optional(*adds_bos == 1) : std::nullopt};
}

// The tables of both models must be equal: stored weights are found by their place.
void check_same_shapes(const ModelConfig& base, const ModelConfig& adapted, std::string_view name,
                       std::string_view base_name) {
  const ParamTable theirs(base), ours(adapted);
  const auto same = [](const Param& a, const Param& b) { return a.name == b.name && a.dims == b.dims; };
  check(std::ranges::equal(theirs.all(), ours.all(), same),
        "{} contains adapters for a model of another shape than {}", name, base_name);
}

// Common part of reading a state dict and a checkpoint.
ModelFile open_weights(SafetensorsFile opened, const fs::path& path, const Config& config,
                       std::string_view prefix, WeightsAs as = WeightsAs::floats) {
  ModelFile out;
  out.path = path;
  out.format = "safetensors";
  out.architecture = architecture_of(config.model);
  out.config = config;
  append_tensors(opened, out.tensors);
  TensorFiles files(opened.name());
  files.add(std::move(opened));
  const ParamTable table(config.model);
  const auto is_other = [&](std::string_view name) {
    return prefix.empty() ? !is_weight(name) : !name.starts_with(prefix);
  };
  out.weights = read_weights(files, table, sources_by_name(table, prefix), is_other, as);
  return out;
}

// The tensors of a checkpoint to read. The optimizer's state is two thirds of it.
SafetensorsFile::TensorFilter wanted_for(WeightsAs as) {
  if (as == WeightsAs::none) return [](std::string_view name) { return name.starts_with(kThimblePrefix); };
  if (as == WeightsAs::verified) return nullptr;
  return [](std::string_view name) { return !name.starts_with(kOptimizerPrefix); };
}

// A checkpoint that contains adapters: its base with these adapters. A resumed run reads its own
// settings; for all others the model is one without lora_rank.
ModelFile open_adapters_of(const SafetensorsFile& file, const fs::path& path, const Config& config,
                           WeightsAs as, const ProgressOutput& progress) {
  const std::string *base = file.find_metadata(kBaseKey), *digest = file.find_metadata(kBaseDigestKey);
  check(base && digest, "{} contains adapters: expected metadata {} and {}", path.string(), kBaseKey,
        kBaseDigestKey);
  ModelFile out;
  out.path = path;
  out.format = "safetensors";
  out.architecture = architecture_of(config.model);
  out.config = config;
  out.config.lora = {};
  append_tensors(file, out.tensors);
  if (as == WeightsAs::none) return out;
  ModelFile model = open_base({*base, *digest}, path.string(), progress);
  check_same_shapes(model.config.model, config.model, path.string(), *base);
  out.stored = std::move(model.stored);
  out.path = *base;  // what the adapters are added to
  add_adapters(out, path, 1, progress);
  out.path = path;
  if (as != WeightsAs::stored) merge(out);
  return out;
}

ModelFile open_checkpoint(const fs::path& path, WeightsAs as, const ProgressOutput& progress) {
  SafetensorsFile file = SafetensorsFile::open(path, wanted_for(as), progress);
  const std::string* toml = file.find_metadata(kConfigKey);
  if (!toml)
    fail(Hint{"import a file of weights with `thimble import FILE --preset P --set ... -o OUT`; for a "
              "Hugging Face model pass its folder"},
         "{} has no model config: expected metadata {}, found none", path.string(), kConfigKey);
  if (as != WeightsAs::none && file.find(kDigestTensor)) verify_digest(file, progress);
  const Config config = config_from_toml(*toml, fmt::format("{}: {}", path.string(), kConfigKey));
  const auto step = read_count(file, kStepKey, std::numeric_limits<std::int64_t>::max());
  auto tokenizer = read_tokenizer(file, config.model);
  const std::string* layout = file.find_metadata(kLayoutKey);
  const std::string layout_text = layout ? *layout : "";
  auto metadata = file.metadata();

  ModelFile out = config.lora ? open_adapters_of(file, path, config, as, progress)
                              : open_weights(std::move(file), path, config, "", as);
  out.step = step;
  out.tokenizer = std::move(tokenizer);
  out.layout = layout_text;
  out.metadata = std::move(metadata);
  return out;
}

bool is_run_folder(const fs::path& folder) {
  return !checkpoint_in(folder).empty();
}

ModelFile open_run(const fs::path& folder, WeightsAs as, const ProgressOutput& progress) {
  return open_checkpoint(checkpoint_in(folder), as, progress);
}

ModelFile open_artifact_model(const fs::path& path, WeightsAs as, const ProgressOutput& progress) {
  return open_artifact(path, as, progress).model;
}

constexpr ModelKind kModelKinds[] = {
    {.what = "run folder", .is_folder = is_run_folder, .open = open_run},
    {.what = "checkpoint", .open = open_checkpoint},
    {.what = "PEFT folder", .is_folder = is_peft_folder, .open = open_peft},
    {.what = "artifact", .is_file = is_artifact, .ending = ".thimble", .open = open_artifact_model},
    {.what = "GGUF", .is_folder = is_gguf_folder, .is_file = is_gguf, .open = open_gguf},
    {.what = "Hugging Face folder", .is_folder = is_hugging_face_folder, .open = open_hugging_face},
};

std::string first_bytes(const fs::path& path, std::size_t count) {
  const InputFile file(path);
  std::string bytes(count, '\0');
  bytes.resize(file.read_some_at(0, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

ModelFile open_folder(const fs::path& folder, WeightsAs as, const ProgressOutput& progress,
                      std::span<const ModelKind> kinds) {
  for (const ModelKind& kind : kinds)
    if (kind.is_folder && kind.is_folder(folder)) return kind.open(folder, as, progress);
  fail(Hint{"pass a run folder (with best.safetensors or last.safetensors) or a Hugging Face folder (with "
            "config.json)"},
       "{} does not contain a model", folder.string());
}

ModelFile open_any(const fs::path& path, WeightsAs as, const ProgressOutput& progress,
                   std::span<const ModelKind> kinds) {
  if (fs::is_directory(path)) return open_folder(path, as, progress, kinds);
  const std::string first = first_bytes(path, 8);
  check(!is_zip(first) && path.extension() != ".ptz",
        Hint{"import weights without a config with `thimble import FILE --preset golf-mlx --set ... -o OUT`"},
        "{} has no model config", path.string());
  for (const ModelKind& kind : kinds)
    if (kind.is_file && kind.is_file(first)) return kind.open(path, as, progress);
  for (const ModelKind& kind : kinds)
    if (!kind.ending.empty() && path.extension() == kind.ending) return kind.open(path, as, progress);
  return open_checkpoint(path, as, progress);
}

}  // namespace

bool is_weight(std::string_view name) {
  return !name.starts_with(kOptimizerPrefix) && !name.starts_with(kThimblePrefix);
}

fs::path checkpoint_in(const fs::path& folder) {
  for (const char* name : {"best.safetensors", "last.safetensors"})
    if (fs::is_regular_file(folder / name)) return folder / name;
  return {};
}

std::span<const ModelKind> model_kinds() {
  return kModelKinds;
}

std::string_view model_kinds_text() {
  static const std::string words = [] {
    std::vector<std::string_view> kinds;
    for (const ModelKind& kind : model_kinds()) kinds.push_back(kind.what);
    const std::string_view last = kinds.back();
    kinds.pop_back();
    return fmt::format("{} or {}", joined(kinds, ", "), last);
  }();  // command-line options keep views of this string
  return words;
}

ModelFile open_model(const fs::path& path, WeightsAs as, const ProgressOutput& progress,
                     std::span<const ModelKind> kinds) {
  ModelFile file = open_any(path, as, progress, kinds);
  if (as != WeightsAs::stored || file.stored) return file;
  const ParamTable table(file.config.model);
  file.stored = std::make_shared<StoredWeights>(stored_exactly(table, file.weights));
  file.weights = std::vector<float>();  // frees the memory
  return file;
}

std::vector<float> float_weights(const ModelFile& file) {
  if (!file.stored) return file.weights;
  const ParamTable table(file.config.model);
  std::vector<float> weights(static_cast<std::size_t>(table.block_size()));
  file.stored->unpack(table, weights);
  if (file.adapters) merge_adapters(table, file.adapters->table, file.adapters->values, weights);
  return weights;
}

ModelFile open_state_dict(const fs::path& path, const Config& config, std::string_view prefix) {
  if (path.extension() == ".ptz") {
    check(prefix.empty(), "{}: names in an int8 file have no prefix", path.string());
    return open_int8_state(path, config);
  }
  if (is_zip(first_bytes(path, 4))) return open_npz(path, config, prefix);
  return open_weights(SafetensorsFile::open(path), path, config, prefix);
}

void append_tensors(const SafetensorsFile& file, std::vector<StoredTensor>& tensors) {
  for (const SafetensorsEntry& entry : file.entries())
    tensors.push_back({entry.name, std::string(entry.dtype), entry.dims, entry.bytes()});
}

std::unique_ptr<Tokenizer> open_tokenizer(const ModelFile& file) {
  if (!file.tokenizer) return nullptr;
  const TokenizerFile& from = *file.tokenizer;
  auto tokenizer = from.spec ? make_bpe_tokenizer(*from.spec, {}, from.content)
                             : load_tokenizer_bytes(from.content, from.name);
  check(tokenizer->vocab_size() <= file.config.model.vocab_size,
        Hint{"use the tokenizer that the model was trained with"},
        "{} has {} tokens, the model's vocabulary has {}", from.name, tokenizer->vocab_size(),
        file.config.model.vocab_size);
  const auto chosen = [&](const std::string& text, std::optional<TokenId> id) {
    const auto named = text.empty() ? std::nullopt : tokenizer->id_of(text);
    if (named) return named;
    return id && tokenizer->contains(*id) ? id : std::nullopt;  // an embedding may have unused rows
  };
  tokenizer->prefer({.bos = chosen(from.bos_text, from.special.bos),
                     .eos = chosen(from.eos_text, from.special.eos),
                     .unk = {},
                     .pad = {},
                     .more_ends = from.special.more_ends});
  if (from.adds_bos)
    tokenizer->texts_begin_with_bos(*from.adds_bos);
  else if (file.step || file.format == "thimble")
    tokenizer->texts_begin_with_bos();
  return tokenizer;
}

std::string layout_for_training(const ModelFile& file) {
  return file.layout.empty() ? std::string(kRolesLayout) : file.layout;
}

ChatLayout open_chat_layout(const ModelFile& file, const Tokenizer& tokenizer, std::string_view name) {
  if (!name.empty()) {
    ChatLayout chosen(tokenizer, name);
    check(chosen.missing().empty(),
          "the tokenizer has no special token {}, which the chat layout {} requires",
          joined(chosen.missing(), ", "), name);
    return chosen;
  }
  check(!file.layout.empty(),
        Hint{"train a chat model with `thimble train --preset chat --data CHATS.jsonl`, or continue a text "
             "with `thimble generate`"},
        "{} was not trained on chats", file.path.string());
  return {tokenizer, file.layout};
}

namespace {

// True if all switches that only golf models use are off.
bool is_plain(const ModelConfig& c) {
  return c.q_gain == GainKind::none && !c.layer_scale && !c.exclusive_attention && !c.branch_scale &&
         c.residual_mix == MixKind::none && !c.unet_skips && c.parallel_from < 0 && c.loop_count == 0 &&
         c.bigram_buckets == 0 && !c.smear_gate && (c.logit_softcap == 0 || c.post_norm);
}

bool is_microgpt(const ModelConfig& c) {
  return is_plain(c) && c.norm == NormKind::rms && c.embed_norm && !c.final_norm &&
         c.position == PositionKind::learned && c.mlp == MlpKind::relu && !c.qk_norm && !c.bias &&
         !c.qkv_bias && !c.tie_embeddings;
}

bool is_golf(const ModelConfig& c) {
  return c.norm == NormKind::rms && c.embed_norm && c.final_norm && c.position == PositionKind::rope &&
         c.qk_norm && c.q_gain != GainKind::none && c.branch_scale && c.residual_mix != MixKind::none &&
         !c.gated_mlp() && !c.bias && !c.qkv_bias;
}

}  // namespace

std::string_view architecture_of(const ModelConfig& config) {
  if (const Architecture* family = family_of(config)) return family->name;
  if (is_microgpt(config)) return "microgpt";
  if (is_golf(config)) return "golf";
  return "thimble";
}

bool is_golf_model(const ModelConfig& config) {
  return !is_plain(config);
}

}  // namespace thimble
