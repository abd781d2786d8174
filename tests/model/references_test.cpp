// Compares the engine with plain double-precision GPTs: logits, loss and gradients of qwen3, GPT-2
// and microgpt.
#include <algorithm>
#include <random>

#include "config/builder.h"
#include "formats/model_file.h"
#include "formats/sample_folders.h"
#include "model/plain_gpt.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

// f32 against double over a few hundred additions; the same bounds as for the golden files.
constexpr double kLogits = 2e-4, kLoss = 1e-5, kCosine = 0.999999, kRelative = 1e-4;
constexpr double kStep = 1e-5;        // of central differences: their error is about 1e-9
constexpr double kNoGradient = 1e-6;  // treated as 0; GPT-2's key biases, for example, have no gradient
constexpr std::size_t kSampled = 40;  // elements of each tensor

// A model, the same model in double, and the index in the model's block of each element of the
// original tensors.
struct Pair {
  Model model;
  PlainGpt plain;
  std::map<std::string, std::vector<std::size_t>> offsets;
};

using Maker = std::function<Model(const SampleTensors&)>;

// Finds the index of each element by loading tensors whose values are the element numbers.
Pair make_pair_of(const Maker& make, PlainGpt plain, const SampleTensors& tensors) {
  SampleTensors numbered = tensors;
  std::vector<std::pair<std::string, std::size_t>> elements = {{}};
  for (auto& [name, tensor] : numbered)
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      tensor.values[i] = static_cast<float>(elements.size());
      elements.emplace_back(name, i);
    }
  std::map<std::string, std::vector<std::size_t>> offsets;
  for (const auto& [name, tensor] : tensors) {
    offsets[name].assign(tensor.values.size(), SIZE_MAX);
    plain.tensors[name].assign(tensor.values.begin(), tensor.values.end());
  }
  const Model map = make(numbered);
  for (std::size_t i = 0; i < map.weights().size(); ++i)
    if (const auto number = static_cast<std::size_t>(map.weights()[i]))
      offsets[elements[number].first][elements[number].second] = i;
  return {make(tensors), std::move(plain), std::move(offsets)};
}

struct Batch {
  std::vector<std::vector<int>> input, target;

  Batch(int rows, int length, std::int64_t vocabulary) {
    std::mt19937 random(3);
    for (int b = 0; b < rows; ++b) {
      input.emplace_back(), target.emplace_back();
      for (int t = 0; t < length; ++t) {
        input.back().push_back(static_cast<int>(random() % static_cast<unsigned>(vocabulary)));
        target.back().push_back(t % 5 == 4 ? -1
                                           : static_cast<int>(random() % static_cast<unsigned>(vocabulary)));
      }
    }
  }
  Rows rows(const ModelConfig& config) const {
    std::vector<std::int32_t> in, out;
    for (const auto& row : input) in.insert(in.end(), row.begin(), row.end());
    for (const auto& row : target) out.insert(out.end(), row.begin(), row.end());
    return grid_rows(config, static_cast<std::int64_t>(input[0].size()), in, out);
  }
};

void expect_same_logits(Pair& pair, const Batch& batch) {
  const Model::Scores scores = pair.model.score(batch.rows(pair.model.config()), true);
  std::size_t i = 0;
  for (const auto& row : batch.input)
    for (const auto& logits : pair.plain.logits(row))
      for (const double logit : logits) ASSERT_NEAR(scores.logits[i++], logit, kLogits);
  EXPECT_EQ(i, scores.logits.size());
}

double slope(PlainGpt& plain, const Batch& batch, double& element) {
  const double value = element;
  element = value + kStep;
  const double above = plain.loss(batch.input, batch.target);
  element = value - kStep;
  const double below = plain.loss(batch.input, batch.target);
  element = value;
  return (above - below) / (2 * kStep);
}

