// Just enough of protocol buffers to look inside a SentencePiece model. Stops at the first thing that makes
// no sense: libsentencepiece is the one that judges the file.
#pragma once

#include <cstdint>
#include <string_view>

namespace thimble {

struct ProtobufField {
  std::uint32_t number = 0;
  std::uint32_t wire = 0;    // 0 varint, 1 eight bytes, 2 string or message, 5 four bytes
  std::uint64_t varint = 0;  // of a number
  std::string_view bytes;    // of the rest

  bool is_message(std::uint32_t with_number) const { return number == with_number && wire == 2; }
  bool is_float(std::uint32_t with_number) const { return number == with_number && wire == 5; }
};

namespace detail {

inline bool read_varint(std::string_view& data, std::uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && !data.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(data.front());
    data.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

}  // namespace detail

template <class Use>
void for_each_field(std::string_view message, Use&& use) {
  while (!message.empty()) {
    std::uint64_t tag = 0, length = 0;
    ProtobufField field;
    if (!detail::read_varint(message, tag)) return;
    field.number = static_cast<std::uint32_t>(tag >> 3);
    field.wire = static_cast<std::uint32_t>(tag & 7);
    switch (field.wire) {
      case 0:
        if (!detail::read_varint(message, field.varint)) return;
        break;
      case 1:
        length = 8;
        break;
      case 2:
        if (!detail::read_varint(message, length)) return;
        break;
      case 5:
        length = 4;
        break;
      default:
        return;
    }
    if (length > message.size()) return;
    field.bytes = message.substr(0, length);
    message.remove_prefix(length);
    use(field);
  }
}

}  // namespace thimble
