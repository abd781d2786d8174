#include "data/build_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/json.h"

namespace thimble {

Json SplitState::to_json() const {
  Json list = Json::array();
  for (const ManifestShard& shard : shards)
    list.push(Json::object().set("file", shard.file).set("tokens", shard.tokens).set("digest", shard.digest));
  return Json::object()
      .set("shards", std::move(list))
      .set("record", record)
      .set("tokens_before", tokens_before)
      .set("documents", counts.documents)
      .set("tokens", counts.tokens)
      .set("bytes", counts.bytes)
      .set("too_long", counts.too_long)
      .set("truncated", counts.truncated)
      .set("rejected", counts.rejected);
}

SplitState SplitState::parse(const Json& json) {
  SplitState state;
  for (const Json& shard : json.at("shards").as_array())
    state.shards.push_back(
        {shard.at("file").as_string(), shard.at("tokens").as_uint(), shard.at("digest").as_string()});
  state.record = json.at("record").as_uint();
  state.tokens_before = json.at("tokens_before").as_uint();
  const Json* rejected = json.find("rejected");  // earlier versions did not write it
  state.counts = {json.at("documents").as_uint(), json.at("tokens").as_uint(),
                  json.at("bytes").as_uint(),     json.at("too_long").as_uint(),
                  json.at("truncated").as_uint(), rejected ? rejected->as_uint() : 0};
  return state;
}

SplitWriter::SplitWriter(FileOps& ops, Place place, ShardWriter shard, std::uint64_t shard_tokens,
                         SplitState state)
    : ops_(ops),
      place_(std::move(place)),
      shard_tokens_(shard_tokens),
      shard_(std::move(shard)),
      restart_(std::move(state)),
      counts_(restart_.counts) {}

bool SplitWriter::add(std::uint64_t record, bool starts_document, const EncodedRecord& encoded) {
  bool finished = false;
  std::uint64_t skip = record == restart_.record ? restart_.tokens_before : 0;
  std::uint64_t used = 0;  // tokens of this record
  for (std::span<const TokenId> part : encoded.parts) {
    const std::uint64_t skipped = std::min<std::uint64_t>(skip, part.size());
    skip -= skipped;
    used += skipped;
    part = part.subspan(skipped);
    while (!part.empty()) {
      const auto count = std::min<std::uint64_t>(part.size(), shard_tokens_ - shard_.tokens());
      shard_.add(part.first(count));
      part = part.subspan(count);
      used += count;
      if (shard_.tokens() < shard_tokens_) continue;
      write_shard();
      finished = true;
      restart_.record = record;
      restart_.tokens_before = used;
      restart_.counts = counts_;
    }
  }
  counts_.documents += starts_document && !encoded.parts.empty();
  counts_.tokens += used;
  counts_.bytes += encoded.bytes;
  counts_.too_long += encoded.too_long;
  counts_.truncated += encoded.truncated;
  counts_.rejected += encoded.rejected;
  return finished;
}

void SplitWriter::write_shard() {
  ManifestShard shard{shard_name(place_.dataset, place_.split, restart_.shards.size()), shard_.tokens(), {}};
  shard.digest = shard_.write(ops_, place_.folder / shard.file, Existing::replace).hex();
  restart_.shards.push_back(std::move(shard));
}

ManifestSplit SplitWriter::finish() {
  if (shard_.tokens() > 0) write_shard();
  return {counts_.documents, counts_.tokens, counts_.bytes, restart_.shards};
}

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kJournalFile = ".build.json";
constexpr std::string_view kLockFile = ".lock";
constexpr const char* kRebuildHint = "pass another folder with -o, or pass --force to rebuild";

// Whether the file name is "NAME_train_000012.bin" or "NAME_val_000012.bin" for this data set name.
bool is_shard_of(std::string_view name, const std::string& file) {
  for (const std::string_view split : {"train", "val"}) {
    const std::string start = fmt::format("{}_{}_", name, split);
    if (!file.starts_with(start) || !file.ends_with(".bin")) continue;
    const std::string_view digits(file.data() + start.size(), file.size() - start.size() - 4);
    if (digits.size() >= 6 && digits.find_first_not_of("0123456789") == digits.npos) return true;
  }
  return false;
}

std::string fingerprint_in(const Manifest& manifest) {
  const Json* fingerprint = manifest.settings.find("fingerprint");
  return fingerprint && fingerprint->is_string() ? fingerprint->as_string() : "";
}

}  // namespace

