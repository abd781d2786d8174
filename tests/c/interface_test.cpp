// The C interface, used through libthimble.so as other languages use it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <numbers>
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
  EXPECT_EQ(thimble_version(), THIMBLE_VERSION_MAJOR * 1000u + THIMBLE_VERSION_MINOR);
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

// Two threads step one session: each call either works or says that the session is in use.
TEST_F(CInterface, ASecondThreadInASessionIsRefused) {
  thimble_session* session = nullptr;
  ASSERT_EQ(thimble_start(model_, 1, &session), THIMBLE_OK);
  const std::string request = R"({"prompt":"the","max_tokens":25,"temperature":0,"ignore_eos":true})";
  std::atomic<int> other = 0, busy = 0;
  for (int round = 0; round < 200 && busy == 0; ++round) {
    std::uint64_t id = 0;
    ASSERT_EQ(thimble_submit(session, request.data(), request.size(), &id), THIMBLE_OK) << message();
    const auto step_all = [&] {
      thimble_text text = {};
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

TEST_F(CInterface, AChildAfterForkIsRefused) {
  const pid_t child = fork();
  if (child == 0) {
    thimble_text facts = {};
    _exit(thimble_facts(model_, &facts) == THIMBLE_INVALID ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace thimble
