// Training a model of four layers in bytes: on the built-in corpus and, if it exists, on
// tinyshakespeare.
#include "data/sample/corpus.h"
#include "support/golden.h"
#include "train/tiny_run.h"

namespace thimble {
namespace {

struct TrainingText {
  const char* name;
  double loss;  // nats per byte that 2,000 steps must reach
};

class FullTierText : public TinyRun, public testing::WithParamInterface<TrainingText> {
 protected:
  std::filesystem::path text() const {
    if (const std::string_view name = GetParam().name; name != "tales")
      return shared_path(fmt::format("corpora/{}.txt", name)).value();
    std::string tales;
    sample::write_corpus({.kind = sample::CorpusKind::tales, .seed = 1337, .bytes = 1'000'000},
                         [&](std::string_view part) { tales += part; });
    return folder_.write("tales.txt", tales);
  }
};

std::vector<TrainingText> training_texts() {
  std::vector<TrainingText> all = {{"tales", 0.28}};
  if (shared_path("corpora/tinyshakespeare.txt")) all.push_back({"tinyshakespeare", 1.80});
  return all;
}

TEST_P(FullTierText, FourLayersOf128LearnItIn2000Steps) {
  ConfigBuilder builder;
  builder.preset("quick");  // 4 x 128
  for (const char* setting : {"context=64", "batch_tokens=768", "steps=2000", "val_every=0"})
    builder.set(setting);
  TrainRequest trained = request("run");
  builder.derive("vocab_size", std::int64_t{trained.tokenizer->vocab_size()});
  trained.config = builder.resolve();
  trained.source.data = text();
  const TrainResult result = run(trained);
  EXPECT_EQ(result.status, RunStatus::completed);
  EXPECT_LE(result.val_loss, GetParam().loss);
}

INSTANTIATE_TEST_SUITE_P(Texts, FullTierText, testing::ValuesIn(training_texts()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace thimble
