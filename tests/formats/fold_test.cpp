// Golf models folded to apertus and talkie: llama.cpp's computation on the export must match ours.
#include "formats/fold.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "config/builder.h"
#include "formats/llama_cpp_forward.h"
#include "support/message_of.h"

namespace thimble::fold_test {
namespace {

// llama.cpp's forward is in double, ours in f32, and talkie's relu2 is off by 7e-6 per hidden unit.
constexpr double kLogits = 1e-4;

ModelConfig small_golf() {
  ModelConfig c;
  c.vocab_size = 23, c.context = 16, c.layers = 3, c.dim = 16, c.heads = 4, c.kv_heads = 2, c.head_dim = 6;
  c.mlp_hidden = 20;
  c.mlp = MlpKind::relu2;
  c.norm = NormKind::rms;
  c.norm_eps = 1.1920929e-07;
  c.embed_norm = c.qk_norm = c.branch_scale = true;
  c.rope_direction = -1;
  c.q_gain = GainKind::shared;
  return c;
}

// Parameters far from their initial values: gains and norm weights around 1, mixes of either sign.
ModelFile random_model(const ModelConfig& config) {
  ModelFile file;
  file.config.model = resolved(config);
  const ParamTable table(file.config.model);
  file.weights.resize(static_cast<std::size_t>(table.block_size()));
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (const Param& param : table.all()) {
    const bool around_1 = param.rows == 1 && param.role != Role::resid_mix;
    const float spread = around_1 ? 0.3f : 1 / std::sqrt(static_cast<float>(param.cols));
    for (std::int64_t i = 0; i < param.count(); ++i)
      file.weights[static_cast<std::size_t>(param.offset + i)] =
          (around_1 ? 1.0f : 0.0f) + spread * normal(random);
    if (param.role != Role::resid_mix) continue;
    const std::size_t half = static_cast<std::size_t>(param.count() / 2);
    for (std::size_t i = 0; i < half;
         ++i) {  // keeps 0.6 to 1.4 of the stream, with alternating sign by layer
      float& keep = file.weights[static_cast<std::size_t>(param.offset) + i];
      keep = (param.layer % 2 ? -1.0f : 1.0f) * (1 + 0.4f * std::tanh(keep));
      file.weights[static_cast<std::size_t>(param.offset) + half + i] *= 0.3f;
    }
  }
  return file;
}

const std::vector<std::int32_t> kTokens = {3, 17, 3, 0, 22, 9, 9, 1, 14, 5};

std::vector<float> our_logits(const ModelFile& file) {
  const Context context;
  Model model = make_model(file, context);
  return model.score(grid_rows(model.config(), std::ssize(kTokens), kTokens), true).logits;
}

double largest_difference(const std::vector<float>& ours, const std::vector<LlamaCppForward::Row>& theirs) {
  double largest = 0;
  for (std::size_t t = 0; t < theirs.size(); ++t)
    for (std::size_t i = 0; i < theirs[t].size(); ++i)
      largest = std::max(largest, std::abs(ours[t * theirs[t].size() + i] - theirs[t][i]));
  return largest;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  return largest;
}

struct Worst {
  double llama_cpp = 0, ours = 0;
  int models = 0;
};

// Compares llama.cpp's forward of the export, and ours of the folded model, with the source.
void expect_same_logits(const ModelFile& source, const FoldOptions& options, Worst& worst) {
  const std::vector<float> expected = our_logits(source);
  const FoldedModel folded = fold_model(source, options);
  const double theirs = largest_difference(expected, LlamaCppForward(exported_model(folded)).logits(kTokens));
  const double ours = largest_difference(expected, our_logits(folded.model));
  worst = {std::max(worst.llama_cpp, theirs), std::max(worst.ours, ours), worst.models + 1};
  EXPECT_LE(theirs, kLogits);
  EXPECT_LE(ours, kLogits);
}

void expect_same_logits(const ModelConfig& config, const FoldOptions& options, Worst& worst) {
  expect_same_logits(random_model(config), options, worst);
}

void report(const Worst& worst) {
  testing::Test::RecordProperty("models", worst.models);
  fmt::print(
      "{} models, largest logit difference: llama.cpp's forward {:.1e}, thimble's of the folded model "
      "{:.1e}\n",
      worst.models, worst.llama_cpp, worst.ours);
}

constexpr bool kBoth[] = {false, true};

// Every combination of the switches that both architectures support.
template <class Body>
void for_each_common_switch(Body body) {
  for (const bool layer_scale : kBoth)
    for (const bool branch_scale : kBoth)
      for (const bool tied : kBoth)
        for (const int direction : {1, -1}) {
          ModelConfig c = small_golf();
          c.layer_scale = layer_scale, c.branch_scale = branch_scale, c.tie_embeddings = tied;
          c.rope_direction = direction;
          body(c);
        }
}

TEST(Fold, ApertusModelsHaveTheSameLogits) {
  Worst worst;
  for_each_common_switch([&](ModelConfig c) {
    for (const NormKind norm : {NormKind::rms, NormKind::rms_weight})
      for (const bool embed_norm : kBoth)
        for (const GainKind gain : {GainKind::none, GainKind::shared})
          for (const MlpKind mlp : {MlpKind::relu2, MlpKind::leaky_relu2}) {
            c.norm = norm, c.embed_norm = embed_norm, c.q_gain = gain, c.mlp = mlp;
            ASSERT_EQ(folded_architecture(resolved(c), {}), kApertus);
            expect_same_logits(c, {}, worst);
          }
  });
  report(worst);
}

TEST(Fold, TalkieModelsHaveTheSameLogits) {
  Worst worst;
  for_each_common_switch([&](ModelConfig c) {
    for (const GainKind gain : {GainKind::none, GainKind::shared, GainKind::head})
      for (const MixKind mix : {MixKind::none, MixKind::scalar})
        for (const MlpKind mlp : {MlpKind::relu2, MlpKind::leaky_relu2, MlpKind::swiglu}) {
          c.q_gain = gain, c.residual_mix = mix, c.mlp = mlp;
          expect_same_logits(c, {.architecture = std::string(kTalkie)}, worst);
        }
  });
  report(worst);
}

TEST(Fold, LoopIsUnrolled) {
  Worst worst;
  for (const bool layer_scale : kBoth)
    for (const bool loop_on : kBoth)
      for (const MixKind mix : {MixKind::none, MixKind::scalar}) {
        ModelConfig c = small_golf();
        c.loop_first = 1, c.loop_last = 2, c.loop_count = 2;
        c.layer_scale = layer_scale, c.residual_mix = mix;
        ModelFile looped = random_model(c);
        looped.config.state.loop_on = loop_on;
        expect_same_logits(looped, {}, worst);
        EXPECT_EQ(fold_model(looped, {}).model.config.model.layers, loop_on ? 7 : 3);
      }
  report(worst);
}

TEST(Fold, PrefersApertusOverTalkie) {
  const auto chosen = [](auto change) {
    ModelConfig c = small_golf();
    change(c);
    return folded_architecture(resolved(c), {});
  };
  EXPECT_EQ(chosen([](ModelConfig&) {}), "apertus");
  EXPECT_EQ(chosen([](ModelConfig& c) { c.q_gain = GainKind::head; }), "talkie");
  EXPECT_EQ(chosen([](ModelConfig& c) { c.residual_mix = MixKind::scalar; }), "talkie");
  EXPECT_EQ(chosen([](ModelConfig& c) { c.mlp = MlpKind::swiglu; }), "talkie");
}

TEST(Fold, DroppingTheSoftcapGivesTheLogitsBeforeIt) {
  ModelConfig config = small_golf();
  config.logit_softcap = 3;
  ModelFile source = random_model(config);
  EXPECT_THROW(fold_model(source, {}), Error);
  const FoldedModel folded = fold_model(source, {.architecture = {}, .drop_softcap = true});
  EXPECT_EQ(folded.steps.front().line(),
            "logit_softcap = 3 -> dropped: greedy text is unchanged, probabilities change because large "
            "logits are no longer capped");
  const std::vector<float> ours = our_logits(folded.model), capped = our_logits(source);
  source.config.model.logit_softcap = 0;
  EXPECT_LE(largest_difference(ours, our_logits(source)), kLogits);
  EXPECT_GT(largest_difference(ours, capped), 0.1);
}

TEST(Fold, ReportsEveryStepAndItsAccuracy) {
  ModelConfig config = small_golf();
  config.q_gain = GainKind::head, config.residual_mix = MixKind::scalar;
  std::vector<std::string> lines;
  for (const FoldStep& step : fold_model(random_model(config), {}).steps) lines.push_back(step.line());
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0], "branch_scale -> rows of attn.proj and mlp.proj: exact, rounded once to f32");
  EXPECT_EQ(lines[1], "rope_direction = -1 -> second half of each head's rows of q and k, negated: exact");
  EXPECT_EQ(lines[2], "tie_embeddings -> the head is stored as a copy of the embedding: exact");
  EXPECT_TRUE(lines[3].starts_with(
      "residual_mix = scalar -> attn.proj, mlp.proj and the layers' output scales: exact "
      "but for norm_eps: a norm of a stream of size 1 changes by "))
      << lines[3];
  EXPECT_EQ(lines[4], "mlp = relu2 -> swiglu with a gate of 256 z: each hidden unit within 7.4e-06");
}