void expect_same_gradients(Pair& pair, const Batch& batch) {
  std::vector<float> gradients(pair.model.weights().size());
  const double loss = pair.model.add_gradients(batch.rows(pair.model.config()), gradients, {});
  EXPECT_NEAR(loss / pair.plain.loss(batch.input, batch.target), 1, kLoss);
  std::mt19937 random(11);
  for (auto& [name, values] : pair.plain.tensors) {
    std::vector<std::size_t> sample(values.size());
    for (std::size_t i = 0; i < sample.size(); ++i) sample[i] = i;
    std::shuffle(sample.begin(), sample.end(), random);
    sample.resize(std::min(sample.size(), kSampled));
    double dot = 0, ours2 = 0, theirs2 = 0, apart2 = 0;
    for (const std::size_t i : sample) {
      ASSERT_NE(pair.offsets[name][i], SIZE_MAX) << name << " " << i << " is not in the model";
      const double ours = gradients[pair.offsets[name][i]], theirs = slope(pair.plain, batch, values[i]);
      dot += ours * theirs, ours2 += ours * ours, theirs2 += theirs * theirs;
      apart2 += (ours - theirs) * (ours - theirs);
    }
    const double zero = kNoGradient * std::sqrt(static_cast<double>(sample.size()));
    EXPECT_LE(std::sqrt(apart2), kRelative * std::sqrt(theirs2) + zero) << name;
    if (std::sqrt(theirs2) > 100 * zero) {
      EXPECT_GE(dot / std::sqrt(ours2 * theirs2), kCosine) << name;
    }
  }
}

void expect_same(Pair pair) {
  for (const int length : {1, 7, 13}) {
    const Batch batch(2, length, pair.model.config().vocab_size);
    expect_same_logits(pair, batch);
  }
  expect_same_gradients(pair, Batch(2, 9, pair.model.config().vocab_size));
}

Maker through_folder(const TempFolder& folder, const Context& context, Json config) {
  return [&folder, &context, config](const SampleTensors& tensors) {
    write_folder(folder.path(), {config, tensors});
    return make_model(open_model(folder.path()), context);
  };
}

TEST(Reference, Qwen3LogitsLossAndGradients) {
  const TempFolder folder;
  const Context context;
  const SampleFolder sample = sample_llama("qwen3", false);
  PlainGpt plain(PlainGpt::Family::qwen3, {.vocabulary = 29,
                                           .width = 16,
                                           .layers = 2,
                                           .heads = 6,
                                           .kv_heads = 2,
                                           .head = 4,
                                           .hidden = 20,
                                           .eps = 1e-5,
                                           .theta = 500});
  expect_same(make_pair_of(through_folder(folder, context, sample.config), plain, sample.tensors));
}

TEST(Reference, Gpt2LogitsLossAndGradients) {
  const TempFolder folder;
  const Context context;
  const SampleFolder sample = sample_gpt2();
  PlainGpt plain(PlainGpt::Family::gpt2, {.vocabulary = 31,
                                          .width = 12,
                                          .layers = 2,
                                          .heads = 3,
                                          .kv_heads = 3,
                                          .head = 4,
                                          .hidden = 48,
                                          .eps = 1e-5});
  expect_same(make_pair_of(through_folder(folder, context, sample.config), plain, sample.tensors));
}

// The names of the tensors in microgpt.
std::string original_name(const Param& param) {
  using enum Role;
  const auto block = [&](const char* what) { return fmt::format("layer{}.{}", param.layer, what); };
  switch (param.role) {
    case token_embedding:
      return "wte";
    case position_embedding:
      return "wpe";
    case head:
      return "lm_head";
    case query:
      return block("attn_wq");
    case key:
      return block("attn_wk");
    case value:
      return block("attn_wv");
    case attn_proj:
      return block("attn_wo");
    case mlp_fc:
      return block("mlp_fc1");
    case mlp_proj:
      return block("mlp_fc2");
    default:
      return "";
  }
}

TEST(Reference, MicrogptLogitsLossAndGradients) {
  const Context context;
  ConfigBuilder settings;
  settings.preset("microgpt");
  for (const char* assignment : {"vocab_size=23", "context=16", "dim=16", "heads=4", "layers=2"})
    settings.set(assignment);
  const ModelConfig config = settings.resolve().model;
  const ParamTable table(config);
  EXPECT_EQ(table.count(), 2 * 23 * 16 + 16 * 16 + 12 * 2 * 16 * 16);  // 2 V E + T E + 12 L E^2
  RandomTensors random;
  for (const Param& param : table.all()) random.add(original_name(param), param.dims);
  const Maker make = [&](const SampleTensors& tensors) {
    Model model(config, context);
    for (const Param& param : table.all())
      std::ranges::copy(tensors.at(original_name(param)).values, model.weights().begin() + param.offset);
    model.weights_changed();
    return model;
  };
  PlainGpt plain(PlainGpt::Family::microgpt, {.vocabulary = 23,
                                              .width = 16,
                                              .layers = 2,
                                              .heads = 4,
                                              .kv_heads = 4,
                                              .head = 4,
                                              .hidden = 64,
                                              .eps = 1e-5});
  expect_same(make_pair_of(make, plain, random.tensors));
}

}  // namespace
}  // namespace thimble
