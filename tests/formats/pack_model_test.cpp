// Sizes and errors reported for a packed model.
#include "formats/pack_model.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "formats/artifact.h"
#include "formats/small_export.h"
#include "tensor/tensor.h"

namespace thimble::pack_model_test {
namespace {

ModelFile small_model() {
  return initialized_model("golf", {"vocab_size=300", "context=16", "layers=2", "dim=64", "heads=2",
                                    "kv_heads=1", "mlp_hidden=160"});
}

PackResult pack(const ModelFile& model, const PackRequest& request) {
  return pack_model(model, request, ProgressOutput::nowhere());
}

// The published figures of the golf baseline, whose checkpoint stores the embedding as bf16.
TEST(PackModel, FullTierGolfBaselineMatchesThePublishedFigures) {
  ModelFile model = initialized_model("golf");
  PackRequest request;
  request.options.codec = Codec::zlib;
  PackReport report = pack(model, request).report;
  EXPECT_EQ(report.parameters, 17'059'912);
  EXPECT_EQ(report.payload_bytes, 17'178'912u);
  EXPECT_EQ(report.float_bytes, 68'239'648u);
  EXPECT_NEAR(report.ratio(), 3.97, 0.005);
  EXPECT_EQ(report.quantized_tensors(), 55);

  model.tensors = {{"tok_emb.weight", "BF16", {1024, 512}, 1024 * 512 * 2}};
  const PackResult published = pack(model, request);
  EXPECT_EQ(published.report.payload_bytes, 17'178'912u);
  EXPECT_EQ(published.report.float_bytes, 67'191'072u);
  EXPECT_NEAR(published.report.ratio(), 3.91, 0.005);
  const auto embedding = std::span(published.loaded.weights).first(1024 * 512);
  for (const float weight : embedding) ASSERT_EQ(weight, to_f32(to_bf16(weight))) << "restored as bf16";
}

TEST(PackModel, SourceTypesDetermineRestoredTypesAndSizes) {
  ModelFile model = small_model();
  const PackReport plain = pack(model, {}).report;
  model.tensors = {{"tok_emb.weight", "BF16", {300, 64}, 0}};
  const PackResult packed = pack(model, {});
  EXPECT_EQ(packed.report.float_bytes, plain.float_bytes - 300 * 64 * 2);
  EXPECT_EQ(packed.report.payload_bytes, plain.payload_bytes);
  for (const float weight : std::span(packed.loaded.weights).first(300 * 64))
    ASSERT_EQ(weight, to_f32(to_bf16(weight)));
}

TEST(PackModel, BothSizesAddUp) {
  ModelFile model = small_model();
  const auto tokenizer = load_tokenizer("bytes");
  model.tokenizer = TokenizerFile{.name = "bytes", .content = tokenizer->serialized()};
  PackRequest request;
  request.code_bytes = 1000;
  const PackResult packed = pack(model, request);
  const PackReport& report = packed.report;
  EXPECT_EQ(report.bytes, packed.bytes.size());
  EXPECT_GT(report.tokenizer_bytes, 500u);
  EXPECT_EQ(report.golf_bytes(), 1000 + report.bytes - report.tokenizer_bytes);
  EXPECT_EQ(report.self_contained_bytes(), 1000 + report.bytes);
  std::uint64_t groups = 0;
  std::int64_t parameters = 0;
  for (const PackReport::Group& group : report.groups) {
    groups += group.bytes;
    parameters += group.parameters;
  }
  EXPECT_EQ(parameters, report.parameters);
  EXPECT_LT(groups, report.bytes - report.tokenizer_bytes);
  EXPECT_GT(groups + 2000, report.bytes - report.tokenizer_bytes) << "metadata and headers are small";
  EXPECT_EQ(report.tensors.size(), ParamTable(model.config.model).all().size());
  EXPECT_NEAR(report.bits_per_weight(),
              8.0 * static_cast<double>(report.bytes) / static_cast<double>(parameters), 1e-12);

  request.budget = report.self_contained_bytes();
  EXPECT_TRUE(pack(model, request).report.fits());
  --request.budget;
  EXPECT_FALSE(pack(model, request).report.fits());
}

TEST(PackModel, FitPrunesTheCheapestWeights) {
  const ModelFile model = small_model();
  PackRequest request;
  request.options.rule.bits = 5;
  const PackReport whole = pack(model, request).report;
  EXPECT_GT(whole.quantized_tensors(), 0);
  request.budget = whole.bytes - 100;
  EXPECT_FALSE(pack(model, request).report.fits());
  request.fit = true;
  const PackReport fitted = pack(model, request).report;
  EXPECT_TRUE(fitted.fits());
  EXPECT_GT(fitted.pruned, 0);
  EXPECT_EQ(fitted.bytes, fitted.self_contained_bytes());
  request.budget = 100;
  EXPECT_FALSE(pack(model, request).report.fits()) << "pruning all weights is not enough";
}

TEST(PackModel, ErrorsAreMeasuredOnTheWeightsReadBack) {
  const ModelFile model = small_model();
  PackRequest request;
  request.options.rule.bits = 6;
  const PackResult packed = pack(model, request);
  const ParamTable table(model.config.model);
  for (std::size_t i = 0; i < packed.report.tensors.size(); ++i) {
    const PackReport::Tensor& tensor = packed.report.tensors[i];
    const Param& param = table.all()[i];
    double largest = 0;
    for (std::int64_t e = param.offset; e < param.offset + param.count(); ++e) {
      const auto at = static_cast<std::size_t>(e);
      largest = std::max(largest, std::abs(double{model.weights[at]} - double{packed.loaded.weights[at]}));
    }
    EXPECT_EQ(tensor.name, param.name);
    EXPECT_EQ(tensor.error.largest, largest);
    if (tensor.storage == Storage::int6 && tensor.error.rms > 0) {
      EXPECT_LT(tensor.error.relative, 0.05) << tensor.name;
    }
  }
}

TEST(PackModel, NanIsRejected) {
  ModelFile model = small_model();
  model.weights[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(pack(model, {}), Error);
}

TEST(PackModel, StopsWhenItsProgressThrows) {
  // An interrupt stops the coder in the same way.
  const ModelFile model = small_model();
  ProgressOutput output{.enabled = true,
                        .terminal = false,
                        .width = 80,
                        .write = [](std::string_view) {},
                        .seconds =
                            [] {
                              fail("stopped");
                              return 0.0;
                            }};
  EXPECT_THROW(pack_model(model, {}, output), Error);
}

}  // namespace
}  // namespace thimble::pack_model_test
