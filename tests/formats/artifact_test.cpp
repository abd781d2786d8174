// Artifacts: models are read back exactly, and damaged files are rejected.
#include "formats/artifact.h"

#include <algorithm>
#include <random>

#include "base/digest.h"
#include "base/error.h"
#include "base/json.h"
#include "data/text_files.h"
#include "formats/pack_model.h"
#include "formats/small_export.h"
#include "formats/weights_file.h"
#include "support/golden.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "support/ticking_progress.h"
#include "tensor/tensor.h"
#include "tokenizer/sentencepiece.h"

namespace thimble::artifact_test {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != text.npos;
}

ModelFile sample_model(const std::string& preset, const std::vector<std::string>& settings) {
  ModelFile model = initialized_model(preset, settings);
  const ParamTable table(model.config.model);
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0, 0.2f);
  for (const Param& param : table.all())
    for (std::int64_t i = 0; i < param.count(); ++i)
      model.weights[static_cast<std::size_t>(param.offset + i)] = normal(random);
  return model;
}

// Some tensors are over 8,192 elements, none over 65,536.
ModelFile small_golf(const std::vector<std::string>& more = {}) {
  std::vector<std::string> settings = {"vocab_size=300", "context=16",        "layers=2",
                                       "dim=64",         "heads=2",           "kv_heads=1",
                                       "mlp_hidden=160", "bigram_buckets=64", "bigram_dim=16"};
  settings.insert(settings.end(), more.begin(), more.end());
  return sample_model("golf-plus", settings);
}

ModelFile tiny_golf() {
  ModelFile model =
      sample_model("golf", {"vocab_size=261", "context=8", "layers=2", "dim=8", "heads=2", "kv_heads=1"});
  const auto tokenizer = load_tokenizer("bytes");
  model.tokenizer =
      TokenizerFile{.name = "bytes", .content = tokenizer->serialized(), .special = tokenizer->special()};
  model.layout = "chat";
  return model;
}

PackRequest request_of(int bits, Codec codec = Codec::zstd) {
  PackRequest request;
  request.options.rule.bits = bits;
  request.options.codec = codec;
  return request;
}

PackResult pack(const ModelFile& model, const PackRequest& request) {
  return pack_model(model, request, ProgressOutput::nowhere());
}

TEST(Artifact, ReadsBackWhatWasPacked) {
  for (const Codec codec : {Codec::zstd, Codec::zlib})
    for (const int bits : {8, 6, 5}) {
      const ModelFile model = small_golf();
      const PackResult packed = pack(model, request_of(bits, codec));
      const Artifact artifact = read_artifact(bytes_of(packed.bytes), "a");
      EXPECT_EQ(artifact.model.config.model, model.config.model);
      EXPECT_EQ(artifact.model.format, "thimble");
      EXPECT_EQ(artifact.model.architecture, "golf");
      EXPECT_FALSE(artifact.model.tokenizer);
      EXPECT_EQ(artifact.model.weights, packed.loaded.weights);
      const ParamTable table(model.config.model);
      const std::vector<DType> types(table.all().size(), DType::f32);
      const PackedWeights expected = pack_weights(table, model.weights, types, request_of(bits).options);
      EXPECT_EQ(artifact.tensors, expected.tensors);
      EXPECT_EQ(artifact.model.weights, unpack_weights(table, expected.tensors));
    }
}

TEST(Artifact, KeepsEverySwitch) {
  for (const char* loop : {"loop_on=true", "loop_on=false"}) {
    const ModelFile model =
        small_golf({"skip_gates=true", "parallel_from=1", "loop_last=1", "loop_count=2", "layer_scale=true",
                    "exclusive_attention=true", "rope_dims=8", "mlp=leaky_relu2", loop});
    const PackResult packed = pack(model, request_of(8));
    const Artifact artifact = read_artifact(bytes_of(packed.bytes), "a");
    EXPECT_EQ(artifact.model.config.model, model.config.model);
    EXPECT_EQ(artifact.model.config.state, model.config.state);
    const ParamTable table(model.config.model);
    const Param* gates = table.find("skip_gates");
    ASSERT_NE(gates, nullptr);
    EXPECT_EQ(gates->dims, (std::vector<std::int64_t>{3, 64}));  // of the unrolled model's halves
    EXPECT_TRUE(std::equal(model.weights.begin() + gates->offset,
                           model.weights.begin() + gates->offset + gates->count(),
                           artifact.model.weights.begin() + gates->offset))
        << "control tensors are stored unchanged";
  }
}

