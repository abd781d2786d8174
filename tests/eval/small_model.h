// A small model with random weights, fast enough for many evaluations.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "config/builder.h"
#include "model/model.h"

namespace thimble {

inline std::unique_ptr<Model> small_model(const Context& context, std::int64_t vocab_size,
                                          std::int64_t tokens_of_context, const char* preset = "quick",
                                          DType dtype = DType::f32) {
  ConfigBuilder settings;
  settings.preset(preset);
  for (const char* setting :
       {"layers=2", "dim=32", "heads=2", "kv_heads=1", "head_dim=16", "rope_dims=16", "span_tokens=0"})
    settings.set(setting);
  settings.set(fmt::format("context={}", tokens_of_context));
  settings.set(fmt::format("batch_tokens={}", tokens_of_context));
  settings.set(fmt::format("vocab_size={}", vocab_size));
  auto model = std::make_unique<Model>(settings.resolve().model, context, dtype);
  initialize(model->params(), 3, model->weights());
  std::vector<float> noise(model->weights().size());
  fill_normal(noise, 0, 0.2f, 17, 0);
  std::ranges::transform(model->weights(), noise, model->weights().begin(), std::plus());
  model->weights_changed();
  return model;
}

}  // namespace thimble
