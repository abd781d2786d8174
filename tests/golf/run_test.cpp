#include "golf/run.h"

#include <algorithm>
#include <regex>
#include <sstream>

#include "base/files.h"
#include "base/json.h"
#include "data/text_files.h"
#include "formats/int8_state.h"
#include "formats/npz.h"
#include "golf/golf_world.h"
#include "model/model.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "tokenizer/sentencepiece.h"
#include "train/checkpoint.h"

namespace thimble {
namespace {

namespace fs = std::filesystem;

class GolfRun : public testing::Test {
 protected:
  GolfRun() {
    static const std::string tokenizer = [] {
      const TempFolder texts;
      TextSource source({texts.write("text.txt", tiny_text())}, {.split = DocumentSplit::line});
      return train_sentencepiece(source, {.vocab_size = kTinyVocabulary});
    }();
    write_tiny_shards(folder_);
    folder_.write("data/tokenizers/tiny.model", tokenizer);
    for (const auto& [name, value] : tiny_environment()) environment_[name] = value;
    environment_["DATA_PATH"] = (folder_ / "data/datasets/tiny").string();
    environment_["TOKENIZER_PATH"] = (folder_ / "data/tokenizers/tiny.model").string();
    environment_["OUT_DIR"] = (folder_ / "logs").string();
  }

  GolfSettings settings() const {
    return golf_settings({.script = script_, .plus = plus_, .environment = environment_, .flags = flags_});
  }

  GolfResult run() {
    lines_.clear();
    warnings_.clear();
    const Interrupt interrupt;
    const Log log(LogLevel::info, [this](LogLevel, std::string_view line) { warnings_.emplace_back(line); });
    const fs::path before = fs::current_path();
    fs::current_path(folder_.path());  // --like torch writes into the current folder
    const auto back = std::shared_ptr<void>(nullptr, [&](void*) { fs::current_path(before); });
    GolfContext context{.print = [this](std::string_view line) { lines_.emplace_back(line); },
                        .log = log,
                        .interrupt = interrupt,
                        .device = device_,
                        .force = force_,
                        .resume = resume_,
                        .code_bytes = 1000};
    if (clock_) context.clock = clock_;
    return run_golf(settings(), context);
  }
  std::string refusal() {
    return message_of([&] { run(); });
  }

  bool has_line(const std::string& line) const { return std::ranges::count(lines_, line) == 1; }
  std::size_t line_index(const std::string& start) const {
    return static_cast<std::size_t>(
        std::ranges::find_if(lines_, [&](const std::string& line) { return line.starts_with(start); }) -
        lines_.begin());
  }
  std::size_t count(const std::string& start) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(lines_, [&](const std::string& line) { return line.starts_with(start); }));
  }

  GolfScript script_ = GolfScript::mlx;
  bool plus_ = false, force_ = false, resume_ = false;
  std::shared_ptr<DeviceRuntime> device_ = cpu_runtime();
  Variables environment_;
  std::function<void(ConfigBuilder&)> flags_;
  std::function<double()> clock_;
  std::vector<std::string> lines_, warnings_;
  TempFolder folder_;
};

// Matches every line of the log, in order, against patterns derived from the scripts' format
// strings.
void expect_lines(const std::vector<std::string>& lines, const std::vector<std::string>& patterns) {
  for (std::size_t i = 0; i < std::max(lines.size(), patterns.size()); ++i) {
    ASSERT_LT(i, lines.size()) << "missing: " << patterns[i];
    ASSERT_LT(i, patterns.size()) << "unexpected: " << lines[i];
    EXPECT_TRUE(std::regex_match(lines[i], std::regex(patterns[i]))) << lines[i] << "\n" << patterns[i];
  }
}

constexpr const char* kTimes = R"(train_time:\d+ms step_avg:\d+\.\d\dms)";
constexpr const char* kScore = R"(val_loss:\d+\.\d{4} val_bpb:\d+\.\d{4})";
constexpr const char* kExact = R"(val_loss:\d+\.\d{8} val_bpb:\d+\.\d{8})";

