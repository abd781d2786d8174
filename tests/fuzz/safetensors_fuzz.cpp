// Any bytes at all are refused with an Error or are a file that keeps its promises: every tensor can be read,
// and what is written again says the same.
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

bool is_ours(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  try {
    file.dtype(entry.name);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Reads every byte in every way; returns whether all of it can be written again.
bool read_all(const SafetensorsFile& file) {
  bool writable = true;
  for (const SafetensorsEntry& entry : file.entries()) {
    promise(file.find(entry.name) == &entry, "a tensor is found under its name");
    const auto bytes = file.bytes(entry.name);
    promise(bytes.size() == entry.bytes(), "the bytes are as many as the offsets say");
    digest_of(bytes);
    // Empty tensors may have a count of 0 and any dims; all others have no more elements than two per byte.
    promise(static_cast<std::uint64_t>(entry.count()) <= 2 * bytes.size(),
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
    writable &= is_ours(file, entry) && entry.name != kDigestTensor;
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
  promise(again.metadata() == file.metadata(), "metadata comes back");
  promise(again.entries().size() == file.entries().size() + 1, "the digest is one tensor more");
  for (std::size_t i = 0; i < file.entries().size(); ++i) {
    const SafetensorsEntry &before = file.entries()[i], &after = again.entries()[i];
    const auto a = file.bytes(before.name), b = again.bytes(after.name);
    promise(before.name == after.name && before.dtype == after.dtype && before.dims == after.dims,
            "tensors come back");
    promise(std::equal(a.begin(), a.end(), b.begin(), b.end()), "bytes come back");
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
  // The same with the right length in front: few mutations of a header would keep it.
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
