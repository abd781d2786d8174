// A tokenizer.json as data: what Hugging Face's file can say and thimble honours. Reading, writing and
// training meet here; BpeTokenizer makes it run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace thimble {

// A literal or a regular expression.
struct TextPattern {
  std::string text;
  bool regex = false;
};

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };
struct Lowercase {};
struct Prepend {
  std::string text;
};
struct Replace {
  TextPattern pattern;
  std::string content;
};
using NormalizerStep = std::variant<UnicodeForm, Lowercase, Prepend, Replace>;

enum class SplitBehaviour { removed, isolated, merged_with_previous, merged_with_next, contiguous };
struct Split {
  TextPattern pattern;
  SplitBehaviour behaviour = SplitBehaviour::isolated;
  bool invert = false;
};
struct Digits {
  bool individual = false;
};
struct ByteLevel {
  bool add_prefix_space = false;
  bool use_regex = true;  // GPT-2's pattern
};
using PreTokenizerStep = std::variant<Split, Digits, ByteLevel>;  // ByteLevel only as the last

struct ByteLevelDecoder {};
struct ByteFallbackDecoder {};
struct FuseDecoder {};
struct StripDecoder {
  std::string content;  // one character
  std::uint32_t start = 0, stop = 0;
};
using DecoderStep = std::variant<ByteLevelDecoder, ByteFallbackDecoder, FuseDecoder, StripDecoder, Replace>;

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false, lstrip = false, rstrip = false, normalized = false, special = true;
};

// Ids around a text, as TemplateProcessing says for a single sequence.
struct Template {
  std::vector<TokenId> before, after;
};

struct Merge {
  TokenId left = 0, right = 0, result = 0;
};

struct BpeSpec {
  std::vector<std::string> vocab;  // by id, spelled as in the file; empty: a hole
  std::vector<Merge> merges;       // by rank
  std::vector<AddedToken> added_tokens;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<DecoderStep> decoder;
  Template post_processor;
  std::string unk_token;
  bool fuse_unk = false, byte_fallback = false, ignore_merges = false;

  bool byte_level() const {
    return !pre_tokenizer.empty() && std::holds_alternative<ByteLevel>(pre_tokenizer.back());
  }
};

// `known`: special ids from elsewhere. `source`: the file's own text, which serialized() then gives back.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeSpec spec, const SpecialIds& known = {},
                                              std::string source = {});

// Special tokens first, then the 256 bytes. Saved as a tokenizer.json without merges.
std::unique_ptr<Tokenizer> make_bytes_tokenizer(const std::vector<std::string>& special_tokens);

// Is it what make_bytes_tokenizer makes?
bool is_bytes_spec(const BpeSpec& spec);

}  // namespace thimble
