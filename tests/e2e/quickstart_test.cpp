// ./quickstart, as a newcomer runs it: it builds the product in a folder of its own.
#include "support/run_binary.h"

namespace thimble {
namespace {

TEST(FullTierQuickstart, BuildsTrainsPacksAndAnswersAndASecondRunIsQuick) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    const RunResult result =
        run_program(source_folder() / "quickstart", {.folder = "/", .timeout_seconds = 1500});
    ASSERT_EQ(result.exit_code, 0) << result;
    EXPECT_NE(result.out.find("self-contained"), std::string::npos) << result;
    EXPECT_NE(result.out.find("bits per byte"), std::string::npos) << result;
    EXPECT_NE(result.out.find("% exact: "), std::string::npos) << result;
    if (attempt == 1) {
      EXPECT_NE(result.out.find("is there already"), std::string::npos) << result;
    }
  }
}

}  // namespace
}  // namespace thimble
