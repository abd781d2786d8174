// How tensors are stored, packing twice, and fitting a budget.
#include "pack/pack_weights.h"

#include <algorithm>

#include "base/error.h"
#include "pack/prune.h"
#include "pack/small_model.h"

namespace thimble {
namespace {

ModelConfig config_of(const std::string& preset, const std::vector<std::string>& more = {}) {
  ConfigBuilder settings;
  settings.preset(preset);
  for (const std::string& assignment : more) settings.set(assignment);
  return settings.resolve().model;
}

std::string storage_name(const ParamTable& table, const std::string& name, const PackOptions& options) {
  const Param* param = table.find(name);
  return param ? std::string(name_of(storage_of(*param, options))) : "no such tensor";
}

// Published sizes: 17,039,360 integers, 28,672 f16 scales, 20,552 f32.
TEST(PackWeights, GolfBaselineHasThePublishedSizes) {
  const ParamTable table(config_of("golf"));
  std::int64_t integers = 0, scales = 0, kept = 0, payload = 0;
  for (const Param& param : table.all()) {
    const Storage storage = storage_of(param, {});
    payload += payload_bytes(param, storage);
    scales += scale_count(param, storage);
    if (is_quantized(storage)) integers += param.count();
    if (storage == Storage::f32) kept += param.count();
    EXPECT_NE(storage, Storage::f16) << param.name;
  }
  EXPECT_EQ(integers, 17'039'360);
  EXPECT_EQ(scales, 28'672);
  EXPECT_EQ(kept, 20'552);
  EXPECT_EQ(payload, 17'178'912);
}

TEST(PackWeights, StorageFollowsFromBitsAndSize) {
  const ParamTable plus(config_of("golf-plus"));
  for (const char* name : {"tok_emb.weight", "blocks.0.attn.c_k.weight", "bigram.embed.weight"})
    EXPECT_EQ(storage_name(plus, name, {}), "I8") << name;
  EXPECT_EQ(storage_name(plus, "bigram.proj.weight", {}), "F16") << "65,536 elements count as small";
  EXPECT_EQ(storage_name(plus, "smear.gate", {}), "F32");
  EXPECT_EQ(storage_name(plus, "bigram.scale", {}), "F32");

  const PackOptions six{.rule = {.bits = 6}}, five{.rule = {.bits = 5}};
  EXPECT_EQ(storage_name(plus, "tok_emb.weight", six), "F16");
  EXPECT_EQ(storage_name(plus, "bigram.proj.weight", six), "I6");
  EXPECT_EQ(storage_name(plus, "blocks.3.mlp.fc.weight", six), "I6");
  EXPECT_EQ(storage_name(plus, "blocks.3.mlp.fc.weight", five), "I5");
  EXPECT_EQ(storage_name(plus, "blocks.3.resid_mix", six), "F32");

  const PackOptions keep{.rule = {.bits = 6}, .keep = {"blocks.8.attn.c_k"}};
  EXPECT_EQ(storage_name(plus, "blocks.8.attn.c_k.weight", keep), "F16");
  EXPECT_EQ(storage_name(plus, "blocks.7.attn.c_k.weight", keep), "I6");

  const ParamTable micro(config_of("microgpt"));
  EXPECT_EQ(storage_name(micro, "lm_head.weight", six), "I8");
}

TEST(PackWeights, EveryMatrixOfOtherModelsIsQuantized) {
  const PackOptions options = pack_options({}, false);
  const ParamTable quick(config_of("quick", {"tie_embeddings=false"}));
  for (const Param& param : quick.all())
    EXPECT_EQ(is_quantized(storage_of(param, options)), param.dims.size() == 2) << param.name;
  EXPECT_EQ(storage_name(quick, "model.embed_tokens.weight", options), "I8");
  EXPECT_EQ(storage_name(quick, "lm_head.weight", options), "I8");
  EXPECT_EQ(storage_name(quick, "model.layers.0.self_attn.k_proj.weight", options), "I6");
  EXPECT_EQ(storage_name(quick, "model.norm.weight", options), "F32");

  PackOptions mixed = options;
  mixed.mlp = QuantizeRule{.bits = 5};
  EXPECT_EQ(storage_name(quick, "model.layers.0.mlp.up_proj.weight", mixed), "I5");
  EXPECT_EQ(storage_name(quick, "model.layers.0.self_attn.q_proj.weight", mixed), "I6");
  EXPECT_EQ(storage_of(matrix_param(100, 7), options), Storage::f16) << "scales would cost too much";
}

TEST(PackOptions, ClipsBelongToTheirBits) {
  for (const BitWidth& width : kBitWidths) EXPECT_EQ(bits_of(width.storage), width.bits);
  const auto step = [](const QuantizeRule& rule) {
    return rule.deviations / static_cast<float>((1 << (rule.bits - 1)) - 1);
  };
  for (const bool golf : {true, false})
    for (const std::int64_t bits : {8, 6, 5}) {
      const PackOptions options = pack_options({.bits = bits, .gptq = true, .embed_bits = bits}, golf);
      EXPECT_LT(step(options.rule), 0.45) << bits;
      EXPECT_LT(step(*options.embedding), 0.35) << bits;
    }
  const PackOptions golf = pack_options({.gptq = true}, true);
  EXPECT_EQ(packing_name(golf), "int6_clip_12.85_deviations, embedding int8_clip_20_deviations");
  EXPECT_EQ(packing_name(pack_options({}, true)), "int8_clean_per_row_v1");
  EXPECT_EQ(packing_name(pack_options({}, false)),
            "int6_clip_9_deviations, embedding int8_clip_20_deviations");
}

TEST(PackOptions, FollowQuantizationAwareTraining) {
  EXPECT_EQ(rule_name(pack_options({}, false, 5).rule), "int5_per_row");
  EXPECT_EQ(rule_name(pack_options({.bits = 6}, false, 5).rule), "int6_clip_9_deviations");
}

// No real model has such a vector: its vectors are shorter.
TEST(PackWeights, LongVectorHasOneScale) {
  EXPECT_EQ(storage_of(vector_param(65'537), {}), Storage::int8_whole);
  EXPECT_EQ(storage_of(vector_param(65'536), {}), Storage::f16);
}

struct Sample {
  explicit Sample(const ModelConfig& config) : table(config) {}

  ParamTable table;
  std::vector<float> weights = random_weights(table);
  std::vector<DType> types = std::vector<DType>(table.all().size(), DType::f32);

  PackedWeights pack(const PackOptions& options, std::span<const PackedTensor> before = {}) const {
    return pack_weights(table, weights, types, options, before);
  }
};

TEST(PackWeights, PackingAnotherModelAgainChangesNothing) {
  Sample sample(small_config("quick"));
  PackOptions options = pack_options({.prune = 0.1}, false);
  options.mlp = QuantizeRule{.bits = 5, .clip = Clip::deviation, .deviations = 6};
  const PackedWeights first = sample.pack(options);
  EXPECT_GT(first.pruned, 0);
  sample.weights = unpack_weights(sample.table, first.tensors);
  EXPECT_EQ(sample.pack(options, first.tensors).tensors, first.tensors);
  EXPECT_GT(prune_packed(sample.table, first.tensors, 0.9).pruned, 0);
}

TEST(PackWeights, PackingAgainChangesNothing) {
  // 67,200 elements, enough to be quantized to 8 bits.
  Sample sample(small_config("golf-plus", {"layers=1", "unet_skips=false", "mlp_hidden=700"}));
  const QuantizeRule rules[] = {{.bits = 8},
                                {.bits = 6},
                                {.bits = 5},
                                {.bits = 8, .clip = Clip::search},
                                {.bits = 6, .clip = Clip::search},
                                {.bits = 5, .clip = Clip::deviation, .deviations = 4}};
  const std::vector<float> original = sample.weights;
  for (const QuantizeRule& rule : rules) {
    const PackOptions options{.rule = rule, .prune = 0.03};
    sample.weights = original;
    const PackedWeights first = sample.pack(options);
    EXPECT_GT(first.pruned, 0);
    sample.weights = unpack_weights(sample.table, first.tensors);
    const PackedWeights second = sample.pack(options, first.tensors);
    EXPECT_EQ(second.tensors, first.tensors) << rule_name(rule);
    EXPECT_EQ(second.pruned, 0);
  }
}

TEST(PackWeights, PruningPackedTensorsKeepsTheOtherIntegers) {
  const Sample sample(small_config("golf-plus"));
  for (const int bits : {5, 6}) {
    const PackedWeights packed = sample.pack({.rule = {.bits = bits}});
    EXPECT_EQ(prune_packed(sample.table, packed.tensors, 0).tensors, packed.tensors);
    const PackedWeights pruned = prune_packed(sample.table, packed.tensors, 0.5);
    const std::vector<float> before = unpack_weights(sample.table, packed.tensors),
                             after = unpack_weights(sample.table, pruned.tensors);
    std::int64_t zeroed = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(after[i] == before[i] || after[i] == 0) << i;
      zeroed += before[i] != after[i];
    }
    EXPECT_EQ(zeroed, pruned.pruned);
    EXPECT_GT(zeroed, 0);
    for (std::size_t i = 0; i < packed.tensors.size(); ++i)
      EXPECT_EQ(pruned.tensors[i].scales, packed.tensors[i].scales);
  }
}

TEST(PackWeights, PruningPackedTensorsSkipsSmallMatrices) {
  Sample sample(small_config("golf-plus", {"layers=1", "unet_skips=false", "mlp_hidden=700"}));
  const PackOptions options{.rule = {.bits = 8}, .embedding = QuantizeRule{.bits = 6}};
  const PackedWeights packed = sample.pack(options);
  sample.weights = unpack_weights(sample.table, packed.tensors);
  PackOptions pruning = options;
  pruning.prune = 0.5;
  EXPECT_EQ(prune_packed(sample.table, packed.tensors, 0.5).pruned,
            sample.pack(pruning, packed.tensors).pruned);
}

TEST(PackWeights, PruningAppliesToMatricesThatAreNotSmall) {
  const Sample sample(small_config("golf-plus"));
  const PackedWeights packed = sample.pack({.rule = {.bits = 6}, .prune = 0.5});
  std::int64_t expected = 0;
  for (std::size_t i = 0; i < packed.tensors.size(); ++i) {
    const Param& param = sample.table.all()[i];
    const PackedTensor& tensor = packed.tensors[i];
    const auto zeros = std::ranges::count(tensor.q, 0) + std::ranges::count(tensor.floats, 0.0f);
    if (param.dims.size() == 2 && param.count() > 8192) {
      EXPECT_GE(zeros, param.count() / 2) << param.name;
      expected += param.count() / 2;
    } else {
      EXPECT_EQ(zeros, 0) << param.name;
    }
  }
  EXPECT_EQ(packed.pruned, expected);
}

TEST(PackWeights, CodingIsDeterministicAndSmallerForFewerBits) {
  const Sample sample(small_config("golf-plus"));
  std::uint64_t before = 1 << 30;
  for (const int bits : {8, 6, 5}) {
    const std::vector<PackedTensor> tensors = sample.pack({.rule = {.bits = bits}}).tensors;
    std::uint64_t last = 0, all = 0;
    const auto groups =
        code_weights(sample.table, tensors, Codec::zstd, [&](std::uint64_t done, std::uint64_t total) {
          EXPECT_GE(done, last);
          last = done;
          all = total;
        });
    EXPECT_EQ(last, all);
    const auto again = code_weights(sample.table, tensors, Codec::zstd);
    for (std::size_t i = 0; i < groups.size(); ++i) EXPECT_EQ(groups[i].bytes, again[i].bytes);
    EXPECT_LT(coded_bytes(groups), before);
    before = coded_bytes(groups);
  }
}

TEST(PruneToFit, PrunesJustEnough) {
  const Sample sample(small_config("golf-plus"));
  const std::vector<PackedTensor> whole = sample.pack({.rule = {.bits = 5}}).tensors;
  const auto whole_groups = code_weights(sample.table, whole, Codec::zlib);
  const std::uint64_t max_bytes = coded_bytes(whole_groups) * 995 / 1000;
  std::vector<PackedTensor> tensors = whole;
  std::vector<CodedGroup> groups = whole_groups;
  const std::int64_t pruned = prune_to_fit(sample.table, max_bytes, tensors, groups);
  EXPECT_LE(coded_bytes(groups), max_bytes);
  EXPECT_GT(pruned, 0);
  // One percent fewer would not fit, and the cheapest were pruned.
  const CheapestFirst cheapest(whole);
  std::vector<PackedTensor> expected = whole, fewer = whole;
  cheapest.zero(pruned, expected);
  EXPECT_EQ(tensors, expected);
  cheapest.zero(pruned - cheapest.count() / 100, fewer);
  EXPECT_GT(coded_bytes(code_weights(sample.table, fewer, Codec::zlib)), max_bytes);
  const auto again = code_weights(sample.table, tensors, Codec::zlib);
  for (std::size_t i = 0; i < groups.size(); ++i) EXPECT_EQ(groups[i].bytes, again[i].bytes);
}

TEST(PruneToFit, ChangesNothingThatFitsAndPrunesAllIfNothingHelps) {
  const Sample sample(small_config("golf-plus"));
  const std::vector<PackedTensor> whole = sample.pack({.rule = {.bits = 6}}).tensors;
  std::vector<PackedTensor> tensors = whole;
  std::vector<CodedGroup> groups = code_weights(sample.table, whole, Codec::zlib);
  EXPECT_EQ(prune_to_fit(sample.table, coded_bytes(groups), tensors, groups), 0);
  EXPECT_EQ(tensors, whole);
  EXPECT_EQ(prune_to_fit(sample.table, 10, tensors, groups), CheapestFirst(whole).count());
  EXPECT_EQ(CheapestFirst(tensors).count(), 0);
}

TEST(RuleName, NamesBitsAndClipping) {
  EXPECT_EQ(rule_name({.bits = 8}), "int8_clean_per_row_v1");
  EXPECT_EQ(rule_name({.bits = 6}), "int6_per_row");
  EXPECT_EQ(rule_name({.bits = 5, .clip = Clip::search}), "int5_clip_search");
  EXPECT_EQ(rule_name({.bits = 6, .clip = Clip::deviation, .deviations = 12.85f}),
            "int6_clip_12.85_deviations");
}

}  // namespace
}  // namespace thimble
