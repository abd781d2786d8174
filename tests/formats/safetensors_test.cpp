#include "formats/safetensors.h"

#include <cerrno>
#include <cmath>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "formats/safetensors_bytes.h"
#include "support/temp_folder.h"

namespace thimble::safetensors_test {
namespace {

using Strings = std::vector<std::string>;

Strings names_of(const SafetensorsFile& file) {
  Strings names;
  for (const auto& entry : file.entries()) names.push_back(entry.name);
  return names;
}

std::vector<float> floats_of(const SafetensorsFile& file, std::string_view tensor) {
  std::vector<float> values(static_cast<std::size_t>(file.at(tensor).count()));
  file.read_f32(tensor, values);
  return values;
}

std::vector<std::int64_t> integers_of(const SafetensorsFile& file, std::string_view tensor) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(file.at(tensor).count()));
  file.read_i64(tensor, values);
  return values;
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

// A tensor of every dtype, ranks 0 to 3, an empty tensor, and metadata.
class Everything {
 public:
  Everything() {
    writer.set_metadata("config", "dim = 64\n\"heads\" = 8");
    writer.set_metadata("", "an empty key");
    writer.set_metadata("a", "");
    writer.add("u8", DType::u8, {5}, bytes_of(u8));
    writer.add("f32", DType::f32, {2, 3}, bytes_of(f32));
    writer.add("half/f16", DType::f16, {1, 2, 2}, bytes_of(f16s));
    writer.add("half/bf16", DType::bf16, {3}, bytes_of(bf16s));
    writer.add("i32", DType::i32, {2}, bytes_of(i32));
    writer.add("i64", DType::i64, {}, bytes_of(i64));
    writer.add("i8", DType::i8, {2, 1}, bytes_of(i8));
    writer.add("empty", DType::f32, {4, 0, 2}, bytes_of(std::string_view()));
  }

