#include "tokenizer/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <cstring>

#include "base/error.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/protobuf.h"

namespace thimble {

namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581
constexpr std::size_t kMaxTextBytes = 256 << 20;     // the library needs some fifty bytes per byte of text

// What decoding needs to know of the normaliser; the library does not tell.
struct NormalizerSettings {
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
};

NormalizerSettings read_normalizer_settings(std::string_view model) {
  constexpr std::uint32_t kNormalizerSpec = 3, kAddDummyPrefix = 3, kRemoveExtraWhitespaces = 4;
  NormalizerSettings settings;
  for_each_field(model, [&](const ProtobufField& field) {
    if (!field.is_message(kNormalizerSpec)) return;
    for_each_field(field.bytes, [&](const ProtobufField& inner) {
      if (inner.number == kAddDummyPrefix) settings.add_dummy_prefix = inner.varint != 0;
      if (inner.number == kRemoveExtraWhitespaces) settings.remove_extra_whitespaces = inner.varint != 0;
    });
  });
  return settings;
}

// Of the normaliser, and of its opposite, which the library loads as well.
bool charsmaps_are_sound(std::string_view model) {
  constexpr std::uint32_t kNormalizerSpec = 3, kDenormalizerSpec = 5, kPrecompiledCharsmap = 2;
  bool sound = true;
  for_each_field(model, [&](const ProtobufField& field) {
    if (!field.is_message(kNormalizerSpec) && !field.is_message(kDenormalizerSpec)) return;
    for_each_field(field.bytes, [&](const ProtobufField& inner) {
      if (inner.number == kPrecompiledCharsmap) sound = sound && charsmap_is_sound(inner.bytes);
    });
  });
  return sound;
}

std::vector<AddedToken> control_tokens(const sentencepiece::SentencePieceProcessor& processor) {
  std::vector<AddedToken> tokens;
  for (int id = 0; id < processor.GetPieceSize(); ++id)
    if (processor.IsControl(id)) tokens.push_back({.id = id, .content = processor.IdToPiece(id)});
  return tokens;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, std::string_view name)
      : model_(std::move(model)), settings_(read_normalizer_settings(model_)) {
    const std::string problem = load();
    check(problem.empty(), "{} is neither a tokenizer.json nor a SentencePiece model: {}", name, problem);
    check(processor_.GetPieceSize() > 0, "{}: the SentencePiece model has no pieces", name);
    // The library knows more of protocol buffers than protobuf.h. A file where that matters was not written by it.
    types_ = sentencepiece_types(model_);
    const auto readable = std::ssize(types_);
    check(readable == processor_.GetPieceSize(),
          "{}: expected the {} pieces that SentencePiece finds in the model, found {}", name,
          processor_.GetPieceSize(), readable);
    finder_.emplace(control_tokens(processor_));
    auto id = [](int value) { return value < 0 ? std::nullopt : std::optional<TokenId>(value); };
    special_ = {id(processor_.bos_id()), id(processor_.eos_id()), id(processor_.unk_id()),
                id(processor_.pad_id())};
  }

  using Tokenizer::encode;
  TokenizerKind kind() const override { return TokenizerKind::sentencepiece; }
  TokenId vocab_size() const override { return processor_.GetPieceSize(); }

  void encode(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options) const override {
    if (options.add_special && special_.bos && texts_begin_with_bos_.value_or(true))
      ids.push_back(*special_.bos);
    if (!options.trusted) return encode_plain(text, ids);
    for (const TextSegment& segment : finder_->split(text, true)) {
      if (segment.id >= 0)
        ids.push_back(segment.id);
      else
        encode_plain(segment.text, ids);
    }
  }

  void append_token(TokenId id, bool first, std::string& text) const override {
    switch (token_type(id)) {
      case TokenType::control:
      case TokenType::unused:
        return;
      case TokenType::unknown:
        text += " \xE2\x81\x87 ";  // as the library prints it
        return;
      case TokenType::byte:
        text += static_cast<char>(byte_value(id));
        return;
      default:
        break;
    }
    std::string_view piece = processor_.IdToPiece(id);
    // The library takes the space that the normaliser puts, or keeps, before the first word back.
    if (first && (settings_.add_dummy_prefix || settings_.remove_extra_whitespaces) &&
        piece.starts_with(kSpace))
      piece.remove_prefix(kSpace.size());
    for (std::size_t at; (at = piece.find(kSpace)) != piece.npos; piece.remove_prefix(at + kSpace.size()))
      text.append(piece, 0, at) += ' ';
    text += piece;
  }