struct Refusal {
  const char* name;
  void (*change)(ModelConfig&);
  const char* reason;
};
constexpr Refusal kRefusals[] = {
    {"skips", [](ModelConfig& c) { c.unet_skips = true; }, "unet_skips"},
    {"channel", [](ModelConfig& c) { c.residual_mix = MixKind::channel; }, "residual_mix = channel"},
    {"softcap", [](ModelConfig& c) { c.logit_softcap = 30; }, "logit_softcap = 30"},
    {"bigram", [](ModelConfig& c) { c.bigram_buckets = 8, c.bigram_dim = 4; }, "bigram_buckets"},
    {"smear", [](ModelConfig& c) { c.smear_gate = true; }, "smear_gate"},
    {"parallel", [](ModelConfig& c) { c.parallel_from = 1; }, "parallel_from"},
    {"exclusive", [](ModelConfig& c) { c.exclusive_attention = true; }, "exclusive_attention"},
    {"layernorm", [](ModelConfig& c) { c.norm = NormKind::layer; }, "norm = layer"},
    {"no_final_norm", [](ModelConfig& c) { c.final_norm = false; }, "final_norm = false"},
    {"no_qk_norm", [](ModelConfig& c) { c.qk_norm = false; }, "qk_norm = false"},
    {"learned", [](ModelConfig& c) { c.position = PositionKind::learned; }, "position"},
    {"part_of_a_head", [](ModelConfig& c) { c.rope_dims = 4; }, "rope_dims = 4"},
    {"bias", [](ModelConfig& c) { c.qkv_bias = true; }, "qkv_bias"},
    {"gelu", [](ModelConfig& c) { c.mlp = MlpKind::gelu; }, "mlp: only"},
};

