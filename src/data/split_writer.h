// One split of a data set in the making: tokens in, shards out. A shard takes as many tokens as fit; documents
// go on in the next one.
//
// Finished shards are on the disk and stay. What is not finished is lost with the process, so the state says
// where to start again: the record with which the unfinished shard begins, how many of its tokens are in the
// shards before, and all counts before that record.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_ops.h"
#include "data/batch_encode.h"
#include "data/manifest.h"
#include "data/shard.h"

namespace thimble {

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

}  // namespace thimble
