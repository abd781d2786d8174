#include "train/train_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/digest.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/table.h"
#include "base/text.h"
#include "config/config.h"
#include "data/build.h"
#include "data/data_folder.h"
#include "data/describe.h"
#include "data/document.h"
#include "data/loader.h"
#include "data/records.h"
#include "data/text_files.h"
#include "dist/communicator.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/sentencepiece.h"

namespace thimble {

namespace {

DataKind kind_named(const std::string& name) {
  for (DataKind kind : {DataKind::text, DataKind::chat})
    if (name == name_of(kind)) return kind;
  fail("kind is '{}', expected {} or {}", name, name_of(DataKind::text), name_of(DataKind::chat));
}

}  // namespace

ReadOptions DataSettings::read_options() const {
  return {
      .kind = kind, .split = documents, .text_field = text_field, .assistant = assistant, .layout = layout};
}

std::string DataSettings::to_json() const {
  Json json = Json::object()
                  .set("data", data.string())
                  .set("val_data", val_data.string())
                  .set("val_fraction", val_fraction)
                  .set("kind", name_of(kind))
                  .set("documents", name_of(documents))
                  .set("text_field", text_field)
                  .set("assistant", assistant)
                  .set("longest_chat", longest_chat)
                  .set("order", name_of(order))
                  .set("sub_batch_tokens", sub_batch_tokens);
  if (layout != kRolesLayout) json.set("layout", layout);
  return json.dump(2) + "\n";
}

DataSettings DataSettings::from_json(const std::string& text, std::string_view name) {
  const Json json = parse_json(text, name);
  try {
    const Json *sub_batch = json.find("sub_batch_tokens"), *documents = json.find("documents"),
               *longest_chat = json.find("longest_chat"), *text_field = json.find("text_field"),
               *assistant = json.find("assistant"), *layout = json.find("layout");
    const std::string named = documents ? documents->as_string() : "endoftext";
    const auto split = document_split_with_name(named);
    check(split.has_value(), "documents is '{}', expected line, blank-line, file or endoftext", named);
    return {.data = json.at("data").as_string(),
            .val_data = json.at("val_data").as_string(),
            .val_fraction = json.at("val_fraction").as_double(),
            .kind = kind_named(json.at("kind").as_string()),
            .documents = *split,
            .text_field = text_field ? text_field->as_string() : DataSettings{}.text_field,
            .assistant = assistant ? assistant->as_string() : "",
            .longest_chat = longest_chat ? longest_chat->as_int() : 0,
            .layout = layout ? layout->as_string() : std::string(kRolesLayout),
            .order = read_order_named(json.at("order").as_string()),
            .sub_batch_tokens = sub_batch ? sub_batch->as_int() : DataSettings{}.sub_batch_tokens};
  } catch (const Error& error) {
    fail(Hint{"restore the file, or start a new run from the weights with --init"}, "{}: {}", name,
         error.what());
  }
}

LoaderSettings loader_settings(const Config& config, const DataSettings& source, const Communicator& ranks) {
  return {.rows = {.order = source.order,
                   .T = config.model.context,
                   .step_rows = config.train.batch_tokens / config.model.context,
                   .seed = static_cast<std::uint64_t>(config.train.seed),
                   .span_tokens = config.train.span_tokens,
                   .sub_batch_tokens = source.sub_batch_tokens},
          .micro_batch = config.train.micro_batch,
          .isolate = config.model.isolate,
          .rank = ranks.rank(),
          .ranks = ranks.size()};
}

namespace {

namespace fs = std::filesystem;

// Builds shards from text or chats in `folder`.
Manifest build_in(const fs::path& folder, const OpenDataRequest& request, FileOps& ops, const Log& log,
                  const ProgressOutput& progress, const Interrupt& interrupt) {
  const DataSettings& settings = request.settings;
  check(!is_data_folder(settings.val_data),
        Hint{"pass text for both, or build shards of both with `thimble data build`"},
        "--data {} is text, but --val-data {} is a folder of shards", settings.data.string(),
        settings.val_data.string());
  BuildRequest build{.inputs = {settings.data.string()},
                     .tokenizer = request.tokenizer,
                     .folder = folder,
                     .if_built = IfBuilt::reuse};
  build.read = settings.read_options();
  build.limits = {.context = static_cast<std::uint64_t>(settings.longest_chat),
                  .skip_long = settings.longest_chat > 0};
  if (settings.val_data.empty())
    build.val_fraction = settings.val_fraction;
  else
    build.val_inputs = {settings.val_data.string()};
  return build_dataset(build, ops, log, progress, &interrupt).manifest;
}

// Checks that the named data are those of the run. The digests of the files tell, unless a file was
// compressed or split since: then shards of the named data are built in a second folder and
// compared with the run's, which are not touched.
void check_match(const DataFolder& built, const OpenDataRequest& request, FileOps& ops, const Log& log,
                 const ProgressOutput& progress, const Interrupt& interrupt) {
  std::vector<std::string> inputs = {request.settings.data.string()};
  if (!request.settings.val_data.empty()) inputs.push_back(request.settings.val_data.string());
  if (built.manifest && same_sources(*built.manifest, inputs, &interrupt)) return;
  fs::path other = built.path;
  other += ".named";
  const Manifest named = build_in(other, request, ops, log, progress, interrupt);
  remove_all(ops, other);
  check(built.manifest && named.train == built.manifest->train && named.val == built.manifest->val,
        Hint{"leave out --data to use the run's own copy, or use --init to start a new run on other data"},
        "{} differs from the data of the run", request.settings.data.string());
}

// Adds a hint for resumed runs: their data may have been moved since.
void check_exists(const fs::path& data) {
  try {
    find_source(data.string());
  } catch (const Error& error) {
    fail(Hint{"pass the new path of the run's data with --data"}, "{}", error.what());
  }
}

// The folder with the shards; builds them if necessary.
DataFolder folder_for(const OpenDataRequest& request, FileOps& ops, const Log& log,
                      const ProgressOutput& progress, const Interrupt& interrupt) {
  if (is_data_folder(request.settings.data)) return open_data_folder(request.settings.data);
  if (request.built == BuiltData::is_remade || !is_data_folder(request.build_in)) {
    if (request.built != BuiltData::is_remade) check_exists(request.settings.data);
    build_in(request.build_in, request, ops, log, progress, interrupt);
    return open_data_folder(request.build_in);
  }
  DataFolder built = open_data_folder(request.build_in);
  if (request.built == BuiltData::must_match) check_match(built, request, ops, log, progress, interrupt);
  return built;
}

}  // namespace

std::string TrainData::digest() const {
  Digester digester;
  for (const std::string& part : {train.fingerprint(), val ? val->fingerprint() : std::string()})
    digester.add(std::as_bytes(std::span(part)));
  return digester.result().hex();
}

namespace {

// Reports what a new run found in its data.
void log_validation(const TrainData& data, const DataFolder& folder, const DataFolder* validation,
                    const DataSettings& settings, const Log& log) {
  if (folder.path != settings.data && folder.manifest)
    if (const std::string dropped = dropped_text(*folder.manifest); !dropped.empty())
      log.info("left out or cut:\n{}", dropped);
  if (validation == &folder && folder.manifest)
    log.info("{}", validation_text(*folder.manifest));
  else if (data.val)
    log.info("validation: {} tokens of {}", with_commas(static_cast<long long>(data.val->size())),
             validation->path.string());
}

}  // namespace

TrainData open_train_data(const OpenDataRequest& request, FileOps& ops, const Log& log,
                          const ProgressOutput& progress, const Interrupt& interrupt) {
  const DataFolder folder = folder_for(request, ops, log, progress, interrupt);
  check_tokenizer(folder, *request.tokenizer);
  TrainData data{
      .train = open_split(folder, DataSplit::train, folder.marks(*request.tokenizer, request.loss_on)),
      .val = std::nullopt,
      .kind = folder.kind(),
      .layout = folder.layout()};
  const DataFolder* validation = &folder;
  std::optional<DataFolder> other;
  if (is_data_folder(request.settings.data) && !request.settings.val_data.empty()) {
    check(is_data_folder(request.settings.val_data),
          Hint{"build shards of it with `thimble data build` and the same tokenizer"},
          "--data {} is a folder of shards, so --val-data must be one too, but {} is not",
          request.settings.data.string(), request.settings.val_data.string());
    other = open_data_folder(request.settings.val_data);
    check_tokenizer(*other, *request.tokenizer);
    validation = &*other;
  }
  // Chats are always validated on the answers, whatever loss_on is, so that runs are comparable.
  if (!validation->files(DataSplit::val).empty())
    data.val =
        open_split(*validation, DataSplit::val, validation->marks(*request.tokenizer, LossOn::assistant));
  check(data.val || request.settings.val_data.empty(),
        Hint{"leave out --val-data to validate on a part of --data"}, "{} contains no validation split",
        request.settings.val_data.string());
  if (folder.manifest) {
    data.documents = folder.manifest->train.documents;
    data.bytes = folder.manifest->train.bytes;
  }
  if (request.built == BuiltData::is_remade) log_validation(data, folder, validation, request.settings, log);
  return data;
}

namespace {

std::unique_ptr<Tokenizer> learn(const TokenizerSpec& spec, bool chat, TextStream& source,
                                 const ProgressOutput& progress, const Interrupt& interrupt) {
  std::vector<std::string> special = special_tokens_for(chat);
  if (spec.kind == TokenizerKind::bpe)
    return make_bpe_tokenizer(
        train_bpe(source, {.vocab_size = spec.vocab_size, .special_tokens = special}, progress, &interrupt)
            .spec);
  special.erase(special.begin());  // SentencePiece adds its own bos
  const SentencePieceOptions options{.vocab_size = spec.vocab_size,
                                     .normalization = chat ? "identity" : "nmt_nfkc",
                                     .control_tokens = special,
                                     .threads = max_threads()};
  return load_sentencepiece(train_sentencepiece(source, options, &interrupt), "the trained model");
}

}  // namespace

namespace {

constexpr std::uint64_t kMaxSettingsBytes = 1 << 20;

DataSettings settings_of(const fs::path& run) {
  const fs::path file = run / "data.json";
  return DataSettings::from_json(read_file(file, kMaxSettingsBytes), file.string());
}

}  // namespace

fs::path run_named(const fs::path& model) {
  const fs::path path = fs::weakly_canonical(model);
  for (const fs::path& folder : {path, path.parent_path(), path.parent_path().parent_path()})
    if (fs::is_regular_file(folder / "data.json") && fs::is_directory(folder / "checkpoints")) return folder;
  return {};
}

TrainData open_shards(const fs::path& data, const fs::path& val_data, const Tokenizer& tokenizer) {
  const DataFolder folder = open_data_folder(data);
  check_tokenizer(folder, tokenizer);
  TrainData opened{.train = open_split(folder, DataSplit::train, folder.marks(tokenizer, LossOn::assistant)),
                   .val = std::nullopt,
                   .kind = folder.kind(),
                   .layout = folder.layout()};
  const DataFolder validation = val_data.empty() ? folder : open_data_folder(val_data);
  check_tokenizer(validation, tokenizer);
  if (!validation.val.empty())
    opened.val = open_split(validation, DataSplit::val, validation.marks(tokenizer, LossOn::assistant));
  return opened;
}

TrainData open_data_of(const fs::path& run, const Tokenizer& tokenizer) {
  const DataSettings settings = settings_of(run);
  const bool own = !is_data_folder(settings.data);
  const fs::path folder = own ? run / "data" : settings.data;
  check(is_data_folder(folder), Hint{"pass the data with --data"}, "the data of {} are missing: {}",
        run.string(), folder.string());
  return open_shards(folder, own ? fs::path() : settings.val_data, tokenizer);
}

MemorizationData memorization_data(const TrainData& data, const ProgressOutput& progress,
                                   const Interrupt* interrupt) {
  return {.read_training = [&data, progress, interrupt](
                               const TokenSink& sink) { read_all(data.train, sink, progress, interrupt); },
          .held_out = data.val ? &*data.val : nullptr,
          .chats = data.kind == DataKind::chat,
          .layout = data.layout};
}

fs::path held_out_data(const fs::path& run) {
  const DataSettings settings = settings_of(run);
  if (!is_data_folder(settings.data)) return run / "data";
  return settings.val_data.empty() ? settings.data : settings.val_data;
}

bool is_training_data(const fs::path& run, const fs::path& data) {
  if (is_data_folder(data) || !is_data_folder(run / "data")) return false;
  const DataFolder built = open_data_folder(run / "data");
  return built.manifest && shares_training_text(*built.manifest, data.string());
}

std::optional<TokenizerSpec> TokenizerSpec::parse(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::string_view kind = text.substr(0, colon), size = text.substr(colon + 1);
  if (kind != "bpe" && kind != "sentencepiece") return std::nullopt;
  constexpr TokenId kMaxVocabulary = 1 << 22;
  const auto vocab_size = parse_integer_with_unit(size);
  check(vocab_size && *vocab_size > 0 && *vocab_size <= kMaxVocabulary,
        "--tokenizer {}:N expects a number of tokens, found '{}'", kind, size);
  return TokenizerSpec{kind == "bpe" ? TokenizerKind::bpe : TokenizerKind::sentencepiece,
                       static_cast<TokenId>(*vocab_size)};
}

std::unique_ptr<Tokenizer> learn_tokenizer(const TokenizerSpec& spec, const DataSettings& data,
                                           const ProgressOutput& progress, const Interrupt& interrupt) {
  ContentsStream text(find_source(data.data.string(), data.read_options()).files, data.kind,
                      {.split = data.documents}, &interrupt, data.text_field);
  return learn(spec, data.kind == DataKind::chat, text, progress, interrupt);
}

}  // namespace thimble
