// Runs a single request to completion.
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
  std::vector<TokenScore> prompt;  // if score_prompt: in sample 0 only
  FinishReason finish = FinishReason::length;
  std::optional<std::string> stop_string;
  Usage usage;
};

// Runs the batcher until the request is done. `show` is called with every event. If interrupted,
// returns the partial samples with finish == cancelled. Throws if a sample fails. The batcher is
// idle afterwards, also after an exception.
std::vector<Sample> generate(Batcher& batcher, Request request,
                             const std::function<void(const Event&)>& show = {},
                             const Interrupt* interrupt = nullptr);

// Generates one sequence without a batcher, for callers that choose each token themselves or
// inspect the logits.
//
// Processes the prompt, then repeatedly calls `next` with the logits of the last token and appends
// the token it returns, until it returns nullopt or the context is full. Every call of the model
// has one row, so one program and a cache with one slot are sufficient for prompts of any length.
using ChooseNext = std::function<std::optional<TokenId>(std::span<const float> logits)>;
void generate_tokens(Model& model, std::vector<TokenId> prompt, const ChooseNext& next);

}  // namespace thimble
