// SentencePiece models (.model files), through libsentencepiece.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace thimble {

class Interrupt;
class TextStream;

std::unique_ptr<Tokenizer> load_sentencepiece(std::string model, std::string_view name);

// What a model file says beyond the interface of Tokenizer: the score and the type of each piece, and whether
// a space is put before every text.
std::vector<float> sentencepiece_scores(std::string_view model);
std::vector<TokenType> sentencepiece_types(std::string_view model);
bool sentencepiece_adds_prefix(std::string_view model);
bool sentencepiece_normalises(std::string_view model);  // changes characters, or takes spaces away

struct SentencePieceOptions {
  TokenId vocab_size = 1024;
  std::string normalization = "nmt_nfkc";  // or "identity": keeps newlines and runs of spaces
  double character_coverage = 0.999;
  std::vector<std::string> control_tokens = {};  // after pad 0, bos 1, eos 2, unk 3
  int threads = 1;
};

// Trains with the settings of parameter-golf: BPE, byte fallback, split digits, no dummy prefix. The library
// keeps all text in memory. Returns the content of the model file.
std::string train_sentencepiece(TextStream& source, const SentencePieceOptions& options,
                                const Interrupt* interrupt = nullptr);

// SentencePiece's table of normalised characters: u32 size of a trie, the trie (a darts-clone double array), the texts
// that it leads to. The library walks it without looking where it goes, so we look once, before it is handed over.
// Whether every step from every unit stays inside, and every text that is named ends inside. An empty table is sound.
bool charsmap_is_sound(std::string_view table);

// A SentencePiece model carries its normaliser as a table of some 240 kB. The standard ones are in
// libsentencepiece anyway: a file that counts its bytes names the table, and stores how the model's own
// differs from it (not at all, or by what another version of Unicode added).
// The name of the standard normaliser in a SentencePiece model; nullopt: it has none, or this is no such
// model.
std::optional<std::string> standard_normalizer_in(std::string_view model);

// The library's own table of that name. A name that it does not know is an Error.
std::string standard_normalizer_table(std::string_view name);

// Just enough of protocol buffers to look inside a SentencePiece model. Stops at the first thing that makes
// no sense: libsentencepiece is the one that judges the file.
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
