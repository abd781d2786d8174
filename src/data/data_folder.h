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
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "base/signals.h"
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
  std::string layout() const { return manifest ? manifest->layout() : std::string(kRolesLayout); }
  TokenMarks marks(const Tokenizer& tokenizer, LossOn loss_on) const {
    return TokenMarks::of(tokenizer, kind(), loss_on, layout());
  }
  const std::vector<std::filesystem::path>& files(DataSplit split) const {
    return split == DataSplit::train ? train : val;
  }
  // What the manifest, which must exist, lists for these files.
  const std::vector<ManifestShard>& listed(DataSplit split) const {
    return (split == DataSplit::train ? manifest->train : manifest->val).shards;
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

enum class Digests { unverified, verified };

// Opens the shards. Throws if a token count differs from the manifest. Unless the digests have been
// verified, this verifies those of a small split; those of a large one are verified in the
// background, see TokenSet::verify_with().
TokenSet open_split(const DataFolder& folder, DataSplit split, TokenMarks marks,
                    Digests digests = Digests::unverified);

inline constexpr std::uint64_t kSmallSplitBytes = std::uint64_t{64} << 20;

// Reads every shard of the splits and compares its digest with the manifest. Throws ShardError if
// they differ. Does nothing without a manifest.
void verify_shards(const DataFolder& folder, std::span<const DataSplit> splits,
                   const ProgressOutput& progress, const Interrupt* interrupt = nullptr);

}  // namespace thimble
