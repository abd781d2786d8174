#include "cli/train_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "base/error.h"
#include "base/machine.h"
#include "cli/parse.h"
#include "data/data_folder.h"
#include "data/describe.h"
#include "data/document.h"
#include "data/records.h"
#include "dist/communicator.h"
#include "dist/plugins.h"
#include "train/train_data.h"

namespace thimble {

namespace {

std::filesystem::path absolute_path(const SpooledInput& input) {
  return input.name().empty() ? std::filesystem::path() : std::filesystem::absolute(input.name());
}

// Chats are packed into rows, and so are the documents of a text that has one per line or
// paragraph: windows would begin and end inside of most of them. The golf presets read in the order
// of the published programs.
ReadOrder default_order(DataKind kind, DocumentSplit documents, const std::string& preset) {
  if (kind == DataKind::chat) return ReadOrder::packed;
  if (preset == "golf-mlx") return ReadOrder::golf_mlx;
  if (preset == "golf" || preset == "golf-plus" || preset == "golf-best") return ReadOrder::golf;
  const bool short_documents = documents == DocumentSplit::line || documents == DocumentSplit::blank_line;
  return short_documents ? ReadOrder::packed : ReadOrder::shifted;
}

// No preset sets this key to true, so its flag takes no value.
bool is_only_turned_on(const Key& key) {
  return key.name == "checkpoint_activations";
}

// Includes the role tokens for chats.
std::unique_ptr<Tokenizer> bytes_for(DataKind kind) {
  return load_tokenizer(kind == DataKind::chat ? "bytes:chat" : "bytes");
}

bool is_chat(const Arguments& arguments, const std::string& preset) {
  return arguments.flag("chat") || preset == "chat";
}

// The existing tokenizer: of --tokenizer, else of the data, else of the model; bytes only for a new
// model.
std::shared_ptr<const Tokenizer> existing_tokenizer(const Arguments& arguments, const DataSettings& data,
                                                    const ModelFile* init) {
  if (arguments.given("tokenizer") && arguments.text("tokenizer") != "bytes")
    return load_tokenizer(arguments.path("tokenizer"));
  if (arguments.given("tokenizer")) return bytes_for(data.kind);
  if (is_data_folder(data.data)) return load_tokenizer_of(open_data_folder(data.data));
  if (!init) return bytes_for(data.kind);
  auto tokenizer = open_tokenizer(*init);
  check(tokenizer != nullptr, Hint{"pass the tokenizer that the model was trained with: --tokenizer FILE"},
        "{} contains no tokenizer", init->path.string());
  return tokenizer;
}

}  // namespace

void as_usage(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    throw UsageError(error.what(), Hint{error.hint()}, error.where());
  }
}

std::vector<Option> setting_options(std::string_view preset, std::span<const BasicSetting> basic) {
  ConfigBuilder defaults;
  defaults.preset(preset);
  std::vector<Option> options;
  for (const Key& key : all_keys()) {
    if (!is_flag(key)) continue;
    Option option{.name = key.dashed,
                  .help = key.help,
                  .choices = key.choices,
                  .group = key.group,
                  .advanced = true,
                  .shown_default = value_text(key.get(defaults.current()))};
    if (const auto found = std::ranges::find(basic, key.name, &BasicSetting::key); found != basic.end()) {
      option.group = found->group;
      option.advanced = false;
    }
    if (key.type == KeyType::set) option.value = "LIST", option.choices = {};
    if (key.type == KeyType::flag && !is_only_turned_on(key)) option.choices = {"true", "false"};
    if (key.type == KeyType::integer) option.value = "N";
    if (key.type == KeyType::number) option.value = "F";
    if (key.type == KeyType::list) option.value = "LIST";
    options.push_back(option);
  }
  return options;
}

namespace {

// A setting, like an option, is given once: not by two --set, nor by --set and a flag.
void refuse_repeated_settings(const Arguments& arguments) {
  std::map<std::string_view, std::string_view> values;
  const auto add = [&](std::string_view key, std::string_view value) {
    if (const auto [first, added] = values.emplace(key, value); !added)
      throw UsageError(fmt::format("{} is given twice, as '{}' and as '{}'", key, first->second, value));
  };
  for (const Key& key : all_keys())
    if (is_flag(key) && arguments.takes(key.dashed) && arguments.given(key.dashed))
      add(key.name, is_only_turned_on(key) ? "true" : std::string_view(arguments.text(key.dashed)));
  for (const std::string_view assignment : arguments.list("set")) {
    const std::size_t equals = std::min(assignment.find('='), assignment.size());
    add(assignment.substr(0, equals), assignment.substr(std::min(equals + 1, assignment.size())));
  }
}

}  // namespace

