#include "cli/inspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/json.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "formats/model_file.h"
#include "model/config_keys.h"

namespace thimble {

namespace {

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

Json id_json(const std::optional<TokenId>& id) {
  return id ? Json(*id) : Json();
}

Json tokenizer_json(const ModelFile& file) {
  const auto tokenizer = open_tokenizer(file);
  if (!tokenizer) return {};
  return Json::object()
      .set("kind", name_of(tokenizer->kind()))
      .set("vocab_size", tokenizer->vocab_size())
      .set("bos", id_json(tokenizer->special().bos))
      .set("eos", id_json(tokenizer->special().eos))
      .set("digest", tokenizer->digest().hex());
}

Json training_json(const ModelFile& file) {
  if (!file.step) return {};
  return Json::object().set("step", *file.step).set("config", settings_json(file.config, true));
}

Json as_json(const ModelFile& file) {
  Json tensors = Json::array();
  for (const StoredTensor& tensor : file.tensors)
    tensors.push(Json::object()
                     .set("name", tensor.name)
                     .set("dtype", tensor.dtype)
                     .set("shape", Json::array({tensor.dims.begin(), tensor.dims.end()}))
                     .set("bytes", tensor.bytes));
  return Json::object()
      .set("path", file.path.string())
      .set("format", file.format)
      .set("architecture", file.architecture)
      .set("parameters", ParamTable(file.config.model).count())
      .set("metadata", metadata_json(file.config.model))
      .set("config", settings_json(file.config, false))
      .set("tokenizer", tokenizer_json(file))
      .set("chat_layout", file.layout.empty() ? Json() : Json(file.layout))
      .set("training", training_json(file))
      .set("tensors", tensors);
}

std::string tokenizer_text(const ModelFile& file) {
  const auto tokenizer = open_tokenizer(file);
  if (!tokenizer) return "none";
  return fmt::format("{}, {} tokens", name_of(tokenizer->kind()), with_commas(tokenizer->vocab_size()));
}

std::string shape_text(const ModelConfig& c) {
  const std::string heads =
      c.kv_heads == c.heads ? fmt::format("{}", c.heads) : fmt::format("{}/{}", c.heads, c.kv_heads);
  return fmt::format("{} layers x {}, {} heads of {}, MLP {}", c.layers, c.dim, heads, c.head_dim,
                     c.mlp_hidden);
}

std::string as_text(const ModelFile& file) {
  const ModelConfig& c = file.config.model;
  Table facts;
  facts.row({"file", file.path.string()});
  facts.row({"format", file.format});
  facts.row({"architecture", file.architecture});
  facts.row({"shape", shape_text(c)});
  facts.row({"parameters", with_commas(ParamTable(c).count())});
  facts.row({"vocabulary", fmt::format("{}{}", with_commas(c.vocab_size), c.tie_embeddings ? ", tied" : "")});
  facts.row({"context", with_commas(c.context)});
  facts.row({"tokenizer", tokenizer_text(file)});
  if (!file.layout.empty()) facts.row({"chat layout", file.layout});
  facts.row({"training", file.step ? fmt::format("{} steps", with_commas(*file.step)) : "not recorded"});
  Table tensors({"tensor", "type", "shape", "bytes"});
  for (const StoredTensor& tensor : file.tensors)
    tensors.row({tensor.name, tensor.dtype, fmt::format("[{}]", fmt::join(tensor.dims, ", ")),
                 with_commas(static_cast<long long>(tensor.bytes))});
  return facts.text() + "\n" + tensors.text();
}

int run_inspect(const Arguments& arguments, Console& console) {
  const ModelFile file = open_model(arguments.path("MODEL"));
  if (console.json())
    console.print_json(as_json(file));
  else
    console.print(as_text(file));
  return 0;
}

}  // namespace

Command inspect_command() {
  return {.name = "inspect",
          .summary = "what is inside a model",
          .arguments = {{.name = "MODEL", .help = "run folder, checkpoint, artifact or Hugging Face folder"}},
          .options = {common::json(), common::quiet()},
          .examples = {"thimble inspect model.safetensors", "thimble inspect runs/chat-1 --json"},
          .run = run_inspect};
}

}  // namespace thimble
