#include "data/data_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{256} << 20;

// The data set's name in "NAME_train_000000.bin". Empty if the file is not a shard of this split.
std::string shard_prefix(const std::string& file, DataSplit split) {
  const std::string middle = fmt::format("_{}_", name_of(split));
  const std::size_t at = file.rfind(middle);
  if (at == std::string::npos || !file.ends_with(".bin")) return {};
  return file.substr(0, at);
}

std::vector<fs::path> find_shards(const fs::path& folder, DataSplit split, std::set<std::string>& names) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = shard_prefix(entry.path().filename().string(), split);
    if (name.empty()) continue;
    files.push_back(entry.path());
    names.insert(name);
  }
  std::ranges::sort(files);  // by bytes, the same order as Python's sorted()
  return files;
}

const Json* named(const Json& manifest, std::string_view list, std::string_view name) {
  const Json* items = manifest.find(list);
  if (!items || !items->is_array()) return nullptr;
  for (const Json& item : items->as_array())
    if (const Json* found = item.find("name"); found && *found == Json(name)) return &item;
  return nullptr;
}

// Reads the tokenizer and the maximum number of training shards from a published manifest.json.
void read_published_manifest(DataFolder& folder) {
  const fs::path absolute = fs::weakly_canonical(folder.path);
  const fs::path file = absolute.parent_path().parent_path() / kManifestFile;
  if (!fs::is_regular_file(file)) return;
  const Json manifest = parse_json(read_file(file, kMaxManifestBytes), file.string());
  const Json* dataset = named(manifest, "datasets", absolute.filename().string());
  if (!dataset) return;
  folder.name = absolute.filename().string();
  const Json* tokenizer_name = dataset->find("tokenizer_name");
  const Json* tokenizer = tokenizer_name && tokenizer_name->is_string()
                              ? named(manifest, "tokenizers", tokenizer_name->as_string())
                              : nullptr;
  for (const std::string_view key : {"path", "model_path"})  // model_path takes precedence
    if (const Json* path = tokenizer ? tokenizer->find(key) : nullptr;
        path && path->is_string() && !path->as_string().empty())
      folder.published_tokenizer = fs::path(path->as_string()).filename().string();
  const Json* stats = dataset->find("stats");
  const Json* files_train = stats ? stats->find("files_train") : nullptr;
  if (!files_train || !files_train->is_uint()) return;
  folder.published_train_files = files_train->as_uint();
  check(folder.train.size() <= files_train->as_uint(),
        Hint{"remove shards of other data sets from the folder, or update the manifest"},
        "{} has more train shards than expected: found {}, {} lists {}", folder.name, folder.train.size(),
        file.string(), files_train->as_uint());
}

std::vector<fs::path> listed_shards(const fs::path& folder, const ManifestSplit& split) {
  std::vector<fs::path> files;
  for (const ManifestShard& shard : split.shards) {
    files.push_back(folder / shard.file);
    check(fs::is_regular_file(files.back()), Hint{"build or copy the data again"},
          "{} is listed in the manifest but missing", files.back().string());
  }
  return files;
}

}  // namespace

std::string_view name_of(DataSplit split) {
  return split == DataSplit::train ? "train" : "val";
}

bool is_data_folder(const fs::path& path) {
  if (!fs::is_directory(path)) return false;
  if (fs::is_regular_file(path / kManifestFile)) return true;
  std::set<std::string> names;
  return !find_shards(path, DataSplit::train, names).empty() ||
         !find_shards(path, DataSplit::val, names).empty();
}

DataFolder open_data_folder(const fs::path& path) {
  check(fs::is_directory(path), "{} is not a folder", path.string());
  DataFolder folder;
  folder.path = path;
  const fs::path manifest = path / kManifestFile;
  if (fs::is_regular_file(manifest)) {
    folder.manifest = Manifest::parse(read_file(manifest, kMaxManifestBytes), manifest.string());
    folder.name = folder.manifest->name;
    folder.train = listed_shards(path, folder.manifest->train);
    folder.val = listed_shards(path, folder.manifest->val);
    return folder;
  }
  std::set<std::string> names;
  folder.train = find_shards(path, DataSplit::train, names);
  folder.val = find_shards(path, DataSplit::val, names);
  check(!names.empty(), Hint{"create shards with `thimble data build`"},
        "No files found for pattern: {} or *_val_*.bin", (path / "*_train_*.bin").string());
  check(names.size() == 1, Hint{"move each data set to a separate folder"},
        "{} contains shards of several data sets: {} and {}", path.string(), *names.begin(), *names.rbegin());
  folder.name = *names.begin();
  read_published_manifest(folder);
  return folder;
}

