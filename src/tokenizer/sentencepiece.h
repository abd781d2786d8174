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

// Values of a model file that the Tokenizer interface does not expose: the score and type of each
// piece, and whether a space is added before every text.
std::vector<float> sentencepiece_scores(std::string_view model);
std::vector<TokenType> sentencepiece_types(std::string_view model);
bool sentencepiece_adds_prefix(std::string_view model);
bool sentencepiece_normalizes(std::string_view model);  // changes characters or removes spaces

struct SentencePieceOptions {
  TokenId vocab_size = 1024;
  std::string normalization = "nmt_nfkc";  // "identity" keeps newlines and runs of spaces
  double character_coverage = 0.999;
  std::vector<std::string> control_tokens = {};  // get ids after pad 0, bos 1, eos 2, unk 3
  int threads = 1;
};

// Trains with the settings of parameter-golf: BPE, byte fallback, split digits, no dummy prefix.
// The library keeps the complete text in memory. Returns the content of the model file.
std::string train_sentencepiece(TextStream& source, const SentencePieceOptions& options,
                                const Interrupt* interrupt = nullptr);

// Validates SentencePiece's table of normalized characters: the u32 size of a trie, the trie (a
// darts-clone double array), and the texts its values point to. The library does no bounds checks,
// so this must be called before loading. In a valid table, every transition from every unit stays
// inside the trie and every text ends inside the table. An empty table is valid.
bool charsmap_is_valid(std::string_view table);

// A SentencePiece model contains its normalizer as a table of about 240 kB. libsentencepiece has
// the standard tables built in, so a size-limited file can store the name of the table and its
// differences from it: none, unless the tables are of different Unicode versions.
//
// Returns the name of the standard normalizer in a SentencePiece model, or nullopt if it has none
// or is not such a model.
std::optional<std::string> standard_normalizer_in(std::string_view model);

// The library's built-in table of that name. Throws for an unknown name.
std::string standard_normalizer_table(std::string_view name);

// A minimal parser of protocol buffers for SentencePiece models. It stops silently at the first
// malformed field; libsentencepiece validates the file.
struct ProtobufField {
  std::uint32_t number = 0;
  std::uint32_t wire = 0;    // 0 varint, 1 eight bytes, 2 string or message, 5 four bytes
  std::uint64_t varint = 0;  // for wire 0
  std::string_view bytes;    // for the other wire types

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
