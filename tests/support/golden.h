// Golden files: inputs and expected results, stored under tests/golden (its README describes them).
//
//   EXPECT_TRUE(matches_golden(help_text, "cli/help.txt"));
//
// THIMBLE_UPDATE_GOLDEN=1 ./test   writes the current texts; review the diff before committing.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

testing::AssertionResult matches_golden(std::string_view actual, std::string_view name);
std::filesystem::path golden_path(std::string_view name);  // tests/golden/NAME

// The same for a file at any path.
testing::AssertionResult matches_golden_file(std::string_view actual, const std::filesystem::path& path,
                                             bool update);

// "line 3 differs" with both lines and visible control characters; empty if the texts are equal.
std::string first_difference(std::string_view expected, std::string_view actual);

// A path in the folder `shared` beside the checkout, which contains files of others: published
// tokenizers and corpora. No test needs them: without the folder, tests read only the golden files,
// and one test says so (SharedFiles.AreReadToo).
std::optional<std::filesystem::path> shared_path(std::string_view relative);

// The golden files, then those of the shared files that exist:
//
//   golden_and_shared({"tokenizers/gpt2.json"}, {"fixtures/tokenizers/gpt2/tokenizer.json.zst"})
std::vector<std::filesystem::path> golden_and_shared(std::initializer_list<std::string_view> golden,
                                                     std::initializer_list<std::string_view> shared);

// "golden_tokenizers_gpt2_json", for the names of parameterized tests.
std::string name_of_file(const std::filesystem::path& file);

}  // namespace thimble
