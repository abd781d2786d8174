#include "base/error.h"

#include "base/log.h"

namespace thimble {
namespace {

TEST(Error, DescribesTheProblemAndTheHint) {
  try {
    check(false, Hint{"drop --set dim=512"}, "weight has {} columns, input rows have {}", 500, 512);
    FAIL() << "check() did not throw";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "weight has 500 columns, input rows have 512");
    const std::string text = describe(error);
    EXPECT_EQ(text.find("error: weight has 500 columns, input rows have 512\nhint: drop --set dim=512"), 0u)
        << text;
    EXPECT_NE(std::string(error.where().file_name()).find("error_test.cpp"), std::string::npos);
  }
  EXPECT_NO_THROW(check(true, "never"));
}

TEST(Error, NamesTheInvalidFieldOfARequest) {
  const auto field_and_hint = [](const auto& f) -> std::pair<std::string, std::string> {
    try {
      f();
    } catch (const Error& error) {
      return {error.field(), error.hint()};
    }
    return {};
  };
  using FieldAndHint = std::pair<std::string, std::string>;
  EXPECT_EQ(field_and_hint([] { check(false, Field{"top_k"}, "top_k must be >= {}", 0); }),
            (FieldAndHint{"top_k", ""}));
  EXPECT_EQ(field_and_hint([] {
              fail(Field{"prompt", Hint{"give one"}}, "prompt is empty");
            }),
            (FieldAndHint{"prompt", "give one"}));
  EXPECT_EQ(field_and_hint([] { fail("nothing there"); }), (FieldAndHint{}));
}

TEST(Log, WritesLinesAtOrAboveItsLevel) {
  std::string lines;
  const Log log(LogLevel::info, [&](LogLevel, std::string_view line) { lines += std::string(line) + ";"; });
  log.debug("hidden {}", 1);
  log.info("step {}", 2);
  log.warning("epoch {}", 3);
  EXPECT_EQ(lines, "step 2;epoch 3;");
  Log::nowhere().warning("no sink, no crash");
}

}  // namespace
}  // namespace thimble
