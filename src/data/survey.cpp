#include "data/survey.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/error.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/utf8.h"

namespace thimble {

namespace {

// The result of examining one record.
struct Finding {
  Digest digest = {};
  std::uint64_t bytes = 0;  // of content
  std::size_t turns_cut = 0;
  bool utf8 = true;
  bool divisible = true;
  LineFacts lines = {};
  std::string problem = {}, hint = {};
};

LineFacts lines_of(std::string_view text) {
  LineFacts facts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trim_right(text.substr(0, end));
    ++facts.lines;
    facts.empty += line.empty();
    facts.longest = std::max(facts.longest, line.size());
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return facts;
}

Finding examine(MixedRecord& mixed, const ReadOptions& options) {
  Finding finding;
  if (!mixed.record.json) {
    finding.utf8 = is_utf8(mixed.record.raw);
    finding.lines = lines_of(mixed.record.raw);
  }
  const Document document = read_document(mixed.record, options);
  finding.problem = document.problem;
  finding.hint = document.hint;
  if (!document.problem.empty()) return finding;
  finding.digest = document.digest();
  finding.bytes = document.content_bytes();
  finding.turns_cut = document.cut;
  finding.divisible = document.divisible;
  return finding;
}

Digest chained(const Digest& before, const Digest& next) {
  const std::uint64_t words[] = {before.high, before.low, next.high, next.low};
  return digest_of(std::as_bytes(std::span(words)));
}

bool falls_below(const Digest& digest, double fraction) {
  return static_cast<double>(digest.high >> 11) * 0x1p-53 < fraction;
}

// A document and its size in bytes.
struct Sized {
  Digest digest;
  std::uint64_t bytes = 0, document = 0;
};

// A text that may be cut.
struct LongText {
  std::uint64_t document = 0, bytes = 0;
  std::size_t source = 0;
  std::uint64_t begin = 0, raw_bytes = 0;  // in the source
};

// Chooses the validation documents by content; survey.h has the rules.
class ContentSplit {
 public:
  explicit ContentSplit(double fraction) : fraction_(fraction) {}

  void add(const Sized& document, const std::optional<LongText>& text) {
    bytes_ += document.bytes;
    ++documents_;
    if (falls_below(document.digest, fraction_)) val_bytes_ += document.bytes;
    if (documents_ <= kMostKnown)
      known_.push_back(document);
    else
      known_.clear();
    if (!text || !may_be_cut(*text)) return;
    long_.push_back(*text);
    // The share of a text falls as others are added, so few long texts remain.
    if (long_.size() % kPruneEvery == 0) prune();
  }

  // Sets the assignments, in which the documents below the fraction are validation so far. Returns
  // the texts to be cut, which are training until then.
  std::vector<LongText> choose(Assignments& assignments) {
    prune();
    for (const LongText& text : long_) {
      bytes_ -= text.bytes;
      if (assignments[text.document] == Assignment::val) val_bytes_ -= text.bytes;
      assignments.set(text.document, Assignment::train);
    }
    if (holds() && assignments.count(Assignment::train) > 0) return std::move(long_);
    if (documents_ <= kMostKnown)
      take_what_fits(assignments);
    else if (assignments.count(Assignment::train) == 0)  // all documents are equal
      for (std::uint64_t i = 0; i < assignments.size(); ++i)
        if (assignments[i] == Assignment::val) assignments.set(i, Assignment::train);
    return std::move(long_);
  }

 private:
  static constexpr std::size_t kMostKnown = 1 << 17;  // more documents are chosen by threshold only
  static constexpr std::size_t kPruneEvery = 1 << 12;
  static constexpr std::uint64_t kLeastCut = 4096;  // shorter texts are not cut

  double wanted() const { return fraction_ * static_cast<double>(bytes_); }
  bool holds() const { return std::abs(static_cast<double>(val_bytes_) - wanted()) <= 0.1 * wanted(); }

  // A text of more than a quarter of the bytes to hold out; an only document if a character
  // remains.
  bool may_be_cut(const LongText& text) const {
    constexpr double kLongestCharacter = 4;
    if (documents_ == 1) return (1 - fraction_) * static_cast<double>(text.bytes) >= kLongestCharacter;
    return text.bytes >= kLeastCut && 4 * static_cast<double>(text.bytes) > wanted();
  }
  void prune() {
    std::erase_if(long_, [&](const LongText& text) { return !may_be_cut(text); });
  }

