// `thimble train`, `eval` and `generate` on the command line.
#include <csignal>
#include <thread>

#include "base/files.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/rng.h"
#include "e2e/settings.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::train_test {
namespace {

std::string sample_text() {
  std::string text;
  for (int i = 0; i < 150; ++i) text += "line " + std::to_string(i * 7) + ": the cat sat on the mat.\n";
  return text;
}

RunResult run(std::vector<std::string> arguments, RunOptions options = {}) {
  options.arguments = std::move(arguments);
  return run_binary(options);
}

class TrainCommand : public testing::Test {
 protected:
  TrainCommand() { folder_.write("text.txt", sample_text()); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Arguments of a tiny training run. `more` may replace --steps and --val-every.
  std::vector<std::string> tiny(const std::string& run, std::vector<std::string> more = {
                                                            "--steps", "20", "--val-every", "10"}) const {
    std::vector<std::string> arguments = {"train",   "--data",   path("text.txt"), "-o",
                                          path(run), "--preset", "quick"};
    const std::vector<std::string> settings = settings_beside(
        more,
        {"context=16", "layers=1", "dim=32", "heads=2", "kv_heads=1", "mlp_hidden=48", "batch_tokens=64"});
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  TempFolder folder_;
};

TEST_F(TrainCommand, TrainsEvaluatesAndGenerates) {
  const RunResult train = run(tiny("run", {"--steps", "20", "--val-every", "10", "--json"}));
  ASSERT_EQ(train.exit_code, 0) << train.err;
  const Json result = parse_json(train.out, "train --json");
  EXPECT_EQ(result.at("status").as_string(), "completed");
  for (const char* key : {"steps", "tokens", "train_loss", "val_loss", "val_bpb", "best_step", "seconds",
                          "tokens_per_second", "checkpoint"})
    EXPECT_NE(result.find(key), nullptr) << key;

  const RunResult eval = run({"eval", path("run"), "--data", path("text.txt"), "--json"});
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  const Json score = parse_json(eval.out, "eval --json");
  for (const char* key : {"val_loss", "val_bpb", "tokens", "bytes", "context", "stride"})
    EXPECT_NE(score.find(key), nullptr) << key;
  EXPECT_EQ(score.at("bytes").as_uint(), sample_text().size());

  const std::vector<std::string> generate = {"generate", path("run"), "line 7", "--max-tokens",
                                             "12",       "--greedy",  "--json"};
  const RunResult first = run(generate), again = run(generate);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.out, again.out);
  const Json generated = parse_json(first.out, "generate --json");
  const Json& sample = generated.at("samples").as_array().at(0);
  EXPECT_LE(sample.at("tokens").size(), 12u);
  EXPECT_FALSE(sample.at("finish_reason").as_string().empty());
  EXPECT_EQ(run({"generate", path("run"), "line 7", "--max-tokens", "5"}).out.rfind("line 7", 0), 0u);
}

TEST_F(TrainCommand, ResumesWithoutOtherArguments) {
  ASSERT_EQ(run(tiny("straight")).exit_code, 0);
  ASSERT_EQ(run(tiny("resumed", {"--steps", "20", "--val-every", "10", "--stop-after", "9"})).exit_code, 0);
  const RunResult resumed = run({"train", "--resume", path("resumed")});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(folder_.read("straight/last.safetensors"), folder_.read("resumed/last.safetensors"));
  const RunResult complete = run({"train", "--resume", path("resumed")});
  EXPECT_EQ(complete.exit_code, 1);
  EXPECT_NE(complete.err.find("is complete: 20 of 20 steps"), std::string::npos) << complete.err;
}

TEST_F(TrainCommand, Bf16WorksAtEveryCpuLevelAndResumeReportsChanges) {
  const auto at = [](const char* level) { return RunOptions{.environment = {{"THIMBLE_CPU", level}}}; };
  const std::vector<std::string> bf16 = tiny(
      "run", {"--steps", "12", "--stop-after", "4", "--val-every", "0", "--dtype", "bf16", "--threads", "2"});
  std::vector<std::string> dry = bf16;
  dry.insert(dry.end(), {"--dry-run", "--json"});
  const RunResult planned = run(dry, at("scalar"));
  ASSERT_EQ(planned.exit_code, 0) << planned;
  EXPECT_EQ(parse_json(planned.out, "dry run").at("config").at("dtype").as_string(), "bf16");

  const RunResult begun = run(bf16, at("scalar"));
  ASSERT_EQ(begun.exit_code, 0) << begun;
  EXPECT_NE(begun.err.find("--dtype f32 would be faster"), std::string::npos) << begun;

  const auto resume = [&](const char* threads, const char* level) {
    return run({"train", "--resume", path("run"), "--stop-after", "4", "--threads", threads}, at(level));
  };
  const RunResult other_threads = resume("1", "scalar");
  ASSERT_EQ(other_threads.exit_code, 0) << other_threads;
  EXPECT_NE(other_threads.err.find("trained with 2 threads at CPU level scalar and resumes with 1 thread at"),
            std::string::npos)
      << other_threads;
  const RunResult as_before = resume("1", "scalar");
  ASSERT_EQ(as_before.exit_code, 0) << as_before;
  EXPECT_EQ(as_before.err.find("CPU level"), std::string::npos) << as_before;

  if (detected_cpu_level() < CpuLevel::avx2) GTEST_SKIP() << "this CPU has one level";
  ASSERT_EQ(run({"train", "--resume", path("run"), "--steps", "20", "--stop-after", "1", "--threads", "1"},
                at("scalar"))
                .exit_code,
            0);
  const RunResult other_level = resume("1", "avx2");
  ASSERT_EQ(other_level.exit_code, 0) << other_level;
  EXPECT_NE(other_level.err.find("resumes with 1 thread at CPU level avx2"), std::string::npos)
      << other_level;
}

TEST_F(TrainCommand, ChangedSettingsAreListedAndNeedForce) {
  ASSERT_EQ(run(tiny("run", {"--steps", "20", "--stop-after", "5"})).exit_code, 0);
  const auto resume = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"train", "--resume", path("run"), "--stop-after", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  const RunResult refused = resume({"--lr", "0.02", "--set", "clip=0.5"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("started with different settings: lr: 0.01 -> 0.02, matrix_lr: 0.02 -> 0.0, "
                             "clip: 1.0 -> 0.5"),
            std::string::npos)
      << refused.err;
  const RunResult forced = resume({"--lr", "0.02", "--force"});
  EXPECT_EQ(forced.exit_code, 0) << forced.err;
  EXPECT_NE(forced.err.find("lr: 0.01 -> 0.02"), std::string::npos) << forced.err;
  const RunResult longer = resume({"--steps", "200"});
  EXPECT_EQ(longer.exit_code, 0) << longer.err;
  EXPECT_NE(longer.err.find("now ends at 200 steps"), std::string::npos) << longer.err;
  const RunResult other_batch = resume({"--batch-tokens", "128", "--force"});
  EXPECT_EQ(other_batch.exit_code, 0) << other_batch.err;
  const RunResult other_model = resume({"--dim", "64", "--force"});
  EXPECT_EQ(other_model.exit_code, 1);
  EXPECT_NE(other_model.err.find("different model or optimizer: dim: 32 -> 64"), std::string::npos)
      << other_model.err;
  EXPECT_EQ(resume({"--preset", "golf"}).exit_code, 2);
}

TEST_F(TrainCommand, StartsFromAnotherModel) {
  ASSERT_EQ(run(tiny("base")).exit_code, 0);
  const RunResult tuned =
      run({"train", "--init", path("base"), "--data", path("text.txt"), "-o", path("tuned"), "--steps", "3",
           "--batch-tokens", "64", "--lr", "0.001", "--json"});
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  const Json base = parse_json(run({"inspect", path("base"), "--json"}).out, "inspect");
  const Json after = parse_json(run({"inspect", path("tuned"), "--json"}).out, "inspect");
  EXPECT_EQ(base.at("parameters").as_int(), after.at("parameters").as_int());
  EXPECT_LT(parse_json(tuned.out, "train").at("train_loss").as_double(), 4)
      << "the initial model was trained already";
  const RunResult other = run(
      {"train", "--init", path("base"), "--preset", "golf", "--data", path("text.txt"), "-o", path("other")});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_NE(other.err.find("layers is 1, the preset has 9"), std::string::npos) << other.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "other"));
}

TEST_F(TrainCommand, FineTuningStatesItsOptimizerAndDoesNotAskForMoreText) {
  ASSERT_EQ(run(tiny("base", {"--steps", "3", "--val-every", "0"})).exit_code, 0);
  const auto tune = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {
        "train",       "--init",  path("base"), "--data",  path("text.txt"), "-o",
        path("tuned"), "--steps", "2",          "--force", "--batch-tokens", "64"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const RunResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  };
  const std::string adamw = tune({});
  EXPECT_NE(adamw.find("fine-tuning with AdamW"), std::string::npos) << adamw;
  EXPECT_EQ(adamw.find("tokens per parameter;"), std::string::npos) << adamw;
  EXPECT_NE(folder_.read("tuned/config.toml").find("\nmuon_steps = 0\n"), std::string::npos);
  tune({"--optimizer", "muon"});
  EXPECT_NE(folder_.read("tuned/config.toml").find("\nmuon_steps = 5\n"), std::string::npos);
  EXPECT_EQ(run(tiny("bad", {"--optimizer", "adamw", "--muon-steps", "5"})).exit_code, 2);
  EXPECT_EQ(run(tiny("bad", {"--optimizer", "adamw", "--depth", "1"})).exit_code, 2);
}

// A model of Hugging Face with a chat template of its own.
TEST_F(TrainCommand, ChatsAreTrainedInTheTemplateOfTheModel) {
  std::string chats;
  for (int i = 0; i < 60; ++i)
    chats += fmt::format(R"({{"messages":[{{"role":"user","content":"{0} plus 1?"}},)"
                         R"({{"role":"assistant","content":"{1}"}}]}})"
                         "\n",
                         i, i + 1);
  folder_.write("chats.jsonl", chats);
  std::vector<std::string> base = tiny("base", {"--steps", "2", "--val-every", "0", "--context", "64"});
  base[2] = path("chats.jsonl");
  ASSERT_EQ(run(base).exit_code, 0);
  ASSERT_EQ(run({"export", path("base"), "--format", "hf", "-o", path("hf")}).exit_code, 0);
  folder_.write("hf/chat_template.jinja",
                "{{ bos_token }}{% for m in messages %}<system>{{ m.role | upper }}\n{{ m.content | trim }}"
                "<end_turn>{% endfor %}{% if add_generation_prompt %}<system>ASSISTANT\n{% endif %}");
  const auto tune = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"train"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const RunResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  };
  const std::vector<std::string> settings = {"--init",         path("hf"), "--data", path("chats.jsonl"),
                                             "--batch-tokens", "128",      "-o"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = settings;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  tune(with({path("whole"), "--steps", "8", "--val-every", "4"}));
  tune(with({path("parts"), "--steps", "8", "--val-every", "4", "--stop-after", "4"}));
  tune({"--resume", path("parts"), "--data", path("chats.jsonl")});
  const auto digest = [&](const char* name) {
    return read_file(folder_ / name / "checkpoints/step-00000008.safetensors", 1 << 26);
  };
  EXPECT_TRUE(digest("whole") == digest("parts")) << "a stopped run ends as another one";
  const Json facts = parse_json(run({"inspect", path("whole"), "--json"}).out, "inspect");
  EXPECT_TRUE(facts.at("chat_layout").as_string().starts_with("jinja:{{ bos_token }}"));
  // The loss of the held-out chats is that of their answers, and packing keeps template and loss.
  const auto score = [&](const std::string& model, const std::string& data) {
    const RunResult result = run({"eval", model, "--data", data, "--dtype", "f32", "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return parse_json(result.out, "eval");
  };
  const Json shards = score(path("whole"), path("whole/data")),
             all = score(path("whole"), path("chats.jsonl"));
  // Of each answer "N", its digits and <end_turn>.
  EXPECT_EQ(all.at("tokens").as_int(), 9 * 2 + 51 * 3);
  EXPECT_LT(shards.at("tokens").as_int(), all.at("tokens").as_int() / 2);
  ASSERT_EQ(run({"pack", path("whole"), "--bits", "8", "-o", path("m.thimble"), "--allow-loss"}).exit_code,
            0);
  EXPECT_EQ(score(path("m.thimble"), path("chats.jsonl")).at("tokens"), all.at("tokens"));
  EXPECT_EQ(run({"eval", path("m.thimble"), "--data", path("chats.jsonl"), "--exact"}).exit_code, 0);
  EXPECT_EQ(run({"qa", path("whole"), "--data", path("whole/data")}).exit_code, 0);
  // The same shards from `data build`.
  ASSERT_EQ(run({"data", "build", path("chats.jsonl"), "--chat", "--tokenizer", path("hf"), "--layout",
                 path("hf"), "-o", path("built")})
                .exit_code,
            0);
  EXPECT_EQ(read_file(folder_ / "built/data_train_000000.bin", 1 << 20),
            read_file(folder_ / "whole/data/data_train_000000.bin", 1 << 20));
}

TEST_F(TrainCommand, AModelWithoutATokenizerNeedsOneForFineTuning) {
  ASSERT_EQ(run(tiny("base", {"--steps", "3", "--val-every", "0"})).exit_code, 0);
  ASSERT_EQ(run({"export", path("base"), "--format", "hf", "-o", path("hf")}).exit_code, 0);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "tokenizer.model"})
    std::filesystem::remove(folder_ / "hf" / name);
  std::vector<std::string> arguments = {"train",  "--init", path("hf"),    "--data",   path("text.txt"),
                                        "--json", "-o",     path("tuned"), "--dry-run"};
  for (int i = 0; i < 2; ++i) {
    const RunResult refused = run(arguments);
    EXPECT_EQ(refused.exit_code, 1) << refused.out;
    EXPECT_NE(refused.err.find("hf contains no tokenizer"), std::string::npos) << refused.err;
    EXPECT_NE(refused.err.find("--tokenizer"), std::string::npos) << refused.err;
    if (i == 0) arguments.pop_back();  // --dry-run
  }
  arguments.insert(arguments.end(), {"--tokenizer", "bytes", "--dry-run"});
  EXPECT_EQ(run(arguments).exit_code, 0);
}

TEST_F(TrainCommand, DivergenceHasItsOwnExitCode) {
  const RunResult result =
      run(tiny("run", {"--lr", "100", "--clip", "0", "--steps", "60", "--val-every", "30", "--json"}));
  EXPECT_EQ(result.exit_code, 3) << result.err;
  const Json json = parse_json(result.out, "train --json");
  EXPECT_EQ(json.at("status").as_string(), "diverged");
  EXPECT_EQ(json.at("best_step").as_int(), -1);
  EXPECT_EQ(json.at("diagnosis").at("limit").as_string(), "optimization");
}

TEST_F(TrainCommand, EpochsAndATargetEndWithSuccess) {
  const RunResult epochs = run(tiny("epochs", {"--epochs", "0.5", "--val-every", "0", "--json"}));
  ASSERT_EQ(epochs.exit_code, 0) << epochs.err;
  EXPECT_NEAR(parse_json(epochs.out, "train").at("epochs").as_double(), 0.5, 0.02);
  const RunResult target =
      run(tiny("target", {"--target-val-loss", "5.4", "--steps", "200", "--val-every", "1", "--json"}));
  ASSERT_EQ(target.exit_code, 0) << target.err;
  EXPECT_EQ(parse_json(target.out, "train").at("status").as_string(), "target_reached");
  EXPECT_EQ(run(tiny("bad", {"--epochs", "1", "--steps", "5"})).exit_code, 2);
}

TEST_F(TrainCommand, ReadsWhatDataBuildWrote) {
  const RunResult build = run({"data", "build", path("text.txt"), "--tokenizer", "bytes", "--val-fraction",
                               "0.1", "-o", path("shards")});
  ASSERT_EQ(build.exit_code, 0) << build.err;
  auto arguments = tiny("run");
  arguments[2] = path("shards");
  const RunResult train = run(arguments);
  ASSERT_EQ(train.exit_code, 0) << train.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run" / "data")) << "shards are read in place";
  ASSERT_EQ(run(tiny("of-text")).exit_code, 0);
  EXPECT_EQ(folder_.read("run/last.safetensors"), folder_.read("of-text/last.safetensors"));
}

TEST_F(TrainCommand, TrainsATokenizerAndAChatModel) {
  std::string chats;
  for (int i = 0; i < 80; ++i)
    chats += R"({"messages": [{"role": "user", "content": "what is )" + std::to_string(i) +
             R"(?"}, {"role": "assistant", "content": "it is a number."}]})" + "\n";
  folder_.write("chats.jsonl", chats);
  const RunResult train =
      run({"train", "--preset", "chat", "--data", path("chats.jsonl"), "--tokenizer", "bpe:280", "-o",
           path("run"), "--steps", "4", "--batch-tokens", "512", "--json"});
  ASSERT_EQ(train.exit_code, 0) << train.err;
  const RunResult inspect = run({"inspect", path("run"), "--json"});
  const std::int64_t vocab_size = parse_json(inspect.out, "inspect").at("metadata").at("vocab_size").as_int();
  EXPECT_GT(vocab_size, 5 + 256) << "it learned some merges";
  EXPECT_LE(vocab_size, 280);
  EXPECT_EQ(run({"train", "--resume", path("run"), "--steps", "6"}).exit_code, 0);
  EXPECT_EQ(run({"train", "--data", path("chats.jsonl"), "--tokenizer", "bpe:many"}).exit_code, 2);
}

