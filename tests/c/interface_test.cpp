// The C interface, used through libthimble.so as other languages use it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cmath>
#include <fstream>
#include <numbers>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"
#include "thimble.h"

namespace thimble {
namespace {

thimble_status run(const std::vector<std::string>& words, const thimble_watch* watch = nullptr,
                   std::string* printed = nullptr) {
  std::vector<const char*> pointers;
  for (const std::string& word : words) pointers.push_back(word.c_str());
  thimble_text output = {};
  const thimble_status status = thimble_command(pointers.data(), pointers.size(), watch, &output);
  if (printed && output.data) printed->assign(output.data, output.size);
  return status;
}

std::string message() {
  return thimble_last_error()->message;
}

// A small model, trained once for all tests.
class CInterface : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    std::string text;
    for (int i = 0; i < 400; ++i) text += "the cat sat on the mat " + std::to_string(i % 7) + ".\n";
    folder_->write("cats.txt", text);
    ASSERT_EQ(run(words_of("run")), THIMBLE_OK) << message();
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  void SetUp() override {
    ASSERT_EQ(thimble_open(path("run").c_str(), kOptions, &model_), THIMBLE_OK) << message();
  }
  void TearDown() override { thimble_close(model_); }

  static std::string path(const std::string& name) { return (folder_->path() / name).string(); }
  static std::vector<std::string> words_of(const std::string& name) {
    return {"train",
            "--data",
            path("cats.txt"),
            "-o",
            path(name),
            "--layers",
            "1",
            "--dim",
            "32",
            "--heads",
            "2",
            "--kv-heads",
            "1",
            "--context",
            "32",
            "--steps",
            "12",
            "--json",
            "--val-every",
            "6",
            "--samples",
            "0",
            "--batch-tokens",
            "256",
            "--dtype",
            "f32"};
  }

  // All events of a request until its end.
  std::vector<Json> events_of(thimble_session* session, const std::string& request) {
    std::uint64_t id = 0;
    EXPECT_EQ(thimble_submit(session, request.data(), request.size(), &id), THIMBLE_OK) << message();
    std::vector<Json> events;
    for (thimble_text text = {}; thimble_step(session, &text) == THIMBLE_OK && text.size > 2;) {
      const Json list = parse_json({text.data, text.size}, "events");
      for (const Json& event : list.as_array()) events.push_back(event);
    }
    return events;
  }
  std::string text_of(thimble_session* session, const std::string& request) {
    std::string text;
    for (const Json& event : events_of(session, request)) text += event.at("text").as_string();
    return text;
  }