TEST_F(GolfRun, TheLogMatchesTheMlxScript) {
  environment_["VAL_LOSS_EVERY"] = "5";
  environment_["TRAIN_LOG_EVERY"] = "6";
  environment_["ITERATIONS"] = "13";
  run();
  std::vector<std::string> expected = {
      R"(.*/logs/mlx_smoke\.txt)",
      "run_id:mlx_smoke",
      R"(thimble_version:\d+\.\d+\.\d+)",
      R"(train_loader:shards pattern=.*/data/datasets/tiny/fineweb_train_\*\.bin)",
      R"(val_loader:shards pattern=.*/data/datasets/tiny/fineweb_val_\*\.bin tokens:1280)",
      "train_loader:dataset:tiny train_shards:2",
      R"(tokenizer_path:.*/tiny\.model)",
      "model_params:\\d+ vocab_size:300 layers:2 dim:32 heads:2 kv_heads:1 seq_len:32 tie_embeddings:True",
      "iterations:13 train_batch_tokens:512 grad_accum_steps:8 microbatch_tokens:64 microbatch_batch_size:2 "
      "val_batch_size:2048 warmup_steps:2 max_wallclock_seconds:0\\.000",
      "mlx_max_microbatch_tokens:8192",
      "optimizer:muon\\+adam muon_matrix_params:12 scalar_params:9 embed_lr:0\\.05 matrix_lr:0\\.04 "
      "scalar_lr:0\\.04 muon_momentum:0\\.95 muon_steps:5",
      R"(val_bpb:enabled tokenizer_kind=sentencepiece tokenizer_path=.*/tiny\.model)",
      "compute_dtype:(bfloat16|float32) compile:True",
      "dtypes tok_emb:float32 linear_weight:float32 skip_weights:float32",
      "warmup_step:1/2",
      "warmup_step:2/2",
      "val_progress:1/5",
      "val_progress:5/5",
      fmt::format("step:0/13 {} train_time:0ms step_avg:0.00ms", kScore)};
  const auto train_line = [&](int step) {
    return fmt::format(R"(step:{}/13 train_loss:\d+\.\d{{4}} {} tok_s:\d+)", step, kTimes);
  };
  for (int step = 1; step <= 13; ++step) {
    if (step == 10) expected.push_back("WARNING: starting epoch:2 dataset:tiny train_shards:2");
    if (step <= 10 || step == 12) expected.push_back(train_line(step));
    // Validated at 5, 10 and 13; the line is printed at multiples of 25 and at the end.
    if (step == 5 || step == 10 || step == 13) {
      expected.push_back("val_progress:1/5");
      expected.push_back("val_progress:5/5");
    }
  }
  expected.push_back(fmt::format("step:13/13 {} {}", kScore, kTimes));
  expected.push_back(R"(saved_model:.*/logs/mlx_smoke_mlx_model\.npz bytes:\d+)");
  expected.push_back(
      R"(serialized_model_int8_zlib:\d+ bytes \(payload:\d+ raw_pickle:\d+ payload_ratio:\d+\.\d\dx\))");
  expected.push_back("val_progress:1/5");
  expected.push_back("val_progress:5/5");
  expected.push_back(fmt::format(R"(final_int8_zlib_roundtrip {} eval_time:\d+ms)", kScore));
  expected.push_back(fmt::format("final_int8_zlib_roundtrip_exact {}", kExact));
  expected.push_back(
      R"(saved_checkpoint:.*/logs/mlx_smoke/checkpoints/step-00000013\.safetensors bytes:\d+)");
  expected.push_back(R"(saved_artifact:.*/logs/mlx_smoke\.thimble bytes:\d+)");
  expect_lines(lines_, expected);
}