TEST_F(TrainCommand, LearnsABpeOfTheVocabularySizeForChats) {
  std::string chats;
  for (int i = 0; i < 80; ++i)
    chats += fmt::format(R"([{{"role": "user", "content": "what is {}?"}}, )"
                         R"({{"role": "assistant", "content": "it is a number."}}])"
                         "\n",
                         i);
  folder_.write("chats.jsonl", chats);
  const auto train = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"train",   "--data", path("chats.jsonl"), "-o",  path("run"), "--force",
                                      "--steps", "1",      "--batch-tokens",    "512", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const RunResult trained = run(words);
    EXPECT_EQ(trained.exit_code, 0) << trained;
    const RunResult info = run({"tokenizer", "info", path("run"), "--json"});
    return parse_json(info.out, "info").at("vocab_size").as_int();
  };
  EXPECT_EQ(train({"--vocab-size", "270"}), 270);
  EXPECT_EQ(train({"--set", "vocab_size=270"}), 270);
  EXPECT_GT(train({"--preset", "microgpt"}), 5 + 256) << "4096, or as many as the text yields";
  EXPECT_EQ(train({"--tokenizer", "bytes", "--preset", "microgpt"}), 5 + 256);
}

TEST_F(TrainCommand, ValidationIsWhatOneAsksFor) {
  std::string names;
  for (int i = 0; i < 300; ++i) names += fmt::format("name{}\n", i * i);
  folder_.write("text.txt", names);
  const RunResult lines = run(tiny("lines", {"--steps", "2", "--documents", "line"}));
  EXPECT_EQ(lines.exit_code, 0) << lines;
  const auto order_of = [&](const std::string& name) {
    return parse_json(folder_.read(name + "/data.json"), "data.json").at("order").as_string();
  };
  EXPECT_EQ(order_of("lines"), "packed") << "windows would begin and end inside of lines";
  EXPECT_NE(lines.err.find("10 % of the text: 31 of 300 documents"), std::string::npos) << lines;
  const RunResult none = run(tiny("none", {"--steps", "2", "--val-fraction", "0", "--json"}));
  EXPECT_EQ(none.exit_code, 0) << none;
  EXPECT_EQ(parse_json(none.out, "train").find("val_loss"), nullptr);
  EXPECT_NE(none.err.find("validation: none"), std::string::npos) << none;
  EXPECT_NE(order_of("none"), "packed");
  EXPECT_EQ(run(tiny("bad", {"--val-fraction", "0.95"})).exit_code, 2);
  EXPECT_EQ(run(tiny("bad", {"--skip-long"})).exit_code, 2) << "only for chats";
  auto shards = tiny("bad", {"--documents", "line"});
  shards[2] = path("lines/data");
  EXPECT_EQ(run(shards).exit_code, 2);
}

