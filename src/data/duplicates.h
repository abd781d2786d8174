// Finding equal documents among any number: their digests lie in a file, and memory holds a million at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "base/digest.h"
#include "base/files.h"
#include "data/survey.h"

namespace thimble {

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

}  // namespace thimble
