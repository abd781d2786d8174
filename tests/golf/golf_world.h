// A tiny data set in the published layout: data/manifest.json, data/datasets/tiny/fineweb_*.bin and
// data/tokenizers/tiny.model.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "support/temp_folder.h"

namespace thimble {

inline constexpr int kTinyVocabulary = 300;

// Tokens with a pattern that can be learned to some extent, and a bos every 97 tokens.
inline std::string shard_of(std::size_t tokens, std::size_t first = 0) {
  std::string bytes(1024, '\0');
  const std::int32_t header[3] = {20240520, 1, static_cast<std::int32_t>(tokens)};
  std::memcpy(bytes.data(), header, sizeof header);
  for (std::size_t i = first; i < first + tokens; ++i) {
    const std::size_t value = i % 97 == 0 ? 1 : 4 + (i * i / 3 + i % 11) % (kTinyVocabulary - 4);
    bytes.push_back(static_cast<char>(value & 0xFF));
    bytes.push_back(static_cast<char>(value >> 8));
  }
  return bytes;
}

inline void write_tiny_shards(const TempFolder& folder) {
  folder.write("data/datasets/tiny/fineweb_train_000000.bin", shard_of(3000));
  folder.write("data/datasets/tiny/fineweb_train_000001.bin", shard_of(2000, 3000));
  folder.write("data/datasets/tiny/fineweb_val_000000.bin", shard_of(1300, 777));
}

inline std::string tiny_manifest(int train_files, const std::string& tokenizer = "tiny.model") {
  return R"({"datasets": [{"name": "other"}, {"name": "tiny", "tokenizer_name": "sp", "stats": {"files_train": )" +
         std::to_string(train_files) + R"(}}], "tokenizers": [{"name": "sp", "model_path": "tokenizers/)" +
         tokenizer + R"("}]})";
}

// The smoke test of the published README with a tiny model.
inline std::map<std::string, std::string> tiny_environment() {
  return {{"RUN_ID", "mlx_smoke"},
          {"ITERATIONS", "12"},
          {"TRAIN_BATCH_TOKENS", "512"},
          {"VAL_LOSS_EVERY", "0"},
          {"VAL_BATCH_SIZE", "2048"},
          {"TRAIN_SEQ_LEN", "32"},
          {"NUM_LAYERS", "2"},
          {"MODEL_DIM", "32"},
          {"NUM_HEADS", "2"},
          {"NUM_KV_HEADS", "1"},
          {"WARMUP_STEPS", "2"},
          {"MAX_WALLCLOCK_SECONDS", "0"},
          {"VOCAB_SIZE", std::to_string(kTinyVocabulary)},
          {"DATA_PATH", "data/datasets/tiny"},
          {"TOKENIZER_PATH", "data/tokenizers/tiny.model"}};
}

inline std::string tiny_text() {
  std::string text;
  for (int i = 0; i < 600; ++i)
    text += "line " + std::to_string(i * i * 31) + " of a text, word" + std::to_string(i % 37) + "!\n";
  return text;
}

}  // namespace thimble
