// Tests the fields of /v1/chat/completions and /v1/completions, and that streams equal complete
// answers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/utf8.h"
#include "infer/chat_context.h"
#include "infer/generate.h"
#include "serve/test_server.h"

namespace thimble {
namespace {

class Completions : public testing::Test {
 protected:
  // Runs a request directly in a batcher, without the server.
  std::vector<Sample> directly(Request request) {
    Batcher batcher(server_.model(), &server_.tokenizer(), {.slots = 4});
    return generate(batcher, std::move(request));
  }
  // The server and the batcher of directly() must not use the model at the same time.
  void end_server() { server_.stop(); }

  static Json choice(const HttpAnswer& answer, std::size_t index = 0) {
    return answer.json().at("choices").as_array().at(index);
  }

  TestServer server_;
};

TEST_F(Completions, MatchTheResultsOfTheLibrary) {
  const std::string hello =
      text_of(server_.complete(R"({"prompt":"Hello","max_tokens":40,"temperature":0})"));
  const HttpAnswer warm = server_.complete(
      R"({"prompt":"Hello","max_tokens":40,"temperature":1.5,"seed":7,"top_k":20,"top_p":0.9,"min_p":0.01,
          "frequency_penalty":0.5,"presence_penalty":-0.5,"repeat_penalty":1.2,"logit_bias":{"70":2}})");
  const std::string chat = text_of(server_.chat(
      R"({"messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"hi"}],"seed":3})"));
  end_server();

  Request request = text_request(server_.tokenizer(), "Hello");
  request.max_tokens = 40;
  request.sampling.temperature = 0;
  EXPECT_EQ(hello, directly(request)[0].text);
  request.sampling = {.temperature = 1.5,
                      .top_k = 20,
                      .top_p = 0.9f,
                      .min_p = 0.01f,
                      .repetition_penalty = 1.2f,
                      .frequency_penalty = 0.5f,
                      .presence_penalty = -0.5f,
                      .logit_bias = {{70, 2.0f}},
                      .seed = 7};
  EXPECT_EQ(text_of(warm), directly(request)[0].text);

  const ChatLayout layout(server_.tokenizer(), "roles");
  const Conversation turns = {{ChatRole::system, "Be kind."}, {ChatRole::user, "hi"}};
  Request chat_options;
  chat_options.sampling.seed = 3;
  chat_options.max_tokens = 1000;
  EXPECT_EQ(chat, directly(chat_request(layout, turns, 256, chat_options).request)[0].text);
}

// The request of the model "local-completions" for a log-likelihood, and what it reads from the
// answer.
TEST_F(Completions, LmEvaluationHarnessGetsTheScoreOfAContinuation) {
  const auto score = [&](std::string_view prompt, std::size_t context_tokens, std::string_view more) {
    const HttpAnswer answer = server_.complete(fmt::format(
        R"({{"model":"small","prompt":{},"temperature":0,"max_tokens":1,"logprobs":1,"seed":1234,"echo":true{}}})",
        prompt, more));
    EXPECT_EQ(answer.status, 200) << answer;
    const Json choices = answer.json().at("choices");
    std::vector<double> sums;
    for (const Json& one : choices.as_array()) {
      const Json& logprobs = one.at("logprobs");
      const auto& tokens = logprobs.at("token_logprobs").as_array();
      EXPECT_EQ(tokens.size(), 6u) << "five of the prompt and one generated token";
      EXPECT_EQ(logprobs.at("top_logprobs").size(), tokens.size());
      double sum = 0;
      for (std::size_t i = context_tokens; i + 1 < tokens.size(); ++i) sum += tokens[i].as_double();
      sums.push_back(sum);
    }
    return sums;
  };
  const std::vector<double> sums = score("[[0,70,80,90,100],[0,70,80,91,100]]", 3, "");
  const Json scored =
      choice(server_.complete(R"({"prompt":[0,70,80,90,100],"max_tokens":0,"logprobs":1,"echo":true})"))
          .at("logprobs");
  const auto& expected = scored.at("token_logprobs").as_array();
  EXPECT_EQ(sums.at(0), expected[3].as_double() + expected[4].as_double());
  EXPECT_NE(sums.at(0), sums.at(1));
  // Also if the model would end the text here.
  EXPECT_EQ(score("[[0,70,80,90,100]]", 3, R"(,"logit_bias":{"0":100,"3":100})").at(0), sums.at(0));
}

