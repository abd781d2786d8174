#include "data/survey.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "base/rng.h"

namespace thimble {

namespace {

// The result of examining one record.
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
                                        "pass --skip-bad to `thimble data build` to skip such records"});
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
      check(options_.val_documents < kept, Hint{"pass a smaller --val-docs"},
            "{} validation documents requested, but the sources contain only {} documents",
            options_.val_documents, kept);
      return set_last(options_.val_documents);
    }
    if (options_.val_fraction <= 0 || kept == 0) return;
    if (fates.count(Fate::val) > 0 && fates.count(Fate::train) > 0) return;
    // With few documents, all of them can be assigned to the same split.
    if (kept > 1) {
      const double count = std::round(options_.val_fraction * static_cast<double>(kept));
      set_last(std::clamp<std::uint64_t>(static_cast<std::uint64_t>(count), 1, kept - 1));
    } else if (fates.size() == 1 && cuttable_) {
      cut_the_only_document();
    } else {
      for (std::uint64_t i = 0; i < fates.size(); ++i)
        if (fates[i] == Fate::val) fates.set(i, Fate::train);
    }
  }

  // Assigns documents that are not dropped: before index `first` to training, then to validation.
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

  // The digests do not cover the two halves, but a single document has no duplicates.
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
  std::optional<Digest> document_;  // of the current document: chained over its pieces so far
  std::uint64_t bytes_ = 0;         // content size of the current document
  bool bad_ = false;
  std::uint64_t raw_bytes_ = 0;  // of all documents
  bool cuttable_ = false;        // the last record was text, not JSON
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
    if (interrupt) interrupt->throw_if_interrupted();
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

namespace {

constexpr std::size_t kDigestsAtOnce = 1 << 16;
constexpr std::uint64_t kPartDocuments = 1 << 20;  // documents per part

// A hash set of digests with open addressing: 16 bytes per slot, two slots per expected digest. Two
// of the 128 bits of a digest are replaced by the flag "taken" and the split.
class DigestTable {
 public:
  explicit DigestTable(std::uint64_t documents) : slots_(2 * documents + 2) {}

  void clear() {
    std::ranges::fill(slots_, Digest{});
    taken_ = 0;
  }

  // The split under which the digest was added, or nullopt.
  std::optional<Fate> find(const Digest& digest) const {
    const Digest& slot = slots_[slot_of(digest)];
    if (slot == Digest{}) return std::nullopt;
    return slot.low & kVal ? Fate::val : Fate::train;
  }

  void add(const Digest& digest, Fate side) {
    if (taken_ * 10 > slots_.size() * 8) grow();
    Digest& slot = slots_[slot_of(digest)];
    if (slot == Digest{}) ++taken_;
    slot = marked(digest);
    if (side == Fate::val) slot.low |= kVal;
  }

 private:
  static constexpr std::uint64_t kTaken = 1, kVal = 2;

  static Digest marked(const Digest& digest) { return {digest.high, (digest.low & ~kVal) | kTaken}; }

  std::size_t slot_of(const Digest& digest) const {
    const Digest key = marked(digest);
    for (std::size_t at = key.high % slots_.size();; at = (at + 1) % slots_.size()) {
      const Digest& slot = slots_[at];
      if (slot == Digest{} || marked(slot) == key) return at;
    }
  }

  void grow() {
    std::vector<Digest> old(2 * slots_.size());
    old.swap(slots_);
    for (const Digest& digest : old)
      if (!(digest == Digest{})) slots_[slot_of(digest)] = digest;
  }

  std::vector<Digest> slots_;
  std::size_t taken_ = 0;
};

}  // namespace

DigestFile::DigestFile(FileOps& ops, std::filesystem::path path) : ops_(ops), path_(std::move(path)) {
  file_.emplace(ops_, path_, Existing::replace);
  buffer_.reserve(kDigestsAtOnce);
}

DigestFile::~DigestFile() {
  file_.reset();
  try {
    ops_.remove(path_);
  } catch (...) {  // the file is not committed; the next build replaces a leftover
  }
}

void DigestFile::add(const Digest& digest) {
  buffer_.push_back(digest);
  ++size_;
  if (buffer_.size() == kDigestsAtOnce) flush();
}

void DigestFile::flush() {
  file_->write(std::as_bytes(std::span(buffer_)));
  buffer_.clear();
}

void DigestFile::close() {
  flush();
  file_->commit();
  file_.reset();
}

void DigestFile::for_each(const std::function<void(std::uint64_t, const Digest&)>& use) const {
  const InputFile file(path_);
  std::vector<Digest> digests;
  for (std::uint64_t begin = 0; begin < size_; begin += digests.size()) {
    digests.resize(std::min<std::uint64_t>(kDigestsAtOnce, size_ - begin));
    file.read_at(begin * sizeof(Digest), std::as_writable_bytes(std::span(digests)));
    for (std::size_t i = 0; i < digests.size(); ++i) use(begin + i, digests[i]);
  }
}

