#include "data/survey.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "data/duplicates.h"
#include "data/mixture.h"
#include "data/tasks.h"

namespace thimble {

namespace {

// What is kept of a record when the threads are done with it.
struct Finding {
  Digest digest = {};
  std::uint64_t bytes = 0;  // of content
  std::size_t turns_cut = 0;
  std::string problem, hint;
};

Finding examine(MixedRecord& mixed, const ReadOptions& options) {
  const Document document = read_document(mixed.record, options);
  if (!document.problem.empty()) return {.problem = document.problem, .hint = document.hint};
  return {document.digest(), document.content_bytes(), document.cut, {}, {}};
}

Digest chained(const Digest& before, const Digest& next) {
  const std::uint64_t words[] = {before.high, before.low, next.high, next.low};
  return digest_of(std::as_bytes(std::span(words)));
}

bool falls_below(const Digest& digest, double fraction) {
  return static_cast<double>(digest.high >> 11) * 0x1p-53 < fraction;
}

class Surveyor {
 public:
  Surveyor(const ReadOptions& read, const SurveyOptions& options, std::size_t sources,
           std::optional<DigestFile>& digests)
      : chat_(read.kind == DataKind::chat), options_(options), digests_(digests) {
    survey_.source_documents.resize(sources);
  }

  void add(const MixedRecord& mixed, std::uint64_t raw_bytes, Finding& finding) {
    if (mixed.record.starts) {
      finish_document();
      ++survey_.source_documents[mixed.source];
    }
    raw_bytes_ += raw_bytes;
    cuttable_ = !mixed.record.json;
    document_ = mixed.record.starts ? finding.digest : chained(document_.value(), finding.digest);
    bytes_ += finding.bytes;
    survey_.content_bytes += finding.bytes;
    if (finding.turns_cut > 0 && finding.bytes > 0) ++survey_.with_turns_cut;
    if (!finding.problem.empty()) note_problem(finding);
  }

  Survey result() {
    finish_document();
    choose_validation();
    if (digests_) {
      digests_->close();
      const DuplicateCounts counts = drop_duplicates(*digests_, options_.dedup, survey_.fates);
      survey_.duplicates = counts.duplicates;
      survey_.in_validation = counts.in_validation;
    }
    return std::move(survey_);
  }

 private:
  void note_problem(Finding& finding) {
    if (!options_.skip_bad)
      throw Error(finding.problem, Hint{(finding.hint.empty() ? "" : finding.hint + "; ") +
                                        "`thimble data build --skip-bad` leaves such records out"});
    if (survey_.bad++ == 0) survey_.first_problem = finding.problem;
    bad_ = true;
  }

  void finish_document() {
    if (!document_) return;
    if (digests_) digests_->add(*document_);
    survey_.fates.add(fate_of_document());
    document_.reset();
    bytes_ = 0;
    bad_ = false;
  }

  Fate fate_of_document() {
    if (bad_) return Fate::dropped;
    if (bytes_ == 0) {
      ++(chat_ ? survey_.without_answer : survey_.empty);
      return Fate::dropped;
    }
    return falls_below(*document_, options_.val_fraction) ? Fate::val : Fate::train;
  }

  void choose_validation() {
    Fates& fates = survey_.fates;
    const std::uint64_t kept = fates.size() - fates.count(Fate::dropped);
    if (options_.val_sources > 0) {
      std::uint64_t last = 0;
      for (std::size_t i = 0; i < options_.val_sources; ++i)
        last += survey_.source_documents[survey_.source_documents.size() - 1 - i];
      return set_from(fates.size() - last);
    }
    if (options_.val_documents > 0) {
      check(options_.val_documents < kept, Hint{"ask for fewer with --val-docs"},
            "{} validation documents were asked for, the sources hold {} documents", options_.val_documents,
            kept);
      return set_last(options_.val_documents);
    }
    if (options_.val_fraction <= 0 || kept == 0) return;
    if (fates.count(Fate::val) > 0 && fates.count(Fate::train) > 0) return;
    // So few documents that all fell on one side.
    if (kept > 1) {
      const double wanted = std::round(options_.val_fraction * static_cast<double>(kept));
      set_last(std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1, kept - 1));
    } else if (fates.size() == 1 && cuttable_) {
      cut_the_only_document();
    } else {
      for (std::uint64_t i = 0; i < fates.size(); ++i)
        if (fates[i] == Fate::val) fates.set(i, Fate::train);
    }
  }