TEST_F(Completions, HaveAllExpectedFields) {
  const HttpAnswer answer =
      server_.chat(R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":3,"ignore_eos":true})");
  ASSERT_EQ(answer.status, 200) << answer;
  const Json json = answer.json();
  EXPECT_TRUE(json.at("id").as_string().starts_with("chatcmpl-"));
  EXPECT_EQ(json.at("object").as_string(), "chat.completion");
  EXPECT_GT(json.at("created").as_int(), 1700000000);
  EXPECT_EQ(json.at("model").as_string(), "small");
  EXPECT_EQ(choice(answer).at("finish_reason").as_string(), "length");
  EXPECT_EQ(choice(answer).at("message").at("role").as_string(), "assistant");
  EXPECT_TRUE(choice(answer).at("logprobs").is_null());
  const Json usage = json.at("usage");
  EXPECT_EQ(usage.at("prompt_tokens").as_int(), 6);  // bos, user, h, i, end of turn, assistant
  EXPECT_EQ(usage.at("completion_tokens").as_int(), 3);
  EXPECT_EQ(usage.at("total_tokens").as_int(), 9);
  EXPECT_EQ(json.at("tokens_dropped").as_int(), 0);
  EXPECT_EQ(server_.complete(R"({"prompt":"a","ignore_eos":true})")
                .json()
                .at("usage")
                .at("completion_tokens")
                .as_int(),
            16);
}

TEST_F(Completions, StreamsGiveTheTextOfCompleteAnswers) {
  for (const std::string fields : {R"("temperature":0)", R"("seed":5,"temperature":1.3)", R"("seed":1,"n":3)",
                                   R"("seed":9,"stop":["e","\n"],"logprobs":2,"echo":true)"}) {
    SCOPED_TRACE(fields);
    const std::string start = R"({"prompt":"Once upon","max_tokens":60,)" + fields;
    const HttpAnswer complete = server_.complete(start + "}"),
                     stream = server_.complete(start + R"(,"stream":true})");
    ASSERT_EQ(stream.status, 200) << stream;
    EXPECT_TRUE(stream.has_header("Content-Type: text/event-stream"));
    EXPECT_EQ(events_of(stream.body).back(), "[DONE]");
    const std::size_t choices = complete.json().at("choices").size();
    for (std::size_t i = 0; i < choices; ++i)
      EXPECT_EQ(streamed_text(stream.body, static_cast<int>(i)), choice(complete, i).at("text").as_string());
  }
}

// Concatenates the log-probabilities of all chunks of a stream.
Json joined_logprobs(const HttpAnswer& stream, std::string_view key) {
  Json all = Json::array();
  for (const std::string& event : events_of(stream.body)) {
    if (event == "[DONE]") continue;
    const Json choices = parse_json(event, "event").at("choices");
    for (const Json& choice : choices.as_array())
      if (!choice.at("logprobs").is_null())
        for (const Json& item : choice.at("logprobs").at(key).as_array()) all.push(item);
  }
  return all;
}

