#include "formats/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "config/toml.h"
#include "formats/architectures.h"
#include "formats/export.h"
#include "formats/hugging_face_write.h"
#include "formats/safetensors.h"
#include "formats/weights_file.h"
#include "model/stored_weights.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

constexpr const char *kPeftConfig = "adapter_config.json", *kPeftWeights = "adapter_model.safetensors";
constexpr std::string_view kPeftPrefix = "base_model.model.";
constexpr std::uint64_t kMaxConfigBytes = 1 << 20;

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data), static_cast<std::size_t>(tensor.shape().bytes())};
}

// Of the tensors' values in table order. The place of the file does not matter.
std::string digest_of_weights(const ModelFile& model) {
  const ParamTable table(model.config.model);
  Digester digester;
  for (const Param& param : table.all()) {
    const StoredWeights::Stored stored = model.stored->tensor(param);
    digester.add(param.name);
    if (stored.values.dtype != DType::blocks) {
      digester.add(bytes_of(stored.values));
      if (stored.scales) digester.add(bytes_of(stored.scales));
      continue;
    }
    for (const BlockRows& part : block_matrix(stored.values).parts)
      digester.add({part.data, static_cast<std::size_t>(part.rows * part.row_bytes())});
  }
  model.stored->check_files();
  return digester.result().hex();
}

AdapterBase base_of(const ModelFile& model) {
  return {fs::absolute(model.path).lexically_normal().string(), digest_of_weights(model)};
}

std::vector<float> read_values(SafetensorsFile opened, const AdapterTable& table,
                               std::span<const WeightSource> sources) {
  TensorFiles files(opened.name());
  files.add(std::move(opened));
  return read_weights(files, table.params(), sources, [](std::string_view name) { return !is_weight(name); });
}

std::string text_in_metadata(const SafetensorsFile& file, std::string_view key) {
  const std::string* text = file.find_metadata(key);
  return text ? *text : "";
}

fs::path checkpoint_of(const fs::path& path) {
  const fs::path checkpoint = fs::is_directory(path) ? checkpoint_in(path) : path;
  check(!checkpoint.empty(),
        Hint{fmt::format("pass a run with lora_rank, or a PEFT folder with {}", kPeftConfig)},
        "{} contains no adapters", path.string());
  return checkpoint;
}

Adapters read_checkpoint_adapters(const fs::path& given, const ModelConfig& model,
                                  const ProgressOutput& progress) {
  const fs::path path = checkpoint_of(given);
  SafetensorsFile file = SafetensorsFile::open(
      path, [](std::string_view name) { return !name.starts_with(kOptimizerPrefix); }, progress);
  const std::string* toml = file.find_metadata(kConfigKey);
  const LoraConfig lora = toml ? config_from_toml(*toml, path.string()).lora : LoraConfig();
  check(static_cast<bool>(lora), Hint{"pass a run that was trained with --lora-rank, or a PEFT folder"},
        "{} contains no adapters", path.string());
  if (file.find(kDigestTensor)) verify_digest(file, progress);
  Adapters adapters{AdapterTable(model, lora),
                    {},
                    {text_in_metadata(file, kBaseKey), text_in_metadata(file, kBaseDigestKey)}};
  adapters.values = read_values(std::move(file), adapters.table, sources_by_name(adapters.table.params()));
  return adapters;
}

// PEFT's names of a model's matrices: Transformers' without ".weight". Matrices that Transformers
// joins or transposes have none.
std::map<std::string, std::string> peft_stems(const ModelConfig& model, std::string_view architecture) {
  const ParamTable table(model);
  std::map<std::string, std::string> stems;  // by our stem
  for (const FileTensor& tensor :
       file_tensors(hugging_face_family(model, architecture), table, Naming::transformers))
    if (tensor.parts.size() == 1 && !tensor.transposed && tensor.name.ends_with(".weight"))
      stems[matrix_stem(tensor.parts[0]->name)] = fmt::format("{}{}", kPeftPrefix, matrix_stem(tensor.name));
  return stems;
}

