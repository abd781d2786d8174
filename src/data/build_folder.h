// The folder that a data set is built in, and what it says about a build that is not finished.
//
// .build.json says which build is going on here and how far it came; it is there from before the first shard
// until after the manifest. A lock keeps a second build out.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/files.h"
#include "data/build.h"
#include "data/split_writer.h"

namespace thimble {

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
