#include "data/mixture.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace thimble {

namespace {

constexpr std::size_t kBatchBytes = std::size_t{4} << 20;
constexpr std::size_t kBatchRecords = 1 << 15;
constexpr std::uint64_t kWeightSeed = 0x7E16;  // any number, but always the same

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

// The one that lags behind most; of equals the first. Compared as fractions, without rounding.
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

bool Mixture::counts(const MixedRecord& record) const {
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
