// thimble inspect: facts and statistics of a model, as text or JSON.

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/json.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/console.h"
#include "cli/option.h"
#include "cli/parse.h"
#include "config/keys.h"
#include "formats/model_file.h"
#include "formats/safetensors.h"
#include "qa/model_facts.h"

namespace thimble {

namespace {

constexpr std::size_t kDots = 4;         // length of the ellipsis of shortened()
constexpr std::size_t kLabelWidth = 14;  // longest label plus two spaces

std::string bytes_text(std::uint64_t bytes) {
  return in_bytes(static_cast<double>(bytes));
}

std::string shape_text(const ModelConfig& c) {
  const std::string heads =
      c.kv_heads == c.heads ? fmt::format("{}", c.heads) : fmt::format("{}/{}", c.heads, c.kv_heads);
  return fmt::format("{} layers x {}, {} heads of {}, MLP {}", c.layers, c.dim, heads, c.head_dim,
                     c.mlp_hidden);
}

std::string tokenizer_text(const ModelFacts& facts) {
  if (!facts.tokenizer) return "none";
  std::string text =
      fmt::format("{}, {} tokens", facts.tokenizer->kind, with_commas(facts.tokenizer->vocab_size));
  if (facts.training && facts.training->bytes_per_token)
    text += fmt::format(", {:.2f} bytes per token in training", *facts.training->bytes_per_token);
  return text;
}

// Escapes control characters in the names of tokens, which come from a file.
std::string printable(const std::string& name) {
  std::string quoted = quoted_name(name);
  return quoted == fmt::format("\"{}\"", name) ? name : quoted;
}

std::string special_text(const TokenizerFacts& tokenizer) {
  std::vector<std::string> names;
  for (const auto& [name, id] : tokenizer.special_tokens) {
    std::string text = fmt::format("{} {}", printable(name), id);
    if (tokenizer.special.bos == id) text += " (bos)";
    if (tokenizer.special.eos == id) text += " (eos)";
    names.push_back(std::move(text));
  }
  return names.empty() ? "none" : joined(names, ", ");
}

std::string training_text(const TrainingFacts& training) {
  std::string text = fmt::format("{} steps", with_commas(training.step));
  if (training.tokens) text += fmt::format(", {} tokens", with_unit(static_cast<double>(*training.tokens)));
  if (training.seconds) text += fmt::format(", {}", in_seconds(*training.seconds));
  if (training.val_loss) text += fmt::format(", val {:.4f} nats", *training.val_loss);
  if (training.val_bpb) text += fmt::format(", {:.4f} bits per byte", *training.val_bpb);
  if (training.best_step && *training.best_step != training.step)
    text +=
        fmt::format(", best {:.4f} at step {}", *training.best_val_loss, with_commas(*training.best_step));
  return text;
}

// ▇▅▃▂▁ 5.5512 -> 2.3101
std::string curve_text(std::span<const double> values, std::size_t width) {
  const std::string ends = fmt::format(" {:.4f} -> {:.4f}", values.front(), values.back());
  return sparkline(values, std::clamp<std::size_t>(width - std::min(width, ends.size()), 8, 60)) + ends;
}

// Wraps text to `width`; further lines are indented to the column of the first.
std::string wrapped(const std::string& text, std::size_t width) {
  std::string out;
  std::size_t column = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (column > 0 && column + 1 + display_width(word) > width) {
      out += "\n" + std::string(kLabelWidth, ' ');
      column = 0;
    }
    out += (column > 0 ? " " : "") + word;
    column += (column > 0 ? 1 : 0) + display_width(word);
    begin = end + 1;
  }
  return out;
}

ModelConfig plain_llama_with_sizes_of(const ModelConfig& c) {
  ModelConfig plain;
  plain.vocab_size = c.vocab_size;
  plain.context = c.context;
  plain.layers = c.layers;
  plain.dim = c.dim;
  plain.heads = c.heads;
  plain.kv_heads = c.kv_heads;
  plain.head_dim = plain.rope_dims = c.head_dim;
  plain.mlp_hidden = c.mlp_hidden;
  plain.tie_embeddings = c.tie_embeddings;
  return plain;
}

// The settings that differ from a plain llama, as in TOML. JSON has every setting.
std::string settings_text(const Config& config) {
  const Config plain{.model = plain_llama_with_sizes_of(config.model)};
  std::vector<std::string> settings;
  for (const Key& key : all_keys()) {
    if (!key.of_model() || key.get(config) == key.get(plain)) continue;
    const std::string value = std::visit([](const auto& v) { return fmt::format("{}", v); }, key.get(config));
    settings.push_back(fmt::format("{}={}", key.name, value));
  }
  return settings.empty() ? "a plain llama" : joined(settings, " ");
}

// As a JSON string.
std::string on_one_line(const std::string& text) {
  std::string line;
  append_json_string(line, text);
  return line;
}

std::string facts_text(const ModelFile& file, const ModelFacts& facts, std::size_t width) {
  const ModelConfig& c = file.config.model;
  std::string page;
  const std::size_t room = width > kLabelWidth + 20 ? width - kLabelWidth : 20;
  const auto fact = [&](std::string_view label, const std::string& text) {
    page += fmt::format("{:<{}}{}\n", label, kLabelWidth, wrapped(text, room));
  };
  fact("file", file.path.string());
  fact("format", fmt::format("{}, {}", file.format, bytes_text(facts.file_bytes)));
  fact("architecture", file.architecture);
  fact("shape", shape_text(c));
  fact("settings", settings_text(file.config));
  fact("parameters", with_commas(facts.parameters));
  fact("vocabulary", fmt::format("{}{}", with_commas(c.vocab_size), c.tie_embeddings ? ", tied" : ""));
  fact("context", with_commas(c.context));
  fact("tokenizer", tokenizer_text(facts));
  if (facts.tokenizer) fact("special", special_text(*facts.tokenizer));
  if (!file.layout.empty()) fact("chat layout", layout_summary(file.layout));
  fact("training", facts.training ? training_text(*facts.training) : "not recorded");
  if (facts.training && !facts.training->losses.empty())
    fact("loss", curve_text(facts.training->losses, room));
  if (facts.training && facts.training->validations.size() > 1) {
    std::vector<double> losses;
    for (const auto& [step, loss] : facts.training->validations) losses.push_back(loss);
    fact("validation", curve_text(losses, room));
  }
  if (facts.training && !facts.training->golden.empty())
    fact("sample", shortened(on_one_line(facts.training->golden_text), room - kDots));
  return page;
}

// Levels of detail of the table. A narrow page first drops columns, then shortens names.
struct Detail {
  int columns;  // shows columns up to this rank
  std::size_t bins;
  bool short_names;
};
constexpr Detail kDetails[] = {{7, 24, false}, {6, 24, false}, {5, 24, false}, {4, 24, false},
                               {3, 24, false}, {3, 12, false}, {3, 12, true},  {2, 12, true},
                               {1, 12, true},  {1, 8, true},   {0, 0, true}};

struct Column {
  std::string_view heading;
  int rank;
  std::string (*cell)(const WeightGroup& group, const Detail& detail);
  bool statistic = false;  // needs the weights
};

std::string figure(double value) {
  return fmt::format("{:.3g}", value);
}

// "model.layers.*.mlp.up_proj.weight" -> "layers.*.mlp.up_proj"
std::string short_name(std::string_view name) {
  if (name.starts_with("model.")) name.remove_prefix(6);
  if (name.ends_with(".weight")) name.remove_suffix(7);
  return std::string(name);
}

constexpr Column kColumns[] = {
    {"tensor", 0,
     [](const WeightGroup& g, const Detail& d) { return d.short_names ? short_name(g.name) : g.name; }},
    {"n", 2, [](const WeightGroup& g, const Detail&) { return fmt::format("{}", g.tensors); }},
    {"type", 1, [](const WeightGroup& g, const Detail&) { return g.dtype.empty() ? "-" : g.dtype; }},
    {"shape", 3,
     [](const WeightGroup& g, const Detail&) { return fmt::format("[{}]", joined(g.dims, ", ")); }},
    {"bytes", 5, [](const WeightGroup& g, const Detail&) { return g.bytes > 0 ? bytes_text(g.bytes) : "-"; }},
    {"mean", 4, [](const WeightGroup& g, const Detail&) { return figure(g.stats.mean); }, true},
    {"std", 2, [](const WeightGroup& g, const Detail&) { return figure(g.stats.deviation); }, true},
    {"min", 6, [](const WeightGroup& g, const Detail&) { return figure(g.stats.least); }, true},
    {"max", 6, [](const WeightGroup& g, const Detail&) { return figure(g.stats.most); }, true},
    {"zeros", 7,
     [](const WeightGroup& g, const Detail&) {
       return fmt::format("{:.3g} %", 100 * static_cast<double>(g.stats.zeros) /
                                          static_cast<double>(std::max<std::int64_t>(g.stats.count, 1)));
     },
     true},
    {"histogram", 1,
     [](const WeightGroup& g, const Detail& d) { return sparkline(g.stats.histogram, d.bins); }, true},
};

bool has_statistics(const ModelFacts& facts) {
  return !facts.weights.empty() && facts.weights.front().stats.count > 0;
}

std::string weights_table(const ModelFacts& facts, const Detail& detail) {
  const bool read = has_statistics(facts);
  const auto is_shown = [&](const Column& column) {
    return column.rank <= detail.columns && (read || !column.statistic);
  };
  std::vector<std::string> headings;
  for (const Column& column : kColumns)
    if (is_shown(column)) headings.emplace_back(column.heading);
  Table table(headings);
  for (const WeightGroup& group : facts.weights) {
    std::vector<std::string> cells;
    for (const Column& column : kColumns)
      if (is_shown(column)) cells.push_back(column.cell(group, detail));
    table.row(std::move(cells));
  }
  return table.text();
}

std::size_t widest_line(std::string_view text) {
  std::size_t widest = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    widest = std::max(widest, display_width(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return widest;
}

std::string weights_text(const ModelFacts& facts, std::size_t width) {
  std::string text;
  for (const Detail& detail : kDetails) {
    text = weights_table(facts, detail);
    if (widest_line(text) <= width) break;
  }
  for (const WeightGroup& group : facts.weights)
    if (group.stats.not_finite > 0)
      text +=
          fmt::format("{}: {} values are NaN or infinite\n", group.name, with_commas(group.stats.not_finite));
  return text;
}

std::string others_text(const ModelFacts& facts) {
  if (facts.others.empty()) return "";
  Table table({"other tensors", "n", "bytes"});
  for (const OtherTensors& other : facts.others)
    table.row({other.name, fmt::format("{}", other.tensors), bytes_text(other.bytes)});
  return "\n" + table.text();
}

// Lines have at most `width` columns, except for names that are longer.
std::string inspect_page(const ModelFile& file, const ModelFacts& facts, std::size_t width) {
  return facts_text(file, facts, width) + "\n" + weights_text(facts, width) + others_text(facts) +
         (has_statistics(facts) ? "" : "\nnot read: weights and digests; --verify reads them\n");
}

constexpr std::size_t kPlainWidth = 120;  // without a terminal

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json settings_json(const Config& config, bool of_model) {
  Json object = Json::object();
  for (const Key& key : all_keys())
    if (key.of_model() == of_model)
      std::visit([&](const auto& value) { object.set(std::string(key.name), value); }, key.get(config));
  return object;
}

// With the key names of Transformers.
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
      .set("config", settings_json(file.config, false));
}

Json stats_json(const TensorStats& stats) {
  if (stats.count == 0) return {};
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

// The tensors of the file in file order, with statistics if they are parameters of the model.
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
                     .set("statistics", param && !file.weights.empty()
                                            ? stats_json(stats_of(values_of(file, *param)))
                                            : Json()));
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

// "verified": whether the file was read completely.
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
      .set("verified", !file.weights.empty())
      .set("metadata", metadata_json(file.config.model))
      .set("config", settings_json(file.config, true))
      .set("tokenizer", tokenizer_json(facts))
      .set("chat_layout", file.layout.empty() ? Json() : Json(file.layout))
      .set("training", training_json(file, facts))
      .set("groups", groups_json(facts))
      .set("tensors", tensors_json(file))
      .set("file_metadata", metadata);
}

// Larger files are read completely only with --verify.
constexpr std::uint64_t kQuicklyRead = 64 << 20;

int run_inspect(const Arguments& arguments, Console& console) {
  const std::filesystem::path path = arguments.path("MODEL");
  ModelFile file = open_model(path, WeightsAs::none);
  if (file.weights.empty() && (arguments.flag("verify") || model_bytes(file) <= kQuicklyRead))
    file = open_model(path, WeightsAs::verified, console.progress());
  const ModelFacts facts = facts_of(file, path);
  if (console.json())
    console.print_json(as_json(file, facts));
  else
    console.print_foreign(inspect_page(file, facts, page_width(kPlainWidth)));
  return 0;
}

}  // namespace

Command inspect_command() {
  return {.name = "inspect",
          .summary = "show settings, tensors, tokenizer and training history of a model",
          .arguments = {{.name = "MODEL", .help = model_kinds_text()}},
          .options = {{.name = "verify",
                       .help = "read files above 64 MiB completely: check digests and show statistics"},
                      common::json(),
                      common::quiet()},
          .examples = {"thimble inspect model.safetensors", "thimble inspect runs/chat-1 --json"},
          .run = run_inspect};
}

}  // namespace thimble