  // What is kept, from this document on.
  void set_from(std::uint64_t first) {
    for (std::uint64_t i = 0; i < survey_.fates.size(); ++i)
      if (survey_.fates[i] != Fate::dropped) survey_.fates.set(i, i < first ? Fate::train : Fate::val);
  }

  void set_last(std::uint64_t count) {
    std::uint64_t first = survey_.fates.size();
    for (std::uint64_t left = count; left > 0;)
      if (survey_.fates[--first] != Fate::dropped) --left;
    set_from(first);
  }

  // The digests know nothing of the two halves, but what is only there once has no duplicates.
  void cut_the_only_document() {
    survey_.cut_at =
        static_cast<std::uint64_t>(static_cast<double>(raw_bytes_) * (1 - options_.val_fraction));
    survey_.fates = Fates();
    survey_.fates.add(Fate::train);
    survey_.fates.add(Fate::val);
    std::ranges::find(survey_.source_documents, 1u)[0] = 2;
  }

  bool chat_;
  SurveyOptions options_;
  std::optional<DigestFile>& digests_;
  Survey survey_;
  std::optional<Digest> document_;  // that is being read: the digest of its pieces so far
  std::uint64_t bytes_ = 0;         // of its content
  bool bad_ = false;
  std::uint64_t raw_bytes_ = 0;  // of all
  bool cuttable_ = false;        // the last one: it is plain text
};

}  // namespace

void Fates::add(Fate fate) {
  dropped_.push_back(fate == Fate::dropped);
  val_.push_back(fate == Fate::val);
  ++counts_[static_cast<std::size_t>(fate)];
}

void Fates::set(std::uint64_t document, Fate fate) {
  --counts_[static_cast<std::size_t>((*this)[document])];
  dropped_[document] = fate == Fate::dropped;
  val_[document] = fate == Fate::val;
  ++counts_[static_cast<std::size_t>(fate)];
}

Fate Fates::operator[](std::uint64_t document) const {
  return dropped_[document] ? Fate::dropped : val_[document] ? Fate::val : Fate::train;
}

Survey survey_sources(std::span<const DataSource> sources, const ReadOptions& read,
                      const SurveyOptions& options, FileOps& ops, const std::filesystem::path& scratch,
                      const ProgressOutput& progress, const Interrupt* interrupt) {
  Mixture mixture(sources, read);
  ProgressBar bar(progress, "reading", "bytes", mixture.stored_bytes());
  std::optional<DigestFile> digests;
  if (!scratch.empty()) digests.emplace(ops, scratch);
  Surveyor surveyor(read, options, sources.size(), digests);
  for (auto batch = mixture.next_batch(); !batch.empty(); batch = mixture.next_batch()) {
    if (interrupt) interrupt->throw_if_asked();
    std::vector<Finding> findings(batch.size());
    std::vector<std::uint64_t> raw_bytes(batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) raw_bytes[i] = batch[i].record.raw.size();
    parallel_items(
        batch.size(), [&](std::size_t i) { return raw_bytes[i]; },
        [&](std::size_t i) { findings[i] = examine(batch[i], read); });
    for (std::size_t i = 0; i < batch.size(); ++i) surveyor.add(batch[i], raw_bytes[i], findings[i]);
    bar.update(mixture.stored_bytes_read());
  }
  return surveyor.result();
}

}  // namespace thimble
