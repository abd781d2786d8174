// Text from a model: the prompt goes through the cache in blocks, then one token at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/interrupt.h"
#include "infer/sampler.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

struct GenerateOptions {
  SamplerOptions sampler;
  std::int64_t max_tokens = 256;
};

struct Sample {
  std::string text;  // without the prompt
  std::vector<std::int32_t> tokens;
  std::string finish_reason;  // stop: the model ended the document; length: max_tokens or the context is full
};

// One sequence in one slot of a cache: what it holds so far, and the logits after it.
class Sequence {
 public:
  Sequence(Model& model, KvCache& cache, std::int32_t slot) : model_(model), cache_(cache), slot_(slot) {}

  // Appends tokens and returns the logits after the last; valid until the next call to the model.
  std::span<const float> append(std::span<const std::int32_t> tokens);

  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  std::int64_t room() const { return model_.config().context - size(); }

 private:
  Model& model_;
  KvCache& cache_;
  std::int32_t slot_;
  std::vector<std::int32_t> tokens_;
};

// Continues bos + prompt. `show` gets the text piece by piece, never a broken character.
Sample generate(Model& model, const Tokenizer& tokenizer, std::string_view prompt,
                const GenerateOptions& options, const std::function<void(std::string_view)>& show = {},
                const Interrupt* interrupt = nullptr);

}  // namespace thimble