DuplicateCounts drop_duplicates(const DigestFile& digests, bool dedup, Fates& fates) {
  DuplicateCounts counts;
  const std::uint64_t parts = digests.size() / kPartDocuments + 1;
  DigestTable table(std::min(digests.size(), kPartDocuments));
  for (std::uint64_t part = 0; part < parts; ++part) {
    table.clear();
    auto each = [&](Fate side, const auto& act) {
      digests.for_each([&](std::uint64_t document, const Digest& digest) {
        if (digest.low / 4 % parts == part && fates[document] == side) act(document, digest);
      });
    };
    // Validation first: if two documents are equal, the validation copy stays.
    each(Fate::val, [&](std::uint64_t document, const Digest& digest) {
      if (dedup && table.find(digest)) {
        fates.set(document, Fate::dropped);
        ++counts.duplicates;
      }
      table.add(digest, Fate::val);
    });
    each(Fate::train, [&](std::uint64_t document, const Digest& digest) {
      const auto known = table.find(digest);
      if (known == Fate::val) {
        fates.set(document, Fate::dropped);
        ++counts.in_validation;
      } else if (known && dedup) {
        fates.set(document, Fate::dropped);
        ++counts.duplicates;
      } else if (dedup) {
        table.add(digest, Fate::train);
      }
    });
  }
  return counts;
}

namespace {

constexpr std::size_t kBatchBytes = std::size_t{4} << 20;
constexpr std::size_t kBatchRecords = 1 << 15;
// Selects the documents of a fractional weight. Arbitrary, but it must never change.
constexpr std::uint64_t kWeightSeed = 0x7E16;

std::uint64_t stored_size(const DataSource& source) {
  std::uint64_t bytes = 0;
  for (const auto& file : source.files) bytes += std::filesystem::file_size(file);
  return bytes;
}

}  // namespace

Mixture::Mixture(std::span<const DataSource> sources, const ReadOptions& options)
    : sources_(sources), options_(options), lanes_(sources.size()), ahead_(sources.size()) {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].stored_bytes = stored_size(sources[i]);
    reopen(i);
  }
}

Mixture::Mixture(std::span<const DataSource> sources, const ReadOptions& options,
                 std::span<const std::uint64_t> documents, std::optional<std::uint64_t> cut_at)
    : Mixture(sources, options) {
  cut_at_ = cut_at;
  mixed_ = std::ranges::any_of(sources, &DataSource::weighted);
  std::uint64_t first = 0;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    lane.first_document = first;
    lane.documents = documents[i];
    lane.passes = static_cast<std::uint64_t>(std::ceil(sources[i].weight));
    lane.ended = lane.documents == 0;
    first += lane.documents;
    reopen(i);
  }
}

void Mixture::reopen(std::size_t lane) {
  lanes_[lane].reader = std::make_unique<RecordReader>(sources_[lane], options_.split,
                                                       options_.kind == DataKind::chat, cut_at_);
}

// The lane that is furthest behind, or the first of equals. Compares fractions without rounding.
std::size_t Mixture::next_lane() const {
  std::size_t best = lanes_.size();
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    if (lane.ended) continue;
    if (!mixed_) return i;
    using Wide = unsigned __int128;
    if (best == lanes_.size() || Wide{lane.begun} * (lanes_[best].documents * lanes_[best].passes) <
                                     Wide{lanes_[best].begun} * (lane.documents * lane.passes))
      best = i;
  }
  return best;
}

std::optional<MixedRecord> Mixture::next() {
  while (true) {
    // Pieces of one document stay together.
    const bool inside = current_ < lanes_.size() && ahead_[current_] && !ahead_[current_]->starts;
    if (!inside) current_ = next_lane();
    if (current_ == lanes_.size()) return std::nullopt;
    Lane& lane = lanes_[current_];
    auto& ahead = ahead_[current_];
    auto record = ahead ? std::exchange(ahead, std::nullopt) : lane.reader->next();
    if (!record) {
      lane.stored_bytes_before += lane.stored_bytes;
      lane.ended = ++lane.pass == lane.passes;
      if (!lane.ended) reopen(current_);
      continue;
    }
    if (record->starts) {
      ++lane.begun;
      ++documents_;
    }
    if (!record->ends) ahead = lane.reader->next();
    const std::uint64_t document =
        lane.documents == 0 ? documents_ - 1 : lane.first_document + (lane.begun - 1) % lane.documents;
    return MixedRecord{std::move(*record), number_++, document, lane.pass, current_};
  }
}

std::vector<MixedRecord> Mixture::next_batch() {
  std::vector<MixedRecord> batch;
  for (std::size_t bytes = 0; bytes < kBatchBytes && batch.size() < kBatchRecords;) {
    auto record = next();
    if (!record) break;
    bytes += record->record.raw.size();
    batch.push_back(std::move(*record));
  }
  return batch;
}

bool Mixture::includes(const MixedRecord& record) const {
  const double weight = sources_[record.source].weight;
  const double part = weight - static_cast<double>(record.pass);
  if (part >= 1) return true;
  const auto bits = philox(kWeightSeed, 0, record.document);
  return static_cast<double>(bits[0]) * 0x1p-32 < part;
}

std::uint64_t Mixture::stored_bytes() const {
  std::uint64_t bytes = 0;
  for (const Lane& lane : lanes_) bytes += lane.stored_bytes * lane.passes;
  return bytes;
}

std::uint64_t Mixture::stored_bytes_read() const {
  std::uint64_t bytes = 0;
  for (const Lane& lane : lanes_)
    bytes += lane.stored_bytes_before + (lane.ended ? 0 : lane.reader->stored_bytes_read());
  return bytes;
}

}  // namespace thimble
