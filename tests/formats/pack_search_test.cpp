// The search for a packing that fits: what is packed and scored, and that the best is returned.
#include "formats/pack_search.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "formats/artifact.h"
#include "formats/small_export.h"
#include "support/message_of.h"

namespace thimble {
namespace {

ModelFile searched_model(std::vector<std::string> settings = {"vocab_size=300", "layers=2", "dim=64",
                                                              "heads=2", "mlp_hidden=128"}) {
  settings.insert(settings.begin(), {"context=16", "kv_heads=1"});
  return initialized_model("golf", settings);
}

// A score that is lower the closer the packed weights are to the original.
PackScore distance_to(const ModelFile& model) {
  return [&model](const ModelFile& packed) { return packing_error(model.weights, packed.weights).rms; };
}

// Errors of some roles count more, as in a trained model.
PackScore weighted_distance_to(const ModelFile& model) {
  return [&model](const ModelFile& packed) {
    double score = 1;
    for (const Param& param : ParamTable(model.config.model).all()) {
      const double error =
          packing_error(param.in(std::span(model.weights)), param.in(std::span(packed.weights))).relative;
      score += (param.role == Role::token_embedding ? 10
                : param.role == Role::mlp_fc        ? 0.1
                                                    : 1) *
               error * error;
    }
    return score;
  };
}

TEST(PackSearch, ReturnsTheBestCandidateThatFillsTheBudget) {
  const ModelFile model = searched_model();
  PackRequest request;
  request.code_bytes = 1000;
  request.budget = 27'000;
  const PackScore score = weighted_distance_to(model);
  const SearchResult found = search_packing(model, request, {}, score, ProgressOutput::nowhere());
  const SearchTry& best = found.tries[found.best];
  ASSERT_TRUE(best.score);
  EXPECT_EQ(best.bytes, found.packed.report.self_contained_bytes());
  EXPECT_LE(best.bytes, request.budget);
  EXPECT_GT(best.bytes, request.budget * 96 / 100) << "clips are scaled to fill the budget";
  EXPECT_EQ(found.packed.report.rule, packing_name(best.options));
  EXPECT_EQ(*best.score, score(found.packed.loaded));
  EXPECT_EQ(best.options.codec, Codec::range) << "the smaller one";
  EXPECT_EQ(std::ranges::count_if(found.tries, [](const SearchTry& t) { return t.score.has_value(); }), 6);
  for (const SearchTry& t : found.tries)
    if (t.score) {
      EXPECT_GE(*t.score, *best.score);
    }
  // Roles are weighed against each other: the embedding gets finer steps than the MLPs.
  const auto step = [](const QuantizeRule& rule) {
    return rule.deviations / static_cast<float>((1 << (rule.bits - 1)) - 1);
  };
  EXPECT_LT(step(*best.options.embedding), 0.7f * step(*best.options.mlp));
  EXPECT_EQ(read_artifact(std::as_bytes(std::span(found.packed.bytes)), "found").model.weights,
            found.packed.loaded.weights);

  // One rule for all roles, with the same budget, is worse.
  PackRequest uniform = request;
  uniform.options = {.rule = {.bits = 8, .clip = Clip::deviation, .deviations = 20}, .codec = Codec::range};
  uniform.options.golf = false;
  for (float& clip = uniform.options.rule.deviations; clip < 100; clip += 1) {
    const PackResult packed = pack_model(model, uniform, ProgressOutput::nowhere());
    if (!packed.report.fits()) continue;
    EXPECT_GT(score(packed.loaded), *best.score);
    break;
  }
}

TEST(PackSearch, KeepsToTheRulesAndCodecsItIsGiven) {
  const ModelFile model = searched_model();
  PackRequest request;
  request.budget = 60'000;
  request.options.keep = {"c_v"};
  const QuantizeRule six{.bits = 6, .clip = Clip::deviation, .deviations = 8};
  const SearchResult found = search_packing(
      model, request,
      {.rules = searched_rules(5), .embedding = {six}, .prunes = {0}, .codecs = {Codec::zlib}, .measured = 1},
      distance_to(model), ProgressOutput::nowhere());
  const PackOptions& best = found.tries[found.best].options;
  EXPECT_EQ(best.rule.bits, 5);
  EXPECT_EQ(best.mlp->bits, 5);
  EXPECT_EQ(*best.embedding, six);
  EXPECT_EQ(best.codec, Codec::zlib);
  for (const PackReport::Tensor& tensor : found.packed.report.tensors)
    if (tensor.name.find("c_v") != tensor.name.npos) {
      EXPECT_EQ(tensor.storage, Storage::f16);
    }
}

TEST(PackSearch, WithoutABudgetTakesTheFinestRules) {
  const ModelFile model = searched_model();
  PackRequest request;
  request.budget = kNoBudget;
  const SearchResult found =
      search_packing(model, request, {.measured = 1}, distance_to(model), ProgressOutput::nowhere());
  EXPECT_EQ(found.tries.size(), 1u);
  EXPECT_EQ(found.tries.front().options.rule, searched_rules().front());
}

TEST(PackSearch, ScalesClipsAfterAFileThatWasTooLarge) {
  const ModelFile model = searched_model();
  PackRequest request;
  request.budget = 34'000;
  const SearchResult found = search_packing(model, request, {.codecs = {Codec::zlib}, .measured = 2},
                                            distance_to(model), ProgressOutput::nowhere());
  EXPECT_TRUE(std::ranges::any_of(found.tries, [&](const SearchTry& t) {
    return t.bytes > request.budget && !t.score;
  })) << "zlib spends whole bits, which the size model does not account for";
  EXPECT_LE(found.packed.report.bytes, request.budget);
  EXPECT_GT(found.packed.report.bytes, request.budget * 95 / 100);
}

TEST(PackSearch, ReportsThatNothingFits) {
  const ModelFile model = searched_model();
  PackRequest request;
  request.budget = 3'000;
  const std::string message = message_of([&] {
    search_packing(model, request, {.prunes = {0}}, distance_to(model), ProgressOutput::nowhere());
  });
  EXPECT_TRUE(message.starts_with("no rule fits the budget: the smallest needs about ")) << message;
}

}  // namespace
}  // namespace thimble
