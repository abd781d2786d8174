// A real text, as many know it: tinyshakespeare in bytes.
#include "support/golden.h"
#include "train/tiny_run.h"

namespace thimble {
namespace {

class FullTierShakespeare : public TinyRun {};

TEST_F(FullTierShakespeare, FourLayersOf128LearnTo180NatsInTwoThousandSteps) {
  constexpr std::string_view kText = "corpora/tinyshakespeare.txt";
  const auto text = shared_path(kText);
  if (!text) GTEST_SKIP() << shared_missing(kText);
  ConfigBuilder builder;
  builder.preset("quick");  // 4 x 128
  for (const char* setting : {"context=64", "batch_tokens=768", "steps=2000", "val_every=0"})
    builder.set(setting);
  TrainRequest shakespeare = request("run");
  builder.derive("vocab_size", std::int64_t{shakespeare.tokenizer->vocab_size()});
  shakespeare.config = builder.resolve();
  shakespeare.source.data = *text;
  const TrainResult result = run(shakespeare);
  EXPECT_EQ(result.status, RunStatus::completed);
  EXPECT_LE(result.val_loss, 1.80);
}

}  // namespace
}  // namespace thimble
