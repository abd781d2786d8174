// GPT-2's way to write any bytes as printable characters: printable Latin-1 stands for itself, the other
// bytes for U+0100 and on ("Ġ" is a space).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

// The character that stands for a byte.
char32_t byte_level_char(unsigned char byte);
std::string byte_level_text(std::string_view bytes);
// The bytes that the text stands for; nothing when it holds a character that stands for none.
std::optional<std::string> byte_level_bytes(std::string_view text);

// The 256 bytes in the order of their characters: the alphabet's order in every byte-level vocabulary.
std::array<unsigned char, 256> byte_level_alphabet();

// "<0x0A>", the spelling of bytes in vocabularies with byte fallback, and back.
std::string byte_token(unsigned char byte);
std::optional<unsigned char> byte_of_token(std::string_view token);

}  // namespace thimble
