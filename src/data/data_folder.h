// A folder of shards: what `thimble data build` writes, or the published golf data.
//
//   ours       DIR/manifest.json, DIR/tokenizer.json, DIR/NAME_train_000000.bin, DIR/NAME_val_000000.bin
//   published  data/manifest.json, data/datasets/NAME/fineweb_train_000000.bin, ...
//   bare       *_train_*.bin and *_val_*.bin, with no word on how they were made
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/manifest.h"
#include "data/token_set.h"

namespace thimble {

enum class DataSplit { train, val };
std::string_view name_of(DataSplit split);

struct DataFolder {
  std::filesystem::path path;
  std::string name;                  // of the data set
  std::optional<Manifest> manifest;  // ours alone
  std::vector<std::filesystem::path> train, val;
  std::string
      published_tokenizer;  // the file name that a published manifest asks for; empty: it says nothing
  std::optional<std::uint64_t> published_train_files;  // how many training shards it counts

  DataKind kind() const { return manifest ? manifest->kind : DataKind::text; }
  const std::vector<std::filesystem::path>& files(DataSplit split) const {
    return split == DataSplit::train ? train : val;
  }
};

// Whether `--data PATH` means shards: a folder with a manifest or shards in it.
bool is_data_folder(const std::filesystem::path& path);

// Reads the manifest and lists the shards, which must all be there; a published folder may have fewer than
// its manifest says, not more.
DataFolder open_data_folder(const std::filesystem::path& path);

// The copy of the tokenizer beside our manifest; an error where there is none, or another.
std::unique_ptr<Tokenizer> load_tokenizer_of(const DataFolder& folder);

// Refuses a tokenizer that the data was not made with: by digest, or by the name of its file where that is
// all a published manifest says.
void check_tokenizer(const DataFolder& folder, const Tokenizer& tokenizer,
                     const std::filesystem::path& tokenizer_file = {});

// Maps the shards. Their counts must be those of the manifest.
TokenSet open_split(const DataFolder& folder, DataSplit split, TokenMarks marks);

// Reads every shard and compares it with the digest in the manifest, where there is one.
void verify_shards(const DataFolder& folder);

}  // namespace thimble
