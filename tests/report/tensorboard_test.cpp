#include "report/tensorboard.h"

#include <cstring>

#include "report/run_files.h"

namespace thimble {
namespace {

// RFC 3720, appendix B.4.
TEST(Crc32c, MatchesThePublishedValues) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  std::string up, down;
  for (int i = 0; i < 32; ++i) up += static_cast<char>(i), down += static_cast<char>(31 - i);
  EXPECT_EQ(crc32c(up), 0x46DD794Eu);
  EXPECT_EQ(crc32c(down), 0x113FDB5Cu);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(EventRecord, ContainsLengthAndMaskedChecksums) {
  const std::string record = event_record("abc");
  ASSERT_EQ(record.size(), 8 + 4 + 3 + 4u);
  EXPECT_EQ(record.substr(0, 8), std::string("\x03\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 3), "abc");
  const std::uint32_t crc = crc32c("abc"), masked = (crc >> 15 | crc << 17) + 0xA282EAD8u;
  std::uint32_t stored = 0;
  std::memcpy(&stored, record.data() + 15, 4);
  EXPECT_EQ(stored, masked);
}

// Protobuf encoding: field 1 fixed64, 2 varint, 5 message {1: message {1: text, 2: float}}.
TEST(ScalarsEvent, MatchesTheProtobufEncoding) {
  using namespace std::string_literals;  // the literals contain zero bytes
  EXPECT_EQ(scalars_event(1.5, 300, {{"loss", 2.0}}),
            "\x09\0\0\0\0\0\0\xF8\x3F"
            "\x10\xAC\x02"
            "\x2A\x0D\x0A\x0B"
            "\x0A\x04loss"
            "\x15\0\0\0\x40"s);
  EXPECT_EQ(file_version_event(1.5),
            "\x09\0\0\0\0\0\0\xF8\x3F"
            "\x1A\x0D"
            "brain.Event:2"s);
}

std::vector<std::string> event_files(const TempFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    if (entry.path().filename().string().starts_with("events.out.tfevents."))
      names.push_back(entry.path().filename().string());
  return names;
}

TEST(TensorBoardWriter, CreatesItsFileWithTheFirstEvent) {
  const TempFolder folder;
  PosixFileOps ops;
  {
    TensorBoardWriter writer(ops, folder.path(), small_config({}).optimizer, [] { return 1000.0; });
    EXPECT_TRUE(event_files(folder).empty());
    StepReport report;
    report.step = 1;
    report.seconds = 0.5;
    writer.step(report);
  }
  ASSERT_EQ(event_files(folder).size(), 1u);
  const std::string content = folder.read(event_files(folder)[0]);
  EXPECT_TRUE(content.starts_with(event_record(file_version_event(1000))));
  for (const char* tag : {"loss", "lr", "grad_norm", "tokens_per_second"})
    EXPECT_NE(content.find(tag), std::string::npos) << tag;
}

}  // namespace
}  // namespace thimble
