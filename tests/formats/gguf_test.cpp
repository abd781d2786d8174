// The GGUF container: the layout of written files, and reading them back.
#include "formats/gguf.h"

#include <numeric>

#include "formats/gguf_bytes.h"
#include "support/message_of.h"
#include "support/simulated_disk.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

std::vector<float> ramp(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), -3.0f);
  return values;
}

TEST(Gguf, WritesExactlyTheDocumentedLayout) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6}, one = {7};
  GgufWriter writer;
  writer.set("a", std::uint32_t{5});
  writer.set("b", std::vector<std::string>{"x", "yz"});
  writer.set("c", true);
  writer.add("m", GgufType::f32, {2, 3}, values);
  writer.add("v", GgufType::f16, {1}, one);
  GgufBytes expected;
  expected.head(2, 3);
  expected.key("a", 4).number(std::uint32_t{5});
  expected.key("b", 9).number(std::uint32_t{8}).number(std::uint64_t{2}).text("x").text("yz");
  expected.key("c", 7).raw("\1");
  expected.tensor("m", {3, 2}, 0, 0).tensor("v", {1}, 1, 32).pad();
  for (const float value : values) expected.number(value);
  expected.pad().number(std::uint16_t{0x4700}).pad();
  EXPECT_EQ(writer.to_bytes(), expected.bytes());
  EXPECT_EQ(writer.bytes(), expected.bytes().size());
}

GgufSettings every_value() {
  return {{"u8", std::uint8_t{200}},
          {"i8", std::int8_t{-3}},
          {"u16", std::uint16_t{60000}},
          {"i16", std::int16_t{-300}},
          {"u32", std::uint32_t{4000000000}},
          {"i32", std::int32_t{-70000}},
          {"f32", 0.1f},
          {"bool", true},
          {"string", std::string("h\xC3\xA9llo \0 you", 12)},
          {"u64", std::uint64_t{1} << 63},
          {"i64", std::int64_t{-1} << 60},
          {"f64", 0.1},
          {"u8s", std::vector<std::uint8_t>{1, 2}},
          {"i8s", std::vector<std::int8_t>{-1}},
          {"u16s", std::vector<std::uint16_t>{1}},
          {"i16s", std::vector<std::int16_t>{-1}},
          {"u32s", std::vector<std::uint32_t>{}},
          {"i32s", std::vector<std::int32_t>{1, -2, 3}},
          {"f32s", std::vector<float>{1.5f, -2}},
          {"bools", std::vector<bool>{true, false, true}},
          {"strings", std::vector<std::string>{"", "a", "\xE2\x96\x81the"}},
          {"u64s", std::vector<std::uint64_t>{7}},
          {"i64s", std::vector<std::int64_t>{-7}},
          {"f64s", std::vector<double>{1e300}}};
}

TEST(Gguf, EveryKindOfValueRoundTrips) {
  GgufWriter writer;
  for (const auto& [key, value] : every_value()) writer.set(key, value);
  const std::string bytes = writer.to_bytes();
  const GgufFile file = view_of_gguf(bytes);
  EXPECT_EQ(file.settings(), every_value());
  EXPECT_EQ(std::get<std::uint64_t>(*file.find_setting("u64")), std::uint64_t{1} << 63);
  EXPECT_EQ(file.find_setting("none"), nullptr);
}

