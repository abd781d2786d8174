// What a data set, a shard or a source of text or chats holds: for `thimble data info`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/interrupt.h"
#include "base/progress.h"
#include "data/document.h"
#include "data/manifest.h"

namespace thimble {

struct DescribeOptions {
  std::shared_ptr<const Tokenizer> tokenizer = {};  // to count the tokens of a source, to decode a shard
  ReadOptions read = {};                            // of sources; the kind is found out
};

struct SplitDescription {
  std::string name;  // "train", "val"; of a source or a single shard ""
  std::uint64_t shards = 0;
  std::optional<std::uint64_t> documents, tokens, bytes;  // where known
};

struct DataDescription {
  std::string form;  // "data set", "shards", "shard", "text", "chat"
  std::optional<Manifest> manifest;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<SplitDescription> splits;
  std::uint64_t bad = 0, without_answer = 0, with_turns_cut = 0, empty = 0;  // of a source
  std::string first_problem;
  std::string first_document;  // its beginning, decoded; empty when there is no tokenizer
};

DataDescription describe_data(const std::string& input, const DescribeOptions& options,
                              const ProgressOutput& progress, const Interrupt* interrupt = nullptr);

}  // namespace thimble