TEST(Artifact, OpensLikeAnyOtherModel) {
  const TempFolder folder;
  const ModelFile model = tiny_golf();
  const PackResult packed = pack(model, request_of(6));
  // The format is recognized from the content, not from the file name.
  for (const char* name : {"a.thimble", "b"}) {
    const ModelFile opened = open_model(folder.write(name, packed.bytes));
    EXPECT_EQ(opened.weights, packed.loaded.weights);
    EXPECT_EQ(opened.layout, "chat");
    EXPECT_EQ(opened.tensors.size(), ParamTable(model.config.model).all().size());
    const auto tokenizer = open_tokenizer(opened);
    ASSERT_TRUE(tokenizer);
    EXPECT_EQ(tokenizer->serialized(), model.tokenizer->content);
    EXPECT_EQ(tokenizer->special().bos, 0);
    // It can be converted to a safetensors file.
    PosixFileOps ops;
    write_model(ops, folder / "model", Existing::replace, opened, DType::f32);
    EXPECT_EQ(open_model(folder / "model").weights, opened.weights);
  }
  EXPECT_TRUE(contains(message_of([&] { open_model(folder.write("c.thimble", "not one")); }),
                       "is not a .thimble artifact"));
}

TEST(Artifact, DecodingShowsProgress) {
  const TempFolder folder;
  const auto path = folder.write("a.thimble", pack(tiny_golf(), request_of(6)).bytes);
  for (const WeightsAs as : {WeightsAs::floats, WeightsAs::stored}) {
    TickingProgress progress;
    open_model(path, as, progress.output());
    EXPECT_TRUE(progress.shows("decoding")) << progress.lines;
  }
}

TEST(Artifact, PackingAgainGivesTheSameBytes) {
  const TempFolder folder;
  const std::pair<int, Codec> kinds[] = {{8, Codec::zlib}, {6, Codec::zstd}, {5, Codec::zlib}};
  for (const auto& [bits, codec] : kinds) {
    PackRequest request = request_of(bits, codec);
    request.options.prune = 0.03;
    // With 8 bits, tensors below 65,536 elements are not quantized.
    const ModelFile model =
        bits == 8 ? small_golf({"layers=1", "unet_skips=false", "mlp_hidden=1100"}) : small_golf();
    const PackResult first = pack(model, request);
    EXPECT_GT(first.report.quantized_tensors(), 0);
    EXPECT_GT(first.report.pruned, 0);
    const auto path = folder.write("a.thimble", first.bytes);
    EXPECT_EQ(digest_of(pack(open_model(path), request).bytes), digest_of(first.bytes)) << bits;
    EXPECT_EQ(digest_of(pack(model, request).bytes), digest_of(first.bytes)) << "packing is deterministic";
    // Packing by another rule starts from the packed weights.
    EXPECT_NE(pack(open_model(path), request_of(bits == 6 ? 5 : 6, codec)).bytes, first.bytes);
  }
}