TEST_F(TrainCommand, ReadsTablesAndExportsOfMessengers) {
  std::string table = "author,quote\n", chat;
  for (int i = 0; i < 60; ++i) {
    table += fmt::format("Ann,\"Cat {}, or \"\"cat\"\"\"\n", i);
    chat += fmt::format("{}/1/24, 10:00 - Ann: Question {}?\n{}/1/24, 10:01 - Bob: Answer {}.\n", i % 28 + 1,
                        i, i % 28 + 1, i);
  }
  const auto train = [&](const std::string& data, std::vector<std::string> more) {
    more.insert(more.end(), {"--steps", "2"});
    auto arguments = tiny("run", more);
    arguments[2] = path(data);
    arguments.push_back("--force");
    return run(arguments);
  };
  folder_.write("quotes.csv", table);
  const RunResult missing = train("quotes.csv", {});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_NE(missing.err.find("found author, quote"), std::string::npos) << missing;
  const RunResult quotes = train("quotes.csv", {"--text-field", "quote", "--tokenizer", "bpe:270"});
  EXPECT_EQ(quotes.exit_code, 0) << quotes;
  EXPECT_EQ(run({"train", "--resume", path("run"), "--steps", "3"}).exit_code, 0) << "the field is kept";
  EXPECT_EQ(train("quotes.csv", {"--text-field", "quote", "--assistant", "Ann"}).exit_code, 2)
      << "only for chats";

  folder_.write("in/_chat.txt", chat);
  folder_.write("in/photo.jpg", "\xFF\xD8\xFF");
  const RunResult chats = train("in", {});
  EXPECT_EQ(chats.exit_code, 0) << chats;
  EXPECT_NE(chats.err.find("the assistant is Ann;"), std::string::npos) << chats;
  EXPECT_NE(chats.err.find("photo.jpg  it is a picture"), std::string::npos) << chats;
  const RunResult bob = train("in", {"--assistant", "Bob"});
  EXPECT_EQ(bob.exit_code, 0) << bob;
  const Json settings = parse_json(folder_.read("run/data.json"), "data.json");
  EXPECT_EQ(settings.at("assistant").as_string(), "Bob");
  EXPECT_EQ(settings.at("kind").as_string(), "chat");
  EXPECT_EQ(train("in", {"--assistant", "Eve"}).exit_code, 1);
}

