// The bytes tokenizer is byte-level BPE without merges: the file it is saved as means the same to everybody.
#include "tokenizer/bpe_spec.h"
#include "tokenizer/byte_level.h"

namespace thimble {

std::unique_ptr<Tokenizer> make_bytes_tokenizer(const std::vector<std::string>& special_tokens) {
  BpeSpec spec;
  for (const std::string& token : special_tokens) {
    spec.added_tokens.push_back({.id = static_cast<TokenId>(spec.vocab.size()), .content = token});
    spec.vocab.push_back(token);
  }
  for (unsigned byte = 0; byte < 256; ++byte)
    spec.vocab.push_back(byte_level_text(std::string(1, static_cast<char>(byte))));
  spec.pre_tokenizer = {ByteLevel{.add_prefix_space = false, .use_regex = false}};
  spec.decoder = {ByteLevelDecoder{}};
  if (!special_tokens.empty()) spec.post_processor.before = {0};
  return make_bpe_tokenizer(std::move(spec));
}

bool is_bytes_spec(const BpeSpec& spec) {
  if (!spec.merges.empty() || !spec.byte_level() || spec.vocab.size() != spec.added_tokens.size() + 256)
    return false;
  for (unsigned byte = 0; byte < 256; ++byte)
    if (spec.vocab[spec.added_tokens.size() + byte] !=
        byte_level_text(std::string(1, static_cast<char>(byte))))
      return false;
  return true;
}

}  // namespace thimble