  static constexpr const char* kOptions = R"({"device":"cpu","dtype":"f32"})";
  static inline TempFolder* folder_ = nullptr;
  thimble_model* model_ = nullptr;
};

TEST_F(CInterface, DescribesTheModel) {
  thimble_text facts = {};
  ASSERT_EQ(thimble_facts(model_, &facts), THIMBLE_OK);
  const Json json = parse_json({facts.data, facts.size}, "facts");
  EXPECT_EQ(json.at("context").as_int(), 32);
  EXPECT_EQ(json.at("dtype").as_string(), "f32");
  EXPECT_FALSE(json.at("chat").as_bool());
  EXPECT_EQ(std::string(facts.data).size(), facts.size) << "ends with a NUL";
}

TEST_F(CInterface, HasTheVersionOfTheProgram) {
  EXPECT_EQ(thimble_version(), static_cast<unsigned>(THIMBLE_VERSION));
  EXPECT_EQ(run_binary({.arguments = {"--version"}}).out,
            "thimble " + std::to_string(THIMBLE_VERSION_MAJOR) + "." + std::to_string(THIMBLE_VERSION_MINOR) +
                "." + std::to_string(THIMBLE_VERSION_PATCH) + "\n");
}

TEST_F(CInterface, EncodesAndDecodes) {
  std::vector<std::int32_t> ids(2);
  std::size_t count = 0;
  EXPECT_EQ(thimble_encode(model_, "the cat", THIMBLE_TEXT, 0, ids.data(), ids.size(), &count),
            THIMBLE_TOO_SMALL);
  ids.resize(count);
  ASSERT_EQ(thimble_encode(model_, "the cat!", 7, 0, ids.data(), ids.size(), &count), THIMBLE_OK)
      << message();
  thimble_text text = {};
  ASSERT_EQ(thimble_decode(model_, ids.data(), count, 0, &text), THIMBLE_OK);
  EXPECT_EQ(std::string(text.data, text.size), "the cat");
}

TEST_F(CInterface, GeneratesTheTextOfTheProgram) {
  thimble_session* session = nullptr;
  ASSERT_EQ(thimble_start(model_, 1, &session), THIMBLE_OK);
  const std::string text = text_of(session, R"({"prompt":"the cat","max_tokens":20,"temperature":0})");
  const RunResult program =
      run_binary({.arguments = {"generate", path("run"), "the cat", "--max-tokens", "20", "--temperature",
                                "0", "--dtype", "f32", "--no-display-prompt"}});
  EXPECT_EQ(text + "\n", program.out) << program;
  thimble_stop(session);
}

TEST_F(CInterface, LogprobsAreTheSoftmaxOfTheLogitsAndSumToTheScore) {
  const std::string text = "the cat sat";
  std::vector<std::int32_t> ids(64);
  std::size_t count = 0;
  ASSERT_EQ(thimble_encode(model_, text.data(), text.size(), 1, ids.data(), ids.size(), &count), THIMBLE_OK);
  constexpr std::size_t kVocabulary = 257;
  std::vector<float> logits(count * kVocabulary), logprobs(count - 1);
  ASSERT_EQ(thimble_logits(model_, ids.data(), count, logits.data(), logits.size()), THIMBLE_OK) << message();
  ASSERT_EQ(thimble_logprobs(model_, ids.data(), count, logprobs.data(), logprobs.size()), THIMBLE_OK)
      << message();
  double total = 0;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    double sum = 0;
    for (std::size_t v = 0; v < kVocabulary; ++v)
      sum += std::exp(static_cast<double>(logits[i * kVocabulary + v]));
    const auto next = static_cast<std::size_t>(ids[i + 1]);
    EXPECT_NEAR(logprobs[i], static_cast<double>(logits[i * kVocabulary + next]) - std::log(sum), 1e-4);
    total -= static_cast<double>(logprobs[i]);
  }
  thimble_score score = {};
  ASSERT_EQ(thimble_score_text(model_, text.data(), text.size(), nullptr, nullptr, &score), THIMBLE_OK)
      << message();
  EXPECT_EQ(score.bytes, text.size());
  EXPECT_EQ(score.tokens, count);  // the text and the bos after it
  EXPECT_GT(score.nats, total);
}

TEST_F(CInterface, ScoresAreThoseOfEval) {
  folder_->write("held.txt", "the dog sat on the mat.");
  std::string printed;
  ASSERT_EQ(
      run({"eval", path("run"), "--data", path("held.txt"), "--json", "--dtype", "f32"}, nullptr, &printed),
      THIMBLE_OK)
      << message();
  thimble_score score = {};
  ASSERT_EQ(thimble_score_text(model_, "the dog sat on the mat.", THIMBLE_TEXT, nullptr, nullptr, &score),
            THIMBLE_OK);
  EXPECT_NEAR(score.nats / std::numbers::ln2 / static_cast<double>(score.bytes),
              parse_json(printed, "eval").at("val_bpb").as_double(), 1e-9);
}

TEST_F(CInterface, RequestsOfASessionRunTogetherAndCanBeCancelled) {
  thimble_session* session = nullptr;
  ASSERT_EQ(thimble_start(model_, 2, &session), THIMBLE_OK);
  const std::string request = R"({"prompt":"the","max_tokens":6,"temperature":0})";
  std::uint64_t first = 0, second = 0;
  ASSERT_EQ(thimble_submit(session, request.data(), request.size(), &first), THIMBLE_OK);
  ASSERT_EQ(thimble_submit(session, request.data(), request.size(), &second), THIMBLE_OK);
  EXPECT_NE(first, second);
  EXPECT_EQ(thimble_cancel(session, first), THIMBLE_OK);
  EXPECT_EQ(thimble_cancel(session, 12345), THIMBLE_OK);
  for (thimble_text text = {}; thimble_step(session, &text) == THIMBLE_OK && text.size > 2;) {
    const Json list = parse_json({text.data, text.size}, "events");
    for (const Json& event : list.as_array()) EXPECT_EQ(event.at("request").as_uint(), second);
  }
  thimble_stop(session);
}

