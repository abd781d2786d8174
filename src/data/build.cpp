#include "data/build.h"

#include <fmt/format.h>

#include <chrono>

#include "base/error.h"
#include "base/json.h"
#include "base/table.h"
#include "base/text.h"
#include "data/build_folder.h"
#include "data/survey.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

// Finds the files of an input, without files of an earlier build if its folder is inside the input.
DataSource find_input(const std::string& input, const BuildRequest& request) {
  DataSource source = find_source(input, request.read);
  std::erase_if(source.files, [&](const fs::path& file) {
    return BuildFolder::writes(request.folder, request.name, *request.tokenizer, file);
  });
  check(!source.files.empty(), "{} contains no files except those of the data set", source.name);
  return source;
}

std::vector<DataSource> find_sources(const BuildRequest& request) {
  std::vector<DataSource> sources;
  for (const auto& inputs : {request.inputs, request.val_inputs})
    for (const std::string& input : inputs) sources.push_back(find_input(input, request));
  return sources;
}

Digest digest_of_file(const InputFile& file, const Interrupt* interrupt) {
  constexpr std::size_t kReadBytes = 1 << 20;
  std::vector<std::byte> buffer(kReadBytes);
  Digester digester;
  for (std::uint64_t at = 0;;) {
    if (interrupt) interrupt->throw_if_interrupted();
    const std::size_t count = file.read_some_at(at, buffer);
    if (count == 0) return digester.result();
    digester.add(std::span(buffer).first(count));
    at += count;
  }
}

std::vector<ManifestSource> sources_with_digests(const std::vector<DataSource>& sources,
                                                 const Interrupt* interrupt) {
  std::vector<ManifestSource> described;
  for (const DataSource& source : sources)
    for (const fs::path& path : source.files) {
      const InputFile file(path);
      described.push_back({path.string(), file.size(), digest_of_file(file, interrupt).hex()});
    }
  return described;
}

// Replaces long file lists by one entry, to keep the manifest below kMaxManifestBytes.
std::vector<ManifestSource> listed_sources(const std::vector<DataSource>& sources,
                                           std::span<const ManifestSource> files) {
  std::vector<ManifestSource> list;
  for (const DataSource& source : sources) {
    const auto own = files.first(source.files.size());
    files = files.subspan(own.size());
    if (own.size() <= kMaxListedFiles) {
      list.insert(list.end(), own.begin(), own.end());
      continue;
    }
    ManifestSource sum{.path = source.name, .bytes = 0, .digest = {}};
    Digester digester;
    for (const ManifestSource& file : own) {
      sum.bytes += file.bytes;
      digester.add(file.digest);
    }
    sum.digest = digester.result().hex();
    list.push_back(std::move(sum));
  }
  return list;
}

// Whether the shards say what is learned, see data/shard.h.
bool has_marks(const BuildRequest& request) {
  return request.read.kind == DataKind::chat && request.read.layout != kRolesLayout;
}

ShardFormat format_of(const BuildRequest& request) {
  return has_marks(request) ? ShardFormat::marked : shard_format_for(request.tokenizer->vocab_size());
}

Json settings_of(const BuildRequest& request, const std::vector<DataSource>& sources) {
  Json weights = Json::array();
  for (const DataSource& source : sources)
    weights.push(Json::object()
                     .set("input", source.name)
                     .set("files", source.files.size())
                     .set("weight", source.weighted ? Json(source.weight) : Json()));
  Json settings = Json::object();
  settings.set("inputs", std::move(weights))
      .set("documents", name_of(request.read.split))
      .set("text_field", request.read.text_field)
      .set("strip_markdown", request.read.strip_markdown)
      .set("assistant", request.read.assistant)
      .set("val_inputs", request.val_inputs.size())
      .set("val_documents", request.val_documents)
      .set("val_fraction", request.val_fraction)
      .set("val_rule", kSplitRule)
      .set("dedup", request.dedup)
      .set("skip_bad", request.skip_bad)
      .set("context", request.limits.context)
      .set("skip_long", request.limits.skip_long)
      .set("shard_tokens", request.shard_tokens);
  if (has_marks(request)) settings.set("layout", request.read.layout);
  return settings;
}