std::string peft_name(const Param& param, const std::map<std::string, std::string>& stems,
                      std::string_view architecture) {
  const std::size_t at = param.name.rfind(".lora_");
  const auto stem = stems.find(param.name.substr(0, at));
  check(stem != stems.end(), Hint{"merge the adapters into the model instead"},
        "PEFT has no adapter for {} of a {}: Transformers joins or transposes this matrix",
        param.name.substr(0, at), architecture);
  return stem->second + param.name.substr(at);
}

// The settings that change what an adapter computes, other than those that are read.
void refuse_peft_variants(const Json& config, const std::string& name) {
  const auto is_empty = [](const Json& value) {
    return value.dump() == "null" || value.dump() == "false" || value.dump() == "{}" ||
           value.dump() == "[]" || value.dump() == "\"none\"";
  };
  for (const char* key :
       {"use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "bias", "fan_in_fan_out", "lora_bias",
        "trainable_token_indices", "target_parameters", "layer_replication"})
    if (const Json* value = config.find(key); value && !is_empty(*value))
      fail(Hint{"merge the adapter with PEFT first"}, "{}: {} = {} is not supported", name, key,
           value->dump());
}

struct PeftSettings {
  LoraConfig lora;
  std::string base;
};

PeftSettings read_peft_settings(const fs::path& folder) {
  const std::string name = (folder / kPeftConfig).string();
  const Json config = parse_json(read_file(folder / kPeftConfig, kMaxConfigBytes), name);
  check(config.at("peft_type").as_string() == "LORA", "{}: expected peft_type LORA, found {}", name,
        config.at("peft_type").as_string());
  refuse_peft_variants(config, name);
  PeftSettings settings;
  settings.lora.rank = config.at("r").as_int();
  settings.lora.alpha = config.at("lora_alpha").as_double();
  check(settings.lora.rank > 0 && settings.lora.rank <= 1 << 12 && std::isfinite(settings.lora.alpha),
        "{}: r is {} and lora_alpha {}, expected a rank from 1 to 4096 and a number", name,
        settings.lora.rank, settings.lora.alpha);
  if (const Json* stabilized = config.find("use_rslora")) settings.lora.stabilized = stabilized->as_bool();
  if (const Json* base = config.find("base_model_name_or_path"); base && base->dump() != "null")
    settings.base = base->as_string();
  return settings;
}

// The kinds of layers that have tensors in the file.
LoraTargets targets_in(const SafetensorsFile& file, const ModelConfig& model, LoraConfig lora,
                       const std::map<std::string, std::string>& stems) {
  LoraTargets found{.bits = 0};
  for (unsigned bit = 0; bit < 32; ++bit) {
    lora.targets.bits = LoraTargets().bits & 1u << bit;
    if (lora.targets.bits == 0) continue;
    const auto has = [&](const auto& stem) { return file.find(stem.second + ".lora_A.weight") != nullptr; };
    for (const auto& stem : stems)
      if (has(stem) &&
          target_of(ParamTable(model).find(stem.first + ".weight")->role) == static_cast<LoraTarget>(bit))
        found.bits |= lora.targets.bits;
  }
  check(found.bits != 0, "{} contains no adapter for a linear layer of this model", file.name());
  return found;
}

Adapters read_peft_adapters(const fs::path& folder, const ModelFile& model, const ProgressOutput& progress) {
  PeftSettings settings = read_peft_settings(folder);
  SafetensorsFile file = SafetensorsFile::open(folder / kPeftWeights, {}, progress);
  const ModelConfig& config = model.config.model;
  const auto stems = peft_stems(config, model.architecture);
  settings.lora.targets = targets_in(file, config, settings.lora, stems);
  Adapters adapters{
      AdapterTable(config, settings.lora), {}, {settings.base, text_in_metadata(file, kBaseDigestKey)}};
  std::vector<WeightSource> sources;
  for (const Param& param : adapters.table.params().all())
    sources.push_back({.name = peft_name(param, stems, model.architecture), .dims = param.dims});
  adapters.values = read_values(std::move(file), adapters.table, sources);
  return adapters;
}

