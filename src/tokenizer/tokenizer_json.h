// Reads and writes Hugging Face's tokenizer.json. A feature that thimble does not implement is an
// error that names it: a tokenizer that produces other ids than in training would break the model.
//
// ByType is a helper for std::visit with one lambda for each type of a variant:
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
#include "tokenizer/unicode.h"

namespace thimble {

template <class... Functions>
struct ByType : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
ByType(Functions...) -> ByType<Functions...>;

// BpeSpec is the content of a tokenizer.json that thimble supports. Reading, writing and training
// use it; BpeTokenizer executes it.

// A literal or a regular expression.
struct TextPattern {
  std::string text;
  bool regex = false;
};

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
using PreTokenizerStep = std::variant<Split, Digits, ByteLevel>;  // ByteLevel only as the last step

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

// Ids added around a text: the "single" template of TemplateProcessing.
struct Template {
  std::vector<TokenId> before, after;
};

struct Merge {
  TokenId left = 0, right = 0, result = 0;
};

struct BpeSpec {
  std::vector<std::string> vocab;  // by id, spelled as in the file; empty: unused id
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

// `known`: special ids that replace those in the spec. `source`: the original file, which
// serialized() returns if it is not empty.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeSpec spec, const SpecialIds& known = {},
                                              std::string source = {});

// Special tokens followed by the 256 bytes. It is saved as a tokenizer.json without merges.
std::unique_ptr<Tokenizer> make_bytes_tokenizer(const std::vector<std::string>& special_tokens);

// Whether make_bytes_tokenizer() would produce this spec.
bool is_bytes_spec(const BpeSpec& spec);

// `name` is the file name for messages.
BpeSpec parse_tokenizer_json(std::string_view text, std::string_view name);

std::string write_tokenizer_json(const BpeSpec& spec);

// The name that exports give to an embedding row without a token: <|pad_ID|>, followed by "_" until
// it is not in `known`. parse_tokenizer_json() drops such tokens.
std::string pad_token_text(std::int64_t id, const std::unordered_set<std::string>& known);

// The steps of a tokenizer.json: everything except vocabulary and merges. The readers accept null
// (no steps), a single step or a Sequence. An unknown type is an error that names it.
std::vector<NormalizerStep> read_normalizer(const Json& json);
std::vector<PreTokenizerStep> read_pre_tokenizer(const Json& json);
std::vector<DecoderStep> read_decoder(const Json& json);
Template read_post_processor(const Json& json);
std::vector<AddedToken> read_added_tokens(const Json& json);

Json to_json(const std::vector<NormalizerStep>& steps);
Json to_json(const std::vector<PreTokenizerStep>& steps);
Json to_json(const std::vector<DecoderStep>& steps);
Json to_json(const std::vector<AddedToken>& tokens);
// `vocab` provides the spelling of ids.
Json to_json(const Template& post_processor, const std::vector<std::string>& vocab);

}  // namespace thimble
