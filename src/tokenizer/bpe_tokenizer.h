// The tokenizer of a BpeSpec: added tokens, normalizer, pre-tokenizer, merges, and decoding.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe_model.h"
#include "tokenizer/normalize.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {

// Added tokens are strings that always become one token. They are found before the text is
// processed further. A segment is one added token, or (id -1) the text between two of them.
struct TextSegment {
  TokenId id = -1;
  std::string_view text;
};

class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }
  // Whether any of the tokens is also found in untrusted text.
  bool searches_untrusted_text() const { return plain_ > 0; }

  // Splits at every added token: leftmost first, then longest. Special tokens are found only if
  // `trusted`.
  std::vector<TextSegment> split(std::string_view text, bool trusted) const;

 private:
  std::size_t next_start(std::string_view text, std::size_t at) const;
  const AddedToken* longest_at(std::string_view text, std::size_t at) const;

  std::vector<AddedToken> tokens_;  // sorted by first byte, then longest first
  // Tokens that start with byte b are tokens_[first_[b]] up to tokens_[first_[b + 1]], exclusive.
  std::array<std::uint32_t, 257> first_{};
  std::size_t plain_ = 0;  // number of tokens that are not special
};

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(BpeSpec spec, const SpecialIds& known, std::string source);

  using Tokenizer::encode;
  TokenizerKind kind() const override { return kind_; }
  TokenId vocab_size() const override { return static_cast<TokenId>(spec_.vocab.size()); }
  void encode(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options) const override;
  std::string decode(std::span<const TokenId> ids, DecodeOptions options = {}) const override;
  void append_token(TokenId id, bool first, std::string& text) const override;
  std::string token_text(TokenId id) const override;
  TokenType token_type(TokenId id) const override;
  std::optional<TokenId> id_of(std::string_view token_text) const override;
  std::string serialized() const override;
  std::string_view file_name() const override { return "tokenizer.json"; }

  const BpeSpec& spec() const { return spec_; }

 private:
  // Any number of threads may encode with one tokenizer. Each call borrows a BpeScratch, so that
  // the word cache is kept between calls. There are as many caches as CPUs: a server may encode in
  // hundreds of threads at once, whose caches would take gigabytes. The others encode without one.
  class ScratchPool {
   public:
    std::unique_ptr<BpeScratch> take();
    void give_back(std::unique_ptr<BpeScratch> scratch) noexcept;

   private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<BpeScratch>> free_;
    std::size_t made_ = 0;  // with a cache
  };

  void encode_segment(std::string_view text, BpeScratch& scratch, bool trusted,
                      std::vector<TokenId>& ids) const;
  void encode_normalized(std::string_view text, BpeScratch& scratch, std::vector<TokenId>& ids) const;
  void find_special_ids();

  BpeSpec spec_;
  std::string source_;
  BpeModel model_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  TokenDecoder decoder_;
  AddedTokenFinder raw_finder_, normalized_finder_;
  std::vector<TokenType> types_;
  TokenizerKind kind_;
  mutable ScratchPool pool_;
};

}  // namespace thimble
