// The first reading of all sources: it counts the documents and settles the fate of each, before the second
// reading encodes them. Memory holds two bits per document; the digests lie in a scratch file.
//
// Validation documents are chosen by content: those whose digest falls below a fraction of all digests. A
// document keeps its side when others are added or taken away, and two equal ones are on the same side. Or they
// are chosen by place: the last ones. Then training documents equal to one of them are dropped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file_ops.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "data/document.h"
#include "data/sources.h"

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

}  // namespace thimble
