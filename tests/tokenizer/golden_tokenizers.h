// The tokenizers and texts of tests/golden and, where they exist, those of ../shared.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "data/text_files.h"
#include "support/golden.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// Text, which may be compressed. Models are read by load_tokenizer().
inline std::string golden_text(std::string_view name) {
  return read_text_file(golden_path(name));
}

inline std::unique_ptr<Tokenizer> tokenizer_in(const std::filesystem::path& file) {
  const std::string name = file.string();
  return file.extension() == ".zst" ? load_tokenizer_bytes(read_text_file(file), name) : load_tokenizer(file);
}

// Byte-level BPE with each of the four patterns. Qwen's normalize to NFC.
inline std::vector<std::filesystem::path> bpe_files() {
  return golden_and_shared(
      {"tokenizers/gpt2.json", "tokenizers/llama3.json", "tokenizers/qwen2.json", "tokenizers/o200k.json"},
      {"fixtures/tokenizers/gpt2/tokenizer.json.zst", "fixtures/tokenizers/llama3_2/tokenizer.json.zst",
       "fixtures/tokenizers/qwen2_5/tokenizer.json.zst"});
}
inline bool normalizes_to_nfc(const std::filesystem::path& file) {
  return file.string().find("qwen2") != std::string::npos;
}

// SentencePiece models with the settings of parameter-golf.
inline std::vector<std::filesystem::path> golf_tokenizer_files() {
  return golden_and_shared({"tokenizers/golf_1024.model"}, {"fixtures/sentencepiece/fineweb_1024_bpe.model",
                                                            "fixtures/sentencepiece/fineweb_8192_bpe.model"});
}

// Texts in English and many other languages.
inline std::vector<std::filesystem::path> corpus_files() {
  return golden_and_shared(
      {"corpus/tales.txt.gz", "corpus/chats.jsonl.gz", "corpus/scripts.txt", "tokenizers/gpt2.ids.json"},
      {"corpora/tinyshakespeare.txt", "corpora/tinystories_sample_944k.txt",
       "corpora/fineweb_edu_sample_1m.txt", "corpora/wiki.test.raw", "corpora/names.txt",
       "corpora/oasst1_chat.jsonl.zst", "corpora/alpaca_en_demo.json.zst", "corpora/udhr2_all_utf8.txt.zst"});
}

// A text of at least this many bytes that contains all scripts and no cut character.
inline std::string long_text(std::size_t bytes) {
  const std::string once = golden_text("corpus/scripts.txt") + golden_text("corpus/tales.txt.gz");
  std::string text;
  while (text.size() < bytes) text += once;
  return text;
}

// tokenizers/strings.json: texts that tokenizers treat specially. "invalid" is not UTF-8, in hex.
inline std::vector<std::string> golden_strings(std::string_view key) {
  std::vector<std::string> strings;
  const Json file = parse_json(golden_text("tokenizers/strings.json"), "strings.json");
  for (const Json& text : file.at(key).as_array()) {
    strings.emplace_back(text.as_string());
    if (key != "invalid") continue;
    std::string bytes;
    for (std::size_t at = 0; at < strings.back().size(); at += 2)
      bytes += static_cast<char>(std::stoi(strings.back().substr(at, 2), nullptr, 16));
    strings.back() = bytes;
  }
  return strings;
}

// What another program made of these strings with one of the golden tokenizers.
class GoldenIds {
 public:
  explicit GoldenIds(std::string_view tokenizer)
      : file_(parse_json(golden_text("tokenizers/" + std::string(tokenizer) + ".ids.json"), tokenizer)) {}

  std::vector<std::vector<TokenId>> ids(std::string_view key) const {
    std::vector<std::vector<TokenId>> lists;
    for (const Json& list : file_.at(key).as_array()) {
      lists.emplace_back();
      for (const Json& id : list.as_array()) lists.back().push_back(static_cast<TokenId>(id.as_int()));
    }
    return lists;
  }
  // Null for texts that the other program cannot be given.
  const Json::Array& texts(std::string_view key) const { return file_.at(key).as_array(); }

 private:
  Json file_;
};

}  // namespace thimble