TEST_F(Completions, StreamsGiveTheLogprobsOfCompleteAnswers) {
  const std::string text =
      R"({"prompt":"Once","max_tokens":30,"seed":2,"temperature":1.2,"logprobs":3,"echo":true,"stop":"zz")";
  const Json complete = choice(server_.complete(text + "}")).at("logprobs");
  const HttpAnswer stream = server_.complete(text + R"(,"stream":true})");
  for (const char* key : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
    EXPECT_EQ(joined_logprobs(stream, key), complete.at(key)) << key;

  const std::string chat =
      R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":30,"seed":2,"logprobs":true,"top_logprobs":2)";
  EXPECT_EQ(joined_logprobs(server_.chat(chat + R"(,"stream":true})"), "content"),
            choice(server_.chat(chat + "}")).at("logprobs").at("content"));
}

TEST_F(Completions, StreamsHaveTheExpectedFirstAndLastChunks) {
  const HttpAnswer stream = server_.chat(
      R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":3,"ignore_eos":true,"stream":true,
          "stream_options":{"include_usage":true}})");
  const std::vector<std::string> events = events_of(stream.body);
  ASSERT_GE(events.size(), 4u) << stream;
  const auto chunk = [&](std::size_t i) { return parse_json(events[i], "event"); };
  const auto delta = [&](std::size_t i) { return chunk(i).at("choices").as_array().at(0).at("delta"); };
  EXPECT_EQ(delta(0).at("role").as_string(), "assistant");
  const std::string id = chunk(0).at("id").as_string();
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(chunk(i).at("id").as_string(), id);
    EXPECT_EQ(chunk(i).at("object").as_string(), "chat.completion.chunk");
    EXPECT_EQ(chunk(i).at("model").as_string(), "small");
    EXPECT_EQ(chunk(i).at("usage").is_null(), i + 2 < events.size());
  }
  const Json last = chunk(events.size() - 3).at("choices").as_array().at(0);
  EXPECT_EQ(last.at("finish_reason").as_string(), "length");
  EXPECT_EQ(last.at("delta"), Json::object());
  const Json usage = chunk(events.size() - 2);
  EXPECT_EQ(usage.at("choices").size(), 0u);
  EXPECT_EQ(usage.at("usage").at("total_tokens").as_int(), 9);
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(Completions, ResultsAreReproducibleOnlyWithASeed) {
  const std::string seeded = R"({"prompt":"a","max_tokens":30,"temperature":1.5,"seed":11})";
  EXPECT_EQ(text_of(server_.complete(seeded)), text_of(server_.complete(seeded)));
  std::set<std::string> texts;
  for (int i = 0; i < 4; ++i)
    texts.insert(
        text_of(server_.complete(R"({"prompt":"a","max_tokens":30,"temperature":1.5,"ignore_eos":true})")));
  EXPECT_GT(texts.size(), 1u);
}

TEST_F(Completions, SampleIUsesSeedPlusI) {
  const HttpAnswer answer =
      server_.complete(R"({"prompt":"a","max_tokens":20,"temperature":1.5,"seed":4,"n":3})");
  ASSERT_EQ(answer.json().at("choices").size(), 3u);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(choice(answer, static_cast<std::size_t>(i)).at("text").as_string(),
              text_of(server_.complete(
                  fmt::format(R"({{"prompt":"a","max_tokens":20,"temperature":1.5,"seed":{}}})", 4 + i))));
}

TEST_F(Completions, TextEndsBeforeAStopString) {
  const std::string complete =
      text_of(server_.complete(R"({"prompt":"abc","max_tokens":60,"temperature":0})"));
  const std::string word = complete.substr(complete.size() / 2, 2);
  const Json body =
      Json::object().set("prompt", "abc").set("max_tokens", 60).set("temperature", 0).set("stop", word);
  const HttpAnswer cut = server_.complete(body.dump());
  EXPECT_EQ(text_of(cut), complete.substr(0, complete.find(word)));
  EXPECT_EQ(choice(cut).at("finish_reason").as_string(), "stop");
}

TEST_F(Completions, LogitBiasIsApplied) {
  const TokenId letter = server_.tokenizer().encode("Q")[0];
  EXPECT_EQ(text_of(server_.complete(
                fmt::format(R"({{"prompt":"a","max_tokens":5,"logit_bias":{{"{}":100}}}})", letter))),
            "QQQQQ");
}

