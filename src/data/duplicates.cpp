#include "data/duplicates.h"

#include <algorithm>

#include "base/error.h"

namespace thimble {

namespace {

constexpr std::size_t kDigestsAtOnce = 1 << 16;
constexpr std::uint64_t kPartDocuments = 1 << 20;  // that a table is meant for

// A set of digests with open addressing: sixteen bytes a place, half of them free. Two of the 128 bits are ours:
// "taken", and the side.
class DigestTable {
 public:
  explicit DigestTable(std::uint64_t documents) : places_(2 * documents + 2) {}

  void clear() {
    std::ranges::fill(places_, Digest{});
    taken_ = 0;
  }

  // The side under which it is known, or nothing.
  std::optional<Fate> find(const Digest& digest) const {
    const Digest& place = places_[place_of(digest)];
    if (place == Digest{}) return std::nullopt;
    return place.low & kVal ? Fate::val : Fate::train;
  }

  void add(const Digest& digest, Fate side) {
    if (taken_ * 10 > places_.size() * 8) grow();
    Digest& place = places_[place_of(digest)];
    if (place == Digest{}) ++taken_;
    place = marked(digest);
    if (side == Fate::val) place.low |= kVal;
  }

 private:
  static constexpr std::uint64_t kTaken = 1, kVal = 2;

  static Digest marked(const Digest& digest) { return {digest.high, (digest.low & ~kVal) | kTaken}; }

  std::size_t place_of(const Digest& digest) const {
    const Digest wanted = marked(digest);
    for (std::size_t at = wanted.high % places_.size();; at = (at + 1) % places_.size()) {
      const Digest& place = places_[at];
      if (place == Digest{} || marked(place) == wanted) return at;
    }
  }

  void grow() {
    std::vector<Digest> old(2 * places_.size());
    old.swap(places_);
    for (const Digest& digest : old)
      if (!(digest == Digest{})) places_[place_of(digest)] = digest;
  }

  std::vector<Digest> places_;
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
  } catch (...) {  // it has no name yet, or will be replaced the next time
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
    // Validation comes first: of two equal documents it keeps its own.
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

}  // namespace thimble
