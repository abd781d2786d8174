// .npz: a zip of arrays, NAME.npy each, as numpy.savez and mlx.savez write them.
//
// Read are float32, float16 and bfloat16 (which MLX spells "V2") in C order; written is float32. Anything else is an
// Error that names the array. Nothing in the file is executed: an array of objects, which numpy would unpickle, is
// refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "formats/model_file.h"

namespace thimble {

struct NamedArray {
  std::string name;
  std::vector<std::int64_t> dims;
  std::vector<float> values;
  std::string dtype;  // in the file: "F32", "F16" or "BF16"
};

std::vector<NamedArray> read_npz(std::span<const std::byte> bytes, const std::string& name);

// Every tensor of the table, in its order.
std::string npz_of(const ParamTable& table, std::span<const float> weights);

// As open_state_dict does with safetensors (model_file.h).
ModelFile open_npz(const std::filesystem::path& path, const Config& config, std::string_view prefix);

// Zip archives as numpy (.npz) and torch.save write them: entries that are stored, or deflated.
//
// Reading trusts nothing: every offset and size is checked against the file, names are unique, checksums are compared,
// and what an entry unpacks to is bounded. Archives of several disks, encrypted entries, other methods and archives of
// 4 GiB and more (zip64) are refused by name.
struct ZipEntry {
  std::string name;
  std::uint64_t begin = 0, stored_bytes = 0;  // in the file
  std::uint64_t bytes = 0;                    // unpacked
  std::uint32_t checksum = 0;                 // CRC-32
  bool deflated = false;
};

class ZipFile {
 public:
  // The bytes are not copied: they must stay where they are. `name` is for messages.
  ZipFile(std::span<const std::byte> bytes, std::string name);

  const std::vector<ZipEntry>& entries() const { return entries_; }
  const ZipEntry* find(std::string_view name) const;  // nullptr when absent
  std::vector<std::byte> read(
      const ZipEntry& entry) const;  // one that does not match its checksum is an Error

 private:
  void read_directory(std::uint64_t begin, std::uint64_t end, std::uint64_t count);
  void locate(ZipEntry& entry, std::uint64_t header) const;

  std::span<const std::byte> bytes_;
  std::string name_;
  std::vector<ZipEntry> entries_;
};

// Entries are stored, not deflated: what is in them does not shrink. No time is written: equal content, equal bytes.
class ZipWriter {
 public:
  // The data of each entry begins at a multiple of `alignment` (torch maps it: 64).
  explicit ZipWriter(std::uint64_t alignment = 1) : alignment_(alignment) {}

  void add(const std::string& name, std::span<const std::byte> bytes);
  std::string finish() &&;

 private:
  struct Written {
    std::string name;
    std::uint32_t header, bytes, checksum;
  };

  std::uint64_t alignment_;
  std::string out_;
  std::vector<Written> entries_;
};

bool is_zip(std::string_view first_bytes);  // the first 4 are enough

}  // namespace thimble