// Digest of everything that the output depends on. It includes the form of each file, which depends
// on its name, but not its location.
std::string fingerprint_of(const Manifest& head) {
  Json files = Json::array();
  for (const ManifestSource& source : head.sources) {
    const FileForm& form = form_of(source.path, head.kind == DataKind::chat);
    files.push(Json::array({source.digest, form.id}));
  }
  Json weights = Json::array();
  for (const Json& input : head.settings.at("inputs").as_array())
    weights.push(Json::array({input.at("files"), input.at("weight")}));
  Json settings = head.settings;
  settings.set("inputs", std::move(weights));
  const Json all = Json::object()
                       .set("name", head.name)
                       .set("kind", name_of(head.kind))
                       .set("tokenizer", head.tokenizer.digest)
                       .set("bos", head.tokenizer.bos)
                       .set("settings", std::move(settings))
                       .set("files", std::move(files));
  return digest_of(all.dump()).hex();
}

void check_request(const BuildRequest& request) {
  check(!request.inputs.empty(), "no inputs given");
  check(request.tokenizer != nullptr, "no tokenizer given");
  check(!request.name.empty() && request.name[0] != '.' &&
            request.name.find_first_of("/\\") == std::string::npos,
        "expected a shard name without slashes and without a leading '.', found '{}'", request.name);
  check(request.val_fraction >= 0 && request.val_fraction < 1,
        "expected a fraction of validation documents of at least 0 and below 1, found {}",
        request.val_fraction);
  const int rules = (request.val_documents > 0) + (request.val_fraction > 0) + !request.val_inputs.empty();
  check(rules <= 1,
        "expected at most one of: number of validation documents, validation fraction, validation inputs");
  check(request.shard_tokens > 0 && request.shard_tokens <= kMaxShardTokens,
        "expected 1 to {} tokens per shard", kMaxShardTokens);
  check(request.read.kind == DataKind::chat || (request.limits.context == 0 && !request.limits.skip_long),
        "a context limit applies only to conversations");
}

// The second pass: encodes the records and distributes them to the two splits.
class Builder {
 public:
  Builder(const BuildRequest& request, const std::vector<DataSource>& sources, const Survey& survey,
          const BatchEncoder& encoder, BuildFolder& folder, FileOps& ops, BuildJournal journal)
      : survey_(survey),
        encoder_(encoder),
        folder_(folder),
        journal_(std::move(journal)),
        mixture_(sources, request.read, survey.source_documents, survey.cuts),
        train_(ops, {folder.path(), request.name, "train"},
               {request.tokenizer->vocab_size(), format_of(request)}, request.shard_tokens, journal_.train),
        val_(ops, {folder.path(), request.name, "val"}, {request.tokenizer->vocab_size(), format_of(request)},
             request.shard_tokens, journal_.val) {}

  void run(const ProgressOutput& progress, const Interrupt* interrupt) {
    ProgressBar bar(progress, "encoding", "bytes", mixture_.stored_bytes());
    for (auto batch = mixture_.next_batch(); !batch.empty(); batch = mixture_.next_batch()) {
      write(batch, interrupt);
      bar.update(mixture_.stored_bytes_read(),
                 {with_unit(static_cast<double>(train_.counts().tokens + val_.counts().tokens)) + " tokens"});
    }
  }

  // Documents that passed the survey can still be dropped: too long, or excluded by the weight.
  void check_something_was_written(const std::string& name) {
    if (train_.counts().tokens > 0) return;
    folder_.discard(name);
    const std::uint64_t too_long = train_.counts().too_long, rejected = train_.counts().rejected;
    check(rejected == 0 || too_long > 0, Hint{"run without --skip-bad to see why"},
          "no training data is left: the chat template accepts none of {} conversations", rejected);
    check(too_long == 0, Hint{"pass a larger --context"},
          "no training data is left: {} conversations are too long", too_long);
    fail(Hint{"give the sources larger weights"},
         "no training data is left: the weights exclude all documents");
  }

  void finish(Manifest& manifest) {
    const SplitCounts &train = train_.counts(), &val = val_.counts();
    manifest.dropped.emplace_back("too_long", train.too_long + val.too_long);
    manifest.dropped.emplace_back("truncated", train.truncated + val.truncated);
    if (const std::uint64_t rejected = train.rejected + val.rejected; rejected > 0)
      manifest.dropped.emplace_back("rejected_by_template", rejected);
    manifest.train = train_.finish();
    manifest.val = val_.finish();
  }

