// Describes a data set, a shard, or a source of text or chats, for `thimble data info`.
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
  std::shared_ptr<const Tokenizer> tokenizer = {};  // to count and decode tokens
  ReadOptions read = {};  // for sources; `kind` chat: only chats, otherwise it is detected
};

struct SplitDescription {
  std::string name;  // "train", "val"; "" for a source or a single shard
  std::uint64_t shards = 0;
  std::optional<std::uint64_t> documents, tokens, bytes;  // where known
};

struct DataDescription {
  std::string form;  // "data set", "shards", "shard", "text", "chat"
  std::optional<Manifest> manifest;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<SplitDescription> splits;
  std::uint64_t bad = 0, without_answer = 0, with_turns_cut = 0, empty = 0;  // for sources only
  std::string first_problem;
  std::string inputs;          // a table of the files of a source, see inputs_text()
  std::string assistant;       // of exports of messengers
  std::string first_document;  // beginning of the first document as text; empty without a tokenizer
};

DataDescription describe_data(const std::string& input, const DescribeOptions& options,
                              const ProgressOutput& progress, const Interrupt* interrupt = nullptr);

// How much of a data set is validation and how it was chosen:
// "validation: 94.2 kB, 10 % of the text: the end of each of 3 documents".
std::string validation_text(const Manifest& manifest);

// A table of the documents that were left out or shortened when the data set was built; empty if
// there are none. `width`: see Table::text().
std::string dropped_text(const Manifest& manifest, std::size_t width = 0);

// Whether the source has a document that is not empty. Reads up to the first one. Throws if there
// is none because records cannot be read.
bool has_document(const DataSource& source, const ReadOptions& read);

// The size of the data and of the planned training run, printed before training starts.
struct DataFacts {
  std::uint64_t documents = 0;       // 0: not known
  std::uint64_t tokens = 0;          // of the training split
  std::uint64_t bytes = 0;           // of the text before tokenization; 0: not known
  std::uint64_t planned_tokens = 0;  // steps * batch_tokens; 0: limited by time, not by steps
  std::uint64_t parameters = 0;

  double epochs() const;
  double tokens_per_parameter() const;
};

// Whether the distinct tokens that a run trains on are enough for its parameters. Below
// kMinTokensPerParameter a model tends to memorize its training text. The advice at the start and
// at the end of a run both follow from this.
enum class DataAmount { enough, too_few_steps, too_little_text };
inline constexpr double kMinTokensPerParameter = 10;
DataAmount data_amount(std::uint64_t tokens, std::uint64_t tokens_read, std::uint64_t parameters);

// A table of documents, tokens, planned tokens, parameters and the ratios between them.
std::string data_table(const DataFacts& facts);

// Advice if the planned run has too few distinct tokens per parameter, otherwise empty.
std::string data_warning(const DataFacts& facts);

}  // namespace thimble