  SafetensorsWriter writer;
  const std::vector<std::uint8_t> u8 = {0, 1, 127, 128, 255};
  const std::vector<float> f32 = {0.0f, -1.5f, 3e38f, 1e-40f, -0.0f, std::numeric_limits<float>::infinity()};
  const std::vector<f16> f16s = {to_f16(1.0f), to_f16(-2.5f), to_f16(65504.0f), to_f16(6e-8f)};
  const std::vector<bf16> bf16s = {to_bf16(1.0f), to_bf16(-3e38f), to_bf16(0.0f)};
  const std::vector<std::int32_t> i32 = {std::numeric_limits<std::int32_t>::min(), 7};
  const std::vector<std::int64_t> i64 = {std::numeric_limits<std::int64_t>::max()};
  const std::vector<std::int8_t> i8 = {-128, 127};
};

class RoundTrip : public testing::TestWithParam<WithDigest> {};

TEST_P(RoundTrip, KeepsNamesShapesDtypesAndOrder) {
  const Everything all;
  const std::string bytes = written(all.writer, GetParam());
  const SafetensorsFile file = view_of(bytes);
  Strings names = {"u8", "f32", "half/f16", "half/bf16", "i32", "i64", "i8", "empty"};
  if (GetParam() == WithDigest::yes) names.push_back("thimble.digest");
  EXPECT_EQ(names_of(file), names);
  EXPECT_EQ(file.at("u8").dims, (std::vector<std::int64_t>{5}));
  EXPECT_EQ(file.at("f32").dims, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(file.at("half/f16").dims, (std::vector<std::int64_t>{1, 2, 2}));
  EXPECT_EQ(file.at("i64").dims, (std::vector<std::int64_t>{}));
  EXPECT_EQ(file.at("i64").count(), 1);
  EXPECT_EQ(file.at("empty").dims, (std::vector<std::int64_t>{4, 0, 2}));
  EXPECT_EQ(file.at("empty").count(), 0);
  const std::vector<DType> dtypes = {DType::u8,  DType::f32, DType::f16, DType::bf16,
                                     DType::i32, DType::i64, DType::i8,  DType::f32};
  for (std::size_t i = 0; i < dtypes.size(); ++i) EXPECT_EQ(file.dtype(names[i]), dtypes[i]) << names[i];
}

TEST_P(RoundTrip, KeepsEveryValue) {
  const Everything all;
  const std::string bytes = written(all.writer, GetParam());
  const SafetensorsFile file = view_of(bytes);
  EXPECT_EQ(floats_of(file, "f32"), all.f32);
  EXPECT_EQ(floats_of(file, "half/f16"), (std::vector<float>{1.0f, -2.5f, 65504.0f, to_f32(to_f16(6e-8f))}));
  EXPECT_EQ(floats_of(file, "half/bf16"), (std::vector<float>{1.0f, to_f32(to_bf16(-3e38f)), 0.0f}));
  EXPECT_EQ(integers_of(file, "u8"), (std::vector<std::int64_t>{0, 1, 127, 128, 255}));
  EXPECT_EQ(integers_of(file, "i8"), (std::vector<std::int64_t>{-128, 127}));
  EXPECT_EQ(integers_of(file, "i32"), (std::vector<std::int64_t>{-2147483648LL, 7}));
  EXPECT_EQ(integers_of(file, "i64"), all.i64);
  EXPECT_EQ(floats_of(file, "empty"), std::vector<float>());
  EXPECT_EQ(file.bytes("empty").size(), 0u);
  EXPECT_TRUE(std::signbit(floats_of(file, "f32")[4])) << "the sign of minus zero is kept";
}

TEST_P(RoundTrip, KeepsMetadataInOrder) {
  const Everything all;
  const std::string bytes = written(all.writer, GetParam());
  const SafetensorsFile file = view_of(bytes);
  EXPECT_EQ(file.metadata(), (SafetensorsFile::Metadata{
                                 {"config", "dim = 64\n\"heads\" = 8"}, {"", "an empty key"}, {"a", ""}}));
  EXPECT_EQ(*file.find_metadata("a"), "");
  EXPECT_EQ(file.find_metadata("b"), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Safetensors, RoundTrip, testing::Values(WithDigest::no, WithDigest::yes),
                         [](const auto& info) {
                           return info.param == WithDigest::yes ? "WithDigest" : "WithoutDigest";
                         });

TEST(Safetensors, UnusualNamesRoundTrip) {
  using namespace std::string_literals;
  const Strings names = {"",        " ", "a\"b\\c", "tab\tnewline\n", "nul\0byte"s,    "\x7F",
                         "ключ/层", "😀", "é",       "{}[],:",         "__metadata__ ", "data_offsets"};
  SafetensorsWriter writer;
  for (const std::string& name : names) writer.add(name, DType::u8, {1}, bytes_of("x"));
  const std::string bytes = written(writer, WithDigest::yes);
  const SafetensorsFile file = view_of(bytes);
  for (const std::string& name : names) EXPECT_TRUE(file.find(name)) << name;
  EXPECT_EQ(file.entries().size(), names.size() + 1);
  verify_digest(file);
}

TEST(Safetensors, EmptyFileIsValid) {
  const std::string bytes = written(SafetensorsWriter(), WithDigest::no);
  EXPECT_EQ(bytes.size(), 64u);
  EXPECT_TRUE(view_of(bytes).entries().empty());
  EXPECT_TRUE(view_of(bytes).metadata().empty());
  EXPECT_TRUE(view_of(raw_safetensors("{}", "")).entries().empty());
}

TEST(Safetensors, WritesExactlyTheseBytes) {
  SafetensorsWriter writer;
  writer.set_metadata("format", "pt");
  writer.add("b", DType::u8, {3}, bytes_of("xyz"));
  writer.add("a", DType::i32, {1, 2}, bytes_of("12345678"));
  std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},)"
      R"("a":{"dtype":"I32","shape":[1,2],"data_offsets":[0,8]}})";
  ASSERT_LE(header.size(), 184u);
  header.resize(184, ' ');
  EXPECT_EQ(written(writer, WithDigest::no), raw_safetensors(header, "12345678xyz"));
}

TEST(Safetensors, TheSameCallsGiveTheSameBytes) {
  EXPECT_EQ(written(Everything().writer, WithDigest::yes), written(Everything().writer, WithDigest::yes));
  const Everything all;
  EXPECT_EQ(written(all.writer, WithDigest::yes), written(all.writer, WithDigest::yes))
      << "a writer can be reused";
}

TEST(Safetensors, TensorsAreAlignedWithoutPadding) {
  SafetensorsWriter writer;
  const std::string zeros(4096, '\0');
  const auto add = [&](std::string name, DType dtype, std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count * dtype_bytes(dtype));
    writer.add(std::move(name), dtype, {count}, bytes_of(std::string_view(zeros).substr(0, bytes)));
  };
  add("text", DType::u8, 17);
  add("scalar", DType::f32, 1);
  add("matrix", DType::f32, 64);
  add("odd halves", DType::bf16, 3);
  add("wide", DType::i64, 3);
  add("another matrix", DType::bf16, 96);
  add("nothing", DType::f32, 0);
  add("bytes", DType::i8, 48);
  const std::string bytes = written(writer, WithDigest::yes);
  const SafetensorsFile file = view_of(bytes);
  const std::uint64_t data_at = bytes.size() - file.entries().back().end;
  EXPECT_EQ(data_at % 64, 0u);
  for (const auto& entry : file.entries()) {
    if (entry.bytes() % 64 == 0) {
      EXPECT_EQ(entry.begin % 64, 0u) << entry.name;
    }
    EXPECT_EQ(entry.begin % static_cast<std::uint64_t>(dtype_bytes(file.dtype(entry.name))), 0u)
        << entry.name;
  }
  EXPECT_LT(file.at("matrix").begin, file.at("another matrix").begin)
      << "tensors of one class keep their order";
  EXPECT_EQ(file.at("thimble.digest").end, bytes.size() - data_at) << "the digest is last";
}

