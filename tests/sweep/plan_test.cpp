#include "sweep/plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace thimble {
namespace {

SweepPlan plan_of(std::string_view toml, const SweepChanges& changes = {}) {
  return parse_sweep(toml, "s.toml", changes);
}

// "name: changes" of each variant.
std::vector<std::string> shown(const SweepPlan& plan) {
  std::vector<std::string> lines;
  for (const SweepVariant& variant : plan.variants)
    lines.push_back(variant.name + ": " + variant.changes_text());
  return lines;
}

struct Refusal {
  std::string message, hint;
};

Refusal refusal_of(std::string_view toml, const SweepChanges& changes = {}) {
  try {
    plan_of(toml, changes);
  } catch (const Error& error) {
    return {error.what(), error.hint()};
  }
  return {"accepted", ""};
}

using Lines = std::vector<std::string>;

TEST(SweepPlan, OneAtATimeChangesOneSettingOfTheBase) {
  const SweepPlan plan = plan_of("[base]\nlr = 0.002\n[one]\nlr = [0.001, 0.002]\ndropout = 0.1\n");
  EXPECT_EQ(shown(plan), (Lines{"base: ", "lr=0.001: lr=0.001", "dropout=0.1: dropout=0.1"}))
      << "the value of the base is not a variant";
}

TEST(SweepPlan, AGridHasEveryCombinationAndTheLastKeyChangesFastest) {
  const SweepPlan plan = plan_of("[grid]\nlayers = [2, 3]\nmlp = [\"relu2\",\n  \"gelu\"]  # comment\n");
  EXPECT_EQ(shown(plan),
            (Lines{"base: ", "layers=2,mlp=relu2: layers=2 mlp=relu2", "layers=2,mlp=gelu: layers=2 mlp=gelu",
                   "layers=3,mlp=relu2: layers=3 mlp=relu2", "layers=3,mlp=gelu: layers=3 mlp=gelu"}));
}

TEST(SweepPlan, AVariantOfTwoSectionsIsTrainedOnce) {
  const SweepPlan plan =
      plan_of("[base]\nlayers = 4\n[one]\nlr = [0.1, 0.1]\n[grid]\nlr = [0.1]\nlayers = [4, 6]\n");
  EXPECT_EQ(shown(plan), (Lines{"base: ", "lr=0.1: lr=0.1", "lr=0.1,layers=6: lr=0.1 layers=6"}));
}

TEST(SweepPlan, ListedVariantsHaveNamesAndNotes) {
  const SweepPlan plan = plan_of(
      "[base]\nname = \"golf\"\npreset = \"golf\"\n[variant.leaky]\nmlp = \"leaky_relu2\"\nnote = \"x^2 / "
      "4\"\n"
      "[variant.best]\npreset = \"golf-best\"\n");
  EXPECT_EQ(shown(plan), (Lines{"golf: ", "leaky: mlp=leaky_relu2", "best: preset=golf-best"}));
  EXPECT_EQ(plan.variants[1].note, "x^2 / 4");
  EXPECT_EQ(*plan.variants[2].option("preset"), "golf-best");
}

TEST(SweepPlan, ReadsSeedsAndOptions) {
  const SweepPlan plan = plan_of("[sweep]\nseeds = [1, 2, 3]\nscore = \"last\"\npack = true\n");
  EXPECT_EQ(plan.seeds, (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(plan.score, SweepScore::last);
  EXPECT_TRUE(plan.pack);
  EXPECT_EQ(plan_of("[base]\n").seeds, (std::vector<std::int64_t>{1337}));
}

// A later layer replaces the key that excludes it, as on the command line of `train`.
TEST(SweepPlan, EpochsOfAVariantReplaceTheStepsOfTheBase) {
  const SweepPlan plan = plan_of("[base]\nsteps = 100\n[variant.long]\nepochs = 2\n");
  const std::vector<std::string> words = train_words(plan.variants[1], true);
  EXPECT_EQ(std::ranges::count(words, "steps=0"), 1) << joined(words, " ");
  EXPECT_EQ(std::ranges::count(words, "epochs=2.0"), 1) << joined(words, " ");
}

TEST(SweepPlan, OptionsOfTrainBecomeFlags) {
  const SweepPlan plan = plan_of(
      "[base]\ndata = 'tältä.txt'\nchat = true\nskip_long = false\n[variant.bpe]\ntokenizer = \"bpe:300\"\n");
  EXPECT_EQ(train_words(plan.variants[1], true),
            (Lines{"--data", "tältä.txt", "--chat", "--tokenizer", "bpe:300"}));
  EXPECT_EQ(train_words(plan.variants[1], false), Lines{}) << "the data are those of the shared tokens";
}

TEST(SweepPlan, TheCommandLineChangesTheBaseAndChoosesVariants) {
  const std::string text = "[base]\nsteps = 100\n[one]\nlr = [0.1, 0.2, 0.3]\n";
  const SweepPlan plan = plan_of(text, {.base = {"steps=5", "data=a.txt"}, .variants = {"lr=0.3"}});
  EXPECT_EQ(shown(plan), (Lines{"base: ", "lr=0.3: lr=0.3"}));
  EXPECT_EQ(train_words(plan.variants[0], true), (Lines{"--data", "a.txt", "--set", "steps=5"}));
  EXPECT_EQ(refusal_of(text, {.variants = {"lr=0.4"}}).hint, "did you mean lr=0.1?");
  EXPECT_EQ(refusal_of(text, {.base = {"stepz=5"}}).hint, "did you mean steps?");
  EXPECT_EQ(refusal_of(text, {.base = {"chat=yes"}}).message, "--set: chat expects true or false");
  EXPECT_THROW(plan_of(text, {.base = {"lr"}}), UsageError);
  EXPECT_THROW(plan_of(text, {.variants = {"lr=0.4"}}), UsageError);
}

TEST(SweepPlan, UnknownNamesAreRefusedWithTheNearestOne) {
  const auto expect = [](std::string_view toml, std::string_view message, std::string_view hint) {
    const Refusal refusal = refusal_of(toml);
    EXPECT_EQ(refusal.message, message);
    EXPECT_EQ(refusal.hint, hint) << message;
  };
  expect("[base]\n\ndropuot = 0.1\n", "s.toml:3: unknown key 'dropuot'", "did you mean dropout?");
  expect("[grid]\ntokeniser = [\"bytes\"]\n", "s.toml:2: unknown key 'tokeniser'", "did you mean tokenizer?");
  expect("[sweep]\nsedes = [1]\n", "s.toml:2: unknown key 'sedes' in [sweep]", "did you mean seeds?");
  expect("[sweep]\nlr = 1\n", "s.toml:2: unknown key 'lr' in [sweep]", "move it to the section [base]");
  expect("[bass]\n", "s.toml:1: unknown section [bass]", "did you mean [base]?");
  expect("[variant.x]\nseed = 3\n", "s.toml:2: seed is not a setting of a variant",
         "write seeds = [1, 2, 3] in the section [sweep]");
  expect("[base]\nlr = [1, 2]\n", "s.toml:2: lr expects one value, found a list",
         "move it to the section [one] or [grid] to try several values");
}

TEST(SweepPlan, ContradictionsAreRefusedWithTheirLine) {
  const auto message = [](std::string_view toml) { return refusal_of(toml).message; };
  EXPECT_EQ(message("[base]\nsteps = 5\nepochs = 2\n"), "s.toml:3: epochs and steps cannot both be set");
  EXPECT_EQ(message("[variant.a]\nbatch_size = 5\nbatch_tokens = 64\n"),
            "s.toml:3: batch_tokens and batch_size cannot both be set");
  EXPECT_EQ(message("[base]\nlr = 1\nlr = 2\n"), "s.toml:3: lr occurs twice, first on line 2");
  EXPECT_EQ(message("[one]\nlr = [1]\n[one]\n"), "s.toml:3: section [one] occurs twice, first on line 1");
  EXPECT_EQ(message("[sweep]\nseeds = [1, 1]\n"), "s.toml:2: seed 1 occurs twice");
  EXPECT_EQ(message("[sweep]\nseeds = [1.5]\n"),
            "s.toml:2: seeds expects whole numbers from 0 to 9007199254740991, found 1.5");
  EXPECT_EQ(message("[variant.a]\nlr = 0.5\n[variant.b]\nlr = 0.50\n"),
            "s.toml:3: variants a and b have the same settings");
  EXPECT_EQ(message("[variant.a/b]\nlr = 0.5\n"),
            "s.toml:1: 'a/b' cannot be the name of a variant, which is the name of its files");
  EXPECT_NE(message("[one]\ntokenizer = [\"" + std::string(300, 'a') + "\"]\n").find("cannot be the name"),
            std::string::npos);
  EXPECT_TRUE(message("[one]\nheads = [3]\n").starts_with("s.toml:2: ")) << message("[one]\nheads = [3]\n");
  EXPECT_TRUE(message("[one]\nlr = [\"fast\"]\n").starts_with("s.toml:2: "))
      << message("[one]\nlr = [\"fast\"]\n");
  EXPECT_EQ(message("[one]\nlr = []\n"), "s.toml:2: lr has no values");
}

TEST(SweepPlan, DamagedFilesAreRefused) {
  for (const std::string_view toml :
       {"lr = 1\n", "[base\n", "[]\n", "[[base]]\n", "[base]\nlr\n", "[one]\nlr = [1, 2\n",
        "[one]\nlr = [1,, 2]\n", "[one]\nlr = [1] 2\n", "[one]\nlr = [[1], [2]]\n", "[base]\ndata = \"a\n",
        "[base]\na.b = 1\n", "[base]\nlr = {a = 1}\n", "[base]\nlr = \n", "[base]\ndata = \"a\" b\n",
        "[base]\n= 3\n"})
    EXPECT_NE(refusal_of(toml).message, "accepted") << toml;
}

}  // namespace
}  // namespace thimble
