// Small data sets, and what they contain, for tests of build_dataset().
#pragma once

#include <gtest/gtest.h>

#include <map>

#include "base/files.h"
#include "data/build.h"
#include "support/temp_folder.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/tokenizer.h"

namespace thimble::build_test {

namespace fs = std::filesystem;

inline std::string tales(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += fmt::format(
        "Tale {}: the {} cats sat on mat {}.\nThey saw a caf\u00E9, \u732B and {} dogs.\n<|endoftext|>\n", i,
        i * 7 % 13, i % 5, i * i % 101);
  return text;
}

inline std::shared_ptr<const Tokenizer> trained_bpe() {
  TempFolder folder;
  TextSource source({folder.write("tales.txt", tales(300))}, {});
  return make_bpe_tokenizer(train_bpe(source, {.vocab_size = 400, .special_tokens = special_tokens_for(true)},
                                      ProgressOutput::nowhere())
                                .spec);
}

inline BuildResult build(const BuildRequest& request) {
  return build_dataset(request, Log::nowhere(), ProgressOutput::nowhere());
}

inline std::vector<TokenId> tokens_of(const fs::path& folder, const ManifestSplit& split) {
  std::vector<TokenId> all;
  for (const ManifestShard& shard : split.shards) {
    const ShardReader mapped(folder / shard.file);
    EXPECT_EQ(mapped.tokens(), shard.tokens);
    EXPECT_EQ(mapped.digest().hex(), shard.digest);
    all.resize(all.size() + mapped.tokens());
    mapped.copy(0, std::span(all).last(mapped.tokens()));
  }
  EXPECT_EQ(all.size(), split.tokens);
  return all;
}

// The documents decoded to text, split at bos.
inline std::vector<std::string> decoded(const Tokenizer& tokenizer, const fs::path& folder,
                                        const ManifestSplit& split) {
  std::vector<std::string> texts;
  std::vector<TokenId> document;
  auto flush = [&] {
    if (!document.empty()) texts.push_back(tokenizer.decode(document));
    document.clear();
  };
  for (const TokenId id : tokens_of(folder, split)) {
    if (id == *tokenizer.special().bos) flush();
    document.push_back(id);
  }
  flush();
  EXPECT_EQ(texts.size(), split.documents);
  return texts;
}

inline std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    files[entry.path().filename().string()] = read_file(entry.path(), 1 << 30);
  return files;
}

inline std::uint64_t dropped(const BuildResult& built, std::string_view reason) {
  for (const auto& [found, documents] : built.manifest.dropped)
    if (found == reason) return documents;
  ADD_FAILURE() << reason;
  return 0;
}

}  // namespace thimble::build_test
