// Malformed files: each is rejected with a message that names the position.
#include <cstring>
#include <memory>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/gguf_bytes.h"

namespace thimble::gguf_corrupt_test {
namespace {

struct Corrupt {
  std::string name;
  std::string file;
  std::string error;
};

void PrintTo(const Corrupt& corrupt, std::ostream* out) {
  *out << corrupt.name;
}

// A file with one key "k", followed by `value`.
Corrupt key(std::string name, const GgufBytes& value, std::string error) {
  return {std::move(name),
          GgufBytes().head(0, 1).text("k").raw(value.bytes()).raw(std::string(64, '\0')).bytes(),
          "key \"k\": " + std::move(error)};
}

// A file with one tensor, then data.
Corrupt tensor(std::string name, const GgufBytes& info, std::size_t data_bytes, std::string error) {
  return {std::move(name),
          GgufBytes().head(1, 0).raw(info.bytes()).pad().raw(std::string(data_bytes, 'x')).bytes(),
          std::move(error)};
}

GgufBytes info(std::string_view tensor, std::vector<std::int64_t> dims, std::uint32_t type,
               std::uint64_t offset) {
  return GgufBytes().tensor(tensor, std::move(dims), type, offset);
}

GgufBytes array(std::uint32_t type, std::uint64_t count) {
  return GgufBytes().number(std::uint32_t{9}).number(type).number(count);
}

std::vector<Corrupt> heads() {
  const std::string magic = "expected the magic GGUF at the start, found ";
  return {
      {"EmptyFile", "", "expected 4 bytes for the magic GGUF, found 0"},
      {"ThreeBytes", "GGU", "expected 4 bytes for the magic GGUF, found 3"},
      {"OtherMagic", "GGML" + std::string(60, '\0'), magic + "\"GGML\""},
      {"LowerCase", "gguf" + std::string(60, '\0'), magic + "\"gguf\""},
      {"NoVersion", "GGUF", "expected 4 bytes for a version, found 0"},
      {"Version0", GgufBytes().head(0, 0, 0).bytes(), "big-endian files are not supported"},
      {"Version1", GgufBytes().head(0, 0, 1).bytes(), "expected format version 2 or 3, found 1"},
      {"Version4", GgufBytes().head(0, 0, 4).bytes(), "expected format version 2 or 3, found 4"},
      {"BigEndian", GgufBytes().head(0, 0, 0x03000000).bytes(), "big-endian files are not supported"},
      {"NoCounts", GgufBytes().raw("GGUF").number(std::uint32_t{3}).bytes(),
       "expected 8 bytes for tensors, found 0"},
      {"OneCount", GgufBytes().raw("GGUF").number(std::uint32_t{3}).number(std::uint64_t{0}).bytes(),
       "expected 8 bytes for keys, found 0"},
      {"MoreTensorsThanBytes", GgufBytes().head(1, 0).bytes(), "expected room for 1 tensors, found 8 bytes"},
      {"TensorsOf2To63", GgufBytes().head(std::uint64_t{1} << 63, 0).bytes(),
       "expected room for 9223372036854775808 tensors, found 8 bytes"},
      {"NegativeTensors", GgufBytes().head(~std::uint64_t{0}, 0).bytes(),
       "expected room for 18446744073709551615 tensors, found 8 bytes"},
      {"MoreKeysThanBytes", GgufBytes().head(0, 1).bytes(), "expected room for 1 keys, found 0 bytes"},
      {"KeysOf2To62", GgufBytes().head(0, std::uint64_t{1} << 62).raw(std::string(99, 'x')).bytes(),
       "expected room for 4611686018427387904 keys, found 99 bytes"},
  };
}

std::vector<Corrupt> keys() {
  const auto whole = [](std::string name, const GgufBytes& rest, std::string error) {
    return Corrupt{std::move(name),
                   GgufBytes().head(0, 1).raw(rest.bytes()).raw(std::string(64, '\0')).bytes(),
                   std::move(error)};
  };
  const GgufBytes twice = GgufBytes().head(0, 2).key("k", 0).raw("\1").key("k", 0).raw("\1");
  return {
      whole("KeyWithoutAName", GgufBytes().text(""), "key 0: expected a key, found an empty one"),
      whole("KeyOf2To64Bytes", GgufBytes().number(~std::uint64_t{0}),
            "key 0: expected 18446744073709551615 bytes for a key, found 64"),
      whole("KeyThatIsNotUtf8", GgufBytes().text("\xFF\xFE"), "key 0: expected a key in UTF-8, found "),
      {"DuplicateKey", twice.bytes(), "key \"k\": duplicate key"},
      key("ValueOfType13", GgufBytes().number(std::uint32_t{13}),
          "expected a value of a type from 0 to 12, found 13"),
      key("ValueOfType2To32", GgufBytes().number(~std::uint32_t{0}),
          "expected a value of a type from 0 to 12, found 4294967295"),
      key("BoolOfTwo", GgufBytes().number(std::uint32_t{7}).raw("\2"), "expected a bool of 0 or 1, found 2"),
      key("StringBeyondTheFile", GgufBytes().number(std::uint32_t{8}).number(std::uint64_t{65}),
          "expected 65 bytes for a string, found 64"),
      key("StringOf2To63", GgufBytes().number(std::uint32_t{8}).number(std::uint64_t{1} << 63),
          "expected 9223372036854775808 bytes for a string, found 64"),
      key("ArrayOfArrays", array(9, 1), "arrays inside arrays are not supported"),
      key("ArrayOfType77", array(77, 1), "expected elements of a type from 0 to 12, found 77"),
      key("ArrayOf2To60Numbers", array(4, std::uint64_t{1} << 60),
          "expected room for 1152921504606846976 elements, found 64 bytes"),
      key("ArrayOf2To62Doubles", array(12, std::uint64_t{1} << 62),
          "expected room for 4611686018427387904 elements, found 64 bytes"),
      key("ArrayOf2To61Strings", array(8, std::uint64_t{1} << 61),
          "expected room for 2305843009213693952 elements, found 64 bytes"),
      key("ArrayOfBoolsOfThree", array(7, 1).raw("\3"), "expected a bool of 0 or 1, found 3"),
      key("ArrayWithTruncatedString", array(8, 1).number(std::uint64_t{100}),
          "expected 100 bytes for a string, found 64"),
      {"TruncatedValue", GgufBytes().head(0, 1).text("k").number(std::uint32_t{4}).raw("\1\1").bytes(),
       "key \"k\": expected 4 bytes for a number, found 2"},
  };
}

std::vector<Corrupt> alignments() {
  const auto aligned = [](std::string name, const GgufBytes& value, std::string error) {
    return Corrupt{
        std::move(name),
        GgufBytes().head(0, 1).text("general.alignment").raw(value.bytes()).raw(std::string(8, '\0')).bytes(),
        std::move(error)};
  };
  const auto u32 = [](std::uint32_t value) { return GgufBytes().number(std::uint32_t{4}).number(value); };
  const std::string power = "expected general.alignment to be a power of two up to 1048576, found ";
  return {
      aligned("AlignmentOf0", u32(0), power + "0"),
      aligned("AlignmentOf3", u32(3), power + "3"),
      aligned("AlignmentOf2To31", u32(1u << 31), power + "2147483648"),
      aligned("AlignmentAsString", GgufBytes().number(std::uint32_t{8}).text("32"),
              "expected general.alignment as u32, found another type"),
  };
}

std::vector<Corrupt> tensors() {
  const std::string big = "tensor \"w\": the dimensions multiply to more than 2^60 numbers";
  return {
      tensor("TensorWithoutAName", info("", {1}, 0, 0), 32,
             "tensor 0: expected a tensor's name, found an empty one"),
      tensor("TensorNameThatIsNotUtf8", info("\xC3", {1}, 0, 0), 32,
             "tensor 0: expected a tensor's name in UTF-8, found "),
      tensor("NameOf64Bytes", info(std::string(64, 'n'), {1}, 0, 0), 32,
             "tensor \"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn\": expected a name "
             "of at most "
             "63 bytes, found 64"),
      tensor("NoDimensions",
             GgufBytes().text("w").number(std::uint32_t{0}).number(std::uint64_t{0}).number(std::uint64_t{0}),
             32, "tensor \"w\": expected 1 to 4 dimensions, found 0"),
      tensor("FiveDimensions", info("w", {1, 1, 1, 1, 1}, 0, 0), 32,
             "tensor \"w\": expected 1 to 4 dimensions, found 5"),
      tensor("DimensionOf0", info("w", {0}, 0, 0), 32,
             "tensor \"w\": expected dimensions of at least 1, found 0"),
      tensor("NegativeDimension", info("w", {-4}, 0, 0), 32,
             "tensor \"w\": expected dimensions of at least 1, found -4"),
      tensor("DimensionOf2To62", info("w", {std::int64_t{1} << 62}, 0, 0), 32, big),
      tensor("DimensionsWhoseProductOverflows",
             info("w", {std::int64_t{1} << 32, std::int64_t{1} << 32}, 0, 0), 32, big),
      tensor("TypeIQ2S", info("w", {256}, 22, 0), 82,
             "tensor \"w\": expected " + gguf_types_text() + ", found IQ2_S"),
      tensor("RemovedType", info("w", {32}, 4, 0), 20,
             "tensor \"w\": expected " + gguf_types_text() + ", found type 4"),
      tensor("Type2To32", info("w", {32}, ~0u, 0), 20,
             "tensor \"w\": expected " + gguf_types_text() + ", found type 4294967295"),
      tensor("HalfABlock", info("w", {16, 2}, 8, 0), 34,
             "tensor \"w\": a row of 16 numbers is not a multiple of the block size of Q8_0"),
      tensor("HalfABlockOf256", info("w", {128, 2}, 14, 0), 210,
             "tensor \"w\": a row of 128 numbers is not a multiple of the block size of Q6_K"),
      tensor("BlockWithoutItsLastByte", info("w", {256}, 12, 0), 143,
             "tensor \"w\" needs 144 bytes of data, found 143"),
      {"DuplicateTensor",
       GgufBytes()
           .head(2, 0)
           .tensor("w", {1}, 0, 0)
           .tensor("w", {1}, 0, 32)
           .pad()
           .raw(std::string(36, 'x'))
           .bytes(),
       "tensor \"w\": duplicate tensor"},
      {"TruncatedTensor", GgufBytes().head(1, 0).text("w").raw(std::string(30, '\1')).bytes(),
       "tensor \"w\": expected 1 to 4 dimensions, found 16843009"},
  };
}

std::vector<Corrupt> layout() {
  const auto two = [](std::string name, std::uint64_t first, std::uint64_t second, std::size_t data,
                      std::string error) {
    return Corrupt{std::move(name),
                   GgufBytes()
                       .head(2, 0)
                       .tensor("v", {1}, 0, first)
                       .tensor("w", {1}, 0, second)
                       .pad()
                       .raw(std::string(data, 'x'))
                       .bytes(),
                   std::move(error)};
  };
  return {
      two("UnalignedOffset", 0, 4, 64,
          "tensor \"w\" begins at byte 4 of the data, which is not a multiple of 32"),
      two("Overlap", 0, 0, 64, "tensor \"w\" begins at byte 0 of the data, expected 32"),
      two("HoleAtTheStart", 32, 64, 128, "tensor \"v\" begins at byte 32 of the data, expected 0"),
      two("HoleBetween", 0, 64, 128, "tensor \"w\" begins at byte 64 of the data, expected 32"),
      two("OffsetOf2To63", 0, std::uint64_t{1} << 63, 64,
          "tensor \"w\" begins at byte 9223372036854775808 of the data, expected 32"),
      two("LastTensorIsTruncated", 0, 32, 35, "tensor \"w\" needs 36 bytes of data, found 35"),
      two("NoData", 0, 32, 0, "tensor \"v\" needs 4 bytes of data, found 0"),
      two("TrailingData", 0, 32, 65,
          "expected 36 bytes of data, found 65: the last bytes belong to no tensor"),
      tensor("TensorFarLargerThanTheFile", info("w", {std::int64_t{1} << 60}, 0, 0), 32,
             "tensor \"w\" needs 4611686018427387904 bytes of data, found 32"),
      {"DataWithoutTensors", GgufBytes().head(0, 0).pad().raw("x").bytes(),
       "expected 0 bytes of data, found 1: the last bytes belong to no tensor"},
  };
}

std::vector<Corrupt> all_corrupt() {
  std::vector<Corrupt> all;
  for (auto& cases : {heads(), keys(), alignments(), tensors(), layout()})
    all.insert(all.end(), cases.begin(), cases.end());
  return all;
}

std::string error_of(std::span<const std::byte> file) {
  try {
    GgufFile::view(file, "test.gguf");
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

class CorruptGguf : public testing::TestWithParam<Corrupt> {};

TEST_P(CorruptGguf, IsRejectedWithAMessage) {
  const std::string& file = GetParam().file;
  // Allocate exactly the file's size, so that AddressSanitizer detects any read beyond it.
  const auto exact = std::make_unique<std::byte[]>(file.size());
  std::memcpy(exact.get(), file.data(), file.size());
  const std::string error = error_of({exact.get(), file.size()}), expected = "test.gguf: " + GetParam().error;
  if (expected.ends_with("found "))  // followed by bytes that are not text
    EXPECT_TRUE(error.starts_with(expected)) << error;
  else
    EXPECT_EQ(error, expected);
}

INSTANTIATE_TEST_SUITE_P(Gguf, CorruptGguf, testing::ValuesIn(all_corrupt()),
                         [](const auto& info) { return info.param.name; });

TEST(CorruptGguf, HasAtLeastFortyCases) {
  EXPECT_GE(all_corrupt().size(), 40u);
}

std::string small_file() {
  const std::vector<float> values(64, 0.5f);
  GgufWriter writer;
  writer.set("general.architecture", std::string("llama"));
  writer.set("tokens", std::vector<std::string>{"a", "bc"});
  writer.set("eps", 1e-5f);
  writer.add("m", GgufType::q8_0, {2, 32}, values);
  writer.add("v", GgufType::f32, {3}, std::span(values).first(3));
  return writer.to_bytes();
}

TEST(CorruptGguf, TruncationBeforeTheLastNumberIsRejected) {
  const std::string file = small_file();
  const std::size_t padding = 32 - 12;  // after the last tensor; may be missing
  for (std::size_t bytes = 0; bytes < file.size() - padding; ++bytes) {
    const auto cut = std::make_unique<std::byte[]>(bytes);
    std::memcpy(cut.get(), file.data(), bytes);
    EXPECT_NE(error_of({cut.get(), bytes}), "(no error)") << "cut to " << bytes;
  }
  EXPECT_EQ(error_of(std::as_bytes(std::span(file).first(file.size() - padding))), "(no error)");
}

TEST(CorruptGguf, AnyFlippedBitIsRejectedOrReadInBounds) {
  std::string file = small_file();
  for (std::size_t bit = 0; bit < file.size() * 8; ++bit) {
    const auto flip = static_cast<char>(1u << (bit % 8));
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ flip);
    try {
      const GgufFile found = view_of_gguf(file);
      for (const GgufEntry& entry : found.entries()) {
        std::vector<float> values(static_cast<std::size_t>(entry.count()));
        found.read_f32(entry.name, values);
      }
    } catch (const Error&) {
    }
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ flip);
  }
}

}  // namespace
}  // namespace thimble::gguf_corrupt_test