TEST_F(GolfRun, TheLogMatchesTheTorchScript) {
  script_ = GolfScript::torch;
  environment_["ITERATIONS"] = "3";
  environment_["WARMUP_STEPS"] = "0";
  environment_["VAL_LOSS_EVERY"] = "2";
  run();
  const auto step = [&](int i) { return fmt::format(R"(step:{}/3 train_loss:\d+\.\d{{4}} {})", i, kTimes); };
  const auto val = [&](int i) { return fmt::format("step:{}/3 {} {}", i, kScore, kTimes); };
  expect_lines(
      lines_,
      {R"(.*/logs/mlx_smoke\.txt)",
       R"(val_bpb:enabled tokenizer_kind=sentencepiece tokenizer_path=.*)",
       "train_loader:dataset:tiny train_shards:2",
       R"(val_loader:shards pattern=.*/fineweb_val_\*\.bin tokens:1280)",
       R"(model_params:\d+)",
       "world_size:1 grad_accum_steps:8",
       "sdp_backends:.*",
       "attention_mode:gqa num_heads:2 num_kv_heads:1",
       "tie_embeddings:True embed_lr:0\\.05 head_lr:0\\.0 matrix_lr:0\\.04 scalar_lr:0\\.04",
       "train_batch_tokens:512 train_seq_len:32 iterations:3 warmup_steps:0 max_wallclock_seconds:0\\.000",
       "seed:1337",
       val(0),
       step(1),
       step(2),
       val(2),
       step(3),
       val(3),
       R"(peak memory allocated: \d+ MiB reserved: \d+ MiB)",
       R"(Serialized model: \d+ bytes)",
       "Code size: 1000 bytes",
       R"(Total submission size: \d+ bytes)",
       R"(Serialized model int8\+zlib: \d+ bytes \(payload:\d+ raw_torch:\d+ payload_ratio:\d+\.\d\dx\))",
       R"(Total submission size int8\+zlib: \d+ bytes)",
       fmt::format(R"(final_int8_zlib_roundtrip {} eval_time:\d+ms)", kScore),
       fmt::format("final_int8_zlib_roundtrip_exact {}", kExact),
       "saved_checkpoint:.*",
       "saved_artifact:.*"});
  EXPECT_TRUE(fs::exists(folder_ / "logs/final_model.pt"));
  EXPECT_TRUE(fs::exists(folder_ / "logs/final_model.int8.ptz"));
}

TEST_F(GolfRun, TheFileContainsTheLogAndTheConfig) {
  run();
  const std::string file = folder_.read("logs/mlx_smoke.txt");
  for (std::size_t i = 1; i < lines_.size(); ++i)
    EXPECT_NE(file.find("\n" + lines_[i] + "\n"), std::string::npos) << lines_[i];
  for (const char* part : {"# thimble golf --like mlx\n", "# ITERATIONS=12\n", "\nsteps = 12\n",
                           "\nlayers = 2\n", "\nRunning thimble "})
    EXPECT_NE(file.find(part), std::string::npos) << part;
}

// The schedule of the scripts, exact to the millisecond thanks to a fake clock.
TEST_F(GolfRun, WarmsDownStopsAndValidatesAtTheWallclockCap) {
  environment_["ITERATIONS"] = "1000";
  environment_["MAX_WALLCLOCK_SECONDS"] = "5";
  environment_["WARMDOWN_ITERS"] = "4";
  double now = 100;
  clock_ = [&now] { return now += 0.5; };  // read twice per step: each step takes half a second
  const GolfResult result = run();
  EXPECT_EQ(result.training.status, RunStatus::wallclock);
  EXPECT_EQ(result.training.steps, 10);
  EXPECT_TRUE(std::regex_match(
      lines_[line_index("step:10/1000 train_loss")],
      std::regex(R"(step:10/1000 train_loss:\d+\.\d{4} train_time:5000ms step_avg:500\.00ms tok_s:1024)")));
  EXPECT_TRUE(std::regex_match(
      lines_[line_index("step:10/1000 val_loss")],
      std::regex(fmt::format(R"(step:10/1000 {} train_time:5000ms step_avg:500\.00ms)", kScore))));
  EXPECT_TRUE(has_line("stopping_early: wallclock_cap train_time:5000ms step:10/1000"));
  EXPECT_EQ(line_index("stopping_early"), line_index("step:10/1000 val_loss") + 1);
  EXPECT_LT(line_index("stopping_early"), line_index("saved_model"));

  // remaining / (4 steps of half a second): 1 until step 6, then 0.75, 0.5, 0.25.
  std::vector<double> rates;
  std::istringstream metrics(folder_.read("logs/mlx_smoke/metrics.jsonl"));
  for (std::string line; std::getline(metrics, line);)
    if (const Json event = parse_json(line, "metrics"); event.at("event").as_string() == "step")
      rates.push_back(event.at("lr_multiplier").as_double());
  EXPECT_EQ(rates, (std::vector<double>{1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25}));
}

