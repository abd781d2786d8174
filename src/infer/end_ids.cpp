#include "infer/end_ids.h"

#include <algorithm>
#include <array>

namespace thimble {

namespace {

// Of thimble, ChatML (Qwen), Llama 3, Gemma, Phi, GPT-2 and their kin.
constexpr std::array<std::string_view, 8> kEnds = {"<end_turn>",      "<|im_end|>",    "<|eot_id|>",
                                                   "<|end_of_text|>", "<end_of_turn>", "<|end|>",
                                                   "<|eom_id|>",      "<|endoftext|>"};

}  // namespace

std::vector<TokenId> end_ids(const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  const SpecialIds& special = tokenizer.special();
  if (const auto end = special.eos ? special.eos : special.bos) ids.push_back(*end);
  for (const std::string_view name : kEnds) {
    const auto id = tokenizer.id_of(name);
    // Never a bos that happens to bear such a name beside an eos, and never a word of a text.
    if (!id || tokenizer.token_type(*id) != TokenType::control || id == special.bos) continue;
    if (std::ranges::find(ids, *id) == ids.end()) ids.push_back(*id);
  }
  return ids;
}

}  // namespace thimble