  // Takes documents in the order of their digests until the fraction is reached. Documents that
  // would exceed it by more than half of their size are left out; if none is left, the shortest is
  // taken. Equal documents are taken together.
  void take_what_fits(Assignments& assignments) {
    std::erase_if(known_, [&](const Sized& document) {
      return std::ranges::binary_search(long_, document.document, {}, &LongText::document);
    });
    std::ranges::sort(known_, [](const Sized& a, const Sized& b) {
      return std::tie(a.digest.high, a.digest.low, a.document) <
             std::tie(b.digest.high, b.digest.low, b.document);
    });
    std::uint64_t taken = 0, shortest_bytes = UINT64_MAX;
    std::span<const Sized> shortest;
    for (std::size_t begin = 0, end = 0; begin < known_.size(); begin = end) {
      std::uint64_t bytes = 0;
      for (; end < known_.size() && known_[end].digest == known_[begin].digest; ++end)
        bytes += known_[end].bytes;
      const auto equal = std::span<const Sized>(known_).subspan(begin, end - begin);
      if (bytes < shortest_bytes) {
        shortest_bytes = bytes;
        shortest = equal;
      }
      const bool fits =
          static_cast<double>(taken) + static_cast<double>(bytes) / 2 <= wanted() && taken + bytes < bytes_;
      set(assignments, equal, fits ? Assignment::val : Assignment::train);
      if (fits) taken += bytes;
    }
    if (taken == 0 && long_.empty() && shortest_bytes < bytes_) set(assignments, shortest, Assignment::val);
  }

  static void set(Assignments& assignments, std::span<const Sized> documents, Assignment assignment) {
    for (const Sized& document : documents) assignments.set(document.document, assignment);
  }

  double fraction_;
  std::uint64_t bytes_ = 0, val_bytes_ = 0, documents_ = 0;
  std::vector<Sized> known_;  // empty if there are more than kMostKnown
  std::vector<LongText> long_;
};

class Surveyor {
 public:
  Surveyor(const ReadOptions& read, const SurveyOptions& options, std::size_t sources,
           std::optional<DigestFile>& digests)
      : chat_(read.kind == DataKind::chat),
        options_(options),
        digests_(digests),
        by_content_(options.val_fraction),
        raw_bytes_(sources) {
    survey_.source_documents.resize(sources);
    survey_.cuts.resize(sources);
  }

  void add(const MixedRecord& mixed, std::uint64_t raw_bytes, Finding& finding) {
    if (mixed.record.starts) {
      finish_document();
      ++survey_.source_documents[mixed.source];
      text_.reset();
      if (finding.divisible) text_ = LongText{.source = mixed.source, .begin = raw_bytes_[mixed.source]};
    }
    raw_bytes_[mixed.source] += raw_bytes;
    document_ = mixed.record.starts ? finding.digest : chained(document_.value(), finding.digest);
    bytes_ += finding.bytes;
    survey_.content_bytes += finding.bytes;
    if (finding.turns_cut > 0 && finding.bytes > 0) ++survey_.with_turns_cut;
    if (!finding.problem.empty()) note_problem(finding);
    if (!finding.utf8 && survey_.not_utf8++ == 0)
      survey_.first_not_utf8 = fmt::format("{}:{}", mixed.record.file->string(), mixed.record.line);
    survey_.lines.lines += finding.lines.lines;
    survey_.lines.empty += finding.lines.empty;
    survey_.lines.longest = std::max(survey_.lines.longest, finding.lines.longest);
  }

  Survey result() {
    finish_document();
    const std::vector<LongText> to_cut = choose_validation();
    if (digests_) {
      digests_->close();
      const DuplicateCounts counts = drop_duplicates(*digests_, options_.dedup, survey_.assignments);
      survey_.duplicates = counts.duplicates;
      survey_.in_validation = counts.in_validation;
    }
    cut(to_cut);
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
    const Assignment assignment = fate_of_document();
    if (assignment != Assignment::dropped && options_.val_fraction > 0) {
      const std::uint64_t number = survey_.assignments.size();
      if (text_) {
        text_->document = number;
        text_->bytes = bytes_;
        text_->raw_bytes = raw_bytes_[text_->source] - text_->begin;
      }
      by_content_.add({*document_, bytes_, number}, text_);
    }
    survey_.assignments.add(assignment);
    document_.reset();
    bytes_ = 0;
    bad_ = false;
  }

  Assignment fate_of_document() {
    if (bad_) return Assignment::dropped;
    if (bytes_ == 0) {
      ++(chat_ ? survey_.without_answer : survey_.empty);
      return Assignment::dropped;
    }
    return falls_below(*document_, options_.val_fraction) ? Assignment::val : Assignment::train;
  }

  // Returns the texts to be cut.
  std::vector<LongText> choose_validation() {
    Assignments& assignments = survey_.assignments;
    const std::uint64_t kept = assignments.size() - assignments.count(Assignment::dropped);
    if (options_.val_sources > 0) {
      std::uint64_t last = 0;
      for (std::size_t i = 0; i < options_.val_sources; ++i)
        last += survey_.source_documents[survey_.source_documents.size() - 1 - i];
      set_from(assignments.size() - last);
    } else if (options_.val_documents > 0) {
      check(options_.val_documents < kept, Hint{"pass a smaller --val-docs"},
            "{} validation documents requested, but the sources contain only {} documents",
            options_.val_documents, kept);
      set_last(options_.val_documents);
    } else if (options_.val_fraction > 0 && kept > 0) {
      return by_content_.choose(assignments);
    }
    return {};
  }

