// SentencePiece models (.model files), through libsentencepiece.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace thimble {

class Interrupt;
class TextSource;

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
std::string train_sentencepiece(TextSource& source, const SentencePieceOptions& options,
                                const Interrupt* interrupt = nullptr);

}  // namespace thimble