TEST_F(GolfRun, LogsTheStartOfEveryEpoch) {
  environment_["TRAIN_BATCH_TOKENS"] = "8192";  // the data has 5000 tokens
  environment_["ITERATIONS"] = "3";
  run();
  // 3 * (8192 + 8) tokens wrap around four times.
  EXPECT_EQ(count("WARNING: starting epoch:"), 4u);
  for (int epoch = 2; epoch <= 5; ++epoch)
    EXPECT_TRUE(has_line(fmt::format("WARNING: starting epoch:{} dataset:tiny train_shards:2", epoch)));
  EXPECT_LT(line_index("WARNING: starting epoch:2"), line_index("step:1/3"));
  EXPECT_GT(line_index("WARNING: starting epoch:3"), line_index("step:1/3"));
}

// If a micro-batch is split, each piece reads one additional token, as in train_gpt_mlx.py.
TEST_F(GolfRun, SubBatchesChangeTheNumberOfTokensRead) {
  environment_["ITERATIONS"] = "3";
  const auto tokens_read = [&](const char* most) {
    environment_["MLX_MAX_MICROBATCH_TOKENS"] = most;
    run();
    force_ = true;
    const auto file = SafetensorsFile::open(folder_ / "logs/mlx_smoke/last.safetensors");
    return read_checkpoint_head(file).state.position.next;
  };
  EXPECT_EQ(tokens_read("8192"), 3u * 8 * (64 + 1));
  EXPECT_EQ(tokens_read("63"), 3u * 8 * 2 * (32 + 1));  // rounded down to complete rows
  script_ = GolfScript::torch;
  EXPECT_EQ(tokens_read("63"), 3u * 8 * (64 + 1));
}

TEST_F(GolfRun, TheOutputFilesContainTheModel) {
  const GolfResult result = run();
  ASSERT_TRUE(result.roundtrip);
  const GolfSettings golf = settings();
  const ModelFile checkpoint = open_model(golf.run_folder() / "last.safetensors");
  EXPECT_EQ(open_npz(golf.raw_model(), golf.config, "").weights, checkpoint.weights);
  EXPECT_EQ(open_model(golf.artifact()).architecture, "golf");

  // The last line has the score of the int8 file, not of the checkpoint.
  const ModelFile int8 = open_int8_state(golf.int8_model(), golf.config);
  EXPECT_NE(int8.weights, checkpoint.weights);
  const auto tokenizer = load_tokenizer(golf.tokenizer);
  const TokenSet val = TokenSet::open(std::vector{folder_ / "data/datasets/tiny/fineweb_val_000000.bin"},
                                      TokenMarks::of(*tokenizer, DataKind::text, LossOn::all));
  const Context context;
  Model model = make_model(int8, context, compute_dtype(golf.config.train.dtype, Device::cpu));
  const Score score = score_set(model, ByteTable(*tokenizer, kTinyVocabulary), val, {.isolate = false},
                                ProgressOutput::nowhere());
  EXPECT_EQ(score.tokens, 1280);
  EXPECT_EQ(score.nats, result.roundtrip->nats);
  EXPECT_TRUE(has_line(fmt::format("final_int8_zlib_roundtrip_exact val_loss:{:.8f} val_bpb:{:.8f}",
                                   score.loss(), score.bits_per_byte())));
}

