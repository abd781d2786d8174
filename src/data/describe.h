// What a data set, a shard or a source of text or chats holds: for `thimble data info`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/signals.h"
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

// What a run is about to learn from, said before it starts.
struct DataFacts {
  std::uint64_t documents = 0;      // 0: not known
  std::uint64_t tokens = 0;         // of the training split
  std::uint64_t bytes = 0;          // of the text they stand for; 0: not known
  std::uint64_t tokens_to_see = 0;  // steps * batch_tokens; 0: the time decides
  std::uint64_t parameters = 0;

  double epochs() const;
  double tokens_per_parameter() const;
};

// One table: documents, tokens, bytes per token, tokens to be seen, parameters, tokens per parameter, epochs.
std::string data_table(const DataFacts& facts);

// Below 10 different tokens per parameter: a sentence on what is short and what to do. Else empty.
std::string data_warning(const DataFacts& facts);

}  // namespace thimble