  std::string token_text(TokenId id) const override {
    check_id(id);
    return processor_.IdToPiece(id);
  }

  TokenType token_type(TokenId id) const override {
    check_id(id);
    if (processor_.IsControl(id)) return TokenType::control;
    if (processor_.IsUnknown(id)) return TokenType::unknown;
    if (processor_.IsUnused(id)) return TokenType::unused;
    if (processor_.IsByte(id)) return TokenType::byte;
    // The library does not tell the strings that are one piece wherever they stand from other pieces.
    const bool own = types_[static_cast<std::size_t>(id)] == TokenType::user_defined;
    return own ? TokenType::user_defined : TokenType::normal;
  }

  std::optional<TokenId> id_of(std::string_view token_text) const override {
    const int id = processor_.PieceToId(token_text);
    // The library answers "unknown" for what it does not know.
    if (id < 0 || processor_.IdToPiece(id) != token_text) return std::nullopt;
    return id;
  }

  std::string serialized() const override { return model_; }
  std::string_view file_name() const override { return "tokenizer.model"; }

 private:
  unsigned byte_value(TokenId id) const {
    const std::string& piece = processor_.IdToPiece(id);  // "<0x0A>"
    return static_cast<unsigned>(std::stoul(piece.substr(3, 2), nullptr, 16));
  }

  std::string load() {
    if (!charsmaps_are_sound(model_)) return "its table of normalised characters is damaged";
    try {
      const auto status = processor_.LoadFromSerializedProto(model_);
      return status.ok() ? "" : status.ToString();
    } catch (const std::exception& error) {  // of its trie: "zero-length key"
      return error.what();
    }
  }

  void encode_plain(std::string_view text, std::vector<TokenId>& ids) const {
    check(text.size() <= kMaxTextBytes, Hint{"cut it into documents"},
          "a text of {} bytes is too long for SentencePiece; at most {}", text.size(), kMaxTextBytes);
    std::vector<int> found;
    const auto status = processor_.Encode(text, &found);
    check(status.ok(), "SentencePiece cannot encode this text: {}", status.ToString());
    ids.insert(ids.end(), found.begin(), found.end());
  }

  std::string model_;
  NormalizerSettings settings_;
  std::vector<TokenType> types_;
  sentencepiece::SentencePieceProcessor processor_;
  std::optional<AddedTokenFinder> finder_;
};

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(std::string model, std::string_view name) {
  return std::make_unique<SentencePieceTokenizer>(std::move(model), name);
}

std::vector<float> sentencepiece_scores(std::string_view model) {
  constexpr std::uint32_t kPieces = 1, kScore = 2;
  std::vector<float> scores;
  for_each_field(model, [&](const ProtobufField& field) {
    if (!field.is_message(kPieces)) return;
    float score = 0;
    for_each_field(field.bytes, [&](const ProtobufField& inner) {
      if (inner.is_float(kScore)) std::memcpy(&score, inner.bytes.data(), sizeof score);
    });
    scores.push_back(score);
  });
  return scores;
}

std::vector<TokenType> sentencepiece_types(std::string_view model) {
  constexpr std::uint32_t kPieces = 1, kType = 3;
  std::vector<TokenType> types;
  for_each_field(model, [&](const ProtobufField& field) {
    if (!field.is_message(kPieces)) return;
    types.push_back(TokenType::normal);
    for_each_field(field.bytes, [&](const ProtobufField& inner) {
      const bool known = inner.varint >= 1 && inner.varint <= 6;  // the library takes others for normal, too
      if (inner.number == kType && known) types.back() = static_cast<TokenType>(inner.varint);
    });
  });
  return types;
}

bool sentencepiece_adds_prefix(std::string_view model) {
  return read_normalizer_settings(model).add_dummy_prefix;
}

bool sentencepiece_normalises(std::string_view model) {
  constexpr std::uint32_t kNormalizerSpec = 3, kPrecompiledCharsmap = 2;
  bool charsmap = false;
  for_each_field(model, [&](const ProtobufField& field) {
    if (!field.is_message(kNormalizerSpec)) return;
    for_each_field(field.bytes, [&](const ProtobufField& inner) {
      if (inner.number == kPrecompiledCharsmap) charsmap = !inner.bytes.empty();
    });
  });
  return charsmap || read_normalizer_settings(model).remove_extra_whitespaces;
}

}  // namespace thimble
