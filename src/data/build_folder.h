// The folder that a data set is built in, and what it says about a build that is not finished.
//
// .build.json says which build is going on here and how far it came; it is there from before the first shard
// until after the manifest. A lock keeps a second build out.
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

// One split of a data set in the making: tokens in, shards out. A shard takes as many tokens as fit; documents
// go on in the next one.
//
// Finished shards are on the disk and stay. What is not finished is lost with the process, so the state says
// where to start again: the record with which the unfinished shard begins, how many of its tokens are in the
// shards before, and all counts before that record.
struct SplitCounts {
  std::uint64_t documents = 0, tokens = 0, bytes = 0;
  std::uint64_t too_long = 0, truncated = 0;  // conversations left out, and cut
};

struct SplitState {
  std::vector<ManifestShard> shards;            // finished
  std::uint64_t record = 0, tokens_before = 0;  // where the next one begins
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
  SplitWriter(FileOps& ops, Place place, std::int64_t vocab_size, std::uint64_t shard_tokens,
              SplitState state);

  // Are its tokens still needed?
  bool wants(std::uint64_t record) const { return record >= restart_.record; }
  // Records in order, those that it wants. True: at least one shard was finished, and state() is new.
  bool add(std::uint64_t record, bool starts_document, const EncodedRecord& encoded);
  const SplitState& state() const { return restart_; }
  const SplitCounts& counts() const { return counts_; }  // of all that was added

  ManifestSplit finish();  // writes the shard that is not full

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
  // Makes the folder and locks it; one that stays empty goes again. A second build at the same time is an error.
  BuildFolder(FileOps& ops, std::filesystem::path path);
  ~BuildFolder();
  BuildFolder(const BuildFolder&) = delete;
  BuildFolder& operator=(const BuildFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path scratch() const { return path_ / ".digests"; }

  // Is this one of the files that a build of this name writes into this folder?
  static bool writes(const std::filesystem::path& folder, std::string_view name, const Tokenizer& tokenizer,
                     const std::filesystem::path& file);

  // What is here for this build: the manifest of a finished one (if `reuse`, or if it was stopped at the very
  // end), or a journal to go on with. The journal is empty when it starts afresh; what another build left is
  // then to be removed, or an error (`refuse`).
  struct Found {
    std::optional<Manifest> finished = std::nullopt;
    BuildJournal journal = {};
    bool resumed = false;
    std::vector<std::string> stale = {};  // names of data sets
  };
  Found open(const std::string& name, const std::string& fingerprint, IfBuilt if_built);
  void remove_stale(const Found& found);

  void save(const BuildJournal& journal);
  // The tokenizer, then the manifest, then the journal goes.
  void finish(const Tokenizer& tokenizer, const Manifest& manifest);
  // Nothing can become of this build: what it wrote goes.
  void discard(std::string_view name);

 private:
  // None, too, where a damaged one is to be replaced. What something else wrote is never taken for that.
  std::optional<Manifest> read_manifest(bool replace) const;
  std::optional<BuildJournal> read_journal() const;
  bool shards_are_there(const BuildJournal& journal) const;
  bool has_shards(std::string_view name) const;
  void remove_shards(std::string_view name);
  void remove_if_there(const std::filesystem::path& path);

  FileOps& ops_;
  std::filesystem::path path_;
  std::optional<FileHandle> lock_;
};

}  // namespace thimble
