#include "base/mapped_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <string>

#include "support/message_of.h"
#include "support/temp_folder.h"

namespace thimble::mapped_file_test {
namespace {

unsigned sum_of(const MappedFile& file) {
  return std::accumulate(file.bytes().begin(), file.bytes().end(), 0u,
                         [](unsigned sum, std::byte byte) { return sum + std::to_integer<unsigned>(byte); });
}

TEST(MappedFile, HasTheBytesOfTheFile) {
  const TempFolder folder;
  const auto file = MappedFile::open(folder.write("a", std::string(10000, '\1')));
  EXPECT_EQ(file->bytes().size(), 10000u);
  EXPECT_EQ(sum_of(*file), 10000u);
  EXPECT_NO_THROW(file->check_intact());
  EXPECT_TRUE(MappedFile::open(folder.write("empty", ""))->bytes().empty());
}

// Without the handler, this test would end with SIGBUS.
TEST(MappedFile, ATruncatedFileReadsAsZerosAndIsAnError) {
  const TempFolder folder;
  const auto path = folder.write("a", std::string(100000, '\1'));
  const auto file = MappedFile::open(path), other = MappedFile::open(folder.write("b", std::string(9, '\1')));
  std::filesystem::resize_file(path, 5000);
  EXPECT_EQ(sum_of(*file), 5000u);
  const std::string message = message_of([&] { file->check_intact(); });
  EXPECT_NE(message.find("was truncated while it was in use: it had 100000 bytes"), std::string::npos);
  EXPECT_NO_THROW(other->check_intact());
  std::filesystem::resize_file(path, 100000);
  EXPECT_THROW(file->check_intact(), std::exception) << "its bytes were replaced";
}

// Within the last page, the system reports nothing.
TEST(MappedFile, AFileThatLostItsLastByteIsAnError) {
  const TempFolder folder;
  const auto path = folder.write("a", std::string(100, '\1'));
  const auto file = MappedFile::open(path);
  std::filesystem::resize_file(path, 99);
  EXPECT_EQ(sum_of(*file), 99u);
  EXPECT_THROW(file->check_intact(), std::exception);
}

TEST(MappedFile, RefusesFoldersAndMissingFiles) {
  const TempFolder folder;
  EXPECT_NE(message_of([&] { MappedFile::open(folder.path()); }).find("is not a regular file"),
            std::string::npos);
  EXPECT_THROW(MappedFile::open(folder / "missing"), std::exception);
}

}  // namespace
}  // namespace thimble::mapped_file_test