std::string BuildJournal::text() const {
  return Json::object()
             .set("name", name)
             .set("fingerprint", fingerprint)
             .set("train", train.to_json())
             .set("val", val.to_json())
             .dump(1) +
         "\n";
}

BuildJournal BuildJournal::parse(std::string_view text, std::string_view where) {
  const Json json = parse_json(text, where);
  try {
    return {json.at("name").as_string(), json.at("fingerprint").as_string(),
            SplitState::parse(json.at("train")), SplitState::parse(json.at("val"))};
  } catch (const Error& error) {
    fail(Hint{"pass --force to rebuild"}, "{}: {}", where, error.what());
  }
}

namespace {

bool contains_build(const fs::path& folder) {
  if (fs::exists(folder / kJournalFile)) return true;
  const fs::path manifest = folder / kManifestFile;
  return fs::is_regular_file(manifest) && !is_foreign_manifest(read_file(manifest, kMaxManifestBytes));
}

// Whether a build that was killed before its first shard may have left this.
bool is_left_by_build(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  return name == kLockFile || name == ".digests" || name == "..digests.tmp" ||
         name == fmt::format(".{}.tmp", kJournalFile);
}

}  // namespace

BuildFolder::BuildFolder(FileOps& ops, fs::path path) : ops_(ops), path_(std::move(path)) {
  const fs::path foreign = contains_build(path_) ? fs::path() : foreign_entry(path_, is_left_by_build);
  check(foreign.empty(), Hint{"choose a new or empty folder with -o"},
        "{} is not a data set: it contains {}, which `thimble data build` did not write", path_.string(),
        foreign.filename().string());
  make_folders(ops_, path_);
  const FileHandle file = ops_.open_for_writing(path_ / kLockFile);
  bool mine = false;
  try {
    mine = ops_.try_lock(file) && ops_.name_state(file) != NameState::moved;
  } catch (...) {
    ops_.close(file);
    throw;
  }
  if (!mine) ops_.close(file);
  check(mine, Hint{"wait until it has finished, or pass another folder"}, "another build is running in {}",
        path_.string());
  lock_ = file;
}

BuildFolder::~BuildFolder() {
  try {
    ops_.remove(path_ / kLockFile);
  } catch (...) {
    // A remaining lock file is harmless: the next build locks and removes it.
  }
  ops_.close(*lock_);
  std::error_code not_empty;  // the folder stays if it is not empty
  fs::remove(path_, not_empty);
}

std::optional<Manifest> BuildFolder::read_manifest(bool replace) const {
  const fs::path file = path_ / kManifestFile;
  if (!fs::exists(file)) return std::nullopt;
  const std::string text = read_file(file, kMaxManifestBytes);
  try {
    return Manifest::parse(text, file.string());
  } catch (const Error& error) {
    check(!is_foreign_manifest(text), Hint{"pass another folder with -o"}, "{}", error.what());
    check(replace, Hint{kRebuildHint}, "{}", error.what());
    return std::nullopt;
  }
}

std::optional<BuildJournal> BuildFolder::read_journal() const {
  const fs::path file = path_ / kJournalFile;
  if (!fs::exists(file)) return std::nullopt;
  return BuildJournal::parse(read_file(file, kMaxManifestBytes), file.string());
}

bool BuildFolder::shards_exist(const BuildJournal& journal) const {
  for (const auto& [split, state] : {std::pair{"train", &journal.train}, std::pair{"val", &journal.val}})
    for (std::size_t i = 0; i < state->shards.size(); ++i) {
      const ManifestShard& shard = state->shards[i];
      if (shard.file != shard_name(journal.name, split, i)) return false;
      try {
        if (ShardReader(path_ / shard.file).tokens() != shard.tokens) return false;
      } catch (const Error&) {  // missing or damaged
        return false;
      }
    }
  return true;
}

