// The size of micro-batches, chosen from the memory that a run needs.
#include "train/run_cost.h"
#include "base/error.h"
#include "train/tiny_run.h"

namespace thimble {
namespace {

Config large() {
  ConfigBuilder builder;
  builder.preset("golf");
  builder.set("batch_tokens=98304");  // 96 rows
  return builder.resolve();
}

TEST(MicroBatch, HasAbout8192TokensInEqualPieces) {
  EXPECT_EQ(with_micro_batch(large(), 0).train.micro_batch, 8);
  Config odd = large();
  odd.train.batch_tokens = odd.train.span_tokens = 9 * 1024;
  EXPECT_EQ(with_micro_batch(odd, 0).train.micro_batch, 3)
      << "three equal ones: 5 and 4 would need two programs";
  odd.train.batch_tokens = odd.train.span_tokens = 11 * 1024;
  EXPECT_EQ(with_micro_batch(odd, 0).train.micro_batch, 6) << "6 and 5, not 8 and 3: only 1 divides 11";
}

TEST(MicroBatch, IsLargerOnAGpu) {
  EXPECT_EQ(with_micro_batch(large(), 0, Device::cuda).train.micro_batch, 96);
  Config larger = large();
  larger.train.batch_tokens = larger.train.span_tokens = 387 * 1024;
  EXPECT_EQ(with_micro_batch(larger, 0, Device::cuda).train.micro_batch, 129) << "three equal ones";
  larger.train.batch_tokens = larger.train.span_tokens = 257 * 1024;
  EXPECT_EQ(with_micro_batch(larger, 0, Device::cuda).train.micro_batch, 129) << "129 and 128, not 256 and 1";
  Config small = large();
  small.train.batch_tokens = small.train.span_tokens = 9 * 1024;
  EXPECT_EQ(with_micro_batch(small, 0, Device::cuda).train.micro_batch, 9);
}

TEST(MicroBatch, CountsTheProgramOfASmallerLastMicroBatch) {
  Config config = large();
  config.train.batch_tokens = config.train.span_tokens = 11 * 1024;
  Config given = config;
  given.train.micro_batch = 6;
  const std::int64_t one_program = summarize(given).total_bytes();
  EXPECT_EQ(with_micro_batch(config, one_program * 100 / 84).train.micro_batch, 3) << "6 and 5 do not fit";
  EXPECT_EQ(with_micro_batch(config, 2 * one_program * 100 / 84).train.micro_batch, 6);
}

TEST(MicroBatch, CountsProgramsWithAndWithoutTheLoopIfPrimingNeedsBoth) {
  Config config = large();
  config.model.loop_last = 3;
  config.model.loop_count = 1;
  config.train.loop_start = 0.5;
  config.train.prime_steps = 0;
  Config given = config;
  given.train.micro_batch = 8;
  const std::int64_t one_program = summarize(given).total_bytes();
  EXPECT_EQ(with_micro_batch(config, one_program * 100 / 84).train.micro_batch, 8);
  config.train.prime_steps = 2;  // creates the programs with the loop while those without it exist
  EXPECT_LT(with_micro_batch(config, one_program * 100 / 84).train.micro_batch, 8);
}

TEST(MicroBatch, ShrinksUntilItFitsAndFailsIfNothingFits) {
  const Config config = large();
  std::int64_t before = 9;
  for (std::int64_t rows : {8, 4, 1}) {
    Config given = config;
    given.train.micro_batch = rows;
    const std::int64_t needed = summarize(given).total_bytes();
    const Config fitted = with_micro_batch(config, needed * 100 / 84);
    EXPECT_LE(fitted.train.micro_batch, rows);
    EXPECT_LT(fitted.train.micro_batch, before);
    before = fitted.train.micro_batch;
    EXPECT_EQ(with_micro_batch(given, 1 << 20).train.micro_batch, rows)
        << "a given micro_batch is not changed";
  }
  try {
    with_micro_batch(config, 1 << 20);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("but only 1.00 MiB of memory is available"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace thimble
