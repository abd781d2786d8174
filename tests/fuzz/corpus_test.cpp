// Everything the fuzzers start from and everything they ever found, without libFuzzer: in this build, by this compiler.
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
constexpr std::uint64_t kMostCorpusBytes = 200 << 10;  // of all targets: this is kept in the repository

fs::path corpus_of(const FuzzTarget& target) {
  return source_folder() / "tests/fuzz" / (std::string(target.name) + "_corpus");
}

std::vector<fs::path> seeds_of(const FuzzTarget& target) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(corpus_of(target))) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

// "" or why the target does not take these bytes.
std::string complaint(const FuzzTarget& target, const std::string& bytes) {
  try {
    target.run(std::as_bytes(std::span(bytes)));
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

class EveryFuzzTarget : public testing::TestWithParam<FuzzTarget> {};

TEST_P(EveryFuzzTarget, TakesItsCorpus) {
  const std::vector<fs::path> seeds = seeds_of(GetParam());
  EXPECT_FALSE(seeds.empty());
  for (const fs::path& seed : seeds)
    EXPECT_EQ(complaint(GetParam(), read_file(seed, kMostSeedBytes)), "") << seed.string();
}

TEST_P(EveryFuzzTarget, TakesNothing) {
  EXPECT_EQ(complaint(GetParam(), ""), "");
}

// A little of what a fuzzer does, the same each time: cut, and changed in one byte.
TEST_P(EveryFuzzTarget, TakesDamagedSeeds) {
  constexpr int kSeeds = 4, kCuts = 8, kChanges = 24;
  std::vector<fs::path> seeds = seeds_of(GetParam());
  std::ranges::stable_sort(seeds, std::greater{}, [](const fs::path& seed) { return fs::file_size(seed); });
  seeds.resize(std::min<std::size_t>(seeds.size(), kSeeds));  // the largest have most that can break
  Rng rng(20);
  for (const fs::path& seed : seeds) {
    const std::string whole = read_file(seed, kMostSeedBytes);
    if (whole.empty()) continue;
    for (int i = 0; i < kCuts; ++i) {
      const std::size_t size = rng.below(whole.size());
      EXPECT_EQ(complaint(GetParam(), whole.substr(0, size)), "") << seed.string() << " cut to " << size;
    }
    for (int i = 0; i < kChanges; ++i) {
      std::string changed = whole;
      const std::size_t at = rng.below(whole.size());
      changed[at] = static_cast<char>(rng.below(256));
      EXPECT_EQ(complaint(GetParam(), changed), "") << seed.string() << " changed at " << at;
    }
  }
}

// Longer than what a fuzzer tries: one thing again and again, such as what nests until the stack is full.
TEST_P(EveryFuzzTarget, TakesOneThingManyTimes) {
  constexpr std::size_t kBytes = 1 << 18;
  for (const std::string_view piece :
       {"[", "{\"a\":", "[1,", "{\"a\":[", "a.", "\"", "\\", "\n", "1", "a", "a ", "\xFF", "("}) {
    std::string input;
    while (input.size() < kBytes) input += piece;
    EXPECT_EQ(complaint(GetParam(), input + "a=1"), "") << piece;
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

TEST(FuzzTargets, BreakLoudly) {
  EXPECT_THROW(promise(false, "nothing"), BrokenPromise);
  EXPECT_EQ(find_fuzz_target("nothing"), nullptr);
  EXPECT_EQ(find_fuzz_target("gguf")->run, fuzz_gguf);
}

}  // namespace
}  // namespace thimble
