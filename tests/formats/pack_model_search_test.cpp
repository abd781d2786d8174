// The search for a packing rule: what fits, what is scored, and that the best is returned.
#include "formats/pack_model.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/builder.h"
#include "formats/artifact.h"
#include "support/message_of.h"

namespace thimble {
namespace {

ModelFile searched_model(std::initializer_list<const char*> settings = {
                             "vocab_size=300", "layers=2", "dim=128", "heads=2", "mlp_hidden=256"}) {
  ConfigBuilder builder;
  builder.preset("golf");
  builder.set("context=16");
  builder.set("kv_heads=1");
  for (const char* setting : settings) builder.set(setting);
  ModelFile model;
  model.format = "safetensors";
  model.config = resolved(Config{builder.resolve().model, {}});
  const ParamTable table(model.config.model);
  model.weights.resize(static_cast<std::size_t>(table.block_size()));
  initialise(table, 5, model.weights);
  return model;
}

// A score that is lower the closer the packed weights are to the original.
PackScore distance_to(const ModelFile& model) {
  return [&model](const ModelFile& packed) { return packing_error(model.weights, packed.weights).rms; };
}

TEST(PackSearch, ReturnsTheBestRuleThatFits) {
  const ModelFile model = searched_model();
  PackRequest request;
  request.options.codec = Codec::range;
  request.code_bytes = 1000;
  request.budget = 200'000;
  const SearchResult found =
      search_packing(model, request, {.measured = 4}, distance_to(model), ProgressOutput::nowhere());
  const SearchTry& best = found.tries[found.best];
  ASSERT_TRUE(best.score && best.bytes);
  EXPECT_EQ(*best.bytes, found.packed.report.self_contained_bytes());
  EXPECT_LE(*best.bytes, request.budget);
  EXPECT_GT(*best.bytes, request.budget * 9 / 10) << "the finest clip that fits was tried";
  EXPECT_EQ(found.packed.report.rule, rule_name(best.rule));
  EXPECT_EQ(*best.score, distance_to(model)(found.packed.loaded));
  EXPECT_EQ(std::ranges::count_if(found.tries, [](const SearchTry& t) { return t.score.has_value(); }), 4);
  for (const SearchTry& t : found.tries) {
    if (t.score) {
      EXPECT_GE(*t.score, *best.score);
    }
    if (t.bytes) {
      EXPECT_NEAR(static_cast<double>(t.predicted_bytes) / static_cast<double>(*t.bytes), 1, 0.03)
          << rule_name(t.rule);
    } else {
      EXPECT_TRUE(t.predicted_bytes > request.budget * 97 / 100 || t.error >= best.error)
          << rule_name(t.rule);
    }
  }
  EXPECT_EQ(read_artifact(std::as_bytes(std::span(found.packed.bytes)), "found").model.weights,
            found.packed.loaded.weights);
}

// zlib spends integral numbers of bits per byte, which the size model does not account for.
TEST(PackSearch, CorrectsTheSizeModelAfterAFileThatWasTooLarge) {
  const ModelFile model =
      searched_model({"vocab_size=64", "layers=2", "dim=512", "heads=4", "mlp_hidden=1024"});
  PackRequest request;
  request.options.codec = Codec::zlib;
  request.budget = 1'000'000;
  const SearchResult found =
      search_packing(model, request, {.bits = {6}, .clips = {}, .prunes = {0}, .measured = 1},
                     distance_to(model), ProgressOutput::nowhere());
  const SearchTry& best = found.tries[found.best];
  ASSERT_TRUE(best.score && best.bytes);
  EXPECT_LE(*best.bytes, request.budget);
  EXPECT_GT(*best.bytes, request.budget * 95 / 100);
  ASSERT_EQ(found.tries.size(), 2u) << "the finest by the size model, and the finest after its correction";
  EXPECT_FALSE(found.tries[1].score);
  EXPECT_GT(*found.tries[1].bytes, request.budget);
  EXPECT_LT(found.tries[1].predicted_bytes, request.budget);
}

TEST(PackSearch, ReportsThatNothingFits) {
  const ModelFile model = searched_model();
  PackRequest request;
  request.budget = 10'000;
  const std::string message = message_of([&] {
    search_packing(model, request, {.bits = {5}, .clips = {20}, .prunes = {0}}, distance_to(model),
                   ProgressOutput::nowhere());
  });
  EXPECT_TRUE(message.starts_with("no rule fits the budget: the smallest needs about ")) << message;
}

}  // namespace
}  // namespace thimble