TEST_F(Completions, EchoWithLogprobsAndNoTokensScoresAText) {
  const HttpAnswer answer =
      server_.complete(R"({"prompt":"Grüße!","max_tokens":0,"echo":true,"logprobs":2,"temperature":0})");
  ASSERT_EQ(answer.status, 200) << answer;
  const Json scores = choice(answer).at("logprobs");
  end_server();
  EXPECT_EQ(text_of(answer), "Grüße!");
  EXPECT_EQ(answer.json().at("usage").at("completion_tokens").as_int(), 0);

  Request request = text_request(server_.tokenizer(), "Grüße!");
  request.max_tokens = 0;
  request.logprobs = 2;
  request.score_prompt = true;
  const std::vector<TokenScore> expected = directly(request)[0].prompt;
  const Json::Array& logprobs = scores.at("token_logprobs").as_array();
  ASSERT_EQ(logprobs.size() + 1, expected.size());  // bos is not part of the text
  for (std::size_t i = 0; i < logprobs.size(); ++i)
    EXPECT_EQ(logprobs[i].as_double(), static_cast<double>(expected[i + 1].logprob));
  EXPECT_EQ(scores.at("tokens").as_array()[2].as_string(), "bytes:\\xc3");  // one of the two bytes of ü
  EXPECT_EQ(scores.at("text_offset").as_array().back().as_int(), 5);        // characters, not bytes
  for (const Json& top : scores.at("top_logprobs").as_array()) EXPECT_GE(top.size(), 2u);
}

// A byte-level model with random weights generates many invalid bytes. Each is one U+FFFD in the
// text.
TEST_F(Completions, TextOffsetsAreCorrectWithInvalidUtf8) {
  const HttpAnswer answer = server_.complete(
      R"({"prompt":"é","max_tokens":200,"temperature":2,"seed":4,"echo":true,"logprobs":0,"ignore_eos":true})");
  ASSERT_EQ(answer.status, 200) << answer;
  std::vector<std::string> characters;
  for (std::string rest = text_of(answer); !rest.empty();) {
    const Utf8Char first = decode_utf8(rest.data(), rest.data() + rest.size());
    characters.push_back(rest.substr(0, first.bytes));
    rest.erase(0, first.bytes);
  }
  const Json scores = choice(answer).at("logprobs");
  int plain = 0;
  for (std::size_t i = 0; i < scores.at("tokens").size(); ++i) {
    const std::string token = scores.at("tokens").as_array()[i].as_string();
    if (token.size() != 1) continue;  // a special token, or a piece of a character
    const auto offset = static_cast<std::size_t>(scores.at("text_offset").as_array()[i].as_int());
    ASSERT_LT(offset, characters.size());
    EXPECT_EQ(characters[offset], token) << i;
    ++plain;
  }
  EXPECT_GT(plain, 20);
  EXPECT_GT(std::ranges::count(characters, "\uFFFD"), 20);
}

TEST_F(Completions, AcceptTokenIdsAsPrompt) {
  Json tokens = Json::array();
  for (const TokenId id : text_request(server_.tokenizer(), "Hello").prompt) tokens.push(id);
  Json body = Json::object().set("prompt", tokens).set("max_tokens", 20).set("temperature", 0);
  EXPECT_EQ(text_of(server_.complete(body.dump())),
            text_of(server_.complete(R"({"prompt":"Hello","max_tokens":20,"temperature":0})")));
  body.set("echo", true).set("logprobs", 0).set("max_tokens", 0);
  const Json scores = choice(server_.complete(body.dump())).at("logprobs");
  EXPECT_EQ(scores.at("tokens").size(), tokens.size());
  EXPECT_TRUE(scores.at("token_logprobs").as_array()[0].is_null());  // the first token has no probability
  EXPECT_FALSE(scores.at("token_logprobs").as_array()[1].is_null());
  const int bos = static_cast<int>(std::string_view("<bos>").size());  // is part of the text
  EXPECT_EQ(scores.at("text_offset"), Json::array({0, bos, bos + 1, bos + 2, bos + 3, bos + 4}));
}