// One adapter of the ranks of both, with the scales inside. Layers that only one has get zeros from
// the other.
Adapters sum_of(const ModelConfig& model, const Adapters* first, const Adapters& second, double scale) {
  if (!first && scale == 1) return second;
  struct Summand {
    const Adapters* adapters;
    double scale;
  };
  std::vector<Summand> summands;
  if (first) summands.push_back({first, first->table.lora().scale()});
  summands.push_back({&second, scale * second.table.lora().scale()});
  LoraConfig lora{.targets = {.bits = 0}};
  for (const Summand& one : summands) {
    lora.rank += one.adapters->table.lora().rank;
    lora.targets.bits |= one.adapters->table.lora().targets.bits;
  }
  lora.alpha = static_cast<double>(lora.rank);
  Adapters sum{AdapterTable(model, lora, RankLimit::none), {}, second.base};
  sum.values.resize(static_cast<std::size_t>(sum.table.params().block_size()));
  for (const Param& param : sum.table.params().all()) {
    const bool down = param.name.ends_with(".lora_A.weight");
    const std::span<float> to = param.in(std::span(sum.values));
    std::int64_t at = 0;
    for (const Summand& one : summands) {
      const std::int64_t rank = one.adapters->table.lora().rank;
      if (const Param* const from = one.adapters->table.params().find(param.name)) {
        const std::span<const float> values = from->in(std::span(one.adapters->values));
        for (std::int64_t row = 0; row < from->rows; ++row)
          for (std::int64_t col = 0; col < from->cols; ++col) {
            const float value = values[static_cast<std::size_t>(row * from->cols + col)];
            const std::int64_t place = down ? (at + row) * param.cols + col : row * param.cols + at + col;
            to[static_cast<std::size_t>(place)] =
                down ? value : static_cast<float>(one.scale * static_cast<double>(value));
          }
      }
      at += rank;
    }
  }
  return sum;
}

}  // namespace

FrozenModel frozen(ModelFile model, Device device, DType dtype) {
  AdapterBase base = base_of(model);
  const auto convert = device == Device::cpu ? stored_for_rows : stored_for_gpu;
  return {std::move(base), convert(ParamTable(model.config.model), std::move(model.stored), dtype)};
}

ModelFile open_base(const AdapterBase& base, std::string_view user, const ProgressOutput& progress) {
  std::error_code missing;
  check(fs::exists(base.path, missing),
        Hint{"put the model back, or name it as MODEL and the adapters with --adapter"},
        "{} contains adapters for {}, which does not exist", user, base.path);
  ModelFile model = open_model(base.path, WeightsAs::stored, progress);
  if (base.digest.empty()) return model;
  const std::string digest = digest_of_weights(model);
  check(digest == base.digest, Hint{"restore the model that the adapters were trained on"},
        "{} contains adapters for another version of {}: expected weights with digest {}, found {}", user,
        base.path, base.digest, digest);
  return model;
}

void add_adapters(ModelFile& model, const fs::path& path, double scale, const ProgressOutput& progress) {
  check(model.stored != nullptr, "[adapters] the model must be opened with its stored weights");
  const Adapters more = is_peft_folder(path) ? read_peft_adapters(path, model, progress)
                                             : read_checkpoint_adapters(path, model.config.model, progress);
  const AdapterBase own = model.adapters ? model.adapters->base : base_of(model);
  check(more.base.digest.empty() || more.base.digest == own.digest,
        Hint{"name the model that they were trained on"},
        "the adapters in {} are for {}, whose weights differ from those of {}", path.string(), more.base.path,
        model.path.string());
  Adapters sum = sum_of(model.config.model, model.adapters.get(), more, scale);
  sum.base = own;
  std::erase_if(model.metadata, [](const auto& one) {  // results of the model without these adapters
    return std::ranges::find(kRecordKeys, one.first) != kRecordKeys.end();
  });
  model.adapters = std::make_shared<const Adapters>(std::move(sum));
}

