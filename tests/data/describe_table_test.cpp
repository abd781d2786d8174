#include "data/describe.h"

#include <gtest/gtest.h>

namespace thimble {
namespace {

TEST(DataTable, ListsDataAndPlannedTokens) {
  const DataFacts facts{.documents = 1000,
                        .tokens = 200'000,
                        .bytes = 700'000,
                        .planned_tokens = 1'000'000,
                        .parameters = 100'000};
  EXPECT_EQ(data_table(facts),
            "documents                 1,000\n"
            "tokens                  200,000\n"
            "bytes per token            3.50\n"
            "planned tokens        1,000,000\n"
            "parameters              100,000\n"
            "tokens per parameter      10.00\n"
            "epochs                     5.00\n");
}

TEST(DataTable, OmitsUnknownCounts) {
  const std::string text =
      data_table({.documents = 0, .tokens = 1, .bytes = 0, .planned_tokens = 1, .parameters = 1});
  EXPECT_EQ(text.find("documents"), std::string::npos);
  EXPECT_EQ(text.find("bytes"), std::string::npos);
}

TEST(DataTable, WarnsBelowTenTokensPerParameter) {
  const auto warning = [](std::uint64_t tokens, std::uint64_t seen) {
    return data_warning(
        {.documents = 1, .tokens = tokens, .bytes = 1, .planned_tokens = seen, .parameters = 1000});
  };
  EXPECT_EQ(warning(10'000, 10'000), "");
  EXPECT_EQ(warning(10'000, 1'000'000), "");
  EXPECT_NE(warning(9'999, 1'000'000).find("--init"), std::string::npos) << "too little text";
  EXPECT_NE(warning(1'000'000, 9'999).find("train longer"), std::string::npos) << "too few steps";
}

TEST(DataAmount, CountsTheDistinctTokensThatAreRead) {
  EXPECT_EQ(data_amount(10'000, 10'000, 1000), DataAmount::enough);
  EXPECT_EQ(data_amount(10'000, 9'999, 1000), DataAmount::too_few_steps);
  EXPECT_EQ(data_amount(9'999, 1'000'000, 1000), DataAmount::too_little_text);
}

}  // namespace
}  // namespace thimble
