// The folder that a data set is built in, and the state file of an unfinished build.
//
// .build.json identifies the build and records its progress. It exists from before the first shard
// until after the manifest. A lock file prevents concurrent builds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_ops.h"
#include "base/files.h"
#include "data/build.h"
#include "data/encode.h"
#include "data/manifest.h"
#include "data/shard.h"

namespace thimble {

// One split of a data set under construction: receives tokens, writes shards. Every shard but the
// last is full, so a document may continue in the next shard.
//
// Finished shards are on disk and are kept when a build is interrupted; the tokens of the
// unfinished shard are lost. SplitState therefore contains what is needed to restart: the record in
// which the unfinished shard begins, how many of its tokens are in earlier shards, and the counts
// before it.
struct SplitCounts {
  std::uint64_t documents = 0, tokens = 0, bytes = 0;
  std::uint64_t too_long = 0, truncated = 0;  // conversations dropped, and shortened
  std::uint64_t rejected = 0;                 // conversations that the template does not accept
};

struct SplitState {
  std::vector<ManifestShard> shards;            // finished
  std::uint64_t record = 0, tokens_before = 0;  // where the next shard begins
  SplitCounts counts;                           // before that record

  Json to_json() const;
  static SplitState parse(const Json& json);
};

class SplitWriter {
 public:
  struct Place {
    std::filesystem::path folder;
    std::string dataset;
    std::string_view split;  // "train" or "val"
  };
  SplitWriter(FileOps& ops, Place place, ShardWriter shard, std::uint64_t shard_tokens, SplitState state);

  // Whether the tokens of this record are still missing from the finished shards.
  bool needs(std::uint64_t record) const { return record >= restart_.record; }
  // Records must be added in order, and only if needs() is true. Returns true if at least one shard
  // was finished, so that state() has changed.
  bool add(std::uint64_t record, bool starts_document, const EncodedRecord& encoded);
  const SplitState& state() const { return restart_; }
  const SplitCounts& counts() const { return counts_; }  // of everything added

  ManifestSplit finish();  // writes the last shard, which may be partly filled

 private:
  void write_shard();

  FileOps& ops_;
  Place place_;
  std::uint64_t shard_tokens_;
  ShardWriter shard_;
  SplitState restart_;
  SplitCounts counts_;
};

struct BuildJournal {
  std::string name;         // of the data set
  std::string fingerprint;  // of inputs and settings
  SplitState train, val;

  std::string text() const;
  static BuildJournal parse(std::string_view text, std::string_view where);
};

class BuildFolder {
 public:
  // Creates and locks the folder. Throws if it is locked, or if it contains files but no data set
  // or unfinished build: those are not thimble's, and a build would replace some of them. The
  // destructor removes an empty folder.
  BuildFolder(FileOps& ops, std::filesystem::path path);
  ~BuildFolder();
  BuildFolder(const BuildFolder&) = delete;
  BuildFolder& operator=(const BuildFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path scratch() const { return path_ / ".digests"; }

  // Whether a build with this name would write `file` into `folder`.
  static bool writes(const std::filesystem::path& folder, std::string_view name, const Tokenizer& tokenizer,
                     const std::filesystem::path& file);

  // Looks for earlier results of this build. `finished` is the manifest of a complete build; it is
  // set with `reuse`, or if the build was interrupted after writing the manifest. Otherwise
  // `journal` is the state to resume from, empty for a new build. `stale` lists files of other
  // builds; with `refuse` they are an error.
  struct Found {
    std::optional<Manifest> finished = std::nullopt;
    BuildJournal journal = {};
    bool resumed = false;
    std::vector<std::string> stale = {};  // names of data sets
  };
  Found open(const std::string& name, const std::string& fingerprint, IfBuilt if_built);
  void save(const BuildJournal& journal);
  // Call it after save(): without manifest and journal, the shards left by a kill would not be
  // ours.
  void remove_stale(const Found& found);

  // Writes the tokenizer, then the manifest, then removes the journal.
  void finish(const Tokenizer& tokenizer, const Manifest& manifest);
  // Removes everything this build wrote. Called when the build has nothing to train on.
  void discard(std::string_view name);

 private:
  // Returns nullopt if there is no manifest, or a damaged one and `replace` is set. A manifest.json
  // written by another program is always an error.
  std::optional<Manifest> read_manifest(bool replace) const;
  std::optional<BuildJournal> read_journal() const;
  bool shards_exist(const BuildJournal& journal) const;
  bool has_shards(std::string_view name) const;
  // Except the files in `kept`.
  void remove_shards(std::string_view name, std::span<const std::string> kept = {});
  void remove_if_exists(const std::filesystem::path& path);

  FileOps& ops_;
  std::filesystem::path path_;
  std::optional<FileHandle> lock_;
};

}  // namespace thimble
