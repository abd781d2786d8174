#include "cli/inspect.h"

#include "base/json.h"
#include "cli/console.h"
#include "cli/inspect_page.h"
#include "cli/parse.h"
#include "formats/model_file.h"
#include "model/config_keys.h"
#include "qa/model_facts.h"

namespace thimble {

namespace {

constexpr std::size_t kPlainWidth = 120;  // where there is no terminal

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json settings_json(const Config& config, bool training) {
  Json object = Json::object();
  for (const Key& key : all_keys())
    if (key.training == training)
      std::visit([&](const auto& value) { object.set(std::string(key.name), value); }, key.get(config));
  return object;
}

// In Transformers' words, whatever the model's own.
Json metadata_json(const ModelConfig& c) {
  const bool rope = c.position == PositionKind::rope, layer = c.norm == NormKind::layer;
  return Json::object()
      .set("hidden_size", c.dim)
      .set("num_layers", c.layers)
      .set("num_heads", c.heads)
      .set("num_kv_heads", c.kv_heads)
      .set("head_dim", c.head_dim)
      .set("intermediate_size", c.mlp_hidden)
      .set("vocab_size", c.vocab_size)
      .set("max_position_embeddings", c.context)
      .set("rope_theta", rope ? Json(c.rope_base) : Json())
      .set("rms_norm_eps", layer ? Json() : Json(c.norm_eps))
      .set("layer_norm_eps", layer ? Json(c.norm_eps) : Json())
      .set("tie_word_embeddings", c.tie_embeddings);
}

Json tokenizer_json(const ModelFacts& facts) {
  if (!facts.tokenizer) return {};
  const TokenizerFacts& tokenizer = *facts.tokenizer;
  Json special = Json::object();
  for (const auto& [name, id] : tokenizer.special_tokens) special.set(name, id);
  return Json::object()
      .set("kind", tokenizer.kind)
      .set("vocab_size", tokenizer.vocab_size)
      .set("bos", or_null(tokenizer.special.bos))
      .set("eos", or_null(tokenizer.special.eos))
      .set("unk", or_null(tokenizer.special.unk))
      .set("pad", or_null(tokenizer.special.pad))
      .set("special_tokens", special)
      .set("bytes_per_token", facts.training ? or_null(facts.training->bytes_per_token) : Json())
      .set("digest", tokenizer.digest);
}

Json training_json(const ModelFile& file, const ModelFacts& facts) {
  if (!facts.training) return {};
  const TrainingFacts& training = *facts.training;
  Json losses = Json::array(), validations = Json::array(), golden = Json::array();
  for (const double loss : training.losses) losses.push(loss);
  for (const auto& [step, loss] : training.validations)
    validations.push(Json::object().set("step", step).set("val_loss", loss));
  for (const TokenId id : training.golden) golden.push(id);
  return Json::object()
      .set("step", training.step)
      .set("tokens", or_null(training.tokens))
      .set("seconds", or_null(training.seconds))
      .set("train_loss", or_null(training.train_loss))
      .set("val_loss", or_null(training.val_loss))
      .set("val_bpb", or_null(training.val_bpb))
      .set("best_step", or_null(training.best_step))
      .set("best_val_loss", or_null(training.best_val_loss))
      .set("losses", training.losses.empty() ? Json() : losses)
      .set("validations", training.losses.empty() ? Json() : validations)
      .set("golden", training.golden.empty() ? Json() : golden)
      .set("config", settings_json(file.config, true));
}

Json stats_json(const TensorStats& stats) {
  Json histogram = Json::array();
  for (const double count : stats.histogram) histogram.push(static_cast<std::int64_t>(count));
  return Json::object()
      .set("mean", stats.mean)
      .set("std", stats.deviation)
      .set("min", stats.least)
      .set("max", stats.most)
      .set("zeros", stats.zeros)
      .set("not_finite", stats.not_finite)
      .set("histogram", histogram);
}

// As they lie in the file; the numbers of those that are one of our tensors.
Json tensors_json(const ModelFile& file) {
  const ParamTable table(file.config.model);
  Json tensors = Json::array();
  for (const StoredTensor& tensor : file.tensors) {
    const Param* param = param_of(file, table, tensor.name);
    tensors.push(Json::object()
                     .set("name", tensor.name)
                     .set("dtype", tensor.dtype)
                     .set("shape", Json::array({tensor.dims.begin(), tensor.dims.end()}))
                     .set("bytes", tensor.bytes)
                     .set("statistics", param ? stats_json(stats_of(values_of(file, *param))) : Json()));
  }
  return tensors;
}

Json groups_json(const ModelFacts& facts) {
  Json groups = Json::array();
  for (const WeightGroup& group : facts.weights)
    groups.push(Json::object()
                    .set("name", group.name)
                    .set("tensors", group.tensors)
                    .set("parameters", group.parameters)
                    .set("shape", Json::array({group.dims.begin(), group.dims.end()}))
                    .set("dtype", group.dtype.empty() ? Json() : Json(group.dtype))
                    .set("bytes", group.bytes > 0 ? Json(group.bytes) : Json())
                    .set("statistics", stats_json(group.stats)));
  return groups;
}

Json as_json(const ModelFile& file, const ModelFacts& facts) {
  Json metadata = Json::object();
  for (const auto& [key, value] : file.metadata)  // a GGUF's values have types
    metadata.set(key, file.format == "gguf" ? parse_json(value, key) : Json(value));
  return Json::object()
      .set("path", file.path.string())
      .set("format", file.format)
      .set("architecture", file.architecture)
      .set("parameters", facts.parameters)
      .set("bytes", facts.file_bytes)
      .set("metadata", metadata_json(file.config.model))
      .set("config", settings_json(file.config, false))
      .set("tokenizer", tokenizer_json(facts))
      .set("chat_layout", file.layout.empty() ? Json() : Json(file.layout))
      .set("training", training_json(file, facts))
      .set("groups", groups_json(facts))
      .set("tensors", tensors_json(file))
      .set("file_metadata", metadata);
}

int run_inspect(const Arguments& arguments, Console& console) {
  const ModelFile file = open_model(arguments.path("MODEL"));
  const ModelFacts facts = facts_of(file, arguments.path("MODEL"));
  if (console.json())
    console.print_json(as_json(file, facts));
  else
    console.print_foreign(inspect_page(file, facts, page_width(kPlainWidth)));
  return 0;
}

}  // namespace

Command inspect_command() {
  return {.name = "inspect",
          .summary = "what is inside a model",
          .arguments = {{.name = "MODEL",
                         .help = "run folder, checkpoint, artifact, GGUF or Hugging Face folder"}},
          .options = {common::json(), common::quiet()},
          .examples = {"thimble inspect model.safetensors", "thimble inspect runs/chat-1 --json"},
          .run = run_inspect};
}

}  // namespace thimble
