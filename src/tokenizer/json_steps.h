// The steps of a tokenizer.json, between Json and BpeSpec: all of the file but vocabulary and merges.
#pragma once

#include <vector>

#include "base/json.h"
#include "tokenizer/bpe_spec.h"

namespace thimble {

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
