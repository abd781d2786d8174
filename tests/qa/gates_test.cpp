// Every gate passes for a good model, and fails for a model that is broken in a matching way.
#include "qa/gates.h"

#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "config/builder.h"
#include "formats/weights_file.h"
#include "qa/broken_model.h"
#include "support/message_of.h"

namespace thimble {
namespace {

namespace fs = std::filesystem;

QaReport qa(const QaRequest& request) {
  return run_gates(request, ProgressOutput::nowhere());
}

const GateResult& gate(const QaReport& report, std::string_view name) {
  return *std::ranges::find(report.gates, name, &GateResult::name);
}

std::string statuses(const QaReport& report) {
  std::string text;
  for (const GateResult& gate : report.gates)
    text += fmt::format("{} {}: {}\n", name_of(gate.status), gate.name, gate.detail);
  return text;
}

const fs::path& text_run() {
  static const fs::path run = TrainedOnce::get().text_run();
  return run;
}

TEST(Gates, PassForAFreshlyTrainedModel) {
  const QaReport report =
      qa({.model = text_run(), .data = TrainedOnce::get().data(), .min_tokens_per_second = 0});
  EXPECT_TRUE(report.passed()) << statuses(report);
  EXPECT_EQ(gate(report, "chat").status, GateStatus::skipped);
  EXPECT_EQ(report.count(GateStatus::passed), std::ssize(all_gates()) - 1) << statuses(report);
  EXPECT_TRUE(gate(report, "golden").detail.starts_with("16 tokens with ")) << statuses(report);  // its context
  EXPECT_EQ(gate(report, "bpb").detail.find("measured on other data"), std::string::npos);
}

TEST(Gates, PassForAChatModel) {
  const QaReport report = qa({.model = TrainedOnce::get().chat_run()});
  EXPECT_TRUE(report.passed()) << statuses(report);
  EXPECT_EQ(gate(report, "chat").status, GateStatus::passed) << statuses(report);
}

// The name of a gate, and a request with a model for which it must fail.
using Break = std::function<QaRequest(const TempFolder&)>;

float nan() {
  return std::numeric_limits<float>::quiet_NaN();
}

const std::vector<std::pair<std::string, Break>>& broken_models() {
  static const std::vector<std::pair<std::string, Break>> models = {
      {"integrity",
       [](const TempFolder& folder) -> QaRequest {
         std::string bytes = read_file(text_run() / "last.safetensors", 1 << 26);
         bytes[bytes.size() / 2] ^= 1;
         return {.model = folder.write("m.safetensors", bytes)};
       }},
      {"integrity",
       [](const TempFolder& folder) -> QaRequest {
         std::string bytes = read_file(text_run() / "last.safetensors", 1 << 26);
         bytes.resize(bytes.size() - 1);
         return {.model = folder.write("m.safetensors", bytes)};
       }},
      {"metadata",
       [](const TempFolder& folder) -> QaRequest {
         return {.model = edited(text_run(), folder, {.metadata = {{"thimble.version", ""}}})};
       }},
      {"tokenizer",
       [](const TempFolder& folder) -> QaRequest {  // no tokenizer
         return {.model = edited(text_run(), folder, {.texts = {{"thimble.tokenizer", ""}}})};
       }},
      {"tokenizer",
       [](const TempFolder& folder) -> QaRequest {  // more tokens than rows of the embedding
         return {.model =
                     edited(text_run(), folder,
                            {.texts = {{"thimble.tokenizer", load_tokenizer("bytes:chat")->serialized()}}})};
       }},
      {"tensors",
       [](const TempFolder& folder) -> QaRequest {
         return {.model = edited(text_run(), folder,
                                 {.tensor = "model.layers.1.self_attn.q_proj.weight",
                                  .change = [](std::span<float> values) { values[7] = nan(); }})};
       }},
      {"tensors",
       [](const TempFolder& folder) -> QaRequest {  // all zeros
         return {.model =
                     edited(text_run(), folder,
                            {.tensor = "model.layers.0.mlp.down_proj.weight",
                             .change = [](std::span<float> values) { std::ranges::fill(values, 0.0f); }})};
       }},
      {"tensors",
       [](const TempFolder& folder) -> QaRequest {  // constant
         return {.model =
                     edited(text_run(), folder,
                            {.tensor = "model.layers.0.mlp.up_proj.weight",
                             .change = [](std::span<float> values) { std::ranges::fill(values, 0.5f); }})};
       }},
      {"logits",
       [](const TempFolder& folder) -> QaRequest {  // finite weights, but infinite logits
         return {.model = edited(text_run(), folder,
                                 {.tensor = "model.norm.weight", .change = [](std::span<float> values) {
                                    std::ranges::fill(values, std::numeric_limits<float>::max());
                                  }})};
       }},
      {"decode",
       [](const TempFolder& folder) -> QaRequest {
         return {.model = edited(text_run(), folder,
                                 {.tensor = "model.norm.weight",
                                  .change = [](std::span<float> values) { values[0] = nan(); }})};
       }},
      {"chat",
       [](const TempFolder& folder) -> QaRequest {  // an unknown layout
         return {.model = edited(TrainedOnce::get().chat_run(), folder,
                                 {.metadata = {{"thimble.layout", "parley"}}})};
       }},
      {"chat",
       [](const TempFolder& folder) -> QaRequest {  // a tokenizer without the layout's tokens
         return {.model = edited(TrainedOnce::get().chat_run(), folder,
                                 {.texts = {{"thimble.tokenizer", load_tokenizer("bytes")->serialized()}}})};
       }},
      {"golden",
       [](const TempFolder& folder) -> QaRequest {  // other ids
         return {.model =
                     edited(text_run(), folder,
                            {.metadata = {{"thimble.golden", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16"}}})};
       }},
      {"golden",
       [](const TempFolder& folder) -> QaRequest {  // other weights, all finite and not constant
         return {.model = edited(text_run(), folder, {.change = [](std::span<float> values) {
                                   for (float& value : values) value *= 1.3f;
                                 }})};
       }},
      {"golden",
       [](const TempFolder& folder) -> QaRequest {  // an id outside the vocabulary
         return {.model = edited(text_run(), folder, {.metadata = {{"thimble.golden", "1 2 999999"}}})};
       }},
      {"bpb",
       [](const TempFolder& folder) -> QaRequest {  // a better figure was recorded
         return {.model = edited(text_run(), folder, {.metadata = {{"thimble.val_bpb", "0.5"}}}),
                 .data = TrainedOnce::get().data()};
       }},
      {"bpb",
       [](const TempFolder& folder)
           -> QaRequest {  // unusable data is an error even without a recorded figure
         return {.model = edited(text_run(), folder, {.metadata = {{"thimble.val_bpb", ""}}}),
                 .data = folder.write("empty.txt", "")};
       }},
      {"export",
       [](const TempFolder& folder) -> QaRequest {
         return {.model = edited(text_run(), folder,
                                 {.tensor = "model.norm.weight",
                                  .change = [](std::span<float> values) { values[0] = nan(); }})};
       }},
      {"throughput",
       [](const TempFolder&) -> QaRequest { return {.model = text_run(), .min_tokens_per_second = 1e12}; }},
  };
  return models;
}

TEST(Gates, EachFailsForABrokenModel) {
  std::set<std::string_view> seen;
  for (const auto& [name, broken] : broken_models()) {
    const TempFolder folder;
    const QaReport report = qa(broken(folder));
    EXPECT_EQ(gate(report, name).status, GateStatus::failed) << name << "\n" << statuses(report);
    EXPECT_FALSE(gate(report, name).detail.empty()) << name;
    EXPECT_FALSE(report.passed()) << name;
    seen.insert(name);
  }
  for (const Gate& gate : all_gates()) EXPECT_TRUE(seen.contains(gate.name)) << gate.name;
}

TEST(Gates, OnlyTheMatchingGateFails) {
  for (const auto& [name, broken] : broken_models()) {
    if (name != "metadata" && name != "golden" && name != "bpb" && name != "throughput") continue;
    const TempFolder folder;
    const QaReport report = qa(broken(folder));
    EXPECT_EQ(report.count(GateStatus::failed), 1) << name << "\n" << statuses(report);
  }
}

TEST(Gates, AnUnreadableFileFailsTheFirstGateAndSkipsTheOthers) {
  const TempFolder folder;
  const QaReport report = qa({.model = folder.write("m.safetensors", "not a model at all")});
  EXPECT_EQ(report.count(GateStatus::failed), 1);
  EXPECT_EQ(report.count(GateStatus::skipped), std::ssize(all_gates()) - 1);
  EXPECT_NE(gate(report, "integrity").detail.find("m.safetensors"), std::string::npos);
  EXPECT_FALSE(report.passed());
}

TEST(Gates, SkippedGatesDoNotCountAsExecuted) {
  std::vector<std::string> all;
  for (const Gate& gate : all_gates()) all.emplace_back(gate.name);
  const QaReport none = qa({.model = text_run(), .skipped = all});
  EXPECT_EQ(none.executed(), 0);
  EXPECT_FALSE(none.passed());
  EXPECT_EQ(gate(none, "golden").detail, "by request");

  all.erase(std::ranges::find(all, "golden"));
  EXPECT_TRUE(qa({.model = text_run(), .skipped = all}).passed());
  EXPECT_FALSE(qa({.model = text_run(), .skipped = all, .require = 2}).passed());
}

TEST(Gates, SkippedGatesGiveAReason) {
  const TempFolder folder;
  const QaReport report = qa(
      {.model = edited(text_run(), folder, {.metadata = {{"thimble.golden", ""}, {"thimble.val_bpb", ""}}}),
       .data = TrainedOnce::get().data()});
  EXPECT_TRUE(report.passed()) << statuses(report);
  for (const char* name : {"golden", "bpb", "chat", "throughput"}) {
    EXPECT_EQ(gate(report, name).status, GateStatus::skipped) << name;
    EXPECT_FALSE(gate(report, name).detail.empty()) << name;
  }
}

TEST(Gates, AFigureOfOtherDataIsNotComparedButReported) {
  std::string noise;
  for (int i = 0; i < 2000; ++i) noise += static_cast<char>('!' + i * i % 90);
  const TempFolder folder;
  const QaReport report = qa({.model = text_run(), .data = folder.write("noise.txt", noise)});
  EXPECT_EQ(gate(report, "bpb").status, GateStatus::skipped) << statuses(report);
  EXPECT_NE(gate(report, "bpb").detail.find("measured on other data"), std::string::npos) << statuses(report);
}

TEST(Gates, ComparisonsDetectFiniteDifferences) {
  std::vector<float> logits = {1, 2, 3, 4}, other = logits;
  EXPECT_EQ(decode_verdict(logits, other, 2).status, GateStatus::passed);
  other[3] += 0.1f;
  EXPECT_EQ(decode_verdict(logits, other, 2).status, GateStatus::failed);

  const TempFolder folder;
  const QaRequest request{.model = text_run()};
  const ProgressOutput progress = ProgressOutput::nowhere();
  Subject subject(request, progress, nullptr);
  EXPECT_EQ(export_verdict("safetensors", subject, edited(text_run(), folder, {})).status,
            GateStatus::passed);
  const fs::path changed =
      edited(text_run(), folder,
             {.tensor = "model.norm.weight", .change = [](std::span<float> values) { values[0] *= 1.5f; }});
  const GateOutcome found = export_verdict("safetensors", subject, changed);
  EXPECT_EQ(found.status, GateStatus::failed);
  EXPECT_NE(found.detail.find("logits of the exported model differ"), std::string::npos) << found.detail;
}

TEST(Gates, AnF32CopyIsCheckedAgainstTheCheckpointsRecord) {
  const TempFolder folder;
  PosixFileOps ops;
  const auto copied = [&](DType dtype) {
    const fs::path path = folder / "copy.safetensors";
    write_model(ops, path, Existing::replace, open_model(text_run()), dtype);
    return qa({.model = path, .data = TrainedOnce::get().data()});
  };
  const QaReport exact = copied(DType::f32), rounded = copied(DType::bf16);
  for (const char* name : {"golden", "bpb"}) {
    EXPECT_EQ(gate(exact, name).status, GateStatus::passed) << statuses(exact);
    EXPECT_EQ(gate(rounded, name).status, GateStatus::skipped) << statuses(rounded);
  }
}

// A checkpoint rewritten by a library that drops the digests.
TEST(ModelFacts, AreAvailableForACheckpointWithoutDigests) {
  const TempFolder folder;
  const fs::path path = edited(text_run(), folder, {.digest = WithDigest::no});
  const auto training = facts_of(open_model(path), path).training;
  ASSERT_TRUE(training);
  EXPECT_EQ(training->step, 20);
  EXPECT_TRUE(training->val_bpb);
  EXPECT_FALSE(training->tokens) << "the training state cannot be verified";
  const QaReport report = qa({.model = path});
  EXPECT_TRUE(report.passed()) << statuses(report);
}

TEST(Gates, SkipAndSmearGatesMayBeZero) {
  const TempFolder folder;
  ConfigBuilder settings;
  settings.preset("golf-best");
  for (const char* assignment : {"vocab_size=40", "context=8", "layers=3", "dim=16", "heads=2", "kv_heads=1",
                                 "head_dim=8", "rope_dims=8", "mlp_hidden=24", "smear_gate=true"})
    settings.set(assignment);
  ModelFile model;
  model.config = resolved(Config{settings.resolve().model, {}});
  const ParamTable table(model.config.model);
  model.weights.resize(static_cast<std::size_t>(table.block_size()));
  for (std::size_t i = 0; i < model.weights.size(); ++i) model.weights[i] = static_cast<float>(i % 7) - 3;
  PosixFileOps ops;
  const auto tensors = [&](Role zero) {
    ModelFile changed = model;
    for (const Param& param : table.all())
      if (param.role == zero) std::ranges::fill(param.in(std::span(changed.weights)), 0.0f);
    write_model(ops, folder / "m", Existing::replace, changed, DType::f32);
    return gate(qa({.model = folder / "m"}), "tensors");
  };
  for (const Role may_be_zero : {Role::skip_gates, Role::smear_gate})
    EXPECT_EQ(tensors(may_be_zero).status, GateStatus::passed) << tensors(may_be_zero).detail;
  EXPECT_EQ(tensors(Role::skip_weights).detail, "skip_weights is all zeros");
}

TEST(ModelFacts, ListEveryDtypeOfAGroup) {
  ModelFile file = open_model(text_run());
  for (StoredTensor& tensor : file.tensors) {
    if (tensor.name == "model.layers.0.mlp.up_proj.weight") tensor.dtype = "BF16";
    if (tensor.name == "model.layers.1.mlp.up_proj.weight") tensor.dtype = "F16";
  }
  const ModelFacts facts = facts_of(file, text_run());
  const auto group =
      std::ranges::find(facts.weights, "model.layers.*.mlp.up_proj.weight", &WeightGroup::name);
  ASSERT_NE(group, facts.weights.end());
  EXPECT_EQ(group->dtype, "BF16, F16");
}

TEST(Gates, AnUnknownNameIsAnError) {
  EXPECT_EQ(message_of([] { qa({.model = text_run(), .skipped = {"golde"}}); }), "there is no gate 'golde'");
}

}  // namespace
}  // namespace thimble