ModelFile open_adapted(const fs::path& path, std::span<const NamedAdapter> adapters, WeightsAs as,
                       const ProgressOutput& progress) {
  if (adapters.empty()) return open_model(path, as, progress);
  check(as != WeightsAs::none, "[adapters] adapters need the weights of their model");
  ModelFile model = open_model(path, WeightsAs::stored, progress);
  for (const NamedAdapter& one : adapters) add_adapters(model, one.path, one.scale, progress);
  if (as != WeightsAs::stored) merge(model);
  return model;
}

void merge(ModelFile& model) {
  model.weights = float_weights(model);
  model.stored = nullptr;
  model.adapters = nullptr;
}

bool is_peft_folder(const fs::path& folder) {
  return fs::is_regular_file(folder / kPeftConfig);
}

ModelFile open_peft(const fs::path& folder, WeightsAs as, const ProgressOutput& progress) {
  const PeftSettings settings = read_peft_settings(folder);
  check(!settings.base.empty(), Hint{"name its base as MODEL and the folder with --adapter"},
        "{} does not name the model that the adapter is for", (folder / kPeftConfig).string());
  const fs::path base =
      fs::path(settings.base).is_absolute() ? fs::path(settings.base) : folder / settings.base;
  ModelFile model =
      open_base({fs::exists(base) ? base.string() : settings.base, ""}, folder.string(), progress);
  add_adapters(model, folder, 1, progress);
  model.path = folder;
  model.format = "peft";
  if (as != WeightsAs::stored) merge(model);
  return model;
}

namespace {

Json peft_config(const Adapters& adapters, const std::map<std::string, std::string>& stems) {
  const LoraConfig& lora = adapters.table.lora();
  std::set<std::string> modules;  // q_proj, ...: the last part of the names
  for (const Param& param : adapters.table.params().all()) {
    const std::string& stem = stems.at(param.name.substr(0, param.name.rfind(".lora_")));
    modules.insert(stem.substr(stem.rfind('.') + 1));
  }
  return Json::object()
      .set("peft_type", "LORA")
      .set("task_type", "CAUSAL_LM")
      .set("base_model_name_or_path", adapters.base.path)
      .set("r", lora.rank)
      .set("lora_alpha", lora.alpha > 0 ? lora.alpha : 2 * static_cast<double>(lora.rank))
      .set("lora_dropout", lora.dropout)
      .set("use_rslora", lora.stabilized)
      .set("target_modules", Json::array({modules.begin(), modules.end()}))
      .set("bias", "none")
      .set("fan_in_fan_out", false)
      .set("inference_mode", true);
}

fs::path foreign_file(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.path().filename() != kPeftConfig && entry.path().filename() != kPeftWeights)
      return entry.path();
  return {};
}

ExportReport export_peft(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  check(model.adapters != nullptr, Hint{"export all its weights with --format hf"},
        "{} has no adapters: expected a run with lora_rank, or --adapter", model.path.string());
  const Adapters& adapters = *model.adapters;
  const ParamTable& params = adapters.table.params();
  const auto stems = peft_stems(model.config.model, model.architecture);
  ExportReport report{
      .architecture = model.architecture, .type = GgufType::f32, .tensors = params.all().size()};
  AtomicFolder folder(ops, request.path, request.existing, foreign_file);
  SafetensorsWriter writer;
  writer.set_metadata("format", "pt");
  writer.set_metadata(std::string(kBaseDigestKey), adapters.base.digest);
  for (const Param& param : params.all())
    writer.add(peft_name(param, stems, model.architecture), DType::f32, param.dims,
               std::as_bytes(param.in(std::span(adapters.values))));
  write_file(ops, folder.path() / kPeftConfig, peft_config(adapters, stems).dump(2) + "\n", Existing::refuse);
  writer.write(ops, folder.path() / kPeftWeights, Existing::refuse, WithDigest::no, {}, request.progress);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path()))
    report.bytes += entry.file_size();
  if (request.inspect) request.inspect(folder.path());
  folder.commit();
  return report;
}

}  // namespace

ExportFormat peft_export() {
  return {.name = "peft",
          .what = "the adapters alone, for Hugging Face PEFT",
          .types = {GgufType::f32},
          .write = export_peft,
          .folder = true,
          .adapters = true};
}

}  // namespace thimble
