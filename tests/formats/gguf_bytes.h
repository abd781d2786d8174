// Builds valid and invalid GGUF files byte by byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "formats/gguf.h"

namespace thimble {

class GgufBytes {
 public:
  template <class T>
  GgufBytes& number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  GgufBytes& raw(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  GgufBytes& text(std::string_view text) {
    number(std::uint64_t{text.size()});
    return raw(text);
  }
  GgufBytes& pad(std::size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment, '\0');
    return *this;
  }
  // The start of every file.
  GgufBytes& head(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
    return raw("GGUF").number(version).number(tensors).number(keys);
  }
  GgufBytes& key(std::string_view name, std::uint32_t type) { return text(name).number(type); }
  GgufBytes& tensor(std::string_view name, std::vector<std::int64_t> dims, std::uint32_t type,
                    std::uint64_t offset) {
    text(name).number(static_cast<std::uint32_t>(dims.size()));
    for (const std::int64_t dim : dims) number(dim);  // the first is contiguous
    return number(type).number(offset);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

inline GgufFile view_of_gguf(const std::string& bytes) {
  return GgufFile::view(std::as_bytes(std::span(bytes)), "test.gguf");
}

}  // namespace thimble
