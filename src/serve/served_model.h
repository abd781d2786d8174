// What the routes know of the model: everything but how to run it. Any thread may read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "infer/sampler.h"
#include "model/config.h"
#include "tokenizer/chat_layout.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

struct ServedModel {
  std::string name;  // what clients see
  ModelConfig config;
  const Tokenizer* tokenizer = nullptr;
  std::optional<ChatLayout> layout = {};   // absent: it was not taught to chat
  SamplingOptions defaults = {};           // where a request says nothing
  std::optional<std::uint64_t> seed = {};  // the same; absent: a new one for each request
  std::int64_t created = 0;                // Unix time
};

}  // namespace thimble
