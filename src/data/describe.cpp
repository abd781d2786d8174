#include "data/describe.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/file_ops.h"
#include "base/table.h"
#include "data/data_folder.h"
#include "data/encode.h"
#include "data/shard.h"
#include "data/survey.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kShownTokens = 200;
constexpr std::size_t kShownBytes = 500;

std::string first_document_in(const ShardReader& shard, const Tokenizer& tokenizer) {
  std::vector<TokenId> ids(std::min<std::uint64_t>(kShownTokens, shard.tokens()));
  shard.copy(0, ids);
  const bool marked = shard.format() == ShardFormat::marked;
  const auto bos = tokenizer.special().bos;
  const auto starts = [&](TokenId id) { return marked ? (id & kDocumentMark) != 0 : id == bos; };
  if (!ids.empty()) ids.erase(std::find_if(ids.begin() + 1, ids.end(), starts), ids.end());
  if (marked) std::ranges::transform(ids, ids.begin(), without_marks);
  if (!std::ranges::all_of(ids, [&](TokenId id) { return tokenizer.contains(id); })) return "";
  return tokenizer.decode(ids, {.keep_special = true});
}

// A folder of shards, with or without thimble's manifest.
DataDescription describe_folder(const fs::path& path, const DescribeOptions& options) {
  const DataFolder folder = open_data_folder(path);
  DataDescription description;
  description.form = folder.manifest ? "data set" : "shards";
  description.tokenizer = options.tokenizer;
  if (folder.manifest && !options.tokenizer) description.tokenizer = load_tokenizer_of(folder);
  for (const DataSplit split : {DataSplit::train, DataSplit::val}) {
    SplitDescription counts{std::string(name_of(split)), folder.files(split).size(), {}, 0, {}};
    for (const fs::path& file : folder.files(split)) *counts.tokens += ShardReader(file).tokens();
    if (folder.manifest) {
      const ManifestSplit& known = split == DataSplit::train ? folder.manifest->train : folder.manifest->val;
      counts.documents = known.documents;
      counts.bytes = known.bytes;
    }
    description.splits.push_back(std::move(counts));
  }
  if (!folder.train.empty() && description.tokenizer)
    description.first_document = first_document_in(ShardReader(folder.train[0]), *description.tokenizer);
  description.manifest = folder.manifest;
  return description;
}

DataDescription describe_shard(const fs::path& path, const DescribeOptions& options) {
  const ShardReader shard(path);
  DataDescription description;
  description.form = "shard";
  description.tokenizer = options.tokenizer;
  if (!options.tokenizer && is_data_folder(folder_of(path)))
    if (const DataFolder folder = open_data_folder(folder_of(path)); folder.manifest)
      description.tokenizer = load_tokenizer_of(folder);
  description.splits.push_back({"", 1, {}, shard.tokens(), {}});
  if (description.tokenizer) description.first_document = first_document_in(shard, *description.tokenizer);
  return description;
}

std::uint64_t count_tokens(const DataSource& source, const ReadOptions& read, const Tokenizer& tokenizer,
                           const ProgressOutput& progress, const Interrupt* interrupt) {
  Mixture mixture({&source, 1}, read);
  const BatchEncoder encoder(tokenizer, read, {});
  ProgressBar bar(progress, "encoding", "bytes", mixture.stored_bytes());
  std::uint64_t tokens = 0;
  for (auto batch = mixture.next_batch(); !batch.empty(); batch = mixture.next_batch()) {
    if (interrupt) interrupt->throw_if_interrupted();
    for (const EncodedRecord& record : encoder.encode(batch, std::vector<bool>(batch.size(), true)))
      tokens += record.tokens();
    bar.update(mixture.stored_bytes_read());
  }
  return tokens;
}

std::string first_document_in(const DataSource& source, const ReadOptions& read) {
  RecordReader reader(source, read);
  while (auto record = reader.next()) {
    const Document document = read_document(*record, read);
    if (!document.problem.empty() || !document.has_content()) continue;
    std::string text = document.text;
    for (const Turn& turn : document.turns) text += fmt::format("{}: {}\n", name_of(turn.role), turn.content);
    return text;
  }
  return "";
}

