// A tokenizer turns text into ids and back. Three kinds, one interface; nobody above this folder asks which.
//
//   const auto tokenizer = load_tokenizer("runs/a");              // file, folder, or the word "bytes"
//   std::vector<TokenId> ids = tokenizer->encode("Hello");
//   std::string text = tokenizer->decode(ids);
//
// Text and control never mix: "<user>" inside a text is six characters, unless the caller says that the text
// is trusted. Every function may be called by many threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"

namespace thimble {

using TokenId = std::int32_t;

enum class TokenizerKind { bpe, sentencepiece, bytes };
std::string_view name_of(TokenizerKind kind);

// What an id is. The values are those of SentencePiece and GGUF.
enum class TokenType : std::int8_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

struct SpecialIds {
  std::optional<TokenId> bos, eos, unk, pad;
};

struct EncodeOptions {
  bool trusted = false;      // special strings in the text become their ids: only for text the program wrote
  bool add_special = false;  // what the file says is put around a text (bos, mostly)
};

struct DecodeOptions {
  bool keep_special = false;  // special ids appear as their text
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual TokenizerKind kind() const = 0;
  virtual TokenId vocab_size() const = 0;
  const SpecialIds& special() const { return special_; }
  void prefer(const SpecialIds& ids);  // ids known from elsewhere replace those found in the file
  // Is bos put before a text? The tokenizer's file says so, unless it is known how a model was trained.
  bool adds_bos() const;
  void texts_begin_with_bos(bool begin = true) { texts_begin_with_bos_ = begin; }

  // Appends to `ids`.
  virtual void encode(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options = {}) const = 0;
  std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;

  // Exact bytes: what was broken UTF-8 before encoding is so again. Ids outside the vocabulary are an error.
  virtual std::string decode(std::span<const TokenId> ids, DecodeOptions options = {}) const;

  // What this id adds to a decoded text; `first`: nothing stands before it. Control tokens add nothing.
  virtual void append_token(TokenId id, bool first, std::string& text) const = 0;

  // The token as its file spells it ("Ġthe", "▁the", "<0x0A>"); empty for an id in a hole.
  virtual std::string token_text(TokenId id) const = 0;
  virtual TokenType token_type(TokenId id) const = 0;
  virtual std::optional<TokenId> id_of(std::string_view token_text) const = 0;

  // The content of the file that brings this tokenizer back, and the name it goes by: "tokenizer.json" or
  // "tokenizer.model".
  virtual std::string serialized() const = 0;
  virtual std::string_view file_name() const = 0;
  Digest digest() const { return digest_of(serialized()); }

  bool contains(TokenId id) const { return id >= 0 && id < vocab_size(); }
  // Control tokens with their ids, in the order of ids.
  std::vector<std::pair<std::string, TokenId>> special_tokens() const;

 protected:
  void check_id(TokenId id) const;

  SpecialIds special_;
  std::optional<bool> texts_begin_with_bos_;  // nothing: as the file says
};

// Each text by itself, in parallel.
std::vector<std::vector<TokenId>> encode_all(const Tokenizer& tokenizer,
                                             std::span<const std::string_view> texts,
                                             EncodeOptions options = {});

// What a token adds inside of a text, byte for byte; the name of a token that adds nothing ("<end_turn>").
std::string bytes_of_token(const Tokenizer& tokenizer, TokenId id);

// The special tokens of tokenizers made here, in the order of their ids (DESIGN 8.1).
std::vector<std::string> special_tokens_for(bool chat);

// A tokenizer.json, a tokenizer.model, a folder that holds one, or the words "bytes" and "bytes:chat".
// Special ids come from the tokenizer_config.json beside the file, else from well-known names.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& path);

// The tokenizer's file in a folder: tokenizer.json, else tokenizer.model; empty: neither. Where both are there and
// tokenizer_config.json says, under this key, that the first was made of the second, it is the second.
inline constexpr std::string_view kSentencePieceKey = "sentencepiece_model";
std::filesystem::path tokenizer_file_in(const std::filesystem::path& folder);

// The content of such a file; `name` is for messages. `known`: ids that somebody wrote down elsewhere.
std::unique_ptr<Tokenizer> load_tokenizer_bytes(std::string content, std::string_view name,
                                                const SpecialIds& known = {});

// How many bytes of text each token stands for: the denominator of bits per byte.
//
// For SentencePiece this is the published rule of parameter-golf, so that figures compare: a leading U+2581
// is one byte, but not at the start of a document; byte tokens are one byte; control tokens none. For BPE and
// bytes it is simply the length of the token.
class ByteTable {
 public:
  // `model_vocab`: rows of the model's embedding, at least the tokenizer's; ids beyond the tokenizer count
  // nothing. A SentencePiece model without a token for a lone space is refused: byte fallback would make
  // three bytes of one (and bits per byte 20 % too good).
  ByteTable(const Tokenizer& tokenizer, TokenId model_vocab);

  std::size_t size() const { return bytes_.size(); }

  // Of `target` when it follows `previous`.
  std::uint32_t bytes(TokenId previous, TokenId target) const {
    const auto p = static_cast<std::size_t>(previous), t = static_cast<std::size_t>(target);
    return bytes_[t] + (leading_space_[t] && !boundary_[p] ? 1u : 0u);
  }

  // Of all tokens but the first, each after the one before it.
  std::uint64_t total(std::span<const TokenId> ids) const;

 private:
  std::vector<std::uint32_t> bytes_;
  std::vector<std::uint8_t> leading_space_, boundary_;
};

// Text from tokens as they come, never a broken character: bytes wait until their character is whole.
// Takes from the front of `bytes` what can be shown, as push() and, with `all`, finish() below return it.
std::string take_text(std::string& bytes, bool all);

class StreamDecoder {
 public:
  // `starts_text`: nothing stands before the first token (SentencePiece drops a leading space there).
  explicit StreamDecoder(const Tokenizer& tokenizer, bool starts_text = true)
      : tokenizer_(tokenizer), first_(starts_text) {}

  // What can be shown now: valid UTF-8, perhaps empty. Bytes that can no longer become a character are
  // U+FFFD.
  std::string push(TokenId id);
  // The rest: a character that was never finished is U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string waiting_;
  bool first_;
};

}  // namespace thimble
