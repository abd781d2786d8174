// The switches of the golf family, separately and all together, on a model small enough for finite
// differences.
#pragma once

#include <ostream>

#include "model/random_model.h"

namespace thimble {

struct Switch {
  const char* name;
  std::vector<std::string> settings;

  ModelConfig config() const { return small_config("golf", settings); }
  friend std::ostream& operator<<(std::ostream& out, const Switch& s) { return out << s.name; }
};

inline std::vector<Switch> golf_switches() {
  return {{"none", {}},
          {"leaky", {"mlp=leaky_relu2"}},
          {"exclusive", {"exclusive_attention=true"}},
          {"partial_rope", {"rope_dims=4"}},
          {"layer_scale", {"layer_scale=true"}},
          {"skip_gates", {"skip_gates=true"}},
          {"parallel", {"parallel_from=2"}},
          {"parallel_with_weights", {"parallel_from=0", "norm=rms_weight"}},
          {"parallel_layernorm", {"parallel_from=1", "norm=layer", "bias=true"}},
          {"loop", {"loop_first=1", "loop_last=2", "loop_count=2"}},
          {"loop_of_one_at_the_end", {"layers=3", "loop_first=2", "loop_last=2", "loop_count=1"}},
          {"all",
           {"mlp=leaky_relu2", "exclusive_attention=true", "rope_dims=4", "layer_scale=true",
            "skip_gates=true", "parallel_from=2", "loop_first=1", "loop_last=2", "loop_count=1",
            "smear_gate=true", "bigram_buckets=16", "bigram_dim=8"}}};
}

// Two sequences of tokens; a document starts in the middle of the first.
inline Rows switch_rows(const ModelConfig& config) {
  constexpr std::int64_t kLength = 6;
  std::mt19937 random(7);
  const auto input = random_tokens(random, config, 2 * kLength),
             target = random_tokens(random, config, 2 * kLength);
  std::vector<std::uint8_t> starts(input.size());
  starts[4] = 1;
  return grid_rows(config, kLength, input, target, starts);
}

}  // namespace thimble