class Refused : public testing::TestWithParam<Refusal> {};

TEST_P(Refused, NamesTheReasonAndHintsAtASolution) {
  ModelConfig config = small_golf();
  GetParam().change(config);
  for (const std::string_view architecture : {kApertus, kTalkie}) {
    const auto reasons = reasons_against(architecture, resolved(config), false);
    ASSERT_EQ(reasons.size(), 1u) << architecture;
    EXPECT_NE(reasons[0].find(GetParam().reason), std::string::npos) << reasons[0];
  }
  try {
    fold_model(random_model(config), {});
    FAIL() << "was not rejected";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(GetParam().reason), std::string::npos) << error.what();
    EXPECT_NE(error.hint().find("--preset export"), std::string::npos);
    EXPECT_EQ(error.hint().find("--drop-softcap") != std::string::npos, config.logit_softcap > 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Fold, Refused, testing::ValuesIn(kRefusals),
                         [](const auto& info) { return std::string(info.param.name); });

Config preset(const char* name) {
  ConfigBuilder settings;
  settings.preset(name);
  return settings.resolve();
}

TEST(Fold, GolfPresetIsRejectedWithAllReasons) {
  const std::string message = message_of([] { folded_architecture(preset("golf").model, {}); });
  for (const char* reason :
       {"unet_skips", "residual_mix = channel", "logit_softcap = 30", "as apertus: q_gain = head"})
    EXPECT_NE(message.find(reason), std::string::npos) << message;
}

TEST(Fold, RequestedArchitectureReportsWhatItLacks) {
  ModelConfig config = small_golf();
  config.q_gain = GainKind::head;
  config.norm = NormKind::rms_weight;
  const std::string message = message_of([&] { folded_architecture(resolved(config), {}); });
  EXPECT_EQ(message,
            "no architecture of llama.cpp can express this model: as apertus: q_gain = head: all heads of a "
            "layer share "
            "a gain; as talkie: norm = rms_weight: the norms of q and k have no weight");
  EXPECT_EQ(
      message_of([&] { folded_architecture(resolved(config), {.architecture = "talkie"}); }),
      "llama.cpp's talkie cannot express this model: norm = rms_weight: the norms of q and k have no weight");
}

TEST(Fold, ExportPresetFoldsToTalkie) {
  EXPECT_EQ(folded_architecture(preset("export").model, {}), kTalkie);
}

TEST(Fold, ResidualMixOfZeroCannotBeFolded) {
  ModelConfig config = small_golf();
  config.residual_mix = MixKind::scalar;
  ModelFile source = random_model(config);
  const ParamTable table(source.config.model);
  source.weights[static_cast<std::size_t>(table.resid_mix(1).offset)] = 0;
  EXPECT_EQ(message_of([&] { fold_model(source, {}); }), "residual_mix scales the stream by 0 in layer 1");
}

// An importer derives the folded config from the sizes, and knows every tensor.
TEST(Fold, FoldedConfigFollowsFromItsSizes) {
  for (const std::string_view architecture : {kApertus, kTalkie}) {
    const FoldedModel folded =
        fold_model(random_model(small_golf()), {.architecture = std::string(architecture)});
    const ModelConfig& config = folded.model.config.model;
    ModelConfig sizes;
    sizes.vocab_size = config.vocab_size, sizes.context = config.context, sizes.layers = config.layers;
    sizes.dim = config.dim, sizes.heads = config.heads, sizes.kv_heads = config.kv_heads;
    sizes.head_dim = config.head_dim, sizes.mlp_hidden = config.mlp_hidden, sizes.norm_eps = config.norm_eps;
    ModelConfig expected = config;
    expected.q_gain_init = sizes.q_gain_init;
    EXPECT_EQ(folded_config(architecture, sizes), expected);
    const ExportedModel exported = exported_model(folded);
    const auto tensors = folded_tensors(architecture, config);
    ASSERT_EQ(tensors.size(), exported.tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(tensors[i].name, exported.tensors[i].name);
  }
}

TEST(Fold, MatrixOfOneRowStaysAMatrix) {
  ModelConfig config = small_golf();
  config.mlp_hidden = 1;
  for (const std::string_view architecture : {kApertus, kTalkie}) {
    const ExportedModel exported =
        exported_model(fold_model(random_model(config), {.architecture = std::string(architecture)}));
    const auto up = std::ranges::find(exported.tensors, "blk.0.ffn_up.weight", &ExportedTensor::name);
    ASSERT_NE(up, exported.tensors.end());
    EXPECT_EQ(up->dims, (std::vector<std::int64_t>{1, config.dim})) << architecture;
  }
}

}  // namespace
}  // namespace thimble::fold_test