TEST(Safetensors, SourceMayProduceItsBytesInPieces) {
  SafetensorsWriter whole, pieces;
  whole.add("t", DType::u8, {6}, bytes_of("abcdef"));
  pieces.add("t", DType::u8, {6}, [](const SafetensorsWriter::Sink& sink) {
    sink(bytes_of("ab"));
    sink(bytes_of(""));
    sink(bytes_of("cdef"));
  });
  EXPECT_EQ(written(pieces, WithDigest::yes), written(whole, WithDigest::yes));
}

TEST(Safetensors, WriterRejectsInvalidTensorsAndMetadata) {
  SafetensorsWriter writer;
  const auto add = [&](std::string name, DType dtype, std::vector<std::int64_t> dims) {
    return error_of([&] { writer.add(name, dtype, dims, bytes_of("1234")); });
  };
  EXPECT_EQ(add("t", DType::f32, {2}), "tensor \"t\": F32 of shape [2] needs 8 bytes, found 4");
  EXPECT_EQ(add("t", DType::f64, {}),
            "tensor \"t\": expected one of f32, f16, bf16, i32, i64, u8, i8, found f64");
  EXPECT_EQ(add("t", DType::u8, {-4}), "tensor \"t\": invalid shape [-4]");
  EXPECT_EQ(add("t", DType::u8, {1LL << 40, 1LL << 40}),
            "tensor \"t\": invalid shape [1099511627776, 1099511627776]");
  EXPECT_EQ(add("__metadata__", DType::f32, {1}),
            "tensor \"__metadata__\": the name is reserved by the format");
  EXPECT_EQ(add("thimble.digest", DType::f32, {1}),
            "tensor \"thimble.digest\": the name is reserved by the format");
  EXPECT_EQ(add("\xFF", DType::f32, {1}), "tensor \"\xEF\xBF\xBD\": expected valid UTF-8");
  EXPECT_EQ(add("t", DType::f32, {1}), "(no error)") << "a rejected tensor is not added";
  EXPECT_EQ(add("t", DType::f32, {1}), "tensor \"t\": already added");
  EXPECT_EQ(error_of([&] { writer.set_metadata("k", "\xC3"); }),
            "the value of metadata \"\xEF\xBF\xBD\": expected valid UTF-8");
  writer.set_metadata("k", "1");
  EXPECT_EQ(error_of([&] { writer.set_metadata("k", "2"); }), "metadata \"k\": already set");
}