TEST_F(GolfRun, ChecksThePublishedManifest) {
  environment_["ITERATIONS"] = "1";
  folder_.write("data/manifest.json", tiny_manifest(80));
  run();
  EXPECT_TRUE(has_line(
      "WARNING: train_loader:subset dataset:tiny train_shards:2/80 new epochs will arrive sooner than "
      "the full dataset"));
  force_ = true;
  folder_.write("data/manifest.json", tiny_manifest(2));
  run();
  EXPECT_TRUE(has_line("train_loader:dataset:tiny train_shards:2/2"));
  folder_.write("data/manifest.json", tiny_manifest(1));
  EXPECT_NE(refusal().find("tiny has more train shards than expected: found 2"), std::string::npos)
      << refusal();
  folder_.write("data/manifest.json", tiny_manifest(2, "fineweb_1024_bpe.model"));
  EXPECT_EQ(refusal(), "tiny expects tokenizer fineweb_1024_bpe.model, got tiny.model");
}

TEST_F(GolfRun, RejectsMismatchedFilesBeforeWritingAnything) {
  const Variables good = environment_;
  environment_["VOCAB_SIZE"] = "1024";
  EXPECT_EQ(refusal(), "VOCAB_SIZE=1024 does not match tokenizer vocab_size=300");
  environment_ = good;
  environment_["TOKENIZER_PATH"] = "tokenizer.json";
  EXPECT_EQ(refusal(), "TOKENIZER_PATH must point to a SentencePiece .model file: tokenizer.json");
  environment_ = good;
  environment_["DATA_PATH"] = (folder_ / "nowhere").string();
  EXPECT_EQ(refusal(),
            fmt::format("No files found for pattern: {}/fineweb_train_*.bin", environment_["DATA_PATH"]));
  environment_ = good;
  fs::rename(folder_ / "data/datasets/tiny/fineweb_val_000000.bin", folder_ / "aside");
  EXPECT_EQ(refusal(),
            fmt::format("No files found for pattern: {}/fineweb_val_*.bin", environment_["DATA_PATH"]));
  folder_.write("data/datasets/tiny/fineweb_val_000000.bin", shard_of(20));
  EXPECT_EQ(refusal(), "Validation split is too short for TRAIN_SEQ_LEN=32");
  EXPECT_FALSE(fs::exists(folder_ / "logs"));
}

TEST_F(GolfRun, DoesNotOverwriteARunWithTheSameName) {
  environment_["ITERATIONS"] = "1";
  run();
  const std::string before = folder_.read("logs/mlx_smoke_mlx_model.npz");
  EXPECT_NE(refusal().find("already exists"), std::string::npos) << refusal();
  EXPECT_EQ(folder_.read("logs/mlx_smoke_mlx_model.npz"), before);
  force_ = true;
  environment_["SEED"] = "7";
  run();
  EXPECT_NE(folder_.read("logs/mlx_smoke_mlx_model.npz"), before);
}

TEST_F(GolfRun, ValTokensLimitsValidation) {
  environment_["ITERATIONS"] = "1";
  environment_["VAL_TOKENS"] = "512";
  const GolfResult result = run();
  EXPECT_EQ(result.roundtrip->tokens, 512);
  EXPECT_NE(lines_[line_index("val_loader")].find("tokens:512"), std::string::npos);
  EXPECT_EQ(count("val_progress:2/2"), 2u);
}

TEST_F(GolfRun, FrozenGroupsKeepTheirWeights) {
  environment_["ITERATIONS"] = "3";
  environment_["MATRIX_LR"] = "0";
  environment_["TIED_EMBED_LR"] = "0";
  run();
  EXPECT_EQ(count("optimizer:muon+adam muon_matrix_params:12 scalar_params:9 embed_lr:0.0 matrix_lr:0.0 "
                  "scalar_lr:0.04 "),
            1u);
  const ParamTable table(settings().config.model);
  std::vector<float> initial(static_cast<std::size_t>(table.block_size()));
  initialize(table, 1337, initial);
  const ModelFile trained = open_model(folder_ / "logs/mlx_smoke/last.safetensors");
  bool scalars_changed = false;
  for (const Param& param : table.all()) {
    const bool same = std::ranges::equal(param.in(std::span<const float>(initial)),
                                         param.in(std::span<const float>(trained.weights)));
    if (param.group == ParamGroup::scalar)
      scalars_changed |= !same;
    else
      EXPECT_TRUE(same) << param.name;
  }
  EXPECT_TRUE(scalars_changed);
}

