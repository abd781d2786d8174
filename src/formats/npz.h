// .npz: a zip of arrays, one NAME.npy each, as written by numpy.savez and mlx.savez.
//
// Reads float32, float16 and bfloat16 (which MLX writes as "V2") in C order; writes float32.
// Any other type or order is an Error that names the array. No code is executed: arrays of objects,
// which numpy would unpickle, are rejected.
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
  std::string dtype;  // as stored: "F32", "F16" or "BF16"
};

std::vector<NamedArray> read_npz(std::span<const std::byte> bytes, const std::string& name);

// An .npz of all tensors of the table, in its order.
// The tensors that the parameter-golf scripts save: those of the table, and for their model of one
// layer also its empty tensor skip_weights [0, C], which PyTorch's strict loading wants.
std::vector<Param> script_params(const ParamTable& table);
// Whether files may have this tensor although the model does not.
bool is_empty_skip_weights(std::string_view name, std::span<const std::int64_t> dims);

std::string npz_of(const ParamTable& table, std::span<const float> weights);

// Like open_state_dict (model_file.h), for .npz.
ModelFile open_npz(const std::filesystem::path& path, const Config& config, std::string_view prefix);

// Zip archives as written by numpy (.npz) and torch.save: entries stored or deflated.
//
// Input is untrusted: every offset and size is checked against the file, names must be unique,
// checksums are verified, and the unpacked size of an entry is bounded. Multi-disk archives,
// encrypted entries, other compression methods and archives of 4 GiB and more (zip64) are rejected
// by name.
struct ZipEntry {
  std::string name;
  std::uint64_t begin = 0, stored_bytes = 0;  // in the file
  std::uint64_t bytes = 0;                    // unpacked
  std::uint32_t checksum = 0;                 // CRC-32
  bool deflated = false;
};

class ZipFile {
 public:
  // The bytes are not copied: they must outlive the ZipFile. `name` is used in error messages.
  ZipFile(std::span<const std::byte> bytes, std::string name);

  const std::vector<ZipEntry>& entries() const { return entries_; }
  const ZipEntry* find(std::string_view name) const;         // nullptr when absent
  std::vector<std::byte> read(const ZipEntry& entry) const;  // verifies the checksum

 private:
  void read_directory(std::uint64_t begin, std::uint64_t end, std::uint64_t count);
  void locate(ZipEntry& entry, std::uint64_t header) const;

  std::span<const std::byte> bytes_;
  std::string name_;
  std::vector<ZipEntry> entries_;
};

// Writes entries uncompressed, because weights hardly compress. The date is fixed, so equal content
// gives equal bytes.
class ZipWriter {
 public:
  // The data of each entry begins at a multiple of `alignment` (64 for torch, which maps the file).
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

bool is_zip(std::string_view first_bytes);  // needs the first 4 bytes

}  // namespace thimble
