// `thimble pack`: the report, the budget, and an artifact that every command reads.
#include "base/json.h"
#include "e2e/golf_files.h"

namespace thimble {
namespace {

namespace fs = std::filesystem;

// The golden golf-plus model: 356,153 parameters, no tokenizer.
std::string golf_model(const TempFolder& folder) {
  const std::string path = (folder / "golf.safetensors").string();
  if (!fs::exists(path)) {
    const RunResult run = import_golden("golf_plus_grad", path);
    EXPECT_EQ(run.exit_code, 0) << run;
  }
  return path;
}

RunResult pack(const std::string& model, const fs::path& output, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"pack", model, "-o", output.string()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_binary({.arguments = arguments});
}

TEST(Pack, PrintsAReport) {
  const TempFolder folder;
  const RunResult run =
      pack(golf_model(folder), folder / "m.thimble", {"--bits", "6", "--code-bytes", "1000", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run;
  const Json report = parse_json(run.out, "stdout");
  EXPECT_EQ(report.at("bytes").as_uint(), fs::file_size(folder / "m.thimble"));
  EXPECT_EQ(report.at("budget").as_int(), 16'000'000);
  EXPECT_TRUE(report.at("fits").as_bool());
  EXPECT_EQ(report.at("parameters").as_int(), 356'153);
  EXPECT_EQ(report.at("tensors").as_int(), 46);
  EXPECT_GT(report.at("quantized_tensors").as_int(), 4);
  EXPECT_EQ(report.at("float_bytes").as_int(), 356'153 * 4);
  EXPECT_LT(report.at("payload_bytes").as_int(), 356'153 * 2);
  EXPECT_NEAR(report.at("ratio").as_double(),
              report.at("float_bytes").as_double() / report.at("payload_bytes").as_double(), 1e-9);
  EXPECT_NEAR(report.at("bits_per_weight").as_double(), 8 * report.at("bytes").as_double() / 356'153, 1e-9);
  EXPECT_TRUE(report.at("val_bpb_before").is_null());
  EXPECT_TRUE(report.at("val_bpb_after").is_null());
  EXPECT_EQ(report.at("self_contained").at("bytes").as_uint(), report.at("bytes").as_uint() + 1000);
  EXPECT_EQ(report.at("golf").at("bytes").as_uint(),
            report.at("bytes").as_uint() + 1000 - report.at("tokenizer_bytes").as_uint());
  EXPECT_EQ(report.at("errors").size(), 46u);
  EXPECT_GT(report.at("groups").size(), 10u);
}

TEST(Pack, WritesNothingOverTheBudget) {
  const TempFolder folder;
  const std::string model = golf_model(folder);
  const RunResult run = pack(model, folder / "m.thimble", {"--budget", "200000", "--json"});
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_TRUE(run.err.starts_with("error: nothing was written: code and artifact have ")) << run;
  EXPECT_FALSE(parse_json(run.out, "stdout").at("fits").as_bool());
  EXPECT_FALSE(fs::exists(folder / "m.thimble"));

  const RunResult allowed =
      pack(model, folder / "m.thimble", {"--budget", "200000", "--allow-over", "--json"});
  EXPECT_EQ(allowed.exit_code, 0) << allowed;
  EXPECT_FALSE(parse_json(allowed.out, "stdout").at("fits").as_bool());
  EXPECT_TRUE(fs::exists(folder / "m.thimble"));
}

TEST(Pack, CountsCodeBytes) {
  const TempFolder folder;
  EXPECT_EQ(pack(golf_model(folder), folder / "m.thimble", {"--code-bytes", "15900000"}).exit_code, 1);
}

TEST(Pack, PrunesToFitTheBudget) {
  const TempFolder folder;
  const std::string model = golf_model(folder);
  const RunResult whole = pack(model, folder / "a.thimble", {"--bits", "5", "--json"});
  ASSERT_EQ(whole.exit_code, 0) << whole;
  const std::string budget = fmt::format("{}", parse_json(whole.out, "stdout").at("bytes").as_int() - 3000);
  EXPECT_EQ(pack(model, folder / "b.thimble", {"--bits", "5", "--budget", budget}).exit_code, 1);
  const RunResult hopeless = pack(model, folder / "b.thimble", {"--budget", "100", "--fit"});
  EXPECT_EQ(hopeless.exit_code, 1) << hopeless;
  EXPECT_EQ(hopeless.err.find("--fit"), std::string::npos)
      << "the hint must not suggest an option that was given: " << hopeless;
  const RunResult fitted =
      pack(model, folder / "b.thimble", {"--bits", "5", "--budget", budget, "--fit", "--json"});
  ASSERT_EQ(fitted.exit_code, 0) << fitted;
  EXPECT_GT(parse_json(fitted.out, "stdout").at("pruned").as_int(), 0);
}

TEST(Pack, EveryCommandReadsTheArtifact) {
  const TempFolder folder;
  const std::string text = folder.write("text.txt", std::string(3000, 'a')).string();
  const std::string run_folder = (folder / "run").string(), artifact = (folder / "m.thimble").string();
  const RunResult train =
      run_binary({.arguments = {"train", "--data", text, "--set", "layers=1", "--set", "dim=64", "--set",
                                "heads=2", "--set", "context=32", "--set", "steps=3", "--set",
                                "batch_tokens=64", "-o", run_folder}});
  ASSERT_EQ(train.exit_code, 0) << train;
  const RunResult packed = pack(run_folder, artifact, {"--bits", "6", "--data", text, "--json"});
  ASSERT_EQ(packed.exit_code, 0) << packed;
  const Json report = parse_json(packed.out, "stdout");

  // eval agrees with the scores of pack.
  const auto bpb = [&](const std::string& model) {
    const RunResult run = run_binary({.arguments = {"eval", model, "--data", text, "--json"}});
    EXPECT_EQ(run.exit_code, 0) << run;
    return parse_json(run.out, "stdout").at("val_bpb").as_double();
  };
  EXPECT_EQ(report.at("val_bpb_before").as_double(), bpb(run_folder));
  EXPECT_EQ(report.at("val_bpb_after").as_double(), bpb(artifact));

  EXPECT_EQ(run_binary({.arguments = {"generate", artifact, "a", "--max-tokens", "4"}}).exit_code, 0);
  const RunResult inspect = run_binary({.arguments = {"inspect", artifact, "--json"}});
  ASSERT_EQ(inspect.exit_code, 0) << inspect;
  EXPECT_EQ(parse_json(inspect.out, "stdout").at("format").as_string(), "thimble");
  EXPECT_EQ(run_binary({.arguments = {"import", artifact, "-o", (folder / "back").string()}}).exit_code, 0);

  // Packing an artifact again gives the same file.
  const RunResult again = pack(artifact, folder / "again.thimble", {"--bits", "6"});
  ASSERT_EQ(again.exit_code, 0) << again;
  EXPECT_EQ(folder.read("again.thimble"), folder.read("m.thimble"));
}

TEST(Pack, PrunesAnArtifactWithoutRoundingAgain) {
  const TempFolder folder;
  const std::string artifact = (folder / "a.thimble").string();
  ASSERT_EQ(pack(golf_model(folder), artifact, {"--bits", "5", "--clip-std", "4"}).exit_code, 0);
  const RunResult pruned = pack(artifact, folder / "b.thimble", {"--prune", "0.6", "--json"});
  ASSERT_EQ(pruned.exit_code, 0) << pruned;
  const Json report = parse_json(pruned.out, "stdout");
  EXPECT_EQ(report.at("rule").as_string(), "int5_clip_4_deviations");
  EXPECT_GT(report.at("pruned").as_int(), 0);
  EXPECT_LT(folder.read("b.thimble").size(), folder.read("a.thimble").size());

  // Rounding it again keeps the codec.
  ASSERT_EQ(pack(artifact, folder / "range.thimble", {"--codec", "range"}).exit_code, 0);
  for (const char* codec : {"range", "zstd"}) {
    std::vector<std::string> again = {"--bits", "6", "--json"};
    if (std::string(codec) == "zstd") again.insert(again.end(), {"--codec", "zstd"});
    const RunResult rounded = pack((folder / "range.thimble").string(), folder / codec, again);
    ASSERT_EQ(rounded.exit_code, 0) << rounded;
  }
  EXPECT_LT(folder.read("range").size(), folder.read("zstd").size());

  const RunResult kept = pack(artifact, folder / "c.thimble", {"--keep", "c_v"});
  EXPECT_EQ(kept.exit_code, 1) << kept;
  EXPECT_NE(kept.err.find("a.thimble are already quantized"), std::string::npos) << kept;
  const RunResult empty = pack(artifact, folder / "c.thimble", {"--keep", ""});
  EXPECT_EQ(empty.exit_code, 2) << empty;
  EXPECT_FALSE(std::filesystem::exists(folder / "c.thimble"));
}

TEST(Pack, AnArtifactKeepsItsRuleUnlessAnotherIsGiven) {
  const TempFolder folder;
  const std::string artifact = (folder / "a.thimble").string();
  ASSERT_EQ(pack(golf_model(folder), artifact, {"--bits", "5", "--clip-std", "9", "--keep", "c_v"}).exit_code,
            0);
  const RunResult again = pack(artifact, folder / "b.thimble", {"--no-gptq", "--json"});
  ASSERT_EQ(again.exit_code, 0) << again;
  EXPECT_EQ(folder.read("b.thimble"), folder.read("a.thimble"));
  const Json report = parse_json(again.out, "stdout");
  EXPECT_EQ(report.at("rule").as_string(), "int5_clip_9_deviations");
  for (const Json& tensor : report.at("errors").as_array())
    EXPECT_EQ(tensor.at("largest_error").as_double(), 0) << tensor.at("name").as_string();

  // With another codec it is the same model, and it can be pruned to fit.
  const RunResult ranged = pack(artifact, folder / "c.thimble", {"--codec", "range", "--json"});
  ASSERT_EQ(ranged.exit_code, 0) << ranged;
  EXPECT_EQ(parse_json(ranged.out, "stdout").at("errors").dump(), report.at("errors").dump());
  ASSERT_EQ(pack((folder / "c.thimble").string(), folder / "f.thimble").exit_code, 0);
  EXPECT_EQ(folder.read("f.thimble"), folder.read("c.thimble"));
  const RunResult fitted =
      pack(artifact, folder / "d.thimble",
           {"--json", "--fit", "--budget", fmt::format("{}", report.at("bytes").as_int() - 3000)});
  ASSERT_EQ(fitted.exit_code, 0) << fitted;
  EXPECT_GT(parse_json(fitted.out, "stdout").at("pruned").as_int(), 0);

  const RunResult other = pack(artifact, folder / "e.thimble", {"--bits", "6", "--json"});
  ASSERT_EQ(other.exit_code, 0) << other;
  EXPECT_EQ(parse_json(other.out, "stdout").at("rule").as_string(), "int6_per_row");
}

TEST(Pack, OverwritesOnlyWithForce) {
  const TempFolder folder;
  const std::string model = golf_model(folder);
  folder.write("m.thimble", "mine");
  const RunResult refused = pack(model, folder / "m.thimble");
  EXPECT_EQ(refused.exit_code, 1) << refused;
  EXPECT_EQ(folder.read("m.thimble"), "mine");
  EXPECT_EQ(pack(model, folder / "m.thimble", {"--force"}).exit_code, 0);
  const RunResult into =
      pack("no such model", folder.path(), {"--force"});  // checked before the model is opened
  EXPECT_EQ(into.exit_code, 1) << into;
  EXPECT_NE(into.err.find("it is a folder"), std::string::npos) << into;
}

TEST(Pack, RejectsADamagedArtifact) {
  const TempFolder folder;
  ASSERT_EQ(pack(golf_model(folder), folder / "m.thimble").exit_code, 0);
  std::string bytes = folder.read("m.thimble");
  bytes[bytes.size() / 2] ^= 4;
  const RunResult run = run_binary({.arguments = {"inspect", folder.write("d.thimble", bytes).string()}});
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_NE(run.err.find("the checksum does not match"), std::string::npos) << run;
}

TEST(Pack, ReportsWrongUsage) {
  const TempFolder folder;
  EXPECT_EQ(pack("m", folder / "o", {"--bits", "4"}).exit_code, 2);
  EXPECT_EQ(pack("m", folder / "o", {"--prune", "1.5"}).exit_code, 2);
  EXPECT_EQ(pack("m", folder / "o", {"--codec", "lzma"}).exit_code, 2);
  EXPECT_EQ(pack("m", folder / "o", {"--clip-std", "0"}).exit_code, 2);
  EXPECT_EQ(pack("m", folder / "o", {"--stride", "8"}).exit_code, 2);
  EXPECT_EQ(pack("m", folder / "o", {"--val-tokens", "8"}).exit_code, 2);
  const RunResult kept = pack(golf_model(folder), folder / "o", {"--keep", "smeer_gate"});
  EXPECT_EQ(kept.exit_code, 1) << kept;
  EXPECT_NE(kept.err.find("--keep smeer_gate: no tensor name contains this"), std::string::npos) << kept;
  EXPECT_NE(kept.err.find("did you mean 'smear"), std::string::npos) << kept;
  EXPECT_FALSE(fs::exists(folder / "o"));
}

}  // namespace
}  // namespace thimble
