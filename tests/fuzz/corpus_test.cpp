// Runs all fuzz targets on their corpora, in the normal build without libFuzzer.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <set>

#include "base/files.h"
#include "base/rng.h"
#include "support/run_binary.h"
#include "targets.h"

namespace thimble {

void PrintTo(const FuzzTarget& target, std::ostream* out) {
  *out << target.name;
}

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostSeedBytes = 1 << 20;
// Of all targets together, to keep the repository small.
constexpr std::uint64_t kMostCorpusBytes = 200 << 10;

fs::path corpus_of(const FuzzTarget& target) {
  return source_folder() / "tests/fuzz" / (std::string(target.name) + "_corpus");
}

std::vector<fs::path> seeds_of(const FuzzTarget& target) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(corpus_of(target))) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

// The target's error message for these bytes, or "".
std::string error_of(const FuzzTarget& target, const std::string& bytes) {
  try {
    target.run(std::as_bytes(std::span(bytes)));
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

class EveryFuzzTarget : public testing::TestWithParam<FuzzTarget> {};

TEST_P(EveryFuzzTarget, AcceptsItsCorpus) {
  const std::vector<fs::path> seeds = seeds_of(GetParam());
  EXPECT_FALSE(seeds.empty());
  for (const fs::path& seed : seeds)
    EXPECT_EQ(error_of(GetParam(), read_file(seed, kMostSeedBytes)), "") << seed.string();
}

TEST_P(EveryFuzzTarget, AcceptsEmptyInput) {
  EXPECT_EQ(error_of(GetParam(), ""), "");
}

// Simple deterministic mutations: truncated inputs, and inputs with one changed byte.
TEST_P(EveryFuzzTarget, AcceptsDamagedSeeds) {
  constexpr int kSeeds = 4, kCuts = 8, kChanges = 24;
  std::vector<fs::path> seeds = seeds_of(GetParam());
  std::ranges::stable_sort(seeds, std::greater{}, [](const fs::path& seed) { return fs::file_size(seed); });
  seeds.resize(std::min<std::size_t>(seeds.size(), kSeeds));  // the largest have the most structure
  Rng rng(20);
  for (const fs::path& seed : seeds) {
    const std::string original = read_file(seed, kMostSeedBytes);
    if (original.empty()) continue;
    for (int i = 0; i < kCuts; ++i) {
      const std::size_t size = rng.below(original.size());
      EXPECT_EQ(error_of(GetParam(), original.substr(0, size)), "") << seed.string() << " cut to " << size;
    }
    for (int i = 0; i < kChanges; ++i) {
      std::string changed = original;
      const std::size_t at = rng.below(original.size());
      changed[at] = static_cast<char>(rng.below(256));
      EXPECT_EQ(error_of(GetParam(), changed), "") << seed.string() << " changed at " << at;
    }
  }
}

// Inputs longer than libFuzzer tries: one piece repeated, nesting until a stack overflow.
TEST_P(EveryFuzzTarget, AcceptsLongRepetitions) {
  constexpr std::size_t kBytes = 1 << 18;
  for (const std::string_view piece :
       {"[", "{\"a\":", "[1,", "{\"a\":[", "a.", "\"", "\\", "\n", "1", "a", "a ", "\xFF", "("}) {
    std::string input;
    while (input.size() < kBytes) input += piece;
    EXPECT_EQ(error_of(GetParam(), input + "a=1"), "") << piece;
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryFuzzTarget,
                         testing::ValuesIn(fuzz_targets().begin(), fuzz_targets().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(FuzzCorpora, AreSmallAndEachHasATarget) {
  std::set<std::string> known;
  for (const FuzzTarget& target : fuzz_targets()) known.insert(corpus_of(target).filename());
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(source_folder() / "tests/fuzz")) {
    const std::string folder = entry.path().parent_path().filename();
    if (!folder.ends_with("_corpus")) continue;
    EXPECT_TRUE(known.contains(folder)) << folder;
    bytes += entry.file_size();
  }
  EXPECT_LE(bytes, kMostCorpusBytes);
}

TEST(FuzzTargets, AreFoundByNameAndFailWithAnException) {
  EXPECT_THROW(require(false, "nothing"), BrokenInvariant);
  EXPECT_EQ(find_fuzz_target("nothing"), nullptr);
  EXPECT_EQ(find_fuzz_target("gguf")->run, fuzz_gguf);
}

}  // namespace
}  // namespace thimble