TEST(Safetensors, SourceOfTheWrongSizeLeavesNoFile) {
  for (const std::string_view given : {"", "abc", "abcdef"}) {
    SafetensorsWriter writer;
    writer.add("t", DType::u8, {4}, [&](const SafetensorsWriter::Sink& sink) { sink(bytes_of(given)); });
    SimulatedDisk disk;
    disk.put_folder("/d");
    const std::string error =
        error_of([&] { writer.write(disk, "/d/file", Existing::refuse, WithDigest::no); });
    EXPECT_TRUE(error.starts_with("/d/file: tensor \"t\": expected 4 bytes, the source produced ")) << error;
    EXPECT_TRUE(disk.files().empty());
    EXPECT_EQ(disk.open_handles(), 0u);
  }
}

TEST(Safetensors, EndlessSourceIsStoppedAtTheTensorsSize) {
  SafetensorsWriter writer;
  int pieces = 0;
  writer.add("t", DType::u8, {4}, [&](const SafetensorsWriter::Sink& sink) {
    while (pieces < 1000) {
      ++pieces;
      sink(bytes_of("abc"));
    }
  });
  EXPECT_THROW(written(writer, WithDigest::no), Error);
  EXPECT_EQ(pieces, 2) << "the second piece is one byte too many and is not written";
}

TEST(Safetensors, AFailedWriteLeavesTheOldOrTheNewFile) {
  const Everything all;
  SimulatedDisk whole;
  whole.put_folder("/d");
  all.writer.write(whole, "/d/file", Existing::replace, WithDigest::yes);
  const int operations = static_cast<int>(whole.log().size());
  ASSERT_GT(operations, 10);
  int failures = 0;
  for (int i = 1; i <= operations; ++i) {
    SimulatedDisk disk;
    disk.put_folder("/d");
    disk.put("/d/file", "old");
    disk.fail_at(i, ENOSPC);
    try {
      all.writer.write(disk, "/d/file", Existing::replace, WithDigest::yes);
    } catch (const FileError& error) {
      ++failures;
      EXPECT_EQ(disk.files().size(), 1u) << whole.log()[static_cast<std::size_t>(i - 1)];
      const auto content = disk.content("/d/file");  // the flush after the rename can fail, too
      EXPECT_TRUE(content == "old" || content == whole.content("/d/file")) << i;
    }
    EXPECT_EQ(disk.open_handles(), 0u);
  }
  EXPECT_GE(failures, operations - 4) << "only stat, lock and close may fail without an error";
}

TEST(Safetensors, ExistingFileIsNotReplacedWithoutRequest) {
  const TempFolder folder;
  const auto path = folder.write("model.safetensors", "mine");
  PosixFileOps ops;
  const auto error =
      error_of([&] { Everything().writer.write(ops, path, Existing::refuse, WithDigest::no); });
  EXPECT_EQ(error, path.string() + " already exists");
  EXPECT_EQ(folder.read("model.safetensors"), "mine");
}

TEST(Safetensors, DiskAndMemoryGiveTheSameFile) {
  const TempFolder folder;
  const auto path = folder / "model.safetensors";
  PosixFileOps ops;
  const Everything all;
  all.writer.write(ops, path, Existing::refuse, WithDigest::yes);
  EXPECT_EQ(folder.read("model.safetensors"), written(all.writer, WithDigest::yes));
  SafetensorsFile opened = SafetensorsFile::open(path);
  const SafetensorsFile file = std::move(opened);  // the memory moves with it
  EXPECT_EQ(file.name(), path.string());
  EXPECT_EQ(floats_of(file, "f32"), all.f32);
  EXPECT_EQ(integers_of(file, "i64"), all.i64);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.bytes("empty").data()) % 64, 0u);
  verify_digest(file);
  // A file with a header and no data.
  folder.write("empty.safetensors", written(SafetensorsWriter(), WithDigest::no));
  EXPECT_TRUE(SafetensorsFile::open(folder / "empty.safetensors").entries().empty());
}