TEST_F(CInterface, SessionsOfOneModelWorkInSeveralThreads) {
  std::vector<std::string> texts(3);
  std::vector<std::thread> threads;
  for (std::string& text : texts)
    threads.emplace_back([&] {
      thimble_session* session = nullptr;
      ASSERT_EQ(thimble_start(model_, 1, &session), THIMBLE_OK);
      text = text_of(session, R"({"prompt":"the cat","max_tokens":12,"temperature":0})");
      thimble_stop(session);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(texts[0].empty());
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
}

// Two threads step one session: each call either works or says that the session is in use. On a
// busy machine they may take turns for many rounds.
TEST_F(CInterface, ASecondThreadInASessionIsRefused) {
  thimble_session* session = nullptr;
  ASSERT_EQ(thimble_start(model_, 1, &session), THIMBLE_OK);
  const std::string request = R"({"prompt":"the","max_tokens":25,"temperature":0,"ignore_eos":true})";
  std::atomic<int> other = 0, busy = 0;
  for (int round = 0; round < 5000 && busy == 0; ++round) {
    std::uint64_t id = 0;
    ASSERT_EQ(thimble_submit(session, request.data(), request.size(), &id), THIMBLE_OK) << message();
    std::barrier both(2);
    const auto step_all = [&] {
      thimble_text text = {};
      both.arrive_and_wait();
      for (int i = 0; i < 40; ++i) {
        const thimble_status status = thimble_step(session, &text);
        if (status == THIMBLE_BUSY) ++busy;
        if (status != THIMBLE_BUSY && status != THIMBLE_OK) ++other;
      }
    };
    std::thread second(step_all);
    step_all();
    second.join();
  }
  EXPECT_GT(busy, 0);
  EXPECT_EQ(other, 0);
  thimble_stop(session);
}

TEST_F(CInterface, WrongArgumentsAreErrorsWithAMessage) {
  thimble_model* none = nullptr;
  thimble_session* session = nullptr;
  thimble_text text = {};
  std::uint64_t id = 0;
  std::size_t count = 0;
  float number = 0;
  const std::int32_t wrong[] = {100'000};
  EXPECT_EQ(thimble_open(nullptr, nullptr, &none), THIMBLE_INVALID);
  EXPECT_EQ(thimble_open(path("missing").c_str(), kOptions, &none), THIMBLE_FAILED);
  EXPECT_NE(message().find("missing"), std::string::npos);
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(thimble_open(path("run").c_str(), "{\"devices\":1}", &none), THIMBLE_INVALID);
  EXPECT_EQ(thimble_open(path("run").c_str(), "{\"dtype\":\"f64\"}", &none), THIMBLE_INVALID);
  EXPECT_EQ(thimble_facts(nullptr, &text), THIMBLE_INVALID);
  EXPECT_EQ(thimble_facts(model_, nullptr), THIMBLE_INVALID);
  EXPECT_EQ(thimble_encode(model_, nullptr, 3, 0, nullptr, 0, &count), THIMBLE_INVALID);
  EXPECT_EQ(thimble_decode(model_, wrong, 1, 0, &text), THIMBLE_FAILED);
  EXPECT_EQ(thimble_logits(model_, wrong, 1, &number, 1), THIMBLE_INVALID);
  EXPECT_EQ(thimble_logits(model_, wrong, 0, &number, 1), THIMBLE_INVALID);
  EXPECT_EQ(thimble_start(model_, 0, &session), THIMBLE_INVALID);
  EXPECT_EQ(thimble_submit(nullptr, "{}", 2, &id), THIMBLE_INVALID);
  EXPECT_EQ(thimble_command(nullptr, 0, nullptr, nullptr), THIMBLE_INVALID);
  EXPECT_EQ(run({"trian"}), THIMBLE_INVALID);
  EXPECT_NE(message().find("trian"), std::string::npos);
  EXPECT_EQ(run({"serve", path("run")}), THIMBLE_INVALID);
  thimble_close(nullptr);
  thimble_stop(nullptr);
}

TEST_F(CInterface, BadRequestsNameTheField) {
  thimble_session* session = nullptr;
  ASSERT_EQ(thimble_start(model_, 1, &session), THIMBLE_OK);
  std::uint64_t id = 0;
  EXPECT_EQ(thimble_submit(session, "{\"prompt\":\"a\",\"temperature\":-1}", THIMBLE_TEXT, &id),
            THIMBLE_INVALID);
  EXPECT_STREQ(thimble_last_error()->field, "temperature");
  EXPECT_EQ(thimble_submit(session, "{", 1, &id), THIMBLE_INVALID);
  EXPECT_EQ(thimble_submit(session, "\xff", 1, &id), THIMBLE_INVALID);
  EXPECT_EQ(thimble_submit(session, R"({"messages":[{"role":"user","content":"hi"}]})", THIMBLE_TEXT, &id),
            THIMBLE_INVALID)
      << "not a chat model";
  thimble_stop(session);
}

TEST_F(CInterface, ErrorsBelongToTheirThread) {
  EXPECT_EQ(thimble_facts(nullptr, nullptr), THIMBLE_INVALID);
  const std::string here = message();
  std::thread([&] {
    EXPECT_EQ(run({"trian"}), THIMBLE_INVALID);
    EXPECT_NE(message(), here);
  }).join();
  EXPECT_EQ(message(), here);
}

struct Seen {
  std::vector<Json> events;
  std::int64_t stop_at = 0;
};

int see(void* user, const char* json, std::size_t size) {
  auto& seen = *static_cast<Seen*>(user);
  seen.events.push_back(parse_json({json, size}, "event"));
  return seen.events.back().at("step").as_int() == seen.stop_at ? 1 : 0;
}

// A run that a callback ends is saved, and resumed it ends in the bytes of the run never ended.
TEST_F(CInterface, ACallbackEndsTrainingAndItResumesExactly) {
  Seen seen{.events = {}, .stop_at = 5};
  const thimble_watch watch = {.user = &seen, .log = nullptr, .event = see};
  EXPECT_EQ(run(words_of("ended"), &watch), THIMBLE_INTERRUPTED);
  EXPECT_EQ(seen.events.back().at("step").as_int(), 5);
  seen.stop_at = 0;
  ASSERT_EQ(run({"train", "--resume", path("ended"), "--json"}, &watch), THIMBLE_OK) << message();
  EXPECT_EQ(seen.events.back().at("step").as_int(), 12);
  EXPECT_EQ(folder_->read("ended/last.safetensors"), folder_->read("run/last.safetensors"));
}

// The events of a run until `last`, or all of them.
std::vector<std::string> events_until(thimble_training* training, const std::string& last = {}) {
  std::vector<std::string> events;
  for (thimble_text text = {}; thimble_train_next(training, &text) == THIMBLE_OK && text.size > 0;) {
    const Json event = parse_json({text.data, text.size}, "event");
    events.push_back(event.at("event").as_string() + " " + std::to_string(event.at("step").as_int()));
    if (events.back() == last) break;
  }
  return events;
}

// The options of words_of() for thimble_train_begin().
std::vector<const char*> options_in(const std::vector<std::string>& words) {
  std::vector<const char*> options;
  for (std::size_t i = 1; i < words.size(); ++i)
    if (words[i] != "--json") options.push_back(words[i].c_str());
  return options;
}

TEST_F(CInterface, ARunCanBeDrivenStepByStep) {
  const std::vector<std::string> words = words_of("steps");
  const auto options = options_in(words);
  thimble_training* training = nullptr;
  ASSERT_EQ(thimble_train_begin(options.data(), options.size(), nullptr, 0, nullptr, &training), THIMBLE_OK)
      << message();
  thimble_training* second = nullptr;
  EXPECT_EQ(thimble_train_begin(options.data(), options.size(), nullptr, 0, nullptr, &second), THIMBLE_BUSY);
  EXPECT_EQ(run({"inspect", path("run")}), THIMBLE_BUSY);
  EXPECT_EQ(events_until(training, "step 3").back(), "step 3");
  EXPECT_FALSE(std::filesystem::exists(path("steps/last.safetensors")));
  ASSERT_EQ(thimble_train_save(training), THIMBLE_OK) << message();
  EXPECT_TRUE(std::filesystem::exists(path("steps/last.safetensors")));
  EXPECT_EQ(events_until(training, "saved 3"), std::vector<std::string>{"saved 3"});
  const std::vector<std::string> rest = events_until(training);
  EXPECT_EQ(rest.front(), "step 4");
  EXPECT_EQ(rest.back(), "saved 12");
  EXPECT_EQ(thimble_train_save(training), THIMBLE_INVALID) << "it has ended";
  thimble_text result = {};
  ASSERT_EQ(thimble_train_end(training, &result), THIMBLE_OK) << message();
  EXPECT_EQ(parse_json({result.data, result.size}, "result").at("status").as_string(), "completed");
  EXPECT_EQ(folder_->read("steps/last.safetensors"), folder_->read("run/last.safetensors"));
  EXPECT_EQ(thimble_train_end(training, nullptr), THIMBLE_INVALID);
  EXPECT_EQ(thimble_train_end(nullptr, nullptr), THIMBLE_OK);
}

TEST_F(CInterface, ARunThatIsEndedEarlyIsSaved) {
  const std::vector<std::string> words = words_of("early");
  const auto options = options_in(words);
  thimble_training* training = nullptr;
  ASSERT_EQ(thimble_train_begin(options.data(), options.size(), nullptr, 0, nullptr, &training), THIMBLE_OK);
  events_until(training, "step 2");
  thimble_text result = {};
  ASSERT_EQ(thimble_train_end(training, &result), THIMBLE_OK) << message();
  EXPECT_EQ(parse_json({result.data, result.size}, "result").at("steps").as_int(), 2);
  ASSERT_EQ(run({"train", "--resume", path("early"), "--json"}), THIMBLE_OK) << message();
  EXPECT_EQ(folder_->read("early/last.safetensors"), folder_->read("run/last.safetensors"));
}

TEST_F(CInterface, AnInterruptedRunSaysSoAndIsSaved) {
  const std::vector<std::string> words = words_of("interrupted");
  const auto options = options_in(words);
  thimble_training* training = nullptr;
  ASSERT_EQ(thimble_train_begin(options.data(), options.size(), nullptr, 0, nullptr, &training), THIMBLE_OK);
  events_until(training, "step 2");
  thimble_interrupt();
  EXPECT_EQ(events_until(training).back(), "saved 2");
  thimble_text event = {};
  EXPECT_EQ(thimble_train_next(training, &event), THIMBLE_INTERRUPTED);
  EXPECT_EQ(thimble_train_end(training, nullptr), THIMBLE_INTERRUPTED);
  EXPECT_TRUE(std::filesystem::exists(path("interrupted/last.safetensors")));
}

TEST_F(CInterface, ARunThatCannotStartFailsAtOnce) {
  thimble_training* training = nullptr;
  const char* const missing[] = {"--data", "missing.txt", "-o", "nowhere"};
  EXPECT_EQ(thimble_train_begin(missing, 4, nullptr, 0, nullptr, &training), THIMBLE_FAILED);
  EXPECT_NE(message().find("missing.txt"), std::string::npos) << message();
  for (const char* config : {"{\"layers\": 1", "layers", "no_such_key = 1", "{\"layers\": [1]}", "\xff"})
    EXPECT_NE(thimble_train_begin(missing, 2, config, THIMBLE_TEXT, nullptr, &training), THIMBLE_OK)
        << config;
  EXPECT_EQ(thimble_train_begin(nullptr, 1, nullptr, 0, nullptr, &training), THIMBLE_INVALID);
  EXPECT_EQ(thimble_train_begin(missing, 4, nullptr, 0, nullptr, nullptr), THIMBLE_INVALID);
  EXPECT_EQ(training, nullptr);
  EXPECT_EQ(run({"inspect", path("run")}), THIMBLE_OK) << "no run is left in progress: " << message();
}

TEST_F(CInterface, DataAndSettingsMayBeInMemory) {
  const std::string text = folder_->read("cats.txt");
  const std::string config =
      "layers = 1\ndim = 32\nheads = 2\nkv_heads = 1\ncontext = 32\nsteps = 12\nval_every = 6\n"
      "batch_tokens = 256\ndtype = \"f32\"\npreset = \"quick\"\n";
  thimble_file* file = nullptr;
  thimble_text place = {};
  ASSERT_EQ(thimble_file_open("cats.txt", text.data(), text.size(), &file, &place), THIMBLE_OK) << message();
  const std::string data(place.data, place.size), output = path("memory");
  const char* const words[] = {"--data", data.c_str(), "-o", output.c_str(), "--samples", "0"};
  thimble_training* training = nullptr;
  ASSERT_EQ(thimble_train_begin(words, 6, config.data(), config.size(), nullptr, &training), THIMBLE_OK)
      << message();
  events_until(training);
  ASSERT_EQ(thimble_train_end(training, nullptr), THIMBLE_OK) << message();
  EXPECT_EQ(folder_->read("memory/last.safetensors"), folder_->read("run/last.safetensors"));
  EXPECT_EQ(thimble_file_close(file), THIMBLE_OK);
  EXPECT_FALSE(std::ifstream(data).good());
  EXPECT_EQ(thimble_file_close(file), THIMBLE_INVALID);
  for (const char* name : {"", "a/b", "..", static_cast<const char*>(nullptr)})
    EXPECT_EQ(thimble_file_open(name, "a", 1, &file, &place), THIMBLE_INVALID);
  EXPECT_EQ(thimble_file_open("a", nullptr, 1, &file, &place), THIMBLE_INVALID);
}

TEST_F(CInterface, ModelsOpenFromBytes) {
  const std::string bytes = folder_->read("run/best.safetensors");
  thimble_model* model = nullptr;
  ASSERT_EQ(thimble_open_bytes(bytes.data(), bytes.size(), kOptions, &model), THIMBLE_OK) << message();
  const std::int32_t tokens[] = {256, 116, 104};
  float first[2] = {}, second[2] = {};
  EXPECT_EQ(thimble_logprobs(model, tokens, 3, first, 2), THIMBLE_OK);
  EXPECT_EQ(thimble_logprobs(model_, tokens, 3, second, 2), THIMBLE_OK);
  EXPECT_EQ(first[0], second[0]);
  EXPECT_EQ(first[1], second[1]);
  EXPECT_EQ(thimble_close(model), THIMBLE_OK);
  EXPECT_NE(thimble_open_bytes(bytes.data(), bytes.size() / 2, kOptions, &model), THIMBLE_OK);
  EXPECT_NE(thimble_open_bytes("", 0, kOptions, &model), THIMBLE_OK);
  EXPECT_EQ(thimble_open_bytes(nullptr, 1, kOptions, &model), THIMBLE_INVALID);
  EXPECT_EQ(model, nullptr);
}

TEST_F(CInterface, ClosedHandlesAreRecognizedAndModelsInUseStayOpen) {
  thimble_model* model = nullptr;
  thimble_session* session = nullptr;
  thimble_text text = {};
  ASSERT_EQ(thimble_open(path("run").c_str(), kOptions, &model), THIMBLE_OK);
  ASSERT_EQ(thimble_start(model, 1, &session), THIMBLE_OK);
  EXPECT_EQ(thimble_close(model), THIMBLE_BUSY);
  EXPECT_EQ(thimble_facts(model, &text), THIMBLE_OK);
  EXPECT_EQ(thimble_stop(session), THIMBLE_OK);
  EXPECT_EQ(thimble_stop(session), THIMBLE_INVALID);
  EXPECT_EQ(thimble_step(session, &text), THIMBLE_INVALID);
  EXPECT_EQ(thimble_close(model), THIMBLE_OK);
  EXPECT_EQ(thimble_close(model), THIMBLE_INVALID);
  EXPECT_EQ(thimble_facts(model, &text), THIMBLE_INVALID);
  EXPECT_EQ(thimble_facts(reinterpret_cast<thimble_model*>(&text), &text), THIMBLE_INVALID);
  EXPECT_EQ(thimble_close(nullptr), THIMBLE_OK);
  EXPECT_EQ(thimble_stop(nullptr), THIMBLE_OK);
  EXPECT_EQ(thimble_file_close(nullptr), THIMBLE_OK);
}

struct Collected {
  std::string json;
  int left = 1'000'000;  // calls until one returns 1
};

int collect(void* user, const char* json, std::size_t size) {
  auto& collected = *static_cast<Collected*>(user);
  collected.json.append(json, size);
  return --collected.left == 0 ? 1 : 0;
}

TEST_F(CInterface, RunGivesTheEventsToACallbackThatMayEndIt) {
  thimble_session* session = nullptr;
  ASSERT_EQ(thimble_start(model_, 1, &session), THIMBLE_OK);
  const std::string request = R"({"prompt":"the cat","max_tokens":8,"temperature":0})";
  std::uint64_t id = 0;
  ASSERT_EQ(thimble_submit(session, request.data(), request.size(), &id), THIMBLE_OK);
  Collected collected{.json = {}, .left = 3};
  EXPECT_EQ(thimble_run(session, collect, &collected), THIMBLE_INTERRUPTED);
  collected.left = -1;
  EXPECT_EQ(thimble_run(session, collect, &collected), THIMBLE_OK) << "continues";
  EXPECT_EQ(thimble_run(session, collect, &collected), THIMBLE_OK) << "nothing is left";
  EXPECT_NE(collected.json.find("\"generated_tokens\":8"), std::string::npos) << collected.json;
  EXPECT_EQ(thimble_run(session, nullptr, nullptr), THIMBLE_INVALID);
  thimble_stop(session);
}

int fail_in_events(void*, const char*, std::size_t) {
  throw std::runtime_error("from the callback");
}
int fail_in_progress(void*, std::uint64_t, std::uint64_t) {
  throw 7;
}

// A callback in C++ may throw by mistake: the call fails, and the handles stay usable.
TEST_F(CInterface, ExceptionsInCallbacksAreErrors) {
  thimble_session* session = nullptr;
  ASSERT_EQ(thimble_start(model_, 1, &session), THIMBLE_OK);
  const std::string request = R"({"prompt":"the cat","max_tokens":8,"temperature":0})";
  std::uint64_t id = 0;
  ASSERT_EQ(thimble_submit(session, request.data(), request.size(), &id), THIMBLE_OK);
  EXPECT_EQ(thimble_run(session, fail_in_events, nullptr), THIMBLE_FAILED);
  EXPECT_EQ(message(), "from the callback");
  thimble_text text = {};
  EXPECT_EQ(thimble_step(session, &text), THIMBLE_OK);
  thimble_stop(session);
  thimble_score score = {};
  EXPECT_EQ(thimble_score_text(model_, "the cat", 7, fail_in_progress, nullptr, &score), THIMBLE_FAILED);
  EXPECT_EQ(thimble_score_text(model_, "the cat", 7, nullptr, nullptr, &score), THIMBLE_OK) << message();
  const thimble_watch watch = {.user = nullptr, .log = nullptr, .event = fail_in_events};
  EXPECT_EQ(run(words_of("throws"), &watch), THIMBLE_FAILED);
  EXPECT_EQ(run({"inspect", path("run")}), THIMBLE_OK) << message();
}

struct Reentry {
  thimble_model* model;
  std::vector<thimble_status> statuses;
};

int use_the_model(void* user, std::uint64_t, std::uint64_t) {
  auto& reentry = *static_cast<Reentry*>(user);
  const std::int32_t token = 1;
  std::vector<float> logits(257);
  thimble_session* session = nullptr;
  reentry.statuses.push_back(thimble_logits(reentry.model, &token, 1, logits.data(), logits.size()));
  reentry.statuses.push_back(thimble_start(reentry.model, 1, &session));
  reentry.statuses.push_back(thimble_command(nullptr, 0, nullptr, nullptr));
  return 0;
}

TEST_F(CInterface, ACallbackThatUsesItsModelIsRefused) {
  Reentry reentry{.model = model_, .statuses = {}};
  thimble_score score = {};
  ASSERT_EQ(thimble_score_text(model_, "the cat", 7, use_the_model, &reentry, &score), THIMBLE_OK)
      << message();
  ASSERT_GE(reentry.statuses.size(), 3u);
  for (const thimble_status status : reentry.statuses) EXPECT_EQ(status, THIMBLE_BUSY);
}

TEST_F(CInterface, TextThatIsNotUtf8IsRefused) {
  std::int32_t tokens[8];
  std::size_t count = 0;
  thimble_score score = {};
  for (const char* text : {"\xff", "a\xc3", "\xed\xa0\x80"}) {
    EXPECT_EQ(thimble_encode(model_, text, THIMBLE_TEXT, 0, tokens, 8, &count), THIMBLE_INVALID);
    EXPECT_EQ(thimble_score_text(model_, text, THIMBLE_TEXT, nullptr, nullptr, &score), THIMBLE_INVALID);
  }
}

TEST_F(CInterface, AChildAfterForkIsRefused) {
  const pid_t child = fork();
  if (child == 0) {
    thimble_text text = {};
    thimble_model* model = nullptr;
    thimble_training* training = nullptr;
    const bool refused = thimble_facts(model_, &text) == THIMBLE_INVALID &&
                         thimble_open(path("run").c_str(), kOptions, &model) == THIMBLE_INVALID &&
                         thimble_open_bytes("a", 1, kOptions, &model) == THIMBLE_INVALID &&
                         run({"inspect", path("run")}) == THIMBLE_INVALID &&
                         thimble_train_begin(nullptr, 0, nullptr, 0, nullptr, &training) == THIMBLE_INVALID &&
                         thimble_close(model_) == THIMBLE_INVALID;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace thimble