DataDescription describe_source(const std::string& input, const DescribeOptions& options,
                                const ProgressOutput& progress, const Interrupt* interrupt) {
  ReadOptions read = options.read;
  if (read.kind == DataKind::text) read.kind = detect_kind(find_source(input), read.text_field);
  const DataSource source = find_source(input, read);
  if (read.kind == DataKind::chat) read.assistant = assistant_in(std::span(&source, 1), read.assistant);
  PosixFileOps ops;
  const Survey survey = survey_sources({&source, 1}, read, {.skip_bad = true}, ops, {}, progress, interrupt);
  DataDescription description;
  description.form = name_of(read.kind);
  description.tokenizer = options.tokenizer;
  SplitDescription all{"", 0, survey.assignments.count(Assignment::train), std::nullopt,
                       survey.content_bytes};
  if (options.tokenizer) all.tokens = count_tokens(source, read, *options.tokenizer, progress, interrupt);
  description.splits.push_back(std::move(all));
  description.bad = survey.bad;
  description.without_answer = survey.without_answer;
  description.with_turns_cut = survey.with_turns_cut;
  description.empty = survey.empty;
  description.first_problem = survey.first_problem;
  description.first_document = first_document_in(source, read);
  description.inputs = inputs_text(std::span(&source, 1));
  description.assistant = read.assistant;
  return description;
}

DataDescription describe_any(const std::string& input, const DescribeOptions& options,
                             const ProgressOutput& progress, const Interrupt* interrupt) {
  const fs::path path = input;
  if (is_data_folder(path)) return describe_folder(path, options);
  if (path.filename() == kManifestFile) return describe_folder(folder_of(path), options);
  if (path.extension() == ".bin") return describe_shard(path, options);
  return describe_source(input, options, progress, interrupt);
}

}  // namespace

DataDescription describe_data(const std::string& input, const DescribeOptions& options,
                              const ProgressOutput& progress, const Interrupt* interrupt) {
  DataDescription description = describe_any(input, options, progress, interrupt);
  description.first_document = shortened(std::move(description.first_document), kShownBytes);
  return description;
}

bool has_document(const DataSource& source, const ReadOptions& read) {
  RecordReader reader(source, read);
  std::optional<Error> problem;  // of the first record that cannot be read
  while (auto record = reader.next()) {
    const Document document = read_document(*record, read);
    if (document.has_content()) return true;
    if (!problem && !document.problem.empty()) problem.emplace(document.problem, Hint{document.hint});
  }
  if (problem) throw Error(*problem);
  return false;
}

namespace {

double ratio(std::uint64_t a, std::uint64_t b) {
  return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0;
}

std::string counted(std::uint64_t value) {
  return with_commas(static_cast<long long>(value));
}

std::uint64_t setting(const Manifest& manifest, std::string_view key) {
  const Json* value = manifest.settings.find(key);
  return value && value->is_uint() ? value->as_uint() : 0;
}

// How the validation documents were chosen.
std::string choice_text(const Manifest& manifest) {
  const std::string what = manifest.kind == DataKind::chat ? "conversations" : "documents";
  if (setting(manifest, "val_inputs") > 0)
    return fmt::format("{} {} of their own inputs", counted(manifest.val.documents), what);
  const std::uint64_t cut = setting(manifest, "val_cut"),
                      all = manifest.train.documents + manifest.val.documents - cut;
  if (cut == 0) return fmt::format("{} of {} {}", counted(manifest.val.documents), counted(all), what);
  const std::string ends =
      cut == 1 ? "the end of one document" : fmt::format("the end of each of {} documents", counted(cut));
  if (cut == all) return ends;
  return fmt::format("{} and {} of {} others", ends,
                     counted(manifest.val.documents - std::min(cut, manifest.val.documents)),
                     counted(all - cut));
}

}  // namespace

