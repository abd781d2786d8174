// The switches of the golf family, separately and all together, and those of Transformers'
// families, on models small enough for finite differences.
#pragma once

#include <ostream>

#include "model/random_model.h"

namespace thimble {

struct Switch {
  const char* name;
  std::vector<std::string> settings;
  const char* preset = "golf";

  ModelConfig config() const { return small_config(preset, settings); }
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

// Windows are shorter than the sequences of switch_rows().
inline std::vector<Switch> family_switches() {
  const auto of = [](const char* name, std::vector<std::string> settings) {
    return Switch{name, std::move(settings), "llama"};
  };
  return {of("window", {"window=3"}),
          of("some_windows", {"window=2", "window_from=1", "global_every=4"}),
          of("llama3", {"rope_scaling=llama3", "rope_factor=8", "rope_original_context=32"}),
          of("nope", {"nope_every=2"}),
          of("geglu", {"mlp=geglu"}),
          of("post_norm", {"post_norm=true"}),
          of("embed_scale", {"embed_scale=true"}),
          of("attention_softcap", {"attention_softcap=0.75"}),
          of("gemma2", {"mlp=geglu", "post_norm=true", "embed_scale=true", "window=3", "global_every=2",
                        "attention_softcap=1.5", "logit_softcap=3", "query_scalar=12"}),
          of("gemma3",
             {"mlp=geglu", "post_norm=true", "embed_scale=true", "window=3", "global_every=3", "qk_norm=true",
              "rope_base=100", "local_rope_base=10", "rope_scaling=linear", "rope_factor=4"})};
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
