#include "data/shard.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "data/token_set.h"
#include "shard_files.h"
#include "support/golden.h"
#include "support/simulated_disk.h"

namespace thimble::shard_test {
namespace {

std::string header_bytes(std::initializer_list<std::int32_t> numbers) {
  std::vector<std::int32_t> header(numbers);
  header.resize(256);
  return {reinterpret_cast<const char*>(header.data()), kShardHeaderBytes};
}

std::string error_of(const std::filesystem::path& path) {
  try {
    ShardReader shard(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Shard, WritesThePublishedFormat) {
  TempFolder folder;
  PosixFileOps ops;
  ShardWriter writer(1024);
  writer.add(std::vector<std::int32_t>{1, 1023});
  writer.add(std::vector<std::int32_t>{258});
  EXPECT_EQ(writer.tokens(), 3u);
  const Digest digest = writer.write(ops, folder / "a.bin", Existing::refuse);
  const std::string expected = header_bytes({20240520, 1, 3}) + std::string("\x01\x00\xff\x03\x02\x01", 6);
  EXPECT_EQ(folder.read("a.bin"), expected);
  EXPECT_EQ(digest, digest_of(expected));
  EXPECT_EQ(writer.tokens(), 0u) << "the writer is empty after write()";
}

// A mapped file that shrinks would end the process with SIGBUS.
TEST(Shard, TruncationWhileItIsOpenIsAnError) {
  TempFolder folder;
  const auto file = write_shards(folder, counting(5000), {5000})[0];
  const ShardReader shard(file);
  EXPECT_EQ(shard.at(4999), 5000);
  std::filesystem::resize_file(file, kShardHeaderBytes + 2 * 4000);
  EXPECT_EQ(shard.at(3999), 4000);
  EXPECT_THROW(shard.at(4000), ShardError);
  std::vector<std::int32_t> all(5000);
  EXPECT_THROW(shard.copy(0, all), ShardError);
}

TEST(Shard, AreVerifiedInTheBackground) {
  TempFolder folder;
  const auto files = write_shards(folder, counting(30), {20, 10});
  std::vector<ShardVerification::Listed> listed;
  for (const auto& file : files) listed.push_back({file, ShardReader(file).digest().hex()});
  const auto verified = [&] {
    TokenSet set = TokenSet::open(files, {});
    auto verification = std::make_shared<ShardVerification>(listed);
    set.verify_with(verification);
    while (!verification->finished()) std::this_thread::yield();
    return set.at(0);
  };
  EXPECT_EQ(verified(), 1);
  std::string bytes = folder.read(files[1].filename().string());
  bytes.back() ^= 1;
  folder.write(files[1].filename().string(), bytes);
  EXPECT_THROW(verified(), ShardError);
}

TEST(Shard, LargeVocabulariesUseFourBytes) {
  TempFolder folder;
  PosixFileOps ops;
  EXPECT_EQ(shard_format_for(65536), ShardFormat::u16);
  ShardWriter writer(65537);
  writer.add(std::vector<std::int32_t>{65536, 7});
  writer.write(ops, folder / "a.bin", Existing::refuse);
  EXPECT_EQ(folder.read("a.bin"),
            header_bytes({20240801, 7, 2}) + std::string("\x00\x00\x01\x00\x07\x00\x00\x00", 8));
  const ShardReader shard(folder / "a.bin");
  EXPECT_EQ(shard.tokens(), 2u);
  EXPECT_EQ(shard.at(0), 65536);
  EXPECT_EQ(shard.at(1), 7);
}

TEST(Shard, PublishedFilesRoundTripByteForByte) {
  // The golden files were written by a Python script.
  for (const auto& file : golden_and_shared(
           {"shards/fineweb_train_000000.bin", "shards/fineweb_val_000000.bin", "shards/tales_gpt2.bin"},
           {"fixtures/shards/fineweb_train_000000.bin", "fixtures/shards/fineweb_val_000000.bin",
            "fixtures/shards/tiny_shakespeare_val.bin"})) {
    const std::string name = file.filename().string();
    const std::string bytes = read_file(file, 1 << 20);
    const ShardReader shard(file);
    ASSERT_EQ(bytes.size(), kShardHeaderBytes + 2 * shard.tokens()) << name;
    EXPECT_EQ(shard.digest(), digest_of(bytes));
    std::vector<std::int32_t> tokens(shard.tokens());
    shard.copy(0, tokens);

    TempFolder folder;
    PosixFileOps ops;
    ShardWriter writer(65536);
    writer.add(tokens);
    EXPECT_EQ(writer.write(ops, folder / name, Existing::refuse), shard.digest());
    EXPECT_EQ(folder.read(name), bytes) << name;
  }
}

TEST(Shard, CopiesRangesAndChecksBounds) {
  TempFolder folder;
  const auto tokens = counting(100);
  ShardReader shard(write_shards(folder, tokens, {100})[0]);
  std::vector<std::int32_t> part(10);
  shard.copy(90, part);
  EXPECT_EQ(part, counting(10, 91));
  EXPECT_THROW(shard.copy(91, part), Error);
  EXPECT_THROW(shard.copy(~std::uint64_t{0}, part), Error);
  EXPECT_THROW(shard.at(100), Error);
  ShardReader moved = std::move(shard);
  EXPECT_EQ(moved.at(99), 100);
}

TEST(Shard, ErrorsHaveTheTextOfTheGolfLoader) {
  TempFolder folder;
  const auto error = [&](const std::string& bytes) { return error_of(folder.write("a.bin", bytes)); };
  const std::string path = (folder / "a.bin").string();
  const auto contains = [&](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(error(""), "Unexpected shard header for " + path);
  contains(error(header_bytes({20240520, 1, 0}).substr(1)), "Unexpected shard header for " + path);
  contains(error(header_bytes({20240520, 2, 0})), "Unexpected shard header for " + path);
  contains(error(header_bytes({20240801, 1, 0})), "Unexpected shard header for " + path);
  contains(error(header_bytes({20240520, 1, -1})), "Unexpected shard header for " + path);
  contains(error(header_bytes({20240520, 1, 2}) + "abc"),
           "Shard size mismatch for " + path + ": expected 1028 bytes, found 1027");
  contains(error(header_bytes({20240520, 1, 2}) + "abcde"), "Shard size mismatch for " + path);
  contains(error(header_bytes({20240801, 7, 1}) + "ab"), "Shard size mismatch for " + path);
  contains(error(header_bytes({20240520, 1, 0x7FFFFFFF})), "Shard size mismatch for " + path);
  EXPECT_EQ(error(header_bytes({20240520, 1, 0})), "no error");
  EXPECT_THROW(ShardReader(folder / "absent.bin"), Error);
  EXPECT_THROW(ShardReader(folder.path()), Error);
}

TEST(Shard, TokensOutsideOfTheVocabularyAreRefused) {
  ShardWriter writer(100);
  EXPECT_THROW(writer.add(std::vector<std::int32_t>{100}), Error);
  EXPECT_THROW(writer.add(std::vector<std::int32_t>{-1}), Error);
}

TEST(Shard, FailedWriteLeavesNoFile) {
  SimulatedDisk disk;
  disk.put_folder("/data");
  ShardWriter writer(100);
  writer.add(std::vector<std::int32_t>{1, 2, 3});
  disk.fail_from(3, ENOSPC);
  EXPECT_THROW(writer.write(disk, "/data/a.bin", Existing::refuse), Error);
  EXPECT_EQ(disk.content("/data/a.bin"), std::nullopt);
}

TEST(Shard, FileNamesFollowThePublishedPattern) {
  EXPECT_EQ(shard_name("fineweb", "train", 12), "fineweb_train_000012.bin");
}

}  // namespace
}  // namespace thimble::shard_test
