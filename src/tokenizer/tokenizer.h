// A tokenizer converts text to ids and back. Three kinds share one interface; code outside this
// folder does not depend on the kind.
//
//   const auto tokenizer = load_tokenizer("runs/a");              // file, folder or "bytes"
//   std::vector<TokenId> ids = tokenizer->encode("Hello");
//   std::string text = tokenizer->decode(ids);
//
// Text never produces control tokens: "<user>" inside a text becomes six characters, unless the
// caller marks the text as trusted. All functions are thread-safe, except prefer() and
// texts_begin_with_bos().
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

// The values are those of SentencePiece and GGUF.
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
  std::vector<TokenId> more_ends = {};  // other ids at which the model's config ends a text
};

struct EncodeOptions {
  bool trusted = false;      // special strings become their ids; for text made by the program
  bool add_special = false;  // add what the file defines around a text (usually bos)
};

struct DecodeOptions {
  bool keep_special = false;  // write special ids as their text
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual TokenizerKind kind() const = 0;
  virtual TokenId vocab_size() const = 0;
  const SpecialIds& special() const { return special_; }
  void prefer(const SpecialIds& ids);  // these replace the ids found in the file
  // Whether bos is added before a text: as in the tokenizer file, unless texts_begin_with_bos() was
  // called to match the training data.
  bool adds_bos() const;
  void texts_begin_with_bos(bool begin = true) { texts_begin_with_bos_ = begin; }

  // Appends to `ids`.
  virtual void encode(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options = {}) const = 0;
  std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;

  // Returns the exact bytes, including invalid UTF-8. Throws for ids outside the vocabulary.
  virtual std::string decode(std::span<const TokenId> ids, DecodeOptions options = {}) const;

  // Appends the bytes this id adds to a decoded text. `first`: it is the first token of the text.
  // Control tokens add nothing.
  virtual void append_token(TokenId id, bool first, std::string& text) const = 0;

  // The spelling of the token in its file ("Ġthe", "▁the", "<0x0A>"); empty for an unused id.
  virtual std::string token_text(TokenId id) const = 0;
  virtual TokenType token_type(TokenId id) const = 0;
  virtual std::optional<TokenId> id_of(std::string_view token_text) const = 0;

  // The content of a file from which this tokenizer can be loaded again, and its name:
  // "tokenizer.json" or "tokenizer.model".
  virtual std::string serialized() const = 0;
  virtual std::string_view file_name() const = 0;
  Digest digest() const { return digest_of(serialized()); }

  bool contains(TokenId id) const { return id >= 0 && id < vocab_size(); }
  // Control tokens with their ids, ordered by id.
  std::vector<std::pair<std::string, TokenId>> special_tokens() const;

 protected:
  void check_id(TokenId id) const;

  SpecialIds special_;
  std::optional<bool> texts_begin_with_bos_;  // nullopt: as in the file
};

// Encodes each text separately, in parallel.
std::vector<std::vector<TokenId>> encode_all(const Tokenizer& tokenizer,
                                             std::span<const std::string_view> texts,
                                             EncodeOptions options = {});

// The bytes that a token adds inside a text, or its name ("<end_turn>") if it adds none.
std::string bytes_of_token(const Tokenizer& tokenizer, TokenId id);

// The special tokens of tokenizers trained by thimble, ordered by id.
std::vector<std::string> special_tokens_for(bool chat);

// Loads a tokenizer.json, a tokenizer.model, a folder that contains one, or "bytes" and
// "bytes:chat". Special ids are read from the tokenizer_config.json beside the file; without one,
// from well-known names.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& path);

// The tokenizer file in a folder: tokenizer.json, else tokenizer.model, else empty. If both exist
// and tokenizer_config.json has this key, tokenizer.json was converted from tokenizer.model, and
// tokenizer.model is returned.
inline constexpr std::string_view kSentencePieceKey = "sentencepiece_model";
std::filesystem::path tokenizer_file_in(const std::filesystem::path& folder);

// Loads a tokenizer from the content of a file. `name` is used in messages; `known` replaces
// special ids found in the file.
std::unique_ptr<Tokenizer> load_tokenizer_bytes(std::string content, std::string_view name,
                                                const SpecialIds& known = {});

// The number of text bytes that each token encodes: the denominator of bits per byte.
//
// For SentencePiece this follows the published rule of parameter-golf, so that results are
// comparable: a leading U+2581 is one byte, except at the start of a document; a byte token is one
// byte; a control token counts as none. For BPE and bytes it is the length of the token.
class ByteTable {
 public:
  // `model_vocab` is the number of rows of the model's embedding, which is at least the vocabulary
  // size; ids beyond the vocabulary have 0 bytes. Throws for a SentencePiece model without a token
  // for a single space: byte fallback counts it as three bytes, which makes bits per byte 20 % too
  // low.
  ByteTable(const Tokenizer& tokenizer, TokenId model_vocab);

  std::size_t size() const { return bytes_.size(); }

  // Bytes of `target` when it follows `previous`.
  std::uint32_t bytes(TokenId previous, TokenId target) const {
    const auto p = static_cast<std::size_t>(previous), t = static_cast<std::size_t>(target);
    return bytes_[t] + (leading_space_[t] && !boundary_[p] ? 1u : 0u);
  }

  // The same for characters. A character of several bytes counts where its first byte is.
  std::uint32_t characters(TokenId previous, TokenId target) const {
    return bytes(previous, target) - continuations_[static_cast<std::size_t>(target)];
  }
  // Whether the token is text. Control tokens are not, nor ids beyond the vocabulary.
  bool is_text(TokenId id) const { return !boundary_[static_cast<std::size_t>(id)]; }

  // Bytes of all tokens except the first, each counted after its predecessor.
  std::uint64_t total(std::span<const TokenId> ids) const;

 private:
  std::vector<std::uint32_t> bytes_, continuations_;  // continuations: bytes inside a character
  std::vector<std::uint8_t> leading_space_, boundary_;
};

// Removes from the front of `bytes` and returns the text that can be displayed: complete
// characters, and U+FFFD for bytes that cannot become one. With `all`, an incomplete character at
// the end also becomes U+FFFD.
std::string take_text(std::string& bytes, bool all);

// Converts a stream of tokens to text. Bytes are held back until their character is complete.

class StreamDecoder {
 public:
  // `starts_text`: the first token begins the text (SentencePiece drops a leading space there).
  explicit StreamDecoder(const Tokenizer& tokenizer, bool starts_text = true)
      : tokenizer_(tokenizer), first_(starts_text) {}

  // Returns the text that can be displayed now, possibly empty. Invalid bytes become U+FFFD.
  std::string push(TokenId id);
  // Returns the remaining text: an incomplete character becomes U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string waiting_;
  bool first_;
};

}  // namespace thimble
