// Imports the golden golf models through the command line.
#pragma once

#include <string>
#include <vector>

#include "e2e/settings.h"
#include "support/golden.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {

inline std::string golden_file(const char* name) {
  return golden_path(std::string(name) + ".safetensors").string();
}

// The preset and the settings of a golden model, except those that `more` gives.
inline std::vector<std::string> settings_of(const std::string& name,
                                            const std::vector<std::string>& more = {}) {
  const bool baseline = name == "golf_baseline_grad";
  std::vector<std::string> words = {"--preset", baseline ? "golf" : "golf-plus"};
  const std::vector<std::string> settings =
      baseline ? settings_beside(more, {"vocab_size=128", "layers=5", "dim=64", "heads=4", "kv_heads=2"})
               : settings_beside(more, {"vocab_size=128", "layers=4", "dim=96", "heads=6", "kv_heads=3",
                                        "mlp_hidden=288", "bigram_dim=64", "bigram_buckets=64"});
  words.insert(words.end(), settings.begin(), settings.end());
  return words;
}

inline RunResult import_golden(const char* name, const std::string& output,
                               std::vector<std::string> more = {"--prefix", "param."}) {
  std::vector<std::string> arguments = {"import", golden_file(name), "-o", output};
  for (const std::string& word : settings_of(name, more)) arguments.push_back(word);
  for (const std::string& word : more) arguments.push_back(word);
  return run_binary({.arguments = arguments});
}

}  // namespace thimble