bool BuildFolder::has_shards(std::string_view name) const {
  for (const auto& entry : fs::directory_iterator(path_))
    if (is_shard_of(name, entry.path().filename().string())) return true;
  return false;
}

void BuildFolder::remove_if_exists(const fs::path& path) {
  if (ops_.kind(path) != PathKind::nothing) ops_.remove(path);
}

void BuildFolder::remove_shards(std::string_view name, std::span<const std::string> kept) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(path_)) {
    const std::string file = entry.path().filename().string();
    if (is_shard_of(name, file) && std::ranges::count(kept, file) == 0) found.push_back(entry.path());
  }
  for (const fs::path& path : found) ops_.remove(path);
}

bool BuildFolder::writes(const fs::path& folder, std::string_view name, const Tokenizer& tokenizer,
                         const fs::path& file) {
  const std::string own = file.filename().string();
  if (own != kManifestFile && own != tokenizer.file_name() && !is_shard_of(name, own)) return false;
  return fs::weakly_canonical(file).parent_path() == fs::weakly_canonical(folder / own).parent_path();
}

BuildFolder::Found BuildFolder::open(const std::string& name, const std::string& fingerprint,
                                     IfBuilt if_built) {
  const bool replace = if_built != IfBuilt::refuse;
  auto manifest = read_manifest(replace);
  std::optional<BuildJournal> journal;
  try {
    journal = read_journal();
  } catch (const Error&) {
    if (!replace) throw;
  }
  const bool same = journal && journal->name == name && journal->fingerprint == fingerprint;
  if (manifest) {
    // With a journal of this build, the manifest of another one is about to be replaced.
    const bool usable = fingerprint_in(*manifest) == fingerprint && (same || if_built == IfBuilt::reuse);
    if (usable && if_built != IfBuilt::replace) {
      remove_if_exists(path_ / kJournalFile);
      return {.finished = std::move(manifest)};
    }
    check(replace, Hint{kRebuildHint}, "{} already contains a data set", path_.string());
  } else if (same && if_built != IfBuilt::replace && shards_exist(*journal)) {
    return {.journal = std::move(*journal), .resumed = true, .stale = {name}};
  }
  if (journal) {
    check(replace, Hint{kRebuildHint}, "{} contains an unfinished build {}", path_.string(),
          same ? "whose shards are incomplete" : "with other inputs or settings");
  }
  check(replace || !has_shards(name), Hint{kRebuildHint}, "{} already contains shards named {}",
        path_.string(), name);
  Found found{.journal = {.name = name, .fingerprint = fingerprint, .train = {}, .val = {}}};
  found.stale = {name};
  if (manifest) found.stale.push_back(manifest->name);
  if (journal) found.stale.push_back(journal->name);
  return found;
}

void BuildFolder::remove_stale(const Found& found) {
  // The manifest is removed first: without it the folder counts as incomplete.
  remove_if_exists(path_ / kManifestFile);
  std::vector<std::string> kept;
  for (const SplitState* split : {&found.journal.train, &found.journal.val})
    for (const ManifestShard& shard : split->shards) kept.push_back(shard.file);
  for (const std::string& name : found.stale) remove_shards(name, kept);
}

void BuildFolder::save(const BuildJournal& journal) {
  write_file(ops_, path_ / kJournalFile, journal.text(), Existing::replace);
}

void BuildFolder::discard(std::string_view name) {
  remove_shards(name);
  remove_if_exists(path_ / kJournalFile);
}

void BuildFolder::finish(const Tokenizer& tokenizer, const Manifest& manifest) {
  write_file(ops_, path_ / tokenizer.file_name(), tokenizer.serialized(), Existing::replace);
  write_file(ops_, path_ / kManifestFile, manifest.text(), Existing::replace);
  remove_if_exists(path_ / kJournalFile);
}

}  // namespace thimble
