// Writes the file that tests/interop/safetensors.test.js opens with another reader. Both contain
// the same values.
#include <cstdlib>
#include <limits>

#include "formats/safetensors_bytes.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

TEST(SafetensorsInterop, WritesAFileForOtherReaders) {
  const std::vector<float> f32 = {-2.5f, -1.5f, -0.5f, 0.5f, 1.5f, 2.5f};
  const std::vector<f16> f16s = {to_f16(1.5f)};
  const std::vector<std::int32_t> i32 = {std::numeric_limits<std::int32_t>::min(), 0,
                                         std::numeric_limits<std::int32_t>::max()};
  const std::vector<std::int64_t> i64 = {-9007199254740993};  // not representable as a double
  const std::vector<std::uint8_t> u8 = {0, 128, 255}, seven = {7};
  const std::vector<std::int8_t> i8 = {-128, 0, 127};
  SafetensorsWriter writer;
  writer.set_metadata("format", "pt");
  writer.set_metadata("note", "line 1\nline \"2\" é😀");
  writer.add("text", DType::u8, {5},
             bytes_of("hello"));  // an odd size first, so that the writer must reorder the data
  writer.add("f32 [2, 3]", DType::f32, {2, 3}, bytes_of(f32));
  writer.add("f16", DType::f16, {1}, bytes_of(f16s));
  writer.add("i32", DType::i32, {1, 3}, bytes_of(i32));
  writer.add("i64 scalar", DType::i64, {}, bytes_of(i64));
  writer.add("u8", DType::u8, {3}, bytes_of(u8));
  writer.add("i8", DType::i8, {3, 1}, bytes_of(i8));
  writer.add("empty", DType::f32, {0, 4}, bytes_of(""));
  writer.add("odd \"name\"\n", DType::u8, {1}, bytes_of(seven));

  const TempFolder temporary;
  const char* interop_folder = std::getenv("THIMBLE_INTEROP_FOLDER");
  const auto path =
      std::filesystem::path(interop_folder ? interop_folder : temporary.path()) / "interop.safetensors";
  PosixFileOps ops;
  writer.write(ops, path, Existing::refuse, WithDigest::yes);
  verify_digest(SafetensorsFile::open(path));
}

}  // namespace
}  // namespace thimble