 private:
  // A validation document is written once, regardless of the weight of its source.
  SplitWriter* split_of(const MixedRecord& record) {
    switch (survey_.assignments[record.document]) {
      case Assignment::train:
        return mixture_.includes(record) ? &train_ : nullptr;
      case Assignment::val:
        return record.pass == 0 ? &val_ : nullptr;
      case Assignment::dropped:
        return nullptr;
    }
    return nullptr;
  }

  void write(std::vector<MixedRecord>& batch, const Interrupt* interrupt) {
    if (interrupt) interrupt->throw_if_interrupted();
    std::vector<bool> selected(batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const SplitWriter* split = split_of(batch[i]);
      selected[i] = split && split->needs(batch[i].number);
    }
    const std::vector<EncodedRecord> encoded = encoder_.encode(batch, selected);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (!selected[i]) continue;
      if (!split_of(batch[i])->add(batch[i].number, batch[i].record.starts, encoded[i])) continue;
      journal_.train = train_.state();
      journal_.val = val_.state();
      folder_.save(journal_);
      if (interrupt) interrupt->throw_if_interrupted();
    }
  }

  const Survey& survey_;
  const BatchEncoder& encoder_;
  BuildFolder& folder_;
  BuildJournal journal_;
  Mixture mixture_;
  SplitWriter train_, val_;
};

std::vector<std::pair<std::string, std::uint64_t>> dropped_in(const Survey& survey) {
  return {{"bad", survey.bad},
          {"empty", survey.empty},
          {"without_answer", survey.without_answer},
          {"turns_after_last_answer", survey.with_turns_cut},
          {"duplicates", survey.duplicates},
          {"in_validation", survey.in_validation}};
}

void check_something_is_left(const Survey& survey) {
  if (survey.assignments.count(Assignment::train) > 0) return;
  std::vector<std::string> reasons;
  for (const auto& [reason, documents] : dropped_in(survey))
    if (documents > 0) reasons.push_back(fmt::format("{}: {}", reason, documents));
  fail(Hint{survey.in_validation > 0 ? "pass --val-fraction 0 to train without validation"
                                     : "pass inputs with text, or with answers"},
       "read {} documents, but no training documents remain{}", survey.assignments.size(),
       reasons.empty() ? "" : " (" + joined(reasons, ", ") + ")");
}

// Whether every line of a text without separators seems to be a document: a list of names.
bool looks_like_a_list(const Survey& survey, const BuildRequest& request) {
  constexpr std::uint64_t kLeastLines = 100;
  constexpr std::size_t kLongestLine = 60;  // shorter than lines of wrapped prose
  return request.read.split == DocumentSplit::end_of_text && survey.lines.lines >= kLeastLines &&
         survey.lines.empty == 0 && survey.lines.longest <= kLongestLine;
}

// Lists the files, and chooses the assistant of exports of messengers.
void report_inputs(const std::vector<DataSource>& sources, ReadOptions& read, const Log& log) {
  if (const std::string inputs = inputs_text(sources); !inputs.empty())
    log.info("reading {}\n{}", read.kind == DataKind::chat ? "chats" : "text", inputs);
  if (read.kind != DataKind::chat) return;
  const bool named = !read.assistant.empty();
  read.assistant = assistant_in(sources, read.assistant);
  if (!read.assistant.empty())
    log.info("the assistant is {}{}", read.assistant,
             named ? "" : "; --assistant NAME chooses another participant of the chats");
}

void report(const Survey& survey, const BuildRequest& request, const Log& log) {
  if (survey.bad > 0)
    log.warning("skipped {} invalid records; the first: {}", with_commas(static_cast<long long>(survey.bad)),
                survey.first_problem);
  if (survey.not_utf8 > 0)
    log.warning(
        "{} contains text that is not UTF-8; it is learned byte by byte. Convert it first: "
        "iconv -f LATIN1 -t UTF-8",
        survey.first_not_utf8);
  if (looks_like_a_list(survey, request))
    log.warning("no line has more than {} bytes; if each line is a document, pass --documents line",
                survey.lines.longest);
}

}  // namespace

BuildResult build_dataset(const BuildRequest& request, const Log& log, const ProgressOutput& progress,
                          const Interrupt* interrupt) {
  PosixFileOps ops;
  return build_dataset(request, ops, log, progress, interrupt);
}

