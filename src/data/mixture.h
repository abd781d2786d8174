// All sources as one stream of records, in batches for the threads.
//
// The order depends on the sources, their weights and their numbers of documents alone, so that a second
// reading gives every document its number again. A source of weight 2.5 is read three times, and in the third
// reading every second document counts (Mixture::counts). Mixed sources advance in proportion and end together.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/document.h"
#include "data/records.h"
#include "data/sources.h"

namespace thimble {

struct MixedRecord {
  Record record;
  std::uint64_t number = 0;    // of the record, in the order of this stream
  std::uint64_t document = 0;  // of its document, in the order of the sources
  std::uint64_t pass = 0;      // how often its source was read before
  std::size_t source = 0;
};

class Mixture {
 public:
  // One source after the other, each once, whatever its weight. The sources must outlive the mixture.
  Mixture(std::span<const DataSource> sources, const ReadOptions& options);
  // By weight. `documents`: of each source. `cut_at`: see RecordReader.
  Mixture(std::span<const DataSource> sources, const ReadOptions& options,
          std::span<const std::uint64_t> documents, std::optional<std::uint64_t> cut_at);

  // A few megabytes of records; empty at the end.
  std::vector<MixedRecord> next_batch();

  // Is this reading of a training document one that its source's weight asks for?
  bool counts(const MixedRecord& record) const;

  std::uint64_t stored_bytes() const;  // to be read in all
  std::uint64_t stored_bytes_read() const;

 private:
  struct Lane {
    std::unique_ptr<RecordReader> reader;
    std::uint64_t first_document = 0, documents = 0;  // in the order of the sources; how many
    std::uint64_t passes = 1, pass = 0;
    std::uint64_t begun = 0;                                  // documents, in all passes
    std::uint64_t stored_bytes = 0, stored_bytes_before = 0;  // of one pass; of finished passes
    bool ended = false;
  };
  std::optional<MixedRecord> next();
  std::size_t next_lane() const;  // lanes_.size() at the end
  void reopen(std::size_t lane);

  std::span<const DataSource> sources_;
  ReadOptions options_;
  std::optional<std::uint64_t> cut_at_;
  bool mixed_ = false;
  std::vector<Lane> lanes_;
  std::vector<std::optional<Record>> ahead_;  // the next record of each lane, if it was looked at
  std::size_t current_ = 0;
  std::uint64_t number_ = 0, documents_ = 0;
};

}  // namespace thimble
