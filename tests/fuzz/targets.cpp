#include "targets.h"

#include <algorithm>
#include <array>

namespace thimble {

namespace {

constexpr std::array kTargets = {
    FuzzTarget{"artifact", fuzz_artifact},
    FuzzTarget{"chat", fuzz_chat},
    FuzzTarget{"config", fuzz_config},
    FuzzTarget{"constraint", fuzz_constraint},
    FuzzTarget{"export", fuzz_export},
    FuzzTarget{"gguf", fuzz_gguf},
    FuzzTarget{"gguf_blocks", fuzz_gguf_blocks},
    FuzzTarget{"http", fuzz_http},
    FuzzTarget{"jinja", fuzz_jinja},
    FuzzTarget{"manifest", fuzz_manifest},
    FuzzTarget{"npz", fuzz_npz},
    FuzzTarget{"parquet", fuzz_parquet},
    FuzzTarget{"pickle", fuzz_pickle},
    FuzzTarget{"safetensors", fuzz_safetensors},
    FuzzTarget{"sentencepiece", fuzz_sentencepiece},
    FuzzTarget{"shard", fuzz_shard},
    FuzzTarget{"tokenizer", fuzz_tokenizer},
};

}  // namespace

std::span<const FuzzTarget> fuzz_targets() {
  return kTargets;
}

const FuzzTarget* find_fuzz_target(std::string_view name) {
  const auto found = std::ranges::find(kTargets, name, &FuzzTarget::name);
  return found == kTargets.end() ? nullptr : &*found;
}

}  // namespace thimble
