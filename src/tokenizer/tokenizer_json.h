// For std::visit: one lambda for each type of a variant.
//
//   std::visit(ByType{[](int n) { ... }, [](const std::string& text) { ... }}, value);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

template <class... Functions>
struct ByType : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
ByType(Functions...) -> ByType<Functions...>;

// Hugging Face's tokenizer.json, read and written. What thimble cannot honour is refused by name: a tokenizer
// that gives other ids than its model was trained with is worse than none.

// A tokenizer.json as data: what Hugging Face's file can say and thimble honours. Reading, writing and
// training meet here; BpeTokenizer makes it run.
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

// `name` is the file, for messages.
BpeSpec parse_tokenizer_json(std::string_view text, std::string_view name);

std::string write_tokenizer_json(const BpeSpec& spec);

// What exports call a row of the embedding without a token (DESIGN 8.5): <|pad_ID|>, with _ behind it as long as a token
// has that text. Reading a tokenizer.json drops such tokens.
std::string pad_token_text(std::int64_t id, const std::unordered_set<std::string>& known);

// The steps of a tokenizer.json, between Json and BpeSpec: all of the file but vocabulary and merges.
// Each takes null for "none" and a Sequence for many. Unknown types are refused by name.
std::vector<NormalizerStep> read_normalizer(const Json& json);
std::vector<PreTokenizerStep> read_pre_tokenizer(const Json& json);
std::vector<DecoderStep> read_decoder(const Json& json);
Template read_post_processor(const Json& json);
std::vector<AddedToken> read_added_tokens(const Json& json);

Json to_json(const std::vector<NormalizerStep>& steps);
Json to_json(const std::vector<PreTokenizerStep>& steps);
Json to_json(const std::vector<DecoderStep>& steps);
Json to_json(const std::vector<AddedToken>& tokens);
// `text_of` spells ids.
Json to_json(const Template& post_processor, const std::vector<std::string>& vocab);

}  // namespace thimble
