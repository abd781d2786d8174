// The first pass over all sources: counts the documents and assigns each to a split, before the
// second pass encodes them. It needs two bits of memory per document; digests are in a scratch
// file.
//
// Validation documents are chosen by content or by position. By position, they are the last
// documents, and training documents equal to one of them are dropped. By content:
//
//   - A text so long that holding it out would miss the fraction is cut: its end is validation. A
//     conversation is cut between two exchanges.
//   - Of the other documents, those whose digest is below the fraction are validation, so a
//     document stays in its split when others are added.
//   - If these differ from the fraction by more than a tenth in bytes, as with few documents,
//     documents are taken in the order of their digests instead, as many as fit.
//
// In each case equal documents are in the same split. If all documents are equal and cannot be cut,
// there is no validation.
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

enum class Assignment { train, val, dropped };

// The assignment of every document, in two bits each.
class Assignments {
 public:
  void add(Assignment assignment);
  void set(std::uint64_t document, Assignment assignment);
  Assignment operator[](std::uint64_t document) const;
  std::uint64_t size() const { return dropped_.size(); }
  std::uint64_t count(Assignment assignment) const { return counts_[static_cast<std::size_t>(assignment)]; }

 private:
  std::vector<bool> dropped_, val_;
  std::uint64_t counts_[3] = {};
};

struct SurveyOptions {
  // At most one is set: the last documents, the last sources, or a fraction by content.
  std::uint64_t val_documents = 0;
  std::size_t val_sources = 0;
  double val_fraction = 0;  // of the bytes
  bool dedup = false;
  bool skip_bad = false;
};

// Changes with the rules above: an unfinished build is not resumed with another split.
inline constexpr int kSplitRule = 3;

// The lines of plain text, to notice files in which each line is a document.
struct LineFacts {
  std::uint64_t lines = 0, empty = 0;
  std::size_t longest = 0;  // in bytes
};

struct Survey {
  Assignments assignments;
  std::vector<std::uint64_t> source_documents;  // per source, including dropped documents
  std::uint64_t content_bytes = 0;              // of valid documents
  std::uint64_t bad = 0, empty = 0, without_answer = 0, duplicates = 0, in_validation = 0;
  std::uint64_t with_turns_cut = 0;  // conversations with turns after their last answer
  std::string first_problem;         // the first error message of the bad documents
  std::uint64_t not_utf8 = 0;        // records of text with invalid UTF-8
  std::string first_not_utf8;        // file and line of the first one
  LineFacts lines;
  // Where texts are cut for validation, per source; see RecordReader. Each cut text counts as two
  // documents.
  std::vector<std::vector<std::uint64_t>> cuts;
  std::uint64_t cut_documents = 0;
};

// `scratch` is a file that is created and removed; if empty, equal documents are not detected. An
// invalid record is an error unless options.skip_bad is set.
Survey survey_sources(std::span<const DataSource> sources, const ReadOptions& read,
                      const SurveyOptions& options, FileOps& ops, const std::filesystem::path& scratch,
                      const ProgressOutput& progress, const Interrupt* interrupt);

// Stores the digests of documents 0, 1, 2, ... in a file, so that finding equal documents needs
// only about a million digests in memory at a time. The destructor removes the file.
class DigestFile {
 public:
  DigestFile(FileOps& ops, std::filesystem::path path);
  ~DigestFile();
  DigestFile(const DigestFile&) = delete;
  DigestFile& operator=(const DigestFile&) = delete;

  void add(const Digest& digest);
  void close();  // call after the last add() and before for_each()
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
  std::uint64_t duplicates = 0;     // equal to an earlier document of the same split
};

// Always drops documents counted in in_validation; drops duplicates only if `dedup` is set.
DuplicateCounts drop_duplicates(const DigestFile& digests, bool dedup, Assignments& assignments);

// All sources as one stream of records, in batches for the threads.
//
// The order depends only on the sources, their weights and their numbers of documents, so a second
// pass gives every document the same number. A source of weight 2.5 is read three times, and the
// third pass uses about every second document (Mixture::includes). Interleaved sources advance in
// proportion and end together.
struct MixedRecord {
  Record record;
  std::uint64_t number = 0;    // of the record, in the order of this stream
  std::uint64_t document = 0;  // of its document, in the order of the sources
  std::uint64_t pass = 0;      // number of earlier complete passes over the source
  std::size_t source = 0;
};

class Mixture {
 public:
  // Reads each source once, in order, without weights. The sources must outlive the mixture.
  Mixture(std::span<const DataSource> sources, const ReadOptions& options);
  // Reads by weight. `documents` is the count for each source; `cuts` are those of each source.
  Mixture(std::span<const DataSource> sources, const ReadOptions& options,
          std::span<const std::uint64_t> documents, std::vector<std::vector<std::uint64_t>> cuts);

  // Returns a few megabytes of records; empty at the end.
  std::vector<MixedRecord> next_batch();

  // Whether the source's weight includes this training document in this pass.
  bool includes(const MixedRecord& record) const;

  std::uint64_t stored_bytes() const;  // total size of all passes
  std::uint64_t stored_bytes_read() const;

 private:
  struct Lane {
    std::unique_ptr<RecordReader> reader;
    std::uint64_t first_document = 0, documents = 0;  // index of the first document; count
    std::uint64_t passes = 1, pass = 0;
    std::uint64_t begun = 0;                                  // documents started, over all passes
    std::uint64_t stored_bytes = 0, stored_bytes_before = 0;  // of one pass; of completed passes
    bool ended = false;
  };
  std::optional<MixedRecord> next();
  std::size_t next_lane() const;  // lanes_.size() at the end
  void reopen(std::size_t lane);

  std::span<const DataSource> sources_;
  ReadOptions options_;
  std::vector<std::vector<std::uint64_t>> cuts_;  // per source
  bool mixed_ = false;
  std::vector<Lane> lanes_;
  std::vector<std::optional<Record>> ahead_;  // the next record of each lane, if already read
  std::size_t current_ = 0;
  std::uint64_t number_ = 0, documents_ = 0;
};

}  // namespace thimble