TEST(Gguf, TensorsOfEveryTypeRoundTripThroughDisk) {
  const TempFolder folder;
  const std::vector<float> values = ramp(2 * 64);
  GgufWriter writer;
  for (const GgufType type : {GgufType::f32, GgufType::f16, GgufType::bf16, GgufType::q8_0, GgufType::q4_0})
    writer.add(std::string(info_of(type).name), type, {2, 64}, values);
  writer.add("odd", GgufType::bf16, {3}, std::span(values).first(3));
  writer.add("deep", GgufType::f32, {2, 2, 4, 8}, values);
  PosixFileOps ops;
  writer.write(ops, folder / "m.gguf", Existing::refuse);
  const GgufFile file = GgufFile::open(folder / "m.gguf");
  ASSERT_EQ(file.entries().size(), 7u);
  for (const GgufEntry& entry : file.entries()) {
    std::vector<float> found(static_cast<std::size_t>(entry.count())), again(found.size());
    file.read_f32(entry.name, found);
    std::vector<std::byte> bytes(entry.bytes);
    encode_gguf(entry.type, std::span(values).first(found.size()), bytes);
    decode_gguf(entry.type, bytes, again);
    EXPECT_EQ(found, again) << entry.name;
    EXPECT_EQ(entry.begin % kGgufAlignment, 0u);
  }
  EXPECT_EQ(file.at("deep").dims, (std::vector<std::int64_t>{2, 2, 4, 8}));
  EXPECT_EQ(message_of([&] { file.at("none"); }),
            (folder / "m.gguf").string() + ": expected a tensor \"none\", not found among 7 tensors");
}

TEST(Gguf, AlignmentOfTheFileIsUsed) {
  GgufBytes bytes;
  bytes.head(2, 1).key("general.alignment", 4).number(std::uint32_t{8});
  bytes.tensor("a", {1}, 0, 0).tensor("b", {1}, 0, 8).pad(8).number(1.0f).pad(8).number(2.0f);
  const GgufFile file = view_of_gguf(bytes.bytes());  // padding after the last tensor may be missing
  float value = 0;
  file.read_f32("b", std::span(&value, 1));
  EXPECT_EQ(value, 2);
}

TEST(Gguf, WriterRejectsInvalidFiles) {
  const std::vector<float> values = ramp(64);
  GgufWriter writer;
  writer.set("k", true);
  writer.add("m", GgufType::f32, {64}, values);
  EXPECT_EQ(message_of([&] { writer.set("k", false); }), "the key \"k\" is already set");
  EXPECT_EQ(message_of([&] { writer.set("", false); }), "the name of a GGUF key must not be empty");
  EXPECT_EQ(message_of([&] { writer.add("m", GgufType::f32, {64}, values); }), "tensor \"m\": already added");
  EXPECT_EQ(message_of([&] { writer.add("n", GgufType::f32, {65}, values); }),
            "tensor \"n\": shape [65] needs 65 numbers, found 64");
  EXPECT_EQ(message_of([&] {
              writer.add("n", GgufType::q8_0, {4, 16}, values);
            }),
            "tensor \"n\": a row of 16 numbers is not a multiple of the block size of Q8_0");
  EXPECT_EQ(message_of([&] {
              writer.add("n", GgufType::f32, {1, 1, 1, 1, 64}, values);
            }),
            "tensor \"n\": expected 1 to 4 dimensions, found 5");
  EXPECT_TRUE(message_of([&] {
                writer.add(std::string(64, 'n'), GgufType::f32, {64}, values);
              }).ends_with("expected a name of 1 to 63 bytes, found 64"));
}

TEST(Gguf, NumberTooLargeForF16NamesItsTensorAndLeavesNothing) {
  const std::vector<float> values = {1, 70000};
  GgufWriter writer;
  writer.add("big", GgufType::f16, {2}, values);
  SimulatedDisk disk;
  disk.put_folder("/d");
  EXPECT_EQ(message_of([&] { writer.write(disk, "/d/m.gguf", Existing::refuse); }),
            "tensor \"big\": 70000 is too large for f16");
  EXPECT_EQ(disk.content("/d/m.gguf"), std::nullopt);
}

TEST(Gguf, NeverOverwritesWithoutRequest) {
  const TempFolder folder;
  folder.write("m.gguf", "mine");
  PosixFileOps ops;
  const GgufWriter writer;
  EXPECT_NE(
      message_of([&] { writer.write(ops, folder / "m.gguf", Existing::refuse); }).find("already exists"),
      std::string::npos);
  EXPECT_EQ(folder.read("m.gguf"), "mine");
  writer.write(ops, folder / "m.gguf", Existing::replace);
  EXPECT_TRUE(folder.read("m.gguf").starts_with("GGUF"));
}

}  // namespace
}  // namespace thimble