TEST_F(TrainCommand, OneChatManyTimesIsTrainedOn) {
  std::string chats;
  for (int i = 0; i < 200; ++i)
    chats += R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}])"
             "\n";
  auto words = tiny("run", {"--steps", "2", "--json"});
  words[2] = "/dev/stdin";  // the name of the input does not tell that it is JSON
  const RunResult trained = run(words, {.input = chats});
  EXPECT_EQ(trained.exit_code, 0) << trained;
  EXPECT_NE(trained.err.find("validation: none"), std::string::npos) << trained;
}

TEST_F(TrainCommand, DataOfAResumedRunAndOfPackMayBePipes) {
  const std::vector<std::string> steps = {"--steps", "6", "--val-every", "3"};
  ASSERT_EQ(run(tiny("straight", steps)).exit_code, 0);
  auto words = tiny("piped", steps);
  const std::string text = folder_.read(std::filesystem::path(words[2]).filename().string());
  words[2] = "/dev/stdin";
  words.insert(words.end(), {"--stop-after", "4"});
  ASSERT_EQ(run(words, {.input = text}).exit_code, 0);
  const RunResult other =
      run({"train", "--resume", path("piped"), "--data", "/dev/stdin"}, {.input = "Other text.\n"});
  EXPECT_EQ(other.exit_code, 1) << other;
  const RunResult resumed =
      run({"train", "--resume", path("piped"), "--data", "/dev/stdin"}, {.input = text});
  ASSERT_EQ(resumed.exit_code, 0) << resumed;
  EXPECT_EQ(folder_.read("straight/last.safetensors"), folder_.read("piped/last.safetensors"));
  for (const char* option : {"--data", "--calibration-data"}) {
    const RunResult packed =
        run({"pack", path("piped"), option, "/dev/stdin", "--gptq", "--calibration-tokens", "256",
             "--allow-loss", "-o", path(std::string(option) + ".thimble")},
            {.input = text});
    EXPECT_EQ(packed.exit_code, 0) << packed;
  }
}

