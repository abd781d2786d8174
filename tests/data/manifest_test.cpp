#include "data/manifest.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "base/error.h"
#include "base/rng.h"

namespace thimble::manifest_test {
namespace {

const std::string kDigest = "00112233445566778899aabbccddeeff";

Manifest sample_manifest() {
  Manifest manifest;
  manifest.name = "novels";
  manifest.kind = DataKind::chat;
  manifest.tokenizer = {"bpe", 4096, 0, -1, kDigest, "tokenizer.json"};
  manifest.settings.set("val_fraction", 0.1).set("dedup", true);
  manifest.sources = {{"texts/novels.txt", 12345, kDigest}};
  manifest.train = {
      7, 30, 111, {{"novels_train_000000.bin", 20, kDigest}, {"novels_train_000001.bin", 10, kDigest}}};
  manifest.val = {1, 5, 21, {{"novels_val_000000.bin", 5, kDigest}}};
  manifest.dropped = {{"duplicates", 3}};
  return manifest;
}

std::string error_of(const std::string& text) {
  try {
    Manifest::parse(text, "manifest.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Manifest, RoundTripsThroughText) {
  const Manifest manifest = sample_manifest();
  EXPECT_EQ(Manifest::parse(manifest.text(), "manifest.json"), manifest);
  EXPECT_EQ(Manifest().tokenizer.special().bos, std::nullopt);
  EXPECT_EQ(manifest.tokenizer.special().bos, 0);
}

TEST(Manifest, ContainsTheTokenizer) {
  const auto tokenizer = load_tokenizer("bytes:chat");
  const ManifestTokenizer entry = ManifestTokenizer::of(*tokenizer);
  EXPECT_EQ(entry.kind, "bytes");
  EXPECT_EQ(entry.vocab_size, 261);
  EXPECT_EQ(entry.bos, 0);
  EXPECT_EQ(entry.digest, tokenizer->digest().hex());
  EXPECT_EQ(entry.file, "tokenizer.json");
}

TEST(Manifest, RandomDamageParsesOrThrowsError) {
  const std::string good = sample_manifest().text();
  Rng rng(5);
  int errors = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = good;
    const auto at = static_cast<std::size_t>(rng.below(text.size()));
    switch (rng.below(3)) {
      case 0:
        text[at] = static_cast<char>(rng.below(256));
        break;
      case 1:
        text.erase(at, 1 + rng.below(20));
        break;
      default:
        text.insert(at, text.substr(static_cast<std::size_t>(rng.below(text.size())), 1 + rng.below(20)));
    }
    errors += error_of(text) != "no error";  // any other exception fails the test
  }
  EXPECT_GT(errors, 2000);
  EXPECT_LT(errors, 3000) << "damage to names and spaces is not detected";
}

// Each case is one edit of a valid file.
struct Damage {
  std::string from, to, error;
};

class DamagedManifest : public testing::TestWithParam<Damage> {};

TEST_P(DamagedManifest, ErrorContainsFileAndField) {
  std::string text = sample_manifest().to_json().dump();
  const std::size_t at = text.find(GetParam().from);
  ASSERT_NE(at, std::string::npos) << text;
  text.replace(at, GetParam().from.size(), GetParam().to);
  const std::string error = error_of(text);
  EXPECT_NE(error.find(GetParam().error), std::string::npos) << error;
  EXPECT_NE(error.find("manifest.json"), std::string::npos) << error;
}

INSTANTIATE_TEST_SUITE_P(
    Edits, DamagedManifest,
    testing::Values(
        Damage{"thimble-data", "other-data", "format"}, Damage{"\"version\":1", "\"version\":2", "version"},
        Damage{"\"kind\":\"chat\"", "\"kind\":\"song\"", "kind"},
        Damage{"\"settings\"", "\"setings\"", "setings"}, Damage{"\"val\":", "\"extra\":1,\"val\":", "extra"},
        Damage{",\"dropped\":{\"duplicates\":3}", "", "dropped"},
        Damage{"\"tokens\":30", "\"tokens\":31", "train: tokens"},
        Damage{"\"tokens\":30", "\"tokens\":-1", "train: tokens"},
        Damage{"\"tokens\":20", "\"tokens\":4294967296", "train.shards[0]: tokens"},
        Damage{"\"tokens\":20", "\"tokens\":20.0", "tokens"},
        Damage{"novels_train_000001.bin", "../novels.bin", "train.shards[1]: file"},
        Damage{"novels_train_000001.bin", "..", "file"}, Damage{"novels_train_000001.bin", "", "file"},
        Damage{"novels_train_000001.bin", "novels_train_000000.bin", "duplicate"},
        Damage{"\"file\":\"tokenizer.json\"", "\"file\":\"/etc/passwd\"", "tokenizer: file"},
        Damage{"\"vocab_size\":4096", "\"vocab_size\":0", "vocab_size"},
        Damage{"\"bos\":0", "\"bos\":4096", "bos"}, Damage{"\"eos\":-1", "\"eos\":-2", "eos"},
        Damage{kDigest, "00112233445566778899aabbccddeefg", "digest"}, Damage{kDigest, "0011", "digest"},
        Damage{"\"duplicates\":3", "\"duplicates\":\"3\"", "dropped"},
        Damage{"\"sources\":[", "\"sources\":[7,", "sources[0]"},
        Damage{"\"name\":\"novels\"", "\"name\":\"a/b\"", "name"},
        Damage{"\"name\":\"novels\"", "\"name\":5", "name"}));

}  // namespace
}  // namespace thimble::manifest_test
