// One request from beginning to end, for callers that have no other.
//
//   Batcher batcher(model, tokenizer.get(), {.slots = 4});
//   Request request = text_request(*tokenizer, "Once upon a time");
//   request.samples = 4;
//   const std::vector<Sample> samples = generate(batcher, request);
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/signals.h"
#include "infer/batcher.h"
#include "infer/request.h"

namespace thimble {

struct Sample {
  std::string text;  // without the prompt
  std::vector<TokenScore> tokens;
  std::vector<TokenScore> prompt;  // if it was to be scored: sample 0 has it
  FinishReason finish = FinishReason::length;
  std::optional<std::string> stop_string;
  Usage usage;
};

// Runs the batcher until the request is done. `show` sees every event as it comes. When interrupted, returns what was
// made, finish == cancelled. The error of a sample is thrown. Whatever is thrown, the batcher is free again.
std::vector<Sample> generate(Batcher& batcher, Request request,
                             const std::function<void(const Event&)>& show = {},
                             const Interrupt* interrupt = nullptr);

// One sequence of one model, for callers that choose each token by a rule of their own, or look at its logits.
//
// Reads the prompt and then each token that `next` chooses from the logits behind the one before, until it chooses none
// or the context is full. Every call of the model has one row, so one program and a cache of one slot serve all prompts.
using ChooseNext = std::function<std::optional<TokenId>(std::span<const float> logits)>;
void generate_tokens(Model& model, std::vector<TokenId> prompt, const ChooseNext& next);

}  // namespace thimble
