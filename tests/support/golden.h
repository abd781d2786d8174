// Golden files: text that must stay as it is, kept under tests/golden.
//
//   EXPECT_TRUE(matches_golden(help_text, "cli/help.txt"));
//
// THIMBLE_UPDATE_GOLDEN=1 ./test   writes what is now; read the difference before you commit it.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace thimble {

testing::AssertionResult matches_golden(std::string_view actual, std::string_view name);
std::filesystem::path golden_path(std::string_view name);  // tests/golden/NAME

// The same for a file anywhere.
testing::AssertionResult matches_golden_file(std::string_view actual, const std::filesystem::path& path,
                                             bool update);

// "line 3 differs" with both lines, control characters shown; empty when the texts are equal.
std::string first_difference(std::string_view expected, std::string_view actual);

// A path below the folder `shared` beside the checkout, which not every machine has:
//
//   const auto file = shared_path("fixtures/tokenizer.json");
//   if (!file) GTEST_SKIP() << shared_missing("fixtures/tokenizer.json");
std::optional<std::filesystem::path> shared_path(std::string_view relative);
std::string shared_missing(std::string_view relative);

}  // namespace thimble
