// Files with one defect each: every one gives an error that describes it.
#include <memory>

#include "base/error.h"
#include "formats/safetensors_bytes.h"
#include "support/temp_folder.h"

namespace thimble::safetensors_corrupt_test {
namespace {

struct Corrupt {
  std::string name;
  std::string file;
  std::string error;            // after "test.safetensors: "
  bool by_json_reader = false;  // the message comes from base/json.h; only this part is compared
};

void PrintTo(const Corrupt& corrupt, std::ostream* stream) {
  *stream << corrupt.name;
}

testing::AssertionResult matches(const std::string& message, const std::string& file,
                                 const Corrupt& corrupt) {
  const bool right = corrupt.by_json_reader ? message.starts_with(file + ": header:1:") &&
                                                  message.find(corrupt.error) != message.npos
                                            : message == file + ": " + corrupt.error;
  if (right) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "expected: " << corrupt.error << "\n  found:    " << message;
}

Corrupt header(std::string name, std::string_view header, std::size_t data_bytes, std::string error) {
  return {std::move(name), raw_safetensors(header, std::string(data_bytes, 'x')), std::move(error)};
}

// A file with one tensor "w" described by `fields`.
Corrupt tensor(std::string name, std::string_view fields, std::size_t data_bytes, std::string error) {
  return header(std::move(name), fmt::format(R"({{"w":{{{}}}}})", fields), data_bytes,
                "tensor \"w\": " + std::move(error));
}

// A header that is not JSON, or not in the expected form.
Corrupt json(std::string name, std::string_view header, std::string part) {
  return {std::move(name), raw_safetensors(header, "xx"), std::move(part), true};
}

Corrupt length(std::string name, std::uint64_t length, std::string error) {
  std::string file(16, ' ');
  std::memcpy(file.data(), &length, sizeof(length));
  return {std::move(name), file, std::move(error)};
}

const char* kNumbers = "whole numbers from 0 to 2^63 - 1";

std::vector<Corrupt> lengths() {
  return {
      {"EmptyFile", "", "expected at least 8 bytes, found 0"},
      {"SevenBytes", "1234567", "expected at least 8 bytes, found 7"},
      length("HeaderBeyondTheFile", 9, "expected a header of 9 bytes, found 8"),
      length("HeaderBeyondTheLimit", 100'000'001,
             "expected a header of at most 100000000 bytes, found a length of 100000001"),
      length("HeaderOf2To60", 1ULL << 60,
             "expected a header of at most 100000000 bytes, found a length of 1152921504606846976"),
      length("HeaderOf2To64", ~0ULL,
             "expected a header of at most 100000000 bytes, found a length of 18446744073709551615"),
      length("EmptyHeader", 0, "expected a header that begins with '{', found \"\""),
  };
}

std::vector<Corrupt> structure() {
  return {
      header("HeaderOfSpaces", "    ", 0, "expected a header that begins with '{', found \" \""),
      header("HeaderIsAnArray", "[]", 0, "expected a header that begins with '{', found \"[\""),
      json("TruncatedHeader", R"({"w":)", "unexpected end of input"),
      json("TextAfterTheHeader", "{}x", "1:3: "),
      json("ZerosAfterTheHeader", std::string_view("{}\0\0", 4), "1:3: "),
      json("BadUtf8", "{\"\xFF\":{}}", "UTF-8"),
      json("TwoTensorsOfOneName",
           R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
           R"("w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
           "the key \"w\" appears twice"),
      json("DuplicateMetadata", R"({"__metadata__":{},"__metadata__":{}})",
           "the key \"__metadata__\" appears twice"),
      json("DuplicateMetadataKey", R"({"__metadata__":{"a":"1","a":"2"}})", "the key \"a\" appears twice"),
      json("DuplicateField", R"({"w":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
           "the key \"dtype\" appears twice"),
      header("ArraysWithoutEnd", R"({"w":)" + std::string(100'000, '['), 0,
             "tensor \"w\": expected an object, found an array"),
      header("TensorIsNull", R"({"w":null})", 0, "tensor \"w\": expected an object, found null"),
      header("TensorIsAString", R"({"w":"x"})", 0,
             "tensor \"w\": expected an object, found the string \"x\""),
      header("TensorIsANumber", R"({"w":3})", 0, "tensor \"w\": expected an object, found 3"),
      header("MetadataIsAString", R"({"__metadata__":"x"})", 0,
             "__metadata__: expected an object, found the string \"x\""),
      header("MetadataIsNull", R"({"__metadata__":null})", 0, "__metadata__: expected an object, found null"),
      header("MetadataHoldsANumber", R"({"__metadata__":{"step":3}})", 0,
             "__metadata__ \"step\": expected a string, found 3"),
      header("MetadataHoldsAnObject", R"({"__metadata__":{"step":{}}})", 0,
             "__metadata__ \"step\": expected a string, found an object"),
      header("MetadataHoldsAnArray", R"({"__metadata__":{"step":[]}})", 0,
             "__metadata__ \"step\": expected a string, found an array"),
      header("MetadataHoldsTrue", R"({"__metadata__":{"step":true}})", 0,
             "__metadata__ \"step\": expected a string, found true"),
  };
}

std::vector<Corrupt> fields() {
  const std::string in_shape = fmt::format("expected {} in shape, found ", kNumbers);
  const std::string in_offsets = fmt::format("expected {} in data_offsets, found ", kNumbers);
  return {
      tensor("NoFields", "", 0, "expected the field dtype, found none"),
      tensor("NoDtype", R"("shape":[],"data_offsets":[0,1])", 1, "expected the field dtype, found none"),
      tensor("NoShape", R"("dtype":"U8","data_offsets":[0,1])", 1, "expected the field shape, found none"),
      tensor("NoOffsets", R"("dtype":"U8","shape":[1])", 1, "expected the field data_offsets, found none"),
      tensor("UnknownField", R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1])", 1,
             "expected the fields dtype, shape, data_offsets, found \"strides\""),
      tensor("UnknownDtype", R"("dtype":"F31","shape":[1],"data_offsets":[0,1])", 1,
             "expected a dtype like F32 or BF16, found \"F31\""),
      tensor("LowerCaseDtype", R"("dtype":"f32","shape":[1],"data_offsets":[0,4])", 4,
             "expected a dtype like F32 or BF16, found \"f32\""),
      tensor("DtypeIsANumber", R"("dtype":8,"shape":[1],"data_offsets":[0,1])", 1,
             "expected a string as dtype, found 8"),
      tensor("ShapeIsANumber", R"("dtype":"U8","shape":1,"data_offsets":[0,1])", 1,
             "expected an array as shape, found 1"),
      tensor("ShapeIsAString", R"("dtype":"U8","shape":"1","data_offsets":[0,1])", 1,
             "expected an array as shape, found the string \"1\""),
      tensor("ShapeInsideShape", R"("dtype":"U8","shape":[[1]],"data_offsets":[0,1])", 1,
             in_shape + "an array"),
      tensor("NegativeDimension", R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])", 1, in_shape + "-1"),
      tensor("FractionalDimension", R"("dtype":"U8","shape":[1.5],"data_offsets":[0,1])", 1,
             in_shape + "1.5"),
      tensor("DimensionWithAPoint", R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])", 1, in_shape + "1"),
      tensor("DimensionOf2To63", R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1])", 1,
             in_shape + "9223372036854775808"),
      tensor("DimensionOf2To64", R"("dtype":"U8","shape":[18446744073709551617],"data_offsets":[0,1])", 1,
             in_shape + "1.8446744073709552e+19"),
      tensor("DimensionIsNull", R"("dtype":"U8","shape":[null],"data_offsets":[0,1])", 1, in_shape + "null"),
      tensor("OffsetsAreAnObject", R"("dtype":"U8","shape":[1],"data_offsets":{})", 1,
             "expected an array as data_offsets, found an object"),
      tensor("EmptyOffsets", R"("dtype":"U8","shape":[1],"data_offsets":[])", 1,
             "expected 2 data_offsets, found 0"),
      tensor("OneOffset", R"("dtype":"U8","shape":[1],"data_offsets":[0])", 1,
             "expected 2 data_offsets, found 1"),
      tensor("ThreeOffsets", R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])", 1,
             "expected 2 data_offsets, found 3"),
      tensor("NegativeOffset", R"("dtype":"U8","shape":[1],"data_offsets":[-1,0])", 1, in_offsets + "-1"),
      tensor("FractionalOffset", R"("dtype":"U8","shape":[1],"data_offsets":[0,1e0])", 1, in_offsets + "1"),
      tensor("OffsetOf2To63", R"("dtype":"U8","shape":[1],"data_offsets":[0,9223372036854775808])", 1,
             in_offsets + "9223372036854775808"),
  };
}

