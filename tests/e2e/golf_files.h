// Imports the golden golf models through the command line.
#pragma once

#include <string>
#include <vector>

#include "support/golden.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {

inline std::string golden_file(const char* name) {
  return golden_path(std::string(name) + ".safetensors").string();
}

inline std::vector<std::string> settings_of(const std::string& name) {
  if (name == "golf_baseline_grad")
    return {"--preset", "golf",   "--set", "vocab_size=128", "--set", "layers=5",
            "--set",    "dim=64", "--set", "heads=4",        "--set", "kv_heads=2"};
  return {"--preset", "golf-plus",      "--set", "vocab_size=128", "--set", "layers=4",
          "--set",    "dim=96",         "--set", "heads=6",        "--set", "kv_heads=3",
          "--set",    "mlp_hidden=288", "--set", "bigram_dim=64",  "--set", "bigram_buckets=64"};
}

inline RunResult import_golden(const char* name, const std::string& output,
                               std::vector<std::string> more = {"--prefix", "param."}) {
  std::vector<std::string> arguments = {"import", golden_file(name), "-o", output};
  for (const std::string& word : settings_of(name)) arguments.push_back(word);
  for (const std::string& word : more) arguments.push_back(word);
  return run_binary({.arguments = arguments});
}

}  // namespace thimble
