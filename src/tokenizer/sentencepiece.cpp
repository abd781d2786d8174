#include "tokenizer/sentencepiece.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/signals.h"
#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer/text_stream.h"

namespace thimble {

namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581
// The library needs about 50 bytes of memory per byte of text.
constexpr std::size_t kMaxTextBytes = 256 << 20;

// The normalizer settings that decoding needs and the library does not expose.
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

// Checks the tables of the normalizer and the denormalizer; the library loads both.
bool charsmaps_are_valid(std::string_view model) {
  constexpr std::uint32_t kNormalizerSpec = 3, kDenormalizerSpec = 5, kPrecompiledCharsmap = 2;
  bool valid = true;
  for_each_field(model, [&](const ProtobufField& field) {
    if (!field.is_message(kNormalizerSpec) && !field.is_message(kDenormalizerSpec)) return;
    for_each_field(field.bytes, [&](const ProtobufField& inner) {
      if (inner.number == kPrecompiledCharsmap) valid = valid && charsmap_is_valid(inner.bytes);
    });
  });
  return valid;
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
    check(problem.empty(), "{} is not a tokenizer.json or SentencePiece model: {}", name, problem);
    check(processor_.GetPieceSize() > 0, "{}: the SentencePiece model has no pieces", name);
    // The library's protobuf parser supports more than ours. A mismatch means that SentencePiece
    // did not write the file.
    types_ = sentencepiece_types(model_);
    const auto readable = std::ssize(types_);
    check(readable == processor_.GetPieceSize(),
          "{}: expected {} pieces, as loaded by SentencePiece, found {}", name, processor_.GetPieceSize(),
          readable);
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
        text += " \xE2\x81\x87 ";  // as the library decodes it
        return;
      case TokenType::byte:
        text += static_cast<char>(byte_value(id));
        return;
      default:
        break;
    }
    std::string_view piece = processor_.IdToPiece(id);
    // Like the library, remove the space that the normalizer adds or keeps before the first word.
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
    // The library does not distinguish user-defined pieces from normal ones.
    const bool own = types_[static_cast<std::size_t>(id)] == TokenType::user_defined;
    return own ? TokenType::user_defined : TokenType::normal;
  }

  std::optional<TokenId> id_of(std::string_view token_text) const override {
    const int id = processor_.PieceToId(token_text);
    // The library returns the unknown id for strings that are not in the vocabulary.
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
    if (!charsmaps_are_valid(model_)) return "its table of normalized characters is damaged";
    try {
      const auto status = processor_.LoadFromSerializedProto(model_);
      return status.ok() ? "" : status.ToString();
    } catch (const std::exception& error) {  // thrown by its trie: "zero-length key"
      return error.what();
    }
  }

  void encode_plain(std::string_view text, std::vector<TokenId>& ids) const {
    check(text.size() <= kMaxTextBytes, Hint{"split the text into documents"},
          "a text of {} bytes is too long for SentencePiece: the limit is {}", text.size(), kMaxTextBytes);
    std::vector<int> found;
    const auto status = processor_.Encode(text, &found);
    check(status.ok(), "SentencePiece failed to encode the text: {}", status.ToString());
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
      const bool known = inner.varint >= 1 && inner.varint <= 6;  // others count as normal
      if (inner.number == kType && known) types.back() = static_cast<TokenType>(inner.varint);
    });
  });
  return types;
}

bool sentencepiece_adds_prefix(std::string_view model) {
  return read_normalizer_settings(model).add_dummy_prefix;
}

