#include "data/data_folder.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "shard_files.h"

namespace thimble {
namespace {

template <class Action>
void expect_error(const std::string& part, Action&& action) {
  std::string found = "no error";
  try {
    action();
  } catch (const Error& error) {
    found = error.what();
  }
  EXPECT_NE(found.find(part), std::string::npos) << found;
}

// A folder as written by `data build`: three shards, a tokenizer, the manifest.
struct BuiltFolder {
  BuiltFolder() {
    write_shards(folder, counting(30), {20, 10});
    write_shards(folder, counting(5), {5}, "val");
    tokenizer = load_tokenizer("bytes:chat");
    folder.write("tokenizer.json", tokenizer->serialized());
    manifest.name = "fineweb";
    manifest.kind = DataKind::chat;
    manifest.tokenizer = ManifestTokenizer::of(*tokenizer);
    manifest.train = {3, 30, 100, {entry("fineweb_train_000000.bin"), entry("fineweb_train_000001.bin")}};
    manifest.val = {1, 5, 10, {entry("fineweb_val_000000.bin")}};
    save();
  }
  ManifestShard entry(const std::string& name) const {
    const ShardReader shard(folder / name);
    return {name, shard.tokens(), shard.digest().hex()};
  }
  void save() const { folder.write("manifest.json", manifest.text()); }

  TempFolder folder;
  std::unique_ptr<Tokenizer> tokenizer;
  Manifest manifest;
};

TEST(DataFolder, OpensABuiltDataSet) {
  const BuiltFolder built;
  EXPECT_TRUE(is_data_folder(built.folder.path()));
  const DataFolder folder = open_data_folder(built.folder.path());
  EXPECT_EQ(folder.manifest, built.manifest);
  EXPECT_EQ(folder.kind(), DataKind::chat);
  EXPECT_EQ(open_split(folder, DataSplit::train, {}).size(), 30u);
  EXPECT_EQ(open_split(folder, DataSplit::val, {}).size(), 5u);
  const auto tokenizer = load_tokenizer_of(folder);
  EXPECT_EQ(tokenizer->digest(), built.tokenizer->digest());
  EXPECT_EQ(tokenizer->special().bos, 0);
}

TEST(DataFolder, DifferentTokenizerIsRefused) {
  const BuiltFolder built;
  const DataFolder folder = open_data_folder(built.folder.path());
  EXPECT_NO_THROW(check_tokenizer(folder, *built.tokenizer));
  expect_error("made with another tokenizer", [&] { check_tokenizer(folder, *load_tokenizer("bytes")); });
  built.folder.write("tokenizer.json", load_tokenizer("bytes")->serialized());
  expect_error("made with another tokenizer", [&] { load_tokenizer_of(folder); });
}

TEST(DataFolder, ListedShardsMustExistAndMatch) {
  BuiltFolder built;
  built.manifest.train.shards[1].tokens = 11;
  built.manifest.train.tokens = 31;
  built.save();
  const DataFolder folder = open_data_folder(built.folder.path());
  expect_error("has 10 tokens, but the manifest lists 11", [&] { open_split(folder, DataSplit::train, {}); });
  std::filesystem::remove(built.folder / "fineweb_val_000000.bin");
  expect_error("fineweb_val_000000.bin is listed in the manifest but missing",
               [&] { open_data_folder(built.folder.path()); });
}

TEST(DataFolder, VerifyDetectsAFlippedBit) {
  const BuiltFolder built;
  const DataFolder folder = open_data_folder(built.folder.path());
  const auto verify = [&] {
    verify_shards(folder, std::vector{DataSplit::train, DataSplit::val}, ProgressOutput::nowhere());
  };
  EXPECT_NO_THROW(verify());
  std::string bytes = built.folder.read("fineweb_train_000001.bin");
  bytes.back() ^= 1;
  built.folder.write("fineweb_train_000001.bin", bytes);
  expect_error("fineweb_train_000001.bin was modified", verify);
  // A small split is verified when it is opened.
  expect_error("was modified", [&] { open_split(folder, DataSplit::train, {}); });
  EXPECT_NO_THROW(open_split(folder, DataSplit::val, {}));
}

// The published layout: data/datasets/NAME with data/manifest.json.
class PublishedFolder : public testing::Test {
 protected:
  PublishedFolder() {
    std::filesystem::create_directories(path());
    for (const int i : {2, 9, 0, 7, 4, 1, 8, 3, 6, 5}) copy_shard(i);
  }
  std::filesystem::path path() const { return folder_ / "data/datasets/fineweb10B_sp1024"; }
  void copy_shard(int index) {
    PosixFileOps ops;
    ShardWriter writer(1024);
    writer.add(counting(10, 10 * index + 1));
    writer.write(ops, path() / shard_name("fineweb", "train", static_cast<std::uint64_t>(index)),
                 Existing::replace);
  }
  void write_manifest(std::string_view files_train) {
    folder_.write(
        "data/manifest.json",
        fmt::format(R"({{"version": 9, "datasets": [{{"name": "other"}}, {{"name": "fineweb10B_sp1024",
                      "tokenizer_name": "sp_bpe_1024", "stats": {{"files_train": {}}}}}],
                      "tokenizers": [{{"name": "sp_bpe_1024", "model_path": "tokenizers/fineweb_1024_bpe.model"}}]}})",
                    files_train));
  }

  TempFolder folder_;
};