std::vector<Corrupt> layout() {
  const auto u8 = [](std::string_view name, int begin, int end) {
    return fmt::format(R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", name, end - begin,
                       begin, end);
  };
  return {
      tensor("EndBeforeBegin", R"("dtype":"U8","shape":[1],"data_offsets":[1,0])", 1,
             "expected data_offsets [BEGIN, END] with BEGIN <= END, found [1, 0]"),
      tensor("BytesDisagreeWithShape", R"("dtype":"F32","shape":[2,3],"data_offsets":[0,20])", 20,
             "F32 of shape [2, 3] needs 24 bytes, data_offsets [0, 20] contain 20"),
      tensor("BytesDisagreeWithDtype", R"("dtype":"F16","shape":[4],"data_offsets":[0,16])", 16,
             "F16 of shape [4] needs 8 bytes, data_offsets [0, 16] contain 16"),
      tensor("ScalarWithoutBytes", R"("dtype":"F32","shape":[],"data_offsets":[0,0])", 0,
             "F32 of shape [] needs 4 bytes, data_offsets [0, 0] contain 0"),
      tensor("ShapeOf2To60", R"("dtype":"F32","shape":[1152921504606846976],"data_offsets":[0,4])", 4,
             "F32 of shape [1152921504606846976] is too large, or not a whole number of bytes"),
      tensor("ShapeWhoseSizeOverflows",
             R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0,
             "U8 of shape [4294967296, 4294967296] is too large, or not a whole number of bytes"),
      tensor("HalfAByte", R"("dtype":"F4","shape":[3],"data_offsets":[0,2])", 2,
             "F4 of shape [3] is too large, or not a whole number of bytes"),
      header("OffsetsFarBeyondTheFile",
             R"({"w":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}})", 1,
             "expected 1099511627776 bytes of data, found 1: tensor \"w\" is not complete"),
      header("HoleAtTheStart", fmt::format("{{{}}}", u8("w", 1, 2)), 2,
             "tensor \"w\" begins at byte 1 of the data, expected 0: the bytes between belong to no tensor"),
      header("HoleBetween", fmt::format("{{{},{}}}", u8("v", 0, 2), u8("w", 3, 4)), 4,
             "tensor \"w\" begins at byte 3 of the data, expected 2: the bytes between belong to no tensor"),
      header("HoleAtTheEnd", fmt::format("{{{}}}", u8("w", 0, 2)), 3,
             "expected 2 bytes of data, found 3: the last bytes belong to no tensor"),
      header("DataWithoutTensors", "{}", 1,
             "expected 0 bytes of data, found 1: the last bytes belong to no tensor"),
      header("Overlap", fmt::format("{{{},{}}}", u8("w", 1, 4), u8("v", 0, 2)), 4,
             "tensor \"w\" begins at byte 1 of the data, inside tensor \"v\", which ends at 2"),
      header("TwoTensorsOnTheSameBytes", fmt::format("{{{},{}}}", u8("v", 0, 2), u8("w", 0, 2)), 2,
             "tensor \"w\" begins at byte 0 of the data, inside tensor \"v\", which ends at 2"),
      header("EmptyTensorInsideAnother", fmt::format("{{{},{}}}", u8("v", 1, 1), u8("w", 0, 2)), 2,
             "tensor \"v\" begins at byte 1 of the data, inside tensor \"w\", which ends at 2"),
      header("LastTensorIsTruncated", fmt::format("{{{},{}}}", u8("v", 0, 2), u8("w", 2, 4)), 3,
             "expected 4 bytes of data, found 3: tensor \"w\" is not complete"),
  };
}