// As in the scripts: validation, then the files.
TEST_F(GolfRun, WithoutIterationsValidatesAndWritesTheFiles) {
  for (const char* every : {"0", "5"}) {
    SCOPED_TRACE(every);
    environment_["ITERATIONS"] = "0";
    environment_["VAL_LOSS_EVERY"] = every;
    environment_["MAX_WALLCLOCK_SECONDS"] = "600";
    const GolfResult result = run();
    EXPECT_EQ(result.training.status, RunStatus::completed);
    EXPECT_EQ(result.training.steps, 0);
    EXPECT_EQ(count("warmup_step:"), 2u);
    EXPECT_EQ(count("step:0/0 val_loss:"), 1u);
    EXPECT_EQ(count("step:"), 1u);
    EXPECT_EQ(count("final_int8_zlib_roundtrip_exact "), 1u);
    const GolfSettings golf = settings();
    for (const fs::path& file : {golf.raw_model(), golf.int8_model(), golf.artifact()})
      EXPECT_TRUE(fs::exists(file)) << file;
    force_ = true;
  }
}

TEST_F(GolfRun, UnusualSettingsTrainAsInTheScripts) {
  environment_["ITERATIONS"] = "2";
  environment_["WARMDOWN_ITERS"] = "-1";
  environment_["GRAD_CLIP_NORM"] = "-1";
  for (const auto& [name, value] : {std::pair{"NUM_LAYERS", "1"}, {"MUON_BACKEND_STEPS", "0"}}) {
    SCOPED_TRACE(name);
    Variables before = environment_;
    environment_[name] = value;
    EXPECT_EQ(run().training.status, RunStatus::completed);
    EXPECT_EQ(count("final_int8_zlib_roundtrip_exact "), 1u);
    EXPECT_EQ(count("optimizer:muon+adam muon_matrix_params:0 "), 0u);
    environment_ = std::move(before);
    force_ = true;
  }
  EXPECT_NE(lines_[line_index("optimizer:")].find(" muon_steps:0"), std::string::npos);
}

class InterruptedGolfRun : public GolfRun {
 protected:
  // The run is interrupted after `steps` steps.
  void interrupt_after(std::int64_t steps) {
    flags_ = {};
    const std::string all = environment_["ITERATIONS"];
    environment_["ITERATIONS"] = std::to_string(steps);
    run();
    environment_["ITERATIONS"] = all;
    remove_outputs();
  }
  void remove_outputs() {
    for (const char* name : {"_mlx_model.npz", "_mlx_model.int8.ptz", ".thimble"})
      fs::remove(folder_ / (std::string("logs/mlx_smoke") + name));
  }
  GolfResult resume() {
    resume_ = true;
    const auto back = std::shared_ptr<void>(nullptr, [&](void*) { resume_ = false; });
    return run();
  }
};

TEST_F(InterruptedGolfRun, EndsLikeAnUninterruptedOne) {
  environment_["WARMDOWN_ITERS"] = "0";  // with a warm-down, the first part would depend on ITERATIONS
  environment_["RUN_ID"] = "whole";
  run();
  const std::string last = lines_.at(line_index("final_int8_zlib_roundtrip_exact"));
  environment_["RUN_ID"] = "mlx_smoke";
  interrupt_after(5);
  const GolfResult result = resume();
  EXPECT_EQ(result.training.steps, 12);
  EXPECT_EQ(count("step:5/12 train_loss"), 0u);
  EXPECT_EQ(count("step:6/12 train_loss"), 1u);
  EXPECT_EQ(count("warmup_step:"), 2u);
  EXPECT_TRUE(has_line(last));
  for (const char* name : {"_mlx_model.npz", "_mlx_model.int8.ptz"})
    EXPECT_EQ(folder_.read(std::string("logs/mlx_smoke") + name),
              folder_.read(std::string("logs/whole") + name))
        << name;
}

