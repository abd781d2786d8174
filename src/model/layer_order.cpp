#include "model/layer_order.h"

namespace thimble {

std::vector<int> layer_order(const ModelConfig& config) {
  const std::int64_t again = config.loop_on ? config.loop_count : 0;
  std::vector<int> order;
  for (std::int64_t layer = 0, rounds = again; layer < config.layers; ++layer) {
    order.push_back(static_cast<int>(layer));
    if (layer != config.loop_last || rounds == 0) continue;
    --rounds;
    layer = config.loop_first - 1;
  }
  return order;
}

std::int64_t multiplied_elements(const ModelConfig& config, const ParamTable& params) {
  std::int64_t elements = params.bigram_proj().count();
  for (const int layer : layer_order(config))
    for (const ParamView& view :
         {params.qkv(layer), params.attn_proj(layer), params.mlp_in(layer), params.mlp_proj(layer)})
      elements += view.count();
  return elements;
}

}  // namespace thimble
