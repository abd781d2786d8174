// Small models, and their files in memory, for tests of exports and packing.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "config/builder.h"
#include "formats/gguf_model.h"
#include "formats/gguf_tokenizer.h"
#include "tokenizer/chat_layout.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {

// A byte tokenizer for chats, with 261 tokens.
inline TokenizerFile bytes_for_chats() {
  const auto tokenizer = make_bytes_tokenizer(special_tokens_for(true));
  return {.name = "tokenizer.json", .content = tokenizer->serialized(), .special = tokenizer->special()};
}

// A preset with changed settings and its initial weights.
inline ModelFile initialized_model(const std::string& preset, const std::vector<std::string>& settings = {}) {
  ConfigBuilder builder;
  builder.preset(preset);
  for (const std::string& assignment : settings) builder.set(assignment);
  ModelFile model;
  model.format = "safetensors";
  model.config = resolved(Config{builder.resolve().model, {}});
  const ParamTable table(model.config.model);
  model.weights.resize(static_cast<std::size_t>(table.block_size()));
  initialize(table, 5, model.weights);
  return model;
}

// A preset with distinct weights and 300 embedding rows, 39 more than there are tokens.
inline ModelFile small_export(const std::string& preset, const std::vector<std::string>& changes = {}) {
  std::vector<std::string> settings = {"vocab_size=300", "context=32", "layers=2",     "dim=64",
                                       "heads=4",        "kv_heads=2", "mlp_hidden=96"};
  settings.insert(settings.end(), changes.begin(), changes.end());
  ModelFile model = initialized_model(preset, settings);
  model.path = "source";
  const ParamTable table(model.config.model);
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0, 0.3f);
  for (const Param& param : table.all())
    for (std::int64_t i = 0; i < param.count(); ++i)
      model.weights[static_cast<std::size_t>(param.offset + i)] =
          normal(random) + (param.dims.size() == 1 && !param.name.ends_with("bias") ? 1.0f : 0.0f);
  model.tokenizer = bytes_for_chats();
  model.layout = kRolesLayout;
  return model;
}

}  // namespace thimble