  // Assigns documents that are not dropped: before index `first` to training, then to validation.
  void set_from(std::uint64_t first) {
    for (std::uint64_t i = 0; i < survey_.assignments.size(); ++i)
      if (survey_.assignments[i] != Assignment::dropped)
        survey_.assignments.set(i, i < first ? Assignment::train : Assignment::val);
  }

  void set_last(std::uint64_t count) {
    std::uint64_t first = survey_.assignments.size();
    for (std::uint64_t left = count; left > 0;)
      if (survey_.assignments[--first] != Assignment::dropped) --left;
    set_from(first);
  }

  // Divides these documents in two. Equal texts are cut at the same place, so no part of one is in
  // both splits.
  void cut(std::span<const LongText> texts) {
    if (texts.empty()) return;
    Assignments all;
    auto text = texts.begin();
    for (std::uint64_t i = 0; i < survey_.assignments.size(); ++i) {
      const Assignment assignment = survey_.assignments[i];
      all.add(assignment);
      if (text == texts.end() || text->document != i) continue;
      if (assignment == Assignment::train) {  // not dropped as a duplicate
        const double share = static_cast<double>(text->raw_bytes) * (1 - options_.val_fraction);
        survey_.cuts[text->source].push_back(text->begin + static_cast<std::uint64_t>(share));
        ++survey_.source_documents[text->source];
        ++survey_.cut_documents;
        all.add(Assignment::val);
      }
      ++text;
    }
    survey_.assignments = std::move(all);
  }

  bool chat_;
  SurveyOptions options_;
  std::optional<DigestFile>& digests_;
  Survey survey_;
  ContentSplit by_content_;
  std::optional<Digest> document_;  // of the current document: chained over its pieces so far
  std::uint64_t bytes_ = 0;         // content size of the current document
  bool bad_ = false;
  std::optional<LongText> text_;          // the current document, if it can be cut
  std::vector<std::uint64_t> raw_bytes_;  // read so far, per source
};

}  // namespace

void Assignments::add(Assignment assignment) {
  dropped_.push_back(assignment == Assignment::dropped);
  val_.push_back(assignment == Assignment::val);
  ++counts_[static_cast<std::size_t>(assignment)];
}

void Assignments::set(std::uint64_t document, Assignment assignment) {
  --counts_[static_cast<std::size_t>((*this)[document])];
  dropped_[document] = assignment == Assignment::dropped;
  val_[document] = assignment == Assignment::val;
  ++counts_[static_cast<std::size_t>(assignment)];
}

Assignment Assignments::operator[](std::uint64_t document) const {
  return dropped_[document] ? Assignment::dropped : val_[document] ? Assignment::val : Assignment::train;
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
  std::optional<Assignment> find(const Digest& digest) const {
    const Digest& slot = slots_[slot_of(digest)];
    if (slot == Digest{}) return std::nullopt;
    return slot.low & kVal ? Assignment::val : Assignment::train;
  }

  void add(const Digest& digest, Assignment side) {
    if (taken_ * 10 > slots_.size() * 8) grow();
    Digest& slot = slots_[slot_of(digest)];
    if (slot == Digest{}) ++taken_;
    slot = marked(digest);
    if (side == Assignment::val) slot.low |= kVal;
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

DuplicateCounts drop_duplicates(const DigestFile& digests, bool dedup, Assignments& assignments) {
  DuplicateCounts counts;
  const std::uint64_t parts = digests.size() / kPartDocuments + 1;
  DigestTable table(std::min(digests.size(), kPartDocuments));
  for (std::uint64_t part = 0; part < parts; ++part) {
    table.clear();
    auto each = [&](Assignment side, const auto& act) {
      digests.for_each([&](std::uint64_t document, const Digest& digest) {
        if (digest.low / 4 % parts == part && assignments[document] == side) act(document, digest);
      });
    };
    // Validation first: if two documents are equal, the validation copy stays.
    each(Assignment::val, [&](std::uint64_t document, const Digest& digest) {
      if (dedup && table.find(digest)) {
        assignments.set(document, Assignment::dropped);
        ++counts.duplicates;
      }
      table.add(digest, Assignment::val);
    });
    each(Assignment::train, [&](std::uint64_t document, const Digest& digest) {
      const auto known = table.find(digest);
      if (known == Assignment::val) {
        assignments.set(document, Assignment::dropped);
        ++counts.in_validation;
      } else if (known && dedup) {
        assignments.set(document, Assignment::dropped);
        ++counts.duplicates;
      } else if (dedup) {
        table.add(digest, Assignment::train);
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
                 std::span<const std::uint64_t> documents, std::vector<std::vector<std::uint64_t>> cuts)
    : Mixture(sources, options) {
  cuts_ = std::move(cuts);
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
  lanes_[lane].reader = std::make_unique<RecordReader>(
      sources_[lane], options_, cuts_.empty() ? std::vector<std::uint64_t>() : cuts_[lane]);
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