TEST_F(TrainCommand, EndsWithADiagnosis) {
  const RunResult train = run(tiny("run", {"--steps", "40", "--val-every", "10"}));
  ASSERT_EQ(train.exit_code, 0) << train.err;
  EXPECT_NE(train.out.find("what limits this run: "), std::string::npos) << train.out;
  EXPECT_NE(train.out.find("what may help: "), std::string::npos) << train.out;
  const RunResult json = run(tiny("json", {"--steps", "40", "--val-every", "10", "--json"}));
  const Json diagnosis = parse_json(json.out, "train").at("diagnosis");
  EXPECT_GE(diagnosis.at("evidence").size(), 1u);
}

class KilledTrainCommand : public TrainCommand {
 protected:
  // Kills a run `requested` times at random moments, resuming it each time.
  void expect_same_result_after(int requested) {
    const std::vector<std::string> often = {
        "--checkpoint-every", "1", "--steps", "300",           "--val-every", "50",
        "--threads",          "1", "--set",   "swa_start=0.9", "--set",       "swa_every=7"};
    ASSERT_EQ(run(tiny("straight", often)).exit_code, 0);
    Rng random(2026);
    const auto has_checkpoint = [&] {
      for (const std::string& file : folder_.files())
        if (file.starts_with("killed/checkpoints/step-")) return true;
      return false;
    };
    const std::vector<std::string> resume = {"train", "--resume", path("killed"), "--threads", "1"};
    const auto expect_same = [&] {
      EXPECT_EQ(folder_.read("straight/last.safetensors"), folder_.read("killed/last.safetensors"));
    };
    int kills = 0;         // of runs that had a checkpoint
    double window = 0.15;  // upper limit of the seconds until a kill
    for (int attempt = 0; attempt < 40 * requested && kills < requested; ++attempt) {
      RunOptions options;
      options.signal = SIGKILL;
      options.signal_after_seconds = 0.02 + window * random.uniform_double();
      const bool resumable = has_checkpoint();
      const RunResult result = run(resumable ? resume : tiny("killed", often), options);
      kills += resumable && result.signal == SIGKILL;
      // On a busy machine too, some runs must reach a checkpoint and few may reach the end.
      window *= result.signal != SIGKILL ? 0.8 : resumable ? 1 : 1.2;
      if (result.signal == SIGKILL) continue;
      // It reached its end, perhaps as the last kill came after the last checkpoint: start again.
      ASSERT_TRUE(result.exit_code == 0 || result.err.find("is complete") != std::string::npos) << result;
      expect_same();
      std::filesystem::remove_all(folder_ / "killed");
    }
    EXPECT_EQ(kills, requested);
    const RunResult last = run(has_checkpoint() ? resume : tiny("killed", often));
    EXPECT_TRUE(last.exit_code == 0 || last.err.find("is complete") != std::string::npos) << last;
    expect_same();
  }
};