void put_assignments(const Arguments& arguments, ConfigBuilder& settings) {
  refuse_repeated_settings(arguments);
  as_usage([&] {
    for (const std::string& assignment : arguments.list("set")) settings.set(assignment);
  });
}

void put_settings(const Arguments& arguments, ConfigBuilder& settings) {
  put_assignments(arguments, settings);
  as_usage([&] {
    for (const Key& key : all_keys())
      if (is_flag(key) && arguments.given(key.dashed))
        settings.set_flag(key, is_only_turned_on(key) ? "true" : arguments.text(key.dashed));
  });
}

Option documents_option() {
  return {.name = "documents",
          .initial = "endoftext",
          .help = "unit that is a document in a text file",
          .choices = {"line", "blank-line", "file", "endoftext"}};
}

Option text_field_option() {
  return {.name = "text-field",
          .value = "FIELD",
          .initial = "text",
          .help = "field of the text in .jsonl, .json, .csv, .tsv and .parquet files"};
}

Option assistant_option() {
  return {.name = "assistant",
          .value = "NAME",
          .help =
              "participant of WhatsApp and Telegram exports that is the assistant (default: who takes part "
              "in the most chats and writes the most)"};
}

DocumentSplit documents_from(const Arguments& arguments) {
  return document_split_with_name(arguments.text("documents")).value();
}

ReadOptions read_options_from(const Arguments& arguments) {
  return {.split = documents_from(arguments),
          .text_field = arguments.text("text-field"),
          .assistant = arguments.text("assistant")};
}

ConfigBuilder settings_from(const Arguments& arguments, std::string_view preset) {
  ConfigBuilder settings;
  if (arguments.given("preset"))
    settings.preset(arguments.text("preset"));
  else if (!arguments.given("config"))
    settings.preset(preset);
  if (arguments.given("config")) settings.file(arguments.path("config"));
  put_settings(arguments, settings);
  return settings;
}

Planned planned_by(const Arguments& arguments, const ConfigBuilder& settings) {
  const bool minutes = arguments.given("minutes");
  if (minutes && settings.given("max_seconds"))
    throw UsageError("--minutes and max_seconds both limit the time", Hint{"remove one of them"});
  if (!arguments.given("data")) return Planned::nothing;
  bool chosen = false;
  for (const std::string_view name : {"preset", "config", "init", "depth"})
    chosen = chosen || arguments.given(name);
  if (chosen) return minutes ? Planned::length : Planned::nothing;
  bool has_length = false;
  for (const std::string_view key : {"steps", "epochs", "max_seconds"})
    has_length = has_length || settings.given(key);
  return minutes || !has_length ? Planned::everything : Planned::nothing;
}

double minutes_from(const Arguments& arguments) {
  return arguments.number("minutes", {.least = 0.01, .most = 1e6});
}

Config changed_by(const Arguments& arguments, Config config) {
  ConfigBuilder changes;  // records which keys were given
  put_settings(arguments, changes);
  const bool other_batch = changes.given("batch_tokens") || changes.given("batch_size");
  if (other_batch) config.train.batch_tokens = config.train.span_tokens = config.train.micro_batch = 0;
  if (changes.given("epochs")) config.train.steps = 0;
  for (const std::string_view rate : kGroupRates)
    if (changes.given("lr")) find_key(rate)->put(config, KeyValue(0.0));
  for (const Key& key : all_keys())
    if (changes.given(key.name)) key.put(config, key.get(changes.current()));
  check_has_end(config.train);
  return resolved(config);
}

DataSettings data_from(const Arguments& arguments, const std::string& preset, const NamedData& named) {
  if (!arguments.given("data"))
    throw UsageError("--data is missing", Hint{"pass a text file: thimble train --data FILE.txt"});
  DataSettings data{.data = absolute_path(named.data),
                    .val_data = absolute_path(named.val_data),
                    .val_fraction = arguments.number("val-fraction", {.least = 0, .most = 0.9}),
                    .documents = documents_from(arguments),
                    .text_field = arguments.text("text-field"),
                    .assistant = arguments.text("assistant")};
  if (is_data_folder(data.data))
    data.kind = open_data_folder(data.data).kind();
  else if (is_chat(arguments, preset))
    data.kind = DataKind::chat;
  else
    data.kind = detect_kind(find_source(data.data.string()), data.text_field);
  const bool built = is_data_folder(data.data);
  for (const std::string_view name : {"documents", "val-fraction", "skip-long", "text-field", "assistant"})
    if (built && arguments.given(name))
      throw UsageError(fmt::format("--{} applies to text and chats, but {} is a folder of shards", name,
                                   data.data.string()),
                       Hint{"pass it to `thimble data build`"});
  for (const std::string_view name : {"skip-long", "assistant"})
    if (data.kind != DataKind::chat && arguments.given(name))
      throw UsageError(fmt::format("--{} applies only to chats", name));
  data.order = arguments.given("order") ? read_order_named(arguments.text("order"))
                                        : default_order(data.kind, data.documents, preset);
  return data;
}