TEST_F(InterruptedGolfRun, OnlyWritesTheFilesIfAllStepsAreMade) {
  run();
  const std::string last = lines_.at(line_index("final_int8_zlib_roundtrip_exact"));
  fs::remove(folder_ / "logs/mlx_smoke.thimble");  // the file written last
  const GolfResult result = resume();
  EXPECT_EQ(result.training.status, RunStatus::completed);
  EXPECT_EQ(result.training.steps, 12);
  EXPECT_EQ(count("step:"), 0u);
  EXPECT_TRUE(has_line(last));
  EXPECT_TRUE(fs::exists(folder_ / "logs/mlx_smoke.thimble"));
}

TEST_F(InterruptedGolfRun, ItsTrainTimeGoesOn) {
  double now = 0;
  clock_ = [&now] { return now += 0.5; };  // read twice per step
  interrupt_after(5);
  resume();
  EXPECT_NE(lines_.at(line_index("step:6/12 train_loss")).find("train_time:3000ms step_avg:500.00ms"),
            std::string::npos)
      << lines_.at(line_index("step:6/12 train_loss"));
}

TEST_F(InterruptedGolfRun, RefusesWhatCannotBeResumed) {
  const auto refused = [&] { return message_of([&] { resume(); }); };
  EXPECT_NE(refused().find("logs/mlx_smoke contains no run to resume"), std::string::npos) << refused();
  run();
  EXPECT_NE(refused().find("mlx_smoke.thimble already exists: the run is finished"), std::string::npos);
  remove_outputs();
  environment_["ITERATIONS"] = "20";
  environment_["MODEL_DIM"] = "64";
  EXPECT_NE(refused().find("cannot resume with a different model or optimizer: dim: 32 -> 64"),
            std::string::npos)
      << refused();
}

// The CPU as a device that counts its memory, as a GPU does.
class CountingRuntime final : public DeviceRuntime {
 public:
  Device device() const override { return Device::cpu; }
  DeviceFacts facts() const override { return host_->facts(); }
  std::byte* allocate(std::int64_t bytes) override { return host_->allocate(bytes); }
  void release(std::byte* block, std::int64_t bytes) noexcept override { host_->release(block, bytes); }
  std::int64_t available_bytes() const override { return host_->available_bytes(); }
  std::int64_t peak_bytes() const override { return std::int64_t{1234567} << 20; }
  void upload(void* device, const void* host, std::int64_t bytes) override {
    host_->upload(device, host, bytes);
  }
  void download(void* host, const void* device, std::int64_t bytes) override {
    host_->download(host, device, bytes);
  }
  void copy(void* to, const void* from, std::int64_t bytes) override { host_->copy(to, from, bytes); }
  void zero(void* device, std::int64_t bytes) override { host_->zero(device, bytes); }
  void synchronize() override { host_->synchronize(); }
  std::byte* allocate_pinned(std::int64_t bytes) override { return host_->allocate_pinned(bytes); }
  void release_pinned(std::byte* block, std::int64_t bytes) noexcept override {
    host_->release_pinned(block, bytes);
  }
  std::unique_ptr<DeviceEvent> make_event() override { return host_->make_event(); }
  void begin_capture() override { host_->begin_capture(); }
  std::unique_ptr<DeviceGraph> end_capture() override { return host_->end_capture(); }

 private:
  std::shared_ptr<DeviceRuntime> host_ = cpu_runtime();
};

TEST_F(GolfRun, TorchPrintsThePeakMemoryOfTheDevice) {
  script_ = GolfScript::torch;
  environment_["ITERATIONS"] = "1";
  device_ = std::make_shared<CountingRuntime>();
  run();
  EXPECT_TRUE(has_line("peak memory allocated: 1234567 MiB reserved: 1234567 MiB"));
}

TEST_F(GolfRun, PlusValidatesTheArtifactToo) {
  plus_ = true;
  flags_ = [](ConfigBuilder& settings) { settings.set("swa_every=1"); };
  environment_["ITERATIONS"] = "3";
  environment_["TRAIN_SEQ_LEN"] = "64";
  const GolfResult result = run();
  EXPECT_EQ(result.training.weights, "swa");
  EXPECT_EQ(count("final_int8_zlib_roundtrip_exact"), 1u);
  EXPECT_EQ(count("final_int6_zstd_roundtrip_exact"), 1u);
}

}  // namespace
}  // namespace thimble