TEST_F(KilledTrainCommand, EndsWithTheSameResultAfterTenKills) {
  expect_same_result_after(10);
}

TEST_F(KilledTrainCommand, FullTierEndsWithTheSameResultAfterTwoHundredKills) {
  expect_same_result_after(200);
}

TEST_F(TrainCommand, SigintSigtermAndSighupSaveAndExitWith130) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string name = fmt::format("signal-{}", signal);
    RunOptions options;
    options.signal = signal;
    options.signal_after_text = "tokens per parameter";
    const RunResult result = run(tiny(name, {"--steps", "1000000", "--val-every", "0"}), options);
    EXPECT_EQ(result.exit_code, 130) << result.err;
    EXPECT_NE(result.out.find("interrupted at step"), std::string::npos) << result.out;
    EXPECT_EQ(run({"train", "--resume", path(name), "--stop-after", "1"}).exit_code, 0);
  }
}

TEST_F(TrainCommand, PrintsTheCommandThatContinues) {
  RunOptions options;
  options.signal = SIGINT;
  options.signal_after_text = "tokens per parameter";
  const RunResult stopped =
      run(tiny("run", {"--steps", "1000000", "--val-every", "0", "--threads", "1", "-q"}), options);
  EXPECT_EQ(stopped.exit_code, 130) << stopped;
  const std::string command = "thimble train --resume " + path("run") + " --threads 1";
  EXPECT_NE(stopped.out.find("\n  " + command + "\n"), std::string::npos) << stopped;
  const RunResult json =
      run({"train", "--resume", path("run"), "--threads", "1", "--stop-after", "1", "--json"});
  EXPECT_EQ(parse_json(json.out, "train").at("continue").as_string(), command);
  const RunResult done = run({"train", "--resume", path("run") + "/last.safetensors", "--steps",
                              std::to_string(parse_json(json.out, "train").at("steps").as_int() + 1)});
  EXPECT_EQ(done.exit_code, 0) << done;
  EXPECT_EQ(done.out.find("--resume"), std::string::npos) << "a finished run does not continue";
}