TEST_F(PublishedFolder, NeedsNoManifest) {
  EXPECT_TRUE(is_data_folder(path()));
  const DataFolder folder = open_data_folder(path());
  EXPECT_EQ(folder.name, "fineweb");
  EXPECT_FALSE(folder.manifest.has_value());
  EXPECT_NO_THROW(check_tokenizer(folder, *load_tokenizer("bytes")));
  const TokenSet set = open_split(folder, DataSplit::train, {.bos = 1});
  std::vector<std::int32_t> tokens(100);
  set.copy(0, tokens);
  EXPECT_EQ(tokens, counting(100)) << "sorted by name";
  expect_error("No files found for pattern: " + (path() / "fineweb_val_*.bin").string(),
               [&] { open_split(folder, DataSplit::val, {}); });
  expect_error("does not contain a tokenizer", [&] { load_tokenizer_of(folder); });
}

TEST_F(PublishedFolder, ReadsTheManifestTwoLevelsUp) {
  write_manifest("80");  // fewer shards than listed are allowed
  const DataFolder folder = open_data_folder(path());
  EXPECT_EQ(folder.name, "fineweb10B_sp1024");
  EXPECT_EQ(folder.published_tokenizer, "fineweb_1024_bpe.model");
  const auto tokenizer = load_tokenizer("bytes");
  EXPECT_NO_THROW(check_tokenizer(folder, *tokenizer, "x/fineweb_1024_bpe.model"));
  expect_error("fineweb10B_sp1024 expects tokenizer fineweb_1024_bpe.model, got fineweb_8192_bpe.model",
               [&] { check_tokenizer(folder, *tokenizer, "x/fineweb_8192_bpe.model"); });
  write_manifest("9");
  expect_error("more train shards than expected: found 10", [&] { open_data_folder(path()); });
  folder_.write("data/manifest.json", R"({"datasets": 7})");
  EXPECT_EQ(open_data_folder(path()).published_tokenizer, "");
  folder_.write("data/manifest.json", "{");
  EXPECT_THROW(open_data_folder(path()), Error);
}

TEST(DataFolder, FoldersWithoutShardsAreRefused) {
  TempFolder folder;
  EXPECT_FALSE(is_data_folder(folder.path()));
  EXPECT_FALSE(is_data_folder(folder.write("a_train_b.txt", "text")));
  EXPECT_FALSE(is_data_folder(folder.path()));
  expect_error("No files found", [&] { open_data_folder(folder.path()); });
  folder.write("a_train_0.bin", "");
  folder.write("b_train_0.bin", "");
  expect_error("several data sets: a and b", [&] { open_data_folder(folder.path()); });
}

}  // namespace
}  // namespace thimble
