#include <algorithm>

#include "base/error.h"
#include "formats/safetensors_bytes.h"

namespace thimble {
namespace {

SafetensorsWriter three_tensors() {
  SafetensorsWriter writer;
  writer.add("first", DType::u8, {1}, bytes_of("1"));
  writer.add("second", DType::f32, {1}, bytes_of("2222"));
  writer.add("third", DType::u8, {3}, bytes_of("333"));
  return writer;
}

std::string verification_of(const std::string& file) {
  try {
    verify_digest(view_of(file));
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

// Replaces the only occurrence of `from` by `to`, which has the same length.
std::string changed(std::string file, std::string_view from, std::string_view to) {
  EXPECT_EQ(from.size(), to.size());
  const auto at = file.find(from);
  EXPECT_NE(at, file.npos);
  EXPECT_EQ(file.find(from, at + 1), file.npos);
  return file.replace(at, from.size(), to);
}

TEST(SafetensorsDigest, MatchesTheDocumentedLayout) {
  const std::string file = written(three_tensors(), WithDigest::yes);
  const std::size_t data_at = file.size() - 8 - 4 * 16;
  const auto digest = [&](std::size_t i) {
    std::string hex;
    for (const char c : file.substr(data_at + 8 + i * 16, 16))
      hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
    return hex;
  };
  EXPECT_EQ(digest(0), digest_of(file.substr(0, data_at)).hex());
  EXPECT_EQ(digest(1), digest_of("1").hex());
  EXPECT_EQ(digest(2), digest_of("2222").hex());
  EXPECT_EQ(digest(3), digest_of("333").hex());
}

TEST(SafetensorsDigest, AcceptsUnchangedFiles) {
  EXPECT_EQ(verification_of(written(three_tensors(), WithDigest::yes)), "(no error)");
  EXPECT_EQ(verification_of(written(SafetensorsWriter(), WithDigest::yes)), "(no error)");
}

TEST(SafetensorsDigest, NamesTheFirstTensorThatDiffers) {
  const std::string file = written(three_tensors(), WithDigest::yes);
  EXPECT_EQ(verification_of(changed(file, "2222", "2223")),
            "test.safetensors: tensor \"second\": the checksum does not match (found " +
                digest_of("2223").hex() + ")");
  const std::string both = changed(changed(file, "2222", "2223"), "1333", "4332");
  EXPECT_NE(verification_of(both).find("tensor \"first\""), std::string::npos);
}

TEST(SafetensorsDigest, CoversNamesAndShapes) {
  const std::string file = written(three_tensors(), WithDigest::yes);
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"second", "seconb"}, {"\"F32\"", "\"I32\""}, {"}} ", "} }"}}) {
    const std::string error = verification_of(changed(file, from, to));
    EXPECT_TRUE(error.starts_with("test.safetensors: the checksum of the header does not match")) << error;
  }
}

TEST(SafetensorsDigest, FileWithoutDigestsFailsVerification) {
  EXPECT_EQ(verification_of(written(three_tensors(), WithDigest::no)),
            "test.safetensors: expected digests in a tensor thimble.digest, found none");
}

TEST(SafetensorsDigest, DigestThatIsNotLastIsRejected) {
  const std::string file =
      raw_safetensors(R"({"thimble.digest":{"dtype":"U8","shape":[32],"data_offsets":[0,32]},)"
                      R"("w":{"dtype":"U8","shape":[1],"data_offsets":[32,33]}})",
                      std::string(33, 'x'));
  EXPECT_EQ(verification_of(file),
            "test.safetensors: expected thimble.digest to be the last tensor, U8 of shape [32], found U8 of "
            "shape [32]");
}

TEST(SafetensorsDigest, DigestOfTheWrongShapeIsRejected) {
  const auto with_digest = [](std::string_view description, std::size_t bytes) {
    return raw_safetensors(fmt::format(R"({{"thimble.digest":{}}})", description), std::string(bytes, 'x'));
  };
  EXPECT_EQ(verification_of(with_digest(R"({"dtype":"U8","shape":[2,16],"data_offsets":[0,32]})", 32)),
            "test.safetensors: expected thimble.digest to be the last tensor, U8 of shape [16], found U8 of "
            "shape [2, "
            "16]");
  EXPECT_EQ(verification_of(with_digest(R"({"dtype":"I8","shape":[16],"data_offsets":[0,16]})", 16)),
            "test.safetensors: expected thimble.digest to be the last tensor, U8 of shape [16], found I8 of "
            "shape [16]");
}

}  // namespace
}  // namespace thimble