TEST_F(TrainCommand, NeverOverwritesForeignFiles) {
  const std::string config = "# mine\npreset = \"quick\"\nsteps = 5\n";
  folder_.write("settings/config.toml", config);
  folder_.write("spread/data", "a file where the run has a folder");
  const auto expect_refused = [&](const std::vector<std::string>& arguments, const std::string& foreign) {
    const auto before = folder_.files();
    for (const char* force : {"", "--force"}) {
      std::vector<std::string> call = arguments;
      if (*force) call.emplace_back(force);
      const RunResult result = run(call);
      EXPECT_EQ(result.exit_code, 1) << result;
      EXPECT_NE(result.err.find("it contains " + foreign), std::string::npos) << result;
      EXPECT_EQ(folder_.files(), before);
    }
  };
  const auto build_into = [&](const std::string& name) {
    return std::vector<std::string>{"data",  "build", path("text.txt"), "--tokenizer",
                                    "bytes", "-o",    path(name)};
  };
  const auto learn_into = [&](const std::string& name) {
    return std::vector<std::string>{"tokenizer", "train", path("text.txt"), "--vocab-size",
                                    "270",       "-o",    path(name)};
  };
  expect_refused(tiny("settings", {"--config", path("settings/config.toml")}), "config.toml");
  EXPECT_EQ(folder_.read("settings/config.toml"), config);
  expect_refused(tiny("spread"), "data");
  ASSERT_EQ(run(build_into("shards")).exit_code, 0);
  ASSERT_EQ(run(learn_into("tokens")).exit_code, 0);
  ASSERT_EQ(run(tiny("run", {"--steps", "2"})).exit_code, 0);
  expect_refused(tiny("shards"), "data_train_000000.bin");
  expect_refused(tiny("tokens"), "tokenizer.json");
  expect_refused(build_into("tokens"), "tokenizer.json");
  expect_refused(build_into("run"), "best.safetensors");
  expect_refused(learn_into("shards"), "data_train_000000.bin");
  expect_refused(learn_into("run"), "best.safetensors");
  const RunResult own = run({"train", "--data", path("text.txt"), "--config", path("run/config.toml"), "-o",
                             path("run"), "--force"});
  EXPECT_EQ(own.exit_code, 2) << own;
}

