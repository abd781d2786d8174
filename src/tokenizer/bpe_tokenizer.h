// The tokenizer of a BpeSpec: added tokens, normaliser, words, merges; and all of it backwards.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/bpe_spec.h"
#include "tokenizer/decode.h"
#include "tokenizer/normalize.h"
#include "tokenizer/pretokenize.h"

namespace thimble {

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
  // Many threads encode with one tokenizer; each borrows a scratch, and words stay cached from call to call.
  class ScratchPool {
   public:
    std::unique_ptr<BpeScratch> take();
    void give_back(std::unique_ptr<BpeScratch> scratch);

   private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<BpeScratch>> free_;
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