BuildResult build_dataset(const BuildRequest& named, FileOps& ops, const Log& log,
                          const ProgressOutput& progress, const Interrupt* interrupt) {
  const auto start = std::chrono::steady_clock::now();
  check_request(named);
  BuildRequest request = named;
  const std::vector<DataSource> sources = find_sources(request);
  report_inputs(sources, request.read, log);
  request.limits.skip_rejected = request.skip_bad;
  const BatchEncoder encoder(*request.tokenizer, request.read, request.limits);
  BuildResult result;
  for (const DataSource& source : sources)
    result.left_out.insert(result.left_out.end(), source.left_out.begin(), source.left_out.end());
  Manifest& manifest = result.manifest;
  manifest.name = request.name;
  manifest.kind = request.read.kind;
  manifest.tokenizer = ManifestTokenizer::of(*request.tokenizer);
  manifest.settings = settings_of(request, sources);
  manifest.sources = sources_with_digests(sources, interrupt);
  const std::string fingerprint = fingerprint_of(manifest);
  manifest.settings.set("fingerprint", fingerprint);
  manifest.sources = listed_sources(sources, manifest.sources);

  BuildFolder folder(ops, request.folder);
  auto found = folder.open(request.name, fingerprint, request.if_built);
  if (found.finished) {
    result.manifest = std::move(*found.finished);
    result.reused = true;
    return result;
  }
  result.resumed = found.resumed;
  if (found.resumed)
    log.info("resuming an unfinished build: {} shards are finished",
             found.journal.train.shards.size() + found.journal.val.shards.size());
  const Survey survey = survey_sources(sources, request.read,
                                       {.val_documents = request.val_documents,
                                        .val_sources = request.val_inputs.size(),
                                        .val_fraction = request.val_fraction,
                                        .dedup = request.dedup,
                                        .skip_bad = request.skip_bad},
                                       ops, folder.scratch(), progress, interrupt);
  report(survey, request, log);
  check_something_is_left(survey);
  manifest.dropped = dropped_in(survey);
  manifest.settings.set("val_cut", survey.cut_documents);

  folder.save(found.journal);  // only after the survey, which shows that the inputs are readable
  folder.remove_stale(found);
  Builder builder(request, sources, survey, encoder, folder, ops, found.journal);
  builder.run(progress, interrupt);
  builder.check_something_was_written(request.name);
  builder.finish(manifest);
  folder.finish(*request.tokenizer, manifest);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

namespace {

// As far as they decide which files are read.
ReadOptions read_options_of(const Manifest& manifest) {
  ReadOptions read{.kind = manifest.kind};
  if (const Json* field = manifest.settings.find("text_field")) read.text_field = field->as_string();
  return read;
}

}  // namespace

bool same_sources(const Manifest& manifest, const std::vector<std::string>& inputs,
                  const Interrupt* interrupt) {
  const ReadOptions read = read_options_of(manifest);
  std::vector<DataSource> sources;
  for (const std::string& input : inputs) sources.push_back(find_source(input, read));
  const bool chat = manifest.kind == DataKind::chat;
  return std::ranges::equal(listed_sources(sources, sources_with_digests(sources, interrupt)),
                            manifest.sources, [&](const ManifestSource& a, const ManifestSource& b) {
                              return a.bytes == b.bytes && a.digest == b.digest &&
                                     form_of(a.path, chat).id == form_of(b.path, chat).id;
                            });
}

bool shares_training_text(const Manifest& manifest, const std::string& input, const Interrupt* interrupt) {
  const Json* inputs = manifest.settings.find("inputs");
  const Json* for_validation = manifest.settings.find("val_inputs");
  if (!inputs || !for_validation) return false;
  // The sources of validation inputs come last. An input with many files is one source.
  std::size_t training = 0;
  for (std::size_t i = 0; i + for_validation->as_uint() < inputs->size(); ++i) {
    const std::uint64_t files = inputs->as_array()[i].at("files").as_uint();
    training += files > kMaxListedFiles ? 1 : files;
  }
  const std::vector<DataSource> sources = {find_source(input)};
  std::vector<ManifestSource> files = sources_with_digests(sources, interrupt);
  for (const ManifestSource& sum : listed_sources(sources, files)) files.push_back(sum);
  const auto known = std::span(manifest.sources).first(std::min(training, manifest.sources.size()));
  return std::ranges::any_of(files, [&](const ManifestSource& file) {
    return file.bytes > 0 && std::ranges::find(known, file.digest, &ManifestSource::digest) != known.end();
  });
}

}  // namespace thimble
