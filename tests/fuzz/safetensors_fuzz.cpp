// Arbitrary bytes must give an Error or a valid file: every tensor can be read, and writing the
// file again preserves its content.
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/safetensors.h"
#include "support/simulated_disk.h"
#include "targets.h"

namespace thimble {

namespace {

bool has_supported_dtype(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  try {
    file.dtype(entry.name);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Reads every tensor in every way; returns whether all of them can be written again.
bool read_all(const SafetensorsFile& file) {
  bool writable = true;
  for (const SafetensorsEntry& entry : file.entries()) {
    require(file.find(entry.name) == &entry, "a tensor is found by its name");
    const auto bytes = file.bytes(entry.name);
    require(bytes.size() == entry.bytes(), "a tensor has as many bytes as its offsets specify");
    digest_of(bytes);
    // Empty tensors may have any dims. Others have at most two elements per byte.
    require(static_cast<std::uint64_t>(entry.count()) <= 2 * bytes.size(),
            "there are bytes for every element");
    std::vector<float> floats(static_cast<std::size_t>(entry.count()));
    std::vector<std::int64_t> integers(floats.size());
    try {
      file.read_f32(entry.name, floats);
    } catch (const Error&) {
    }
    try {
      file.read_i64(entry.name, integers);
    } catch (const Error&) {
    }
    writable &= has_supported_dtype(file, entry) && entry.name != kDigestTensor;
  }
  return writable;
}

void write_again(const SafetensorsFile& file) {
  SafetensorsWriter writer;
  for (const auto& [key, value] : file.metadata()) writer.set_metadata(key, value);
  for (const SafetensorsEntry& entry : file.entries())
    writer.add(entry.name, file.dtype(entry.name), entry.dims, file.bytes(entry.name));
  SimulatedDisk disk;
  disk.put_folder("/d");
  writer.write(disk, "/d/file", Existing::refuse, WithDigest::yes);
  const std::string written = disk.content("/d/file").value();
  const auto again = SafetensorsFile::view(std::as_bytes(std::span(written)), "again");
  verify_digest(again);
  require(again.metadata() == file.metadata(), "metadata is unchanged by a round trip");
  require(again.entries().size() == file.entries().size() + 1, "there is one more tensor, the digest");
  for (std::size_t i = 0; i < file.entries().size(); ++i) {
    const SafetensorsEntry &before = file.entries()[i], &after = again.entries()[i];
    const auto a = file.bytes(before.name), b = again.bytes(after.name);
    require(before.name == after.name && before.dtype == after.dtype && before.dims == after.dims,
            "tensors are unchanged by a round trip");
    require(std::equal(a.begin(), a.end(), b.begin(), b.end()), "bytes are unchanged by a round trip");
  }
}

void try_safetensors(std::span<const std::byte> bytes) {
  std::optional<SafetensorsFile> file;
  try {
    file = SafetensorsFile::view(bytes, "fuzz");
  } catch (const Error&) {
    return;
  }
  if (read_all(*file)) write_again(*file);
  try {
    verify_digest(*file);
  } catch (const Error&) {
  }
}

}  // namespace

void fuzz_safetensors(FuzzBytes bytes) {
  try_safetensors(bytes);
  // Also with a valid length in front, because few mutations of a header keep it.
  const std::size_t size = bytes.size();
  for (std::size_t header = size; header + 64 > size; --header) {
    std::vector<std::byte> file(8 + size);
    for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<std::byte>(header >> (8 * i));
    std::copy(bytes.begin(), bytes.end(), file.begin() + 8);
    if (header == 0 || bytes[header - 1] == std::byte{'}'}) try_safetensors(file);
    if (header == 0) break;
  }
}

}  // namespace thimble