bool sentencepiece_normalizes(std::string_view model) {
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

namespace {

constexpr std::size_t kUnitBytes = 4;

std::uint32_t unit_at(std::string_view bytes, std::size_t index) {
  std::uint32_t unit;
  std::memcpy(&unit, bytes.data() + index * kUnitBytes, kUnitBytes);
  return unit;
}

// Accessors for the fields of a unit of darts-clone.
bool is_value(std::uint32_t unit) {
  return (unit >> 31) != 0;
}
bool has_leaf(std::uint32_t unit) {
  return ((unit >> 8) & 1) != 0;
}
std::size_t offset_of(std::uint32_t unit) {
  return std::size_t{unit >> 10} << ((unit & (1u << 9)) >> 6);
}

}  // namespace

bool charsmap_is_valid(std::string_view table) {
  if (table.empty()) return true;
  if (table.size() < kUnitBytes) return false;
  const std::size_t trie_bytes = unit_at(table, 0);
  table.remove_prefix(kUnitBytes);
  if (trie_bytes >= table.size() || trie_bytes == 0 || trie_bytes % kUnitBytes != 0) return false;
  const std::string_view trie = table.substr(0, trie_bytes), texts = table.substr(trie_bytes);
  if (texts.back() != '\0') return false;
  const std::size_t units = trie_bytes / kUnitBytes;
  for (std::size_t i = 0; i < units; ++i) {
    const std::uint32_t unit = unit_at(trie, i);
    if (i > 0 && is_value(unit))
      continue;  // no transition leads to a value unit; every walk begins at unit 0
    const std::size_t children = i ^ offset_of(unit);  // the child for a byte is children ^ byte
    if ((children | 0xff) >= units) return false;
    if (has_leaf(unit) && (unit_at(trie, children) & 0x7fffffffu) >= texts.size()) return false;
  }
  return true;
}

namespace {

constexpr std::array<std::string_view, 4> kStandardNames = {"nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"};

struct NormalizerFields {
  std::string_view name, table;  // inside the model
};

NormalizerFields normalizer_of(std::string_view model) {
  constexpr std::uint32_t kNormalizerSpec = 3, kName = 1, kPrecompiledTable = 2;
  NormalizerFields found;
  for_each_field(model, [&](const ProtobufField& field) {
    if (field.number != kNormalizerSpec) return;
    for_each_field(field.bytes, [&](const ProtobufField& inner) {
      if (inner.number == kName) found.name = inner.bytes;
      if (inner.number == kPrecompiledTable) found.table = inner.bytes;
    });
  });
  return found;
}

class OneSentence final : public sentencepiece::SentenceIterator {
 public:
  bool done() const override { return done_; }
  void Next() override { done_ = true; }
  const std::string& value() const override { return text_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::string text_ = "a b";
  bool done_ = false;
};

bool is_standard(std::string_view name) {
  return std::ranges::find(kStandardNames, name) != kStandardNames.end();
}

}  // namespace

std::optional<std::string> standard_normalizer_in(std::string_view model) {
  const NormalizerFields found = normalizer_of(model);
  if (found.table.empty() || !is_standard(found.name)) return std::nullopt;
  return std::string(found.name);
}

// The library does not expose its tables, but every model it trains contains one.
std::string standard_normalizer_table(std::string_view name) {
  check(is_standard(name), "unknown standard normalizer '{}'", name.substr(0, 40));
  const std::unordered_map<std::string, std::string> settings = {
      {"model_type", "char"},
      {"vocab_size", "6"},
      {"hard_vocab_limit", "false"},
      {"normalization_rule_name", std::string(name)},
      {"minloglevel", "3"}};
  OneSentence sentence;
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(settings, &sentence, &model);
  check(status.ok(), "cannot get the normalizer {} from libsentencepiece: {}", name, status.ToString());
  return std::string(normalizer_of(model).table);
}

namespace {

// The trainer drops longer sentences silently, so they are cut at spaces first.
constexpr std::size_t kMaxSentenceBytes = 1 << 16;
// The trainer crashes on long words: 32,768 characters worked, 40,000 did not.
constexpr std::size_t kMaxWordBytes = 1 << 14;

// Whether there is a space between two visible characters. Normalizers drop spaces at the ends and
// beside control characters.
bool has_inner_space(std::string_view text, std::string_view spaces) {
  const auto is_shown = [](char c) { return static_cast<unsigned char>(c) > ' ' && c != 0x7F; };
  for (std::size_t at = text.find_first_of(spaces, 1); at < text.size() - 1;
       at = text.find_first_of(spaces, at + 1))
    if (is_shown(text[at - 1]) && is_shown(text[at + 1])) return true;
  return false;
}

class Sentences final : public sentencepiece::SentenceIterator {
 public:
  // spaces: the characters that end a word
  Sentences(TextStream& source, std::string_view spaces, const Interrupt* interrupt)
      : source_(source), spaces_(spaces), interrupt_(interrupt) {
    Next();
  }

  bool done() const override { return done_; }
  const std::string& value() const override { return sentence_; }
  sentencepiece::util::Status status() const override { return {}; }

  void Next() override {
    while (rest_.empty()) {
      if (interrupt_) interrupt_->throw_if_interrupted();
      const auto document = source_.next();
      if (!document) return finish();
      document_ = document->text;
      rest_ = document_;
    }
    const std::size_t end = sentence_end();
    sentence_.assign(rest_.substr(0, end));
    rest_.remove_prefix(end);
    any_ = true;
    spaced_ = spaced_ || has_inner_space(sentence_, spaces_);
  }

  bool any() const { return any_; }

 private:
  std::size_t sentence_end() const {
    const std::string_view near = rest_.substr(0, 2 * kMaxSentenceBytes);
    for (std::size_t word = 0; word < std::min(near.size(), kMaxSentenceBytes);) {
      const std::size_t end = std::min(near.find_first_of(spaces_, word), near.size());
      if (end - word > kMaxWordBytes) return character_boundary(rest_, word + kMaxWordBytes);
      word = end + 1;
    }
    if (rest_.size() <= kMaxSentenceBytes) return rest_.size();
    const std::size_t space = rest_.rfind(' ', kMaxSentenceBytes);
    if (space != rest_.npos && space > 0) return space;
    return character_boundary(rest_, kMaxSentenceBytes);
  }

  // The trainer terminates the process if the text has no space, because a token for the space is
  // required. For such a text, add a sentence with one.
  void finish() {
    done_ = spaced_ || !any_;
    if (done_) return;
    sentence_ = "a a";
    spaced_ = true;
  }

  TextStream& source_;
  std::string_view spaces_;
  const Interrupt* interrupt_;
  std::string document_, sentence_;
  std::string_view rest_;
  bool done_ = false, any_ = false, spaced_ = false;
};

std::string joined(const std::vector<std::string>& tokens) {
  std::string out;
  for (const std::string& token : tokens) out += (out.empty() ? "" : ",") + token;
  return out;
}

}  // namespace

std::string train_sentencepiece(TextStream& source, const SentencePieceOptions& options,
                                const Interrupt* interrupt) {
  const std::size_t least = 4 + 256 + options.control_tokens.size();
  check(std::cmp_greater(options.vocab_size, least),
        Hint{fmt::format("pass a vocabulary size above {}", least)},
        "a vocabulary of {} is too small for 4 special tokens, 256 bytes and {} control tokens",
        options.vocab_size, options.control_tokens.size());
  check(options.normalization == "nmt_nfkc" || options.normalization == "identity",
        "expected the normalization nmt_nfkc or identity, found \"{}\"", options.normalization);
  const bool identity = options.normalization == "identity";
  std::unordered_map<std::string, std::string> settings = {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(options.vocab_size)},
      {"hard_vocab_limit", "false"},
      {"required_chars", "\xE2\x96\x81"},  // otherwise a space counts as three bytes
      {"character_coverage", fmt::format("{}", options.character_coverage)},
      {"byte_fallback", "true"},
      {"split_digits", "true"},
      {"normalization_rule_name", options.normalization},
      {"add_dummy_prefix", "false"},
      {"remove_extra_whitespaces", identity ? "false" : "true"},
      {"pad_id", "0"},
      {"bos_id", "1"},
      {"eos_id", "2"},
      {"unk_id", "3"},
      {"max_sentence_length", std::to_string(kMaxSentenceBytes)},
      {"num_threads", std::to_string(options.threads)},
      {"minloglevel", "3"},
  };
  if (!options.control_tokens.empty()) settings["control_symbols"] = joined(options.control_tokens);

  Sentences sentences(source, identity ? " " : " \t\r\n", interrupt);
  check(sentences.any(), "there is no text to train on: all {} files are empty", source.file_count());
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(settings, &sentences, &model);
  check(status.ok(), "SentencePiece training failed: {}", status.ToString());
  return model;
}

}  // namespace thimble
