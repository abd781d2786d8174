// Tests the limits on memory: what a request may take is known before it starts, and large answers
// are never in memory as a whole.
#include <gtest/gtest.h>

#include "base/error.h"
#include "http/access.h"
#include "serve/fields.h"
#include "serve/test_server.h"

namespace thimble {
namespace {

TEST(MemoryBudget, SharesTogetherNeverExceedIt) {
  MemoryBudget budget(100, 1000);
  MemoryBudget::Share first(budget);
  EXPECT_TRUE(first.resize(60));
  {
    MemoryBudget::Share second(budget);
    EXPECT_FALSE(second.resize(41));
    EXPECT_TRUE(second.resize(40));
    EXPECT_FALSE(first.resize(61));
    EXPECT_TRUE(second.resize(10));
    EXPECT_TRUE(first.resize(90));
    EXPECT_FALSE(second.resize(11));
  }
  EXPECT_TRUE(first.resize(100));
  EXPECT_FALSE(first.resize(101));
  EXPECT_TRUE(first.resize(0));
}

ServerOptions with_memory(std::size_t bytes) {
  ServerOptions options;
  options.service.memory_bytes = bytes;
  return options;
}

// n = 64 answers of 250 tokens with 100 alternatives each take 64 * 250 * 0.9 KB = 14 MB.
std::string large_answer(int samples) {
  return fmt::format(R"({{"messages":[{{"role":"user","content":"hi"}}],"n":{},"max_tokens":250,)"
                     R"("ignore_eos":true,"logprobs":true,"top_logprobs":100}})",
                     samples);
}

TEST(Memory, AnAnswerThatMayTakeTooMuchIsRefusedWithTheLimit) {
  TestServer server({.server = with_memory(128 << 20)});  // 4 MiB for one answer
  Json stops = Json::array();
  for (int i = 0; i < 64; ++i) stops.push(std::string(4096, 'a'));
  const Json messages = Json::array({Json::object().set("role", "user").set("content", "hi")});
  const Json many_stops = Json::object().set("messages", messages).set("n", 72).set("stop", stops);
  for (const std::string& body : {large_answer(64), many_stops.dump()}) {
    const HttpAnswer refused = server.chat(body);
    EXPECT_EQ(refused.status, 400) << refused;
    EXPECT_EQ(refused.json().at("error").at("param"), Json("max_tokens"));
    EXPECT_NE(refused.error().find("limit is 4194304"), std::string::npos) << refused.error();
  }
  EXPECT_EQ(server.chat(large_answer(8)).status, 200);
}

TEST(Memory, ABodyThatMayTakeTooMuchToReadIsRefusedWithTheLimit) {
  TestServer server({.server = with_memory(16 << 20)});  // 8 MiB to read
  const HttpAnswer refused =
      post(server.port(), "/tokenize", R"({"content":")" + std::string(1 << 18, 'a') + R"("})");
  EXPECT_EQ(refused.status, 400) << refused;
  EXPECT_NE(refused.error().find("limit is 8388608"), std::string::npos) << refused.error();
  EXPECT_EQ(post(server.port(), "/tokenize", R"({"content":")" + std::string(1 << 16, 'a') + R"("})").status,
            200);
}

TEST(Memory, ReadingCountsBytesValuesAndMembersOutsideOfStrings) {
  const std::size_t empty = reading_bytes("");
  const auto more = [&](std::string_view body, std::size_t bytes) {
    return reading_bytes(body) - empty - bytes * (reading_bytes(" ") - empty);
  };
  const std::size_t value = more("[", 1), member = more(":", 1);
  EXPECT_GE(value, sizeof(Json));
  EXPECT_GT(member, value);
  EXPECT_EQ(more("[0,0]", 5), 2 * value);
  EXPECT_EQ(more(R"({"a":[]})", 8), 2 * value + member);
  EXPECT_EQ(more(R"(",[{:\",")", 9), 0u);
}

TEST(Memory, AnswersBeyondItGet503) {
  ServerOptions options = with_memory(128 << 20);  // 32 MiB for all answers
  options.engine.queue = 1000;
  TestServer server({.server = options, .runs = false});
  std::vector<std::unique_ptr<HttpClient>> clients;
  HttpAnswer refused;
  for (std::int64_t i = 1; i <= 16 && refused.status == 0; ++i) {
    auto client = std::make_unique<HttpClient>(server.port());
    client->send(http_text("POST", "/v1/chat/completions", large_answer(16)));
    wait_until([&] {
      return server.server().engine().stats().waiting >= 16 * i || client->receive(seconds_now() + 0.001);
    });
    if (server.server().engine().stats().waiting < 16 * i)
      refused = client->read_answer();
    else
      clients.push_back(std::move(client));
  }
  EXPECT_EQ(refused.status, 503) << refused;
  EXPECT_EQ(clients.size(), 8u);
}

TEST(Memory, BodiesBeyondItGet503) {
  TestServer server({.server = with_memory(16 << 20)});  // 4 MiB for all bodies
  const std::string half =
      "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n" + std::string(1500000, ' ');
  HttpClient first(server.port()), second(server.port()), third(server.port());
  for (HttpClient* client : {&first, &second, &third}) client->send(half);
  const auto refused = [&](HttpClient& client) { return client.receive(seconds_now() + 0.01); };
  EXPECT_TRUE(wait_until([&] { return refused(first) || refused(second) || refused(third); }));
  int refusals = 0;
  for (HttpClient* client : {&first, &second, &third})
    if (!client->buffer().empty()) {
      EXPECT_EQ(client->read_answer().status, 503);
      ++refusals;
    }
  EXPECT_GE(refusals, 1);
  EXPECT_LE(refusals, 2);
  EXPECT_EQ(server.complete(R"({"prompt":"a","max_tokens":1})").status, 200);
}

// The second request could not be read if the first one kept its 13 MB of 16 MiB.
TEST(Memory, ForReadingIsNotHeldByAClientThatStalls) {
  ServerOptions options = with_memory(32 << 20);
  options.service.request_seconds = 5;
  TestServer server({.server = options});
  const std::string body = R"({"with_pieces":true,"content":")" + std::string(200000, 'a') + R"("})";
  HttpClient stalls(server.port(), kClientSeconds, 4096);
  stalls.send(http_text("POST", "/tokenize", body));
  ASSERT_TRUE(stalls.wait_for("HTTP/1.1 200"));
  EXPECT_EQ(post(server.port(), "/tokenize", body).status, 200);
}

TEST(Memory, LargeAnswersAreSentInPieces) {
  TestServer server;
  const HttpAnswer small = server.chat(R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":2})");
  EXPECT_TRUE(small.has_header("Content-Length: ")) << small;
  const HttpAnswer large = server.chat(large_answer(2));
  EXPECT_TRUE(large.has_header("Transfer-Encoding: chunked")) << large.head;
  EXPECT_TRUE(large.whole);
  const Json json = large.json();
  for (const Json& choice : json.at("choices").as_array())
    EXPECT_EQ(choice.at("logprobs").at("content").as_array().at(100).at("top_logprobs").size(), 100u);

  const std::string text(100000, 'q');
  const HttpAnswer tokens = post(server.port(), "/tokenize", R"({"content":")" + text + R"("})");
  EXPECT_TRUE(tokens.has_header("Transfer-Encoding: chunked")) << tokens.head;
  ASSERT_EQ(tokens.json().at("tokens").size(), text.size());
  const HttpAnswer back = post(server.port(), "/detokenize", tokens.body);
  EXPECT_EQ(back.json().at("content").as_string(), text);
}

TEST(Memory, UnreadEventsOfASampleAreJoined) {
  const Context context;
  const auto tokenizer = load_tokenizer("bytes:chat");
  const auto model = small_model(context, tokenizer->vocab_size(), 64, "llama");
  Request request = text_request(*tokenizer, "ab");
  request.samples = 2;
  request.max_tokens = 20;
  request.stop_ids = {};
  for (const int logprobs : {kNoLogprobs, 1}) {
    Engine engine(*model, tokenizer.get(), {});
    request.logprobs = logprobs;
    Job job = engine.submit({request});
    std::thread decoder([&] { engine.run([&] { return engine.idle(); }); });
    decoder.join();
    const std::vector<JobEvent> events = job.wait(0);
    ASSERT_EQ(events.size(), 2u);
    EXPECT_TRUE(job.done());
    for (const JobEvent& event : events) {
      EXPECT_EQ(event.event.usage.generated_tokens, 20);
      EXPECT_EQ(event.event.tokens.size(), logprobs == kNoLogprobs ? 0u : 20u);
    }
  }
}

}  // namespace
}  // namespace thimble