std::optional<TokenizerSpec> spec_from(const Arguments& arguments, const ConfigBuilder& settings,
                                       const DataSettings& data) {
  std::optional<TokenizerSpec> spec;
  if (arguments.given("tokenizer")) {
    as_usage([&] { spec = TokenizerSpec::parse(arguments.text("tokenizer")); });
    return spec;
  }
  const bool asked = settings.origin("vocab_size") == ConfigBuilder::Layer::command;
  if (data.kind != DataKind::chat || is_data_folder(data.data) || arguments.given("init") ||
      !(asked || settings.preset_name() == "microgpt"))
    return std::nullopt;
  return TokenizerSpec{TokenizerKind::bpe, static_cast<TokenId>(settings.current().model.vocab_size)};
}

std::string chat_layout_from(const DataSettings& data, const ModelFile* init) {
  if (data.kind != DataKind::chat || is_data_folder(data.data) || !init) return std::string(kRolesLayout);
  return layout_for_training(*init);
}

std::shared_ptr<const Tokenizer> tokenizer_from(const Arguments& arguments,
                                                const std::optional<TokenizerSpec>& spec,
                                                const DataSettings& data, const ModelFile* init,
                                                Console& console, const Interrupt& interrupt) {
  if (!spec) return existing_tokenizer(arguments, data, init);
  check(!is_data_folder(data.data), Hint{"pass the text itself with --data, or remove --tokenizer"},
        "{} contains tokens; a tokenizer is trained on text", data.data.string());
  auto learned = learn_tokenizer(*spec, data, console.progress(), interrupt);
  const bool is_asked = arguments.given("tokenizer") || arguments.given("vocab-size");
  if (is_asked && learned->vocab_size() < spec->vocab_size)
    console.log().warning("the text yields a vocabulary of {} tokens, fewer than the requested {}",
                          learned->vocab_size(), spec->vocab_size);
  return learned;
}

namespace {

void check_has_document(const Arguments& arguments, const DataSettings& data) {
  if (is_data_folder(data.data)) return;
  check(has_document(find_source(data.data.string(), data.read_options()), data.read_options()),
        Hint{"pass a file or folder that contains text"}, "{} contains nothing to train on",
        arguments.text("data"));
}

}  // namespace

std::optional<std::int64_t> vocabulary_from(const Arguments& arguments, const ConfigBuilder& settings,
                                            const std::string& preset, const ModelFile* init) {
  DataSettings data{.kind = is_chat(arguments, preset) ? DataKind::chat : DataKind::text};
  std::optional<NamedData> named;  // until the data are not needed any more
  if (arguments.given("data")) {
    data = data_from(arguments, preset, named.emplace(arguments));
    check_has_document(arguments, data);
  }
  if (const auto spec = spec_from(arguments, settings, data)) return spec->vocab_size;
  if (!arguments.given("tokenizer") && !arguments.given("data")) return std::nullopt;
  return existing_tokenizer(arguments, data, init)->vocab_size();
}

Option rank_timeout_option() {
  return {.name = "rank-timeout",
          .value = "SECONDS",
          .initial = "600",
          .help = "with several ranks (mpirun): seconds to wait for another rank before aborting"};
}

std::shared_ptr<Communicator> ranks_from(const Arguments& arguments) {
  return join_ranks(read_launch(), arguments.number("rank-timeout", {.least = 0.1, .most = 1e6}));
}

void check_same_command(Communicator& ranks, const Arguments& arguments) {
  check_same(ranks,
             {{"version of thimble", std::string(version())}, {"command line", arguments.given_text()}},
             "start all ranks with the same binary and the same command line");
}

void let_first_rank_report() {
  if (read_launch().rank > 0) std::this_thread::sleep_for(std::chrono::seconds(5));
}

std::shared_ptr<const Tokenizer> tokenizer_on_all(Communicator& ranks, const Arguments& arguments,
                                                  const std::optional<TokenizerSpec>& spec,
                                                  const DataSettings& data, const ModelFile* init,
                                                  Console& console, const Interrupt& interrupt) {
  std::shared_ptr<const Tokenizer> tokenizer;
  on_all_ranks(
      ranks, "training the tokenizer on rank 0",
      [&] {
        if (!spec || ranks.first())
          tokenizer = tokenizer_from(arguments, spec, data, init, console, interrupt);
      },
      Wait::forever);
  if (!spec || ranks.size() == 1) return tokenizer;
  std::string content = ranks.first() ? tokenizer->serialized() : "";
  share_text(ranks, content, "the tokenizer");
  if (!ranks.first()) tokenizer = load_tokenizer_bytes(std::move(content), "the tokenizer of rank 0");
  return tokenizer;
}

}  // namespace thimble
