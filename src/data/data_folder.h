// A folder of shards: the output of `thimble data build`, or the published parameter-golf data.
//
//   thimble    DIR/manifest.json, tokenizer.json, NAME_train_000000.bin, NAME_val_000000.bin
//   published  data/manifest.json, data/datasets/NAME/fineweb_train_000000.bin, ...
//   bare       *_train_*.bin and *_val_*.bin without a manifest
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
  std::optional<Manifest> manifest;  // only in thimble's own layout
  std::vector<std::filesystem::path> train, val;
  std::string published_tokenizer;  // tokenizer file name in a published manifest; empty: not given
  std::optional<std::uint64_t> published_train_files;  // training shards in a published manifest

  DataKind kind() const { return manifest ? manifest->kind : DataKind::text; }
  const std::vector<std::filesystem::path>& files(DataSplit split) const {
    return split == DataSplit::train ? train : val;
  }
};

// Whether `--data PATH` names shards: PATH is a folder that contains a manifest or shards.
bool is_data_folder(const std::filesystem::path& path);

// Reads the manifest and lists the shards. Throws if a listed shard is missing. A published folder
// may have fewer training shards than its manifest states, but not more.
DataFolder open_data_folder(const std::filesystem::path& path);

// Loads the tokenizer beside thimble's manifest. Throws if there is none or its digest differs.
std::unique_ptr<Tokenizer> load_tokenizer_of(const DataFolder& folder);

// Throws if the data was made with another tokenizer. Compares digests, or file names for published
// data, whose manifest contains no digest.
void check_tokenizer(const DataFolder& folder, const Tokenizer& tokenizer,
                     const std::filesystem::path& tokenizer_file = {});

// Maps the shards. Throws if a token count differs from the manifest.
TokenSet open_split(const DataFolder& folder, DataSplit split, TokenMarks marks);

// Reads every shard and compares its digest with the manifest. Does nothing without a manifest.
void verify_shards(const DataFolder& folder);

}  // namespace thimble
