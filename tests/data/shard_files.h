// Shards for tests: distinct tokens, cut into files of odd sizes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <vector>

#include "config/config.h"
#include "data/shard.h"
#include "support/temp_folder.h"

namespace thimble {

inline constexpr std::int64_t kTestVocabulary = 10000;

inline ModelConfig config_of_context(std::int64_t T) {
  ModelConfig config;
  config.vocab_size = kTestVocabulary;
  config.context = T;
  return config;
}

// first, first + 1, ...
inline std::vector<std::int32_t> counting(std::size_t count, std::int32_t first = 1) {
  std::vector<std::int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Writes files of these sizes that together contain `tokens`, named like the published ones.
inline std::vector<std::filesystem::path> write_shards(const TempFolder& folder,
                                                       std::span<const std::int32_t> tokens,
                                                       std::initializer_list<std::size_t> sizes,
                                                       std::string_view split = "train") {
  PosixFileOps ops;
  std::vector<std::filesystem::path> files;
  for (const std::size_t size : sizes) {
    ShardWriter writer(kTestVocabulary);
    writer.add(tokens.first(size));
    tokens = tokens.subspan(size);
    files.push_back(folder / shard_name("fineweb", split, files.size()));
    writer.write(ops, files.back(), Existing::refuse);
  }
  return files;
}

}  // namespace thimble