TEST(Safetensors, UnsupportedDtypesAreListedButNotRead) {
  const std::string bytes = raw_safetensors(R"({"d":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                                            R"("n":{"dtype":"F4","shape":[2],"data_offsets":[8,9]},)"
                                            R"("w":{"dtype":"I32","shape":[1],"data_offsets":[9,13]}})",
                                            std::string(13, 'x'));
  const SafetensorsFile file = view_of(bytes);
  EXPECT_EQ(file.at("d").dtype, "F64");
  EXPECT_EQ(file.bytes("d").size(), 8u);
  EXPECT_EQ(file.at("n").dtype, "F4");
  EXPECT_EQ(error_of([&] { file.dtype("d"); }),
            "test.safetensors: tensor \"d\": expected one of F32, F16, BF16, I32, I64, U8, I8, found F64");
  EXPECT_EQ(error_of([&] { floats_of(file, "d"); }), error_of([&] { file.dtype("d"); }));
  EXPECT_EQ(error_of([&] { floats_of(file, "w"); }),
            "test.safetensors: tensor \"w\": expected F32, F16 or BF16, found I32");
}

TEST(Safetensors, MissingTensorsAndWrongTypesAreErrors) {
  const Everything all;
  const std::string bytes = written(all.writer, WithDigest::no);
  const SafetensorsFile file = view_of(bytes);
  EXPECT_EQ(file.find("F32"), nullptr);
  EXPECT_EQ(error_of([&] { file.at("F32"); }),
            "test.safetensors: expected a tensor \"F32\", not found among 8 tensors");
  std::vector<float> few(5);
  EXPECT_EQ(error_of([&] { file.read_f32("f32", few); }),
            "test.safetensors: tensor \"f32\": expected 5 values, found 6 of shape [2, 3]");
  EXPECT_EQ(error_of([&] { integers_of(file, "f32"); }),
            "test.safetensors: tensor \"f32\": expected I64, I32, I8 or U8, found F32");
}

// Peak memory of this process since the last reset; 0 if the system does not report it.
std::size_t peak_bytes(bool reset) {
  if (reset) std::ofstream("/proc/self/clear_refs") << "5";
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (std::size_t kilobytes; word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  return 0;
}

TEST(Safetensors, OpeningNeedsTheMemoryOfOneFile) {
  constexpr std::size_t kPieces = 64, kPieceBytes = 1 << 20;
  const TempFolder folder;
  const auto path = folder / "big.safetensors";
  SafetensorsWriter writer;
  writer.add("t", DType::u8, {kPieces, kPieceBytes}, [&](const SafetensorsWriter::Sink& sink) {
    const std::vector<std::byte> piece(kPieceBytes, std::byte{7});
    for (std::size_t i = 0; i < kPieces; ++i) sink(piece);
  });
  PosixFileOps ops;
  const std::size_t start = peak_bytes(true);
  if (start == 0) GTEST_SKIP() << "this system does not report the peak memory of a process";
  writer.write(ops, path, Existing::refuse, WithDigest::yes);
  EXPECT_LT(peak_bytes(false) - start, 8 * kPieceBytes) << "writing needs no copy of the tensor";
  const SafetensorsFile file = SafetensorsFile::open(path);
  const std::size_t used = peak_bytes(false) - start;
  EXPECT_GT(used, kPieces * kPieceBytes * 9 / 10);
  EXPECT_LT(used, kPieces * kPieceBytes * 5 / 4);
  verify_digest(file);
}

TEST(Safetensors, AFolderAndAMissingFileAreErrors) {
  const TempFolder folder;
  EXPECT_THROW(SafetensorsFile::open(folder.path()), Error);
  EXPECT_THROW(SafetensorsFile::open(folder / "none.safetensors"), Error);
}

}  // namespace
}  // namespace thimble::safetensors_test