TEST_F(Completions, SeveralPromptsAreAnsweredInOrder) {
  const HttpAnswer answer = server_.complete(
      R"({"prompt":["one","two",[0,70,71]],"n":2,"max_tokens":10,"temperature":1.2,"seed":1,"echo":true,"logprobs":0})");
  ASSERT_EQ(answer.json().at("choices").size(), 6u) << answer;
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(choice(answer, i).at("index").as_int(), static_cast<std::int64_t>(i));
    const std::string text = choice(answer, i).at("text").as_string();
    EXPECT_TRUE(text.starts_with(i < 2 ? "one" : i < 4 ? "two" : "<bos>AB")) << text;
    EXPECT_EQ(choice(answer, i).at("logprobs").at("tokens").size(),
              choice(answer, i).at("logprobs").at("text_offset").size());
  }
  EXPECT_TRUE(choice(answer, 0).at("text").as_string() ==
              text_of(server_.complete(
                  R"({"prompt":"one","max_tokens":10,"temperature":1.2,"seed":1,"echo":true})")));
}

TEST_F(Completions, TruncateLongConversationsOrRejectThem) {
  const std::string turn =
      R"({"role":"user","content":")" + std::string(60, 'a') + R"("},{"role":"assistant","content":"b"},)";
  const std::string body = R"({"messages":[)" + turn + turn + turn + turn + turn +
                           R"({"role":"user","content":"end"}],"max_tokens":4)";
  const HttpAnswer fitted = server_.chat(body + "}");
  EXPECT_EQ(fitted.status, 200) << fitted;
  EXPECT_GT(fitted.json().at("tokens_dropped").as_int(), 0);
  const HttpAnswer refused = server_.chat(body + R"(,"truncation":"disabled"})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json().at("error").at("type").as_string(), "exceed_context_size_error");
  EXPECT_EQ(refused.json().at("error").at("n_ctx").as_int(), 256);
}

TEST_F(Completions, AcceptNeutralValuesOfOpenAiFields) {
  EXPECT_EQ(server_
                .chat(R"({"model":"gpt-4","messages":[{"role":"developer","content":"Be brief."},
                     {"role":"user","content":[{"type":"text","text":"h"},{"type":"text","text":"i"}]}],
                     "max_completion_tokens":2,"user":"me","tools":[],"response_format":{"type":"text"},"n":1,
                     "stop":null,"seed":null,"logit_bias":null,"tool_choice":"none","store":false})")
                .status,
            200);
}

TEST_F(Completions, AcceptFieldsThatDoNotChangeTheAnswer) {
  const std::string start = R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":4,"temperature":0)";
  const std::string plain = text_of(server_.chat(start + "}"));
  for (const char* field :
       {R"("metadata":{"run":"7"})", R"("store":true)", R"("service_tier":"priority")", R"("user":"me")",
        R"("safety_identifier":"me")", R"("prompt_cache_key":"k")", R"("prompt_cache_retention":"24h")",
        R"("reasoning_effort":"low")", R"("verbosity":"low")", R"("parallel_tool_calls":true)",
        R"("cache_prompt":false)", R"("prediction":{"type":"content","content":"a"})",
        R"("tool_choice":"auto")", R"("functions":[],"function_call":"none")"}) {
    const HttpAnswer answer = server_.chat(start + "," + field + "}");
    ASSERT_EQ(answer.status, 200) << field << answer;
    EXPECT_EQ(text_of(answer), plain) << field;
  }
}

TEST(CompletionsOfATextModel, RejectChatRequests) {
  TestServer server({.chats = false});
  const HttpAnswer answer = server.chat(R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.error().find("was not trained to chat"), std::string::npos);
  EXPECT_EQ(server.complete(R"({"prompt":"hi"})").status, 200);
  EXPECT_TRUE(get(server.port(), "/props").json().at("chat_template").is_null());
}

}  // namespace
}  // namespace thimble