TEST(Artifact, EveryFlippedByteIsDetected) {
  const PackResult packed = pack(tiny_golf(), request_of(8));
  ASSERT_LT(packed.bytes.size(), 20'000u);
  std::string bytes = packed.bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    for (const char flip : {'\x01', '\x80'}) {
      bytes[i] = static_cast<char>(bytes[i] ^ flip);
      EXPECT_THROW(read_artifact(bytes_of(bytes), "a"), Error) << "byte " << i;
      bytes[i] = packed.bytes[i];
    }
  EXPECT_NO_THROW(read_artifact(bytes_of(bytes), "a"));
}

TEST(Artifact, EveryTruncationIsDetected) {
  const PackResult packed = pack(tiny_golf(), request_of(8));
  for (std::size_t size = 0; size < packed.bytes.size(); ++size)
    EXPECT_THROW(read_artifact(bytes_of(packed.bytes).first(size), "a"), Error) << size;
  EXPECT_THROW(read_artifact(bytes_of(packed.bytes + "x"), "a"), Error);
}

// Rewrites parts and recomputes the digest, to test the checks of each part.
class RewrittenArtifact : public testing::Test {
 protected:
  RewrittenArtifact()
      : packed_(pack(tiny_golf(), request_of(6)).bytes), parts_(read_parts(bytes_of(packed_), "a")) {}

  std::string message() const {
    std::string bytes;
    for (const ArtifactPart& part : parts_) append_part(part, bytes);
    return message_of([&] { read_artifact(bytes_of(with_artifact_header(bytes)), "a"); });
  }
  // Replaces one string in part 0; an empty value removes it.
  void set_metadata(const std::string& key, const std::string& value) {
    const auto content = parts_[0].content();
    const Json old = parse_json({reinterpret_cast<const char*>(content.data()), content.size()}, "metadata");
    Json changed = Json::object();
    for (const auto& [own, text] : old.as_object())
      if (own != key) changed.set(own, text);
    if (!value.empty()) changed.set(key, value);
    const std::string text = changed.dump();
    metadata_ = compress(bytes_of(text), Codec::zstd);
    parts_[0] = {Codec::zstd, text.size(), metadata_};
  }

  std::string packed_;
  std::vector<ArtifactPart> parts_;
  std::vector<std::byte> metadata_;
};

TEST_F(RewrittenArtifact, UnchangedIsReadAgain) {
  EXPECT_EQ(message(), "nothing was thrown");
}

TEST_F(RewrittenArtifact, WrongSizeIsRejected) {
  ++parts_[3].raw_bytes;
  EXPECT_TRUE(contains(message(), "expected")) << message();
}

TEST_F(RewrittenArtifact, HugeDeclaredSizeIsRejectedBeforeAllocation) {
  for (const std::uint64_t claim : {std::uint64_t{1} << 27, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    parts_[1].raw_bytes = claim;
    EXPECT_TRUE(contains(message(), "the parts declare more than")) << message();
  }
}

TEST_F(RewrittenArtifact, MissingPartsAreRejected) {
  parts_.pop_back();
  EXPECT_TRUE(contains(message(), "groups of tensors")) << message();
  parts_.resize(1);
  EXPECT_TRUE(contains(message(), "found 1 parts")) << message();
  parts_.clear();
  EXPECT_TRUE(contains(message(), "found 0 parts")) << message();
}

TEST_F(RewrittenArtifact, InvalidMetadataIsRejected) {
  set_metadata("thimble.storage", "222");
  EXPECT_TRUE(contains(message(), "expected the storage of")) << message();
  set_metadata("thimble.storage", "");
  EXPECT_TRUE(contains(message(), "expected metadata thimble.storage, found none")) << message();
}

TEST_F(RewrittenArtifact, NonAsciiConfigIsRejected) {
  set_metadata("thimble.config", "layers = 2 \xC2\xB0\n");
  EXPECT_TRUE(contains(message(), "expected plain ASCII")) << message();
}

TEST_F(RewrittenArtifact, HugeConfigIsRejected) {
  set_metadata("thimble.config", "layers = 512\ndim = 1024\n");
  EXPECT_TRUE(contains(message(), "each of 512 layers")) << message();
  set_metadata("thimble.config", "layers = 2\ndim = 8192\nvocab_size = 100000\n");
  EXPECT_NE(message(), "nothing was thrown");
}

TEST_F(RewrittenArtifact, UnknownNormalizerIsRejected) {
  set_metadata("thimble.normalizer", "nonsense");
  EXPECT_TRUE(contains(message(), "unknown standard normalizer")) << message();
  set_metadata("thimble.normalizer", "nmt_nfkc");
  EXPECT_TRUE(contains(message(), "thimble.normalizer_digest")) << message();
}

TEST(Artifact, NewerVersionIsRejected) {
  std::string bytes = pack(tiny_golf(), request_of(8)).bytes;
  bytes[7] = 2;
  EXPECT_TRUE(contains(message_of([&] { read_artifact(bytes_of(bytes), "a"); }), "found version 2"));
}

TEST(Artifact, StoresTheNameOfAStandardNormalizerInsteadOfItsTable) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) text += fmt::format("the cat {} sat on mat {}\n", i, i * 7);
  TextSource source({folder.write("text.txt", text)}, {});
  ModelFile model = small_golf();
  model.tokenizer =
      TokenizerFile{.name = "tokenizer.model", .content = train_sentencepiece(source, {.vocab_size = 300})};
  ASSERT_GT(model.tokenizer->content.size(), 230'000u);
  const PackResult packed = pack(model, request_of(6));
  EXPECT_LT(packed.report.tokenizer_bytes, 5'000u);
  EXPECT_EQ(read_artifact(bytes_of(packed.bytes), "a").model.tokenizer->content, model.tokenizer->content);
}

// The normalizer table of another version of the library: only the difference is stored.
TEST(Artifact, StoresATokenizerOfAnotherLibraryVersionSmall) {
  std::string changed = read_file(golden_path("tokenizers/golf_1024.model"), 1 << 20);
  const std::string table = standard_normalizer_table("nmt_nfkc");
  const std::size_t at = changed.find(table.substr(table.size() - 20'000));  // replacement texts
  ASSERT_NE(at, changed.npos) << "the table of this library is not the one of the golden model";
  std::vector<std::string> contents = {changed};
  for (std::size_t i = at; i < at + 16'000; i += 400) {
    while ((changed[i] & 0xC0) != 0x80) ++i;
    changed[i] ^= 1;  // another character
  }
  contents.push_back(changed);
  if (const auto path = shared_path("fixtures/sentencepiece/fineweb_1024_bpe.model"))
    contents.push_back(read_file(*path, 1 << 20));
  for (const std::string& content : contents) {
    ModelFile model = small_golf({"vocab_size=1024"});
    model.tokenizer = TokenizerFile{.name = "tokenizer.model", .content = content};
    const PackResult packed = pack(model, request_of(6));
    EXPECT_LT(packed.report.tokenizer_bytes, 50'000u);
    EXPECT_EQ(read_artifact(bytes_of(packed.bytes), "a").model.tokenizer->content, content);
  }
}

}  // namespace
}  // namespace thimble::artifact_test
