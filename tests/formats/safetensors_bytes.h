// safetensors files in memory, for tests.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"
#include "support/simulated_disk.h"

namespace thimble {

// A file with the given header, valid or not.
inline std::string raw_safetensors(std::string_view header, std::string_view data) {
  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, sizeof(length));
  file += header;
  file += data;
  return file;
}

// The output of the writer.
inline std::string written(const SafetensorsWriter& writer, WithDigest digest) {
  SimulatedDisk disk;
  disk.put_folder("/d");
  writer.write(disk, "/d/file", Existing::refuse, digest);
  return disk.content("/d/file").value();
}

inline SafetensorsFile view_of(const std::string& file) {
  return SafetensorsFile::view(std::as_bytes(std::span(file)), "test.safetensors");
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace thimble