std::vector<Corrupt> all_corrupt() {
  std::vector<Corrupt> all;
  for (auto& cases : {lengths(), structure(), fields(), layout()})
    all.insert(all.end(), cases.begin(), cases.end());
  return all;
}

std::string error_of(const std::string& file) {
  try {
    view_of(file);
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

class CorruptSafetensors : public testing::TestWithParam<Corrupt> {};

TEST_P(CorruptSafetensors, IsRejectedWithAMessage) {
  EXPECT_TRUE(matches(error_of(GetParam().file), "test.safetensors", GetParam()));
}

TEST_P(CorruptSafetensors, IsRejectedFromDisk) {
  const TempFolder folder;
  const auto path = folder.write("bad.safetensors", GetParam().file);
  try {
    SafetensorsFile::open(path);
    FAIL() << "was opened";
  } catch (const Error& error) {
    EXPECT_TRUE(matches(error.what(), path.string(), GetParam()));
  }
}

INSTANTIATE_TEST_SUITE_P(Safetensors, CorruptSafetensors, testing::ValuesIn(all_corrupt()),
                         [](const auto& info) { return info.param.name; });

// Two dtypes, metadata and a digest, in a few hundred bytes.
std::string small_file() {
  SafetensorsWriter writer;
  writer.set_metadata("k", "v");
  writer.add("a", DType::f32, {1}, bytes_of("1234"));
  writer.add("b", DType::u8, {2}, bytes_of("xy"));
  return written(writer, WithDigest::yes);
}

TEST(CorruptSafetensors, TruncationIsRejected) {
  const std::string file = small_file();
  for (std::size_t bytes = 0; bytes < file.size(); ++bytes) {
    // Allocate exactly the truncated size, so that AddressSanitizer detects any read beyond it.
    const auto cut = std::make_unique<std::byte[]>(bytes);
    std::memcpy(cut.get(), file.data(), bytes);
    EXPECT_THROW(SafetensorsFile::view({cut.get(), bytes}, "cut"), Error) << "cut to " << bytes;
  }
}

TEST(CorruptSafetensors, ExtraByteIsRejected) {
  EXPECT_NE(error_of(small_file() + '\0'), "(no error)");
}

TEST(CorruptSafetensors, AnyFlippedBitIsRejectedOrDetectedByTheDigest) {
  std::string file = small_file();
  verify_digest(view_of(file));
  for (std::size_t bit = 0; bit < file.size() * 8; ++bit) {
    const auto flip = static_cast<char>(1u << (bit % 8));
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ flip);
    EXPECT_THROW(verify_digest(view_of(file)), Error) << "bit " << bit % 8 << " of byte " << bit / 8;
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ flip);
  }
}