std::string validation_text(const Manifest& manifest) {
  if (manifest.val.tokens == 0) {
    const Json* fraction = manifest.settings.find("val_fraction");
    const bool asked = fraction && fraction->as_double() > 0;
    return asked ? "validation: none: the text is too small, or its documents are equal" : "validation: none";
  }
  std::string size = with_unit(static_cast<double>(manifest.val.bytes));  // "94.2 k" or "900"
  size += manifest.val.bytes < 1000 ? " B" : "B";
  const double share = 100 * ratio(manifest.val.bytes, manifest.train.bytes + manifest.val.bytes);
  return fmt::format("validation: {}, {:.3g} % of the text: {}", size, share, choice_text(manifest));
}

std::string dropped_text(const Manifest& manifest, std::size_t width) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"bad", "bad records"},
      {"empty", "empty documents"},
      {"without_answer", "conversations without an answer"},
      {"turns_after_last_answer", "conversations cut after their last answer"},
      {"duplicates", "duplicates"},
      {"in_validation", "training documents that are also in validation"},
      {"too_long", "conversations longer than the context"},
      {"truncated", "conversations cut to the context"},
      {"rejected_by_template", "conversations that the chat template does not accept"}};
  Table table;
  for (const auto& [reason, words] : kWords)
    for (const auto& [found, documents] : manifest.dropped)
      if (found == reason && documents > 0) table.row({std::string(words), counted(documents)});
  return table.text(width);
}

double DataFacts::epochs() const {
  return ratio(planned_tokens, tokens);
}

double DataFacts::tokens_per_parameter() const {
  return ratio(planned_tokens, parameters);
}

DataAmount data_amount(std::uint64_t tokens, std::uint64_t tokens_read, std::uint64_t parameters) {
  const auto suffice = [&](std::uint64_t count) {
    return ratio(count, parameters) >= kMinTokensPerParameter;
  };
  if (!suffice(tokens)) return DataAmount::too_little_text;
  return suffice(tokens_read) ? DataAmount::enough : DataAmount::too_few_steps;
}

std::string data_table(const DataFacts& facts) {
  Table table;
  if (facts.documents > 0) table.row({"documents", counted(facts.documents)});
  table.row({"tokens", counted(facts.tokens)});
  if (facts.bytes > 0)
    table.row({"bytes per token", fmt::format("{:.2f}", ratio(facts.bytes, facts.tokens))});
  if (facts.planned_tokens > 0) table.row({"planned tokens", counted(facts.planned_tokens)});
  table.row({"parameters", counted(facts.parameters)});
  if (facts.planned_tokens == 0) return table.text();
  table.row({"tokens per parameter", fmt::format("{:.2f}", facts.tokens_per_parameter())});
  table.row({"epochs", fmt::format("{:.2f}", facts.epochs())});
  return table.text();
}

std::string data_warning(const DataFacts& facts) {
  const std::uint64_t seen = facts.planned_tokens > 0 ? facts.planned_tokens : facts.tokens;
  const DataAmount amount = data_amount(facts.tokens, seen, facts.parameters);
  if (amount == DataAmount::enough) return {};
  const double different = ratio(std::min(facts.tokens, seen), facts.parameters);
  const double required = kMinTokensPerParameter * static_cast<double>(facts.parameters);
  return fmt::format(
      "this run trains on {:.2g} distinct tokens per parameter; with fewer than {} a model tends to "
      "memorize its training text. {}",
      different, kMinTokensPerParameter,
      amount == DataAmount::too_little_text
          ? fmt::format(
                "Use more text (about {} tokens), use a smaller model (about {} parameters), or start "
                "from a trained model with --init.",
                with_unit(required), with_unit(static_cast<double>(facts.tokens) / 10))
          : fmt::format("The data is sufficient: train longer (about {} tokens) or use a smaller model.",
                        with_unit(required)));
}

}  // namespace thimble
