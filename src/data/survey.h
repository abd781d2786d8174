// The first reading of all sources: it counts the documents and settles the fate of each, before the second
// reading encodes them. Memory holds two bits per document; the digests lie in a scratch file.
//
// Validation documents are chosen by content: those whose digest falls below a fraction of all digests. A
// document keeps its side when others are added or taken away, and two equal ones are on the same side. Or they
// are chosen by place: the last ones. Then training documents equal to one of them are dropped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/file_ops.h"
#include "base/files.h"
#include "base/progress.h"
#include "base/signals.h"
#include "data/document.h"
#include "data/records.h"

namespace thimble {

enum class Fate { train, val, dropped };

// One of three for each document.
class Fates {
 public:
  void add(Fate fate);
  void set(std::uint64_t document, Fate fate);
  Fate operator[](std::uint64_t document) const;
  std::uint64_t size() const { return dropped_.size(); }
  std::uint64_t count(Fate fate) const { return counts_[static_cast<std::size_t>(fate)]; }

 private:
  std::vector<bool> dropped_, val_;
  std::uint64_t counts_[3] = {};
};

struct SurveyOptions {
  // One of them: the last documents; those of the last sources; or by content.
  std::uint64_t val_documents = 0;
  std::size_t val_sources = 0;
  double val_fraction = 0;
  bool dedup = false;
  bool skip_bad = false;
};

struct Survey {
  Fates fates;
  std::vector<std::uint64_t> source_documents;  // of each source, dropped ones too
  std::uint64_t content_bytes = 0;              // of documents that are not bad
  std::uint64_t bad = 0, empty = 0, without_answer = 0, duplicates = 0, in_validation = 0;
  std::uint64_t with_turns_cut = 0;          // conversations that lost turns behind their last answer
  std::string first_problem;                 // of the bad ones
  std::optional<std::uint64_t> cut_at = {};  // of a text of one document: validation begins at this byte
};

// `scratch` is a file to be made and removed; without one equal documents are not looked for. A bad record is an
// error unless options.skip_bad.
Survey survey_sources(std::span<const DataSource> sources, const ReadOptions& read,
                      const SurveyOptions& options, FileOps& ops, const std::filesystem::path& scratch,
                      const ProgressOutput& progress, const Interrupt* interrupt);

// Finding equal documents among any number: their digests lie in a file, and memory holds a million at a time.
// The digests of documents 0, 1, 2, ... The file is gone with the object.
class DigestFile {
 public:
  DigestFile(FileOps& ops, std::filesystem::path path);
  ~DigestFile();
  DigestFile(const DigestFile&) = delete;
  DigestFile& operator=(const DigestFile&) = delete;

  void add(const Digest& digest);
  void close();  // no more come; now they can be read
  std::uint64_t size() const { return size_; }
  void for_each(const std::function<void(std::uint64_t document, const Digest& digest)>& use) const;

 private:
  void flush();

  FileOps& ops_;
  std::filesystem::path path_;
  std::optional<AtomicFile> file_;
  std::vector<Digest> buffer_;
  std::uint64_t size_ = 0;
};

struct DuplicateCounts {
  std::uint64_t in_validation = 0;  // training documents equal to a validation document
  std::uint64_t duplicates = 0;     // equal to an earlier one on the same side
};

// Drops the first kind always, the second if `dedup`.
DuplicateCounts drop_duplicates(const DigestFile& digests, bool dedup, Fates& fates);

// All sources as one stream of records, in batches for the threads.
//
// The order depends on the sources, their weights and their numbers of documents alone, so that a second
// reading gives every document its number again. A source of weight 2.5 is read three times, and in the third
// reading every second document counts (Mixture::counts). Mixed sources advance in proportion and end together.
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