std::unique_ptr<Tokenizer> load_tokenizer_of(const DataFolder& folder) {
  check(folder.manifest.has_value(), Hint{"pass its tokenizer with --tokenizer"},
        "{} does not contain a tokenizer", folder.path.string());
  const fs::path file = folder.path / folder.manifest->tokenizer.file;
  auto tokenizer = load_tokenizer_bytes(read_file(file, kMaxTokenizerBytes), file.string(),
                                        folder.manifest->tokenizer.special());
  check_tokenizer(folder, *tokenizer);
  return tokenizer;
}

void check_tokenizer(const DataFolder& folder, const Tokenizer& tokenizer, const fs::path& tokenizer_file) {
  if (folder.manifest) {
    const ManifestTokenizer& made_with = folder.manifest->tokenizer;
    check(tokenizer.digest().hex() == made_with.digest,
          Hint{fmt::format("use {}, or build the data again with this tokenizer",
                           (folder.path / made_with.file).string())},
          "{} was made with another tokenizer: {} of {} tokens, digest {}; this one is {} of {}, digest {}",
          folder.path.string(), made_with.kind, made_with.vocab_size, made_with.digest,
          name_of(tokenizer.kind()), tokenizer.vocab_size(), tokenizer.digest().hex());
    return;
  }
  const std::string name = tokenizer_file.filename().string();
  check(folder.published_tokenizer.empty() || name.empty() || name == folder.published_tokenizer,
        Hint{"pass the tokenizer that its manifest.json names"}, "{} expects tokenizer {}, got {}",
        folder.name, folder.published_tokenizer, name);
}

TokenSet open_split(const DataFolder& folder, DataSplit split, TokenMarks marks, Digests digests) {
  const std::vector<fs::path>& files = folder.files(split);
  check(!files.empty(), "No files found for pattern: {}",
        (folder.path / fmt::format("{}_{}_*.bin", folder.name, name_of(split))).string());
  std::vector<ShardReader> shards;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    shards.emplace_back(files[i]);
    bytes += shards.back().bytes();
    if (!folder.manifest) continue;
    const std::uint64_t expected = folder.listed(split)[i].tokens;
    check(shards.back().tokens() == expected, Hint{"build or copy the data again"},
          "{} has {} tokens, but the manifest lists {}", files[i].string(), shards.back().tokens(), expected);
  }
  TokenSet set(std::move(shards), marks);
  if (!folder.manifest || digests == Digests::verified) return set;
  if (bytes <= kSmallSplitBytes) {
    verify_shards(folder, {&split, 1}, ProgressOutput::nowhere());
  } else {
    std::vector<ShardVerification::Listed> listed;
    for (std::size_t i = 0; i < files.size(); ++i)
      listed.push_back({files[i], folder.listed(split)[i].digest});
    set.verify_with(std::make_shared<const ShardVerification>(std::move(listed)));
  }
  return set;
}

void verify_shards(const DataFolder& folder, std::span<const DataSplit> splits,
                   const ProgressOutput& progress, const Interrupt* interrupt) {
  if (!folder.manifest) return;
  std::uint64_t total = 0;
  for (const DataSplit split : splits)
    for (const fs::path& file : folder.files(split)) total += fs::file_size(file);
  ProgressBar bar(progress, "verifying", "bytes", total);
  for (const DataSplit split : splits)
    for (std::size_t i = 0; i < folder.files(split).size(); ++i)
      ShardReader(folder.files(split)[i]).verify(folder.listed(split)[i].digest, [&](std::size_t count) {
        if (interrupt) interrupt->throw_if_interrupted();
        bar.advance(count);
      });
}

}  // namespace thimble