TEST(CorruptSafetensors, LongNameIsTruncatedInTheMessage) {
  const std::string name(1 << 20, 'n');
  const std::string error = error_of(raw_safetensors(fmt::format(R"({{"{}":3}})", name), ""));
  EXPECT_LT(error.size(), 200u);
}

TEST(CorruptSafetensors, HugeSparseFileIsRejectedWithoutAllocatingIt) {
  // 2^43 bytes that use no disk space, covered by one tensor. Only memory is insufficient.
  const std::string head =
      raw_safetensors(R"({"w":{"dtype":"U8","shape":[8796093022208],"data_offsets":[0,8796093022208]}})", "");
  const TempFolder folder;
  const auto path = folder.write("huge.safetensors", head);
  std::error_code code;
  std::filesystem::resize_file(path, head.size() + (1ULL << 43), code);
  if (code) GTEST_SKIP() << "this file system does not support files of 2^43 bytes: " << code.message();
  try {
    SafetensorsFile::open(path);
    FAIL() << "was opened";
  } catch (const Error& error) {
    const std::string_view message = error.what();
    EXPECT_NE(message.find("8.00 TiB"), message.npos) << message;
    EXPECT_NE(message.find(path.string()), message.npos) << message;
  }
}

TEST(CorruptSafetensors, FullTierHeaderOfAMillionTensorsIsReadInSeconds) {
  std::string header = "{";
  for (int i = 0; header.size() < 60'000'000; ++i)
    header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", i ? "," : "", i);
  header += '}';
  const std::string bytes = raw_safetensors(header, "");
  const SafetensorsFile file = view_of(bytes);
  EXPECT_GT(file.entries().size(), 1'000'000u);
  EXPECT_TRUE(file.find("999999"));
}

}  // namespace
}  // namespace thimble::safetensors_corrupt_test
