// Many prompts continued at a time, each by its likeliest tokens: every call of the model serves all of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/interrupt.h"
#include "model/model.h"

namespace thimble {

struct GreedyOptions {
  std::int32_t end = -1;     // the token that ends an answer; it is not part of it
  std::int64_t allowed = 0;  // ids that may be chosen: the tokenizer's
};

// The continuation of each prompt, up to `end` or until the context is full. Prompts are not empty and leave
// room for a token; at most as many as the cache has slots. What is said to one does not depend on the others.
std::vector<std::vector<std::int32_t>> continue_greedily(Model& model, KvCache& cache,
                                                         std::span<const std::vector<std::int32_t>> prompts,
                                                         const GreedyOptions& options,
                                                         const Interrupt* interrupt = nullptr);

}  // namespace thimble