// Each process makes its folder, so none finds a number that another one is about to use.
TEST_F(TrainCommand, RunsStartedAtOnceTakeDifferentNumbers) {
  constexpr int kRuns = 4;
  std::vector<std::string> arguments = tiny("unused", {"--steps", "1", "--val-every", "0", "--threads", "1"});
  arguments.erase(arguments.begin() + 3, arguments.begin() + 5);  // -o
  std::vector<std::thread> processes;
  std::vector<RunResult> results(kRuns);
  for (RunResult& result : results)
    processes.emplace_back([&] { result = run(arguments, {.folder = folder_.path()}); });
  for (std::thread& process : processes) process.join();
  for (const RunResult& result : results) EXPECT_EQ(result.exit_code, 0) << result;
  for (int n = 1; n <= kRuns; ++n)
    EXPECT_TRUE(std::filesystem::exists(folder_ / fmt::format("runs/quick-{}/last.safetensors", n))) << n;
  arguments.insert(arguments.end(), {"--vocab-size", "99"});
  EXPECT_EQ(run(arguments, {.folder = folder_.path()}).exit_code, 1);
  EXPECT_FALSE(std::filesystem::exists(folder_ / fmt::format("runs/quick-{}", kRuns + 1)));
}

TEST_F(TrainCommand, Sigusr1SavesAndContinues) {
  RunOptions options;
  options.signal = SIGUSR1;
  options.signal_after_text = "tokens per parameter";
  int saved = 0;
  for (int steps = 100; saved < 2 && steps <= 100'000; steps *= 10) {  // else it ended before the signal
    const std::string name = fmt::format("run{}", steps);
    const RunResult result = run(tiny(name, {"--steps", std::to_string(steps), "--val-every", "0"}), options);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    saved = 0;
    for (const std::string& file : folder_.files()) saved += file.starts_with(name + "/checkpoints/step-");
  }
  EXPECT_EQ(saved, 2) << "one after the signal, one at the end";
}

struct BadCall {
  std::vector<std::string> arguments;
  int exit_code;
  std::string message;
};

TEST_F(TrainCommand, ReportsErrors) {
  folder_.write("empty.txt", "");
  folder_.write("short.txt", "too short");
  folder_.write("cut.safetensors", "abcdefgh");
  const auto with_data = [&](const std::string& name) {
    auto arguments = tiny("bad");
    arguments[2] = path(name);
    return arguments;
  };
  const std::vector<BadCall> calls = {
      {{"train"}, 2, "--data is missing"},
      {with_data("missing.txt"), 1, "missing.txt"},
      {with_data("empty.txt"), 1, "read 0 documents"},
      {with_data("short.txt"), 1, "but the context is 16"},
      {tiny("bad", {"--vocab-size", "99"}), 1, "vocab_size is 99"},
      {tiny("bad", {"--dtype", "f16"}), 1, "the CPU cannot compute in f16"},
      {{"train", "--resume", path("nowhere")}, 1, "nowhere"},
      {{"train", "--resume", path("text.txt")}, 1, "not a checkpoint in a run folder"},
      {{"eval", path("nowhere"), "--data", path("text.txt")}, 1, "nowhere"},
      {{"eval", path("cut.safetensors"), "--data", path("text.txt")}, 1, "cut.safetensors"},
      {{"generate", path("cut.safetensors")}, 1, "cut.safetensors"},
      {{"generate"}, 2, "MODEL"},
      {{"eval", path("run")}, 2, "--data"},
  };
  for (const BadCall& call : calls) {
    const RunResult result = run(call.arguments);
    EXPECT_EQ(result.exit_code, call.exit_code) << result.err;
    EXPECT_NE(result.err.find(call.message), std::string::npos) << result.err << "expected: " << call.message;
    EXPECT_NE(("\n" + result.err).find("\nerror: "), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "bad")) << "a rejected call leaves no files";
}

}  // namespace
}  // namespace thimble::train_test
