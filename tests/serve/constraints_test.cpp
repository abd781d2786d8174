// Constraints in requests: response_format, json_schema, grammar, guided_regex and guided_choice.
#include <cmath>
#include <set>
#include <thread>

#include "serve/test_server.h"

namespace thimble::constraints_test {
namespace {

constexpr std::string_view kPerson = R"({"type":"object","properties":{"name":{"type":"string","maxLength":8},
  "age":{"type":"integer","minimum":0,"maximum":120},"ok":{"type":"boolean"}},"required":["name","age"],
  "additionalProperties":false})";

class ConstrainedAnswers : public testing::Test {
 protected:
  static std::string chat_body(std::string_view fields) {
    return fmt::format(R"({{"messages":[{{"role":"user","content":"hi"}}],"temperature":1,{}}})", fields);
  }
  static std::string text_body(std::string_view fields) {
    return fmt::format(R"({{"prompt":"hi","temperature":1,"max_tokens":200,{}}})", fields);
  }
  static std::string schema_format(std::string_view schema) {
    return fmt::format(
        R"("response_format":{{"type":"json_schema","json_schema":{{"name":"x","strict":true,"schema":{}}}}})",
        schema);
  }
  static std::string finish_of(const HttpAnswer& answer) {
    return answer.json().at("choices").as_array().at(0).at("finish_reason").as_string();
  }
  static void expect_person(const std::string& text) {
    const Json person = parse_json(text, "person");
    EXPECT_FALSE(person.at("name").as_string().size() > 8 * 4) << text;
    EXPECT_TRUE(person.at("age").as_int() >= 0 && person.at("age").as_int() <= 120) << text;
    EXPECT_EQ(person.size(), person.find("ok") ? 3u : 2u) << text;
  }

  TestServer server_;
};

TEST_F(ConstrainedAnswers, FollowAJsonSchemaInChatsAndTextsStreamedOrNot) {
  for (int seed = 0; seed < 5; ++seed) {
    const std::string fields = fmt::format(R"({},"seed":{})", schema_format(kPerson), seed);
    const HttpAnswer chat = server_.chat(chat_body(fields));
    ASSERT_EQ(chat.status, 200) << chat;
    expect_person(text_of(chat));
    EXPECT_EQ(finish_of(chat), "stop");
    EXPECT_EQ(streamed_text(server_.chat(chat_body(fields + R"(,"stream":true)")).body), text_of(chat));
    const HttpAnswer text = server_.complete(text_body(fields));
    expect_person(text_of(text));
    EXPECT_EQ(streamed_text(server_.complete(text_body(fields + R"(,"stream":true)")).body), text_of(text));
  }
}

TEST_F(ConstrainedAnswers, AcceptTheFieldsOfOtherServers) {
  const std::string person(kPerson);
  for (const std::string& fields :
       {R"("json_schema":)" + person, R"("response_format":{"type":"json_object","schema":)" + person + "}",
        R"("response_format":{"type":"json_schema","schema":)" + person + "}"})
    expect_person(text_of(server_.complete(text_body(fields))));
  EXPECT_EQ(text_of(server_.complete(text_body(R"("grammar":"root ::= \"a\" [b-d]{3} \"\\n\"")"))).size(),
            5u);
  EXPECT_EQ(text_of(server_.complete(text_body(R"("guided_regex":"[0-9]{9}")"))).size(), 9u);
  const std::string choice = text_of(server_.complete(text_body(R"("guided_choice":["yes","no"])")));
  EXPECT_TRUE(choice == "yes" || choice == "no") << choice;
  EXPECT_TRUE(
      text_of(server_.complete(text_body(R"("response_format":{"type":"json_object"})"))).starts_with("{"));
  EXPECT_EQ(server_.complete(text_body(R"("response_format":{"type":"text"},"grammar":"")")).status, 200);
}

TEST_F(ConstrainedAnswers, EachOfNChoicesIsValidAndALimitGivesLength) {
  const HttpAnswer answer = server_.chat(chat_body(schema_format(kPerson) + R"(,"n":6,"seed":1)"));
  std::set<std::string> texts;
  const Json json = answer.json();
  for (const Json& choice : json.at("choices").as_array()) {
    texts.insert(choice.at("message").at("content").as_string());
    expect_person(choice.at("message").at("content").as_string());
  }
  EXPECT_GT(texts.size(), 3u) << "the seeds differ";
  EXPECT_EQ(finish_of(server_.chat(chat_body(schema_format(kPerson) + R"(,"max_tokens":3)"))), "length");
  const HttpAnswer stopped = server_.chat(chat_body(schema_format(kPerson) + R"(,"stop":"name")"));
  EXPECT_EQ(finish_of(stopped), "stop");
  EXPECT_TRUE(text_of(stopped).ends_with("\"")) << text_of(stopped);
}

TEST_F(ConstrainedAnswers, LogProbabilitiesAreAmongTheAllowedTokensUnlessRaw) {
  const auto first = [&](std::string_view more) {
    const HttpAnswer answer = server_.complete(
        text_body(fmt::format(R"("guided_choice":["yes","no"],"logprobs":5,"seed":1{})", more)));
    return answer.json().at("choices").as_array().at(0).at("logprobs");
  };
  double sum = 0;
  const Json allowed = first("");
  for (const auto& [token, logprob] : allowed.at("top_logprobs").as_array().at(0).as_object()) {
    EXPECT_TRUE(token == "y" || token == "n") << token;
    sum += std::exp(logprob.as_double());
  }
  EXPECT_NEAR(sum, 1, 1e-5);
  EXPECT_GE(first(R"(,"raw_logprobs":true)").at("top_logprobs").as_array().at(0).size(), 5u);
}

TEST_F(ConstrainedAnswers, DoNotInfluenceEachOtherInOneBatch) {
  const std::vector<std::string> bodies = {
      text_body(schema_format(kPerson) + R"(,"seed":1)"), text_body(R"("guided_regex":"[a-f]{50}","seed":2)"),
      text_body(R"("grammar":"root ::= [x-z]{40}","seed":3)"), text_body(R"("seed":4,"ignore_eos":true)")};
  std::vector<std::string> alone, together(bodies.size());
  for (const std::string& body : bodies) alone.push_back(text_of(server_.complete(body)));
  std::vector<std::thread> clients;
  for (std::size_t i = 0; i < bodies.size(); ++i)
    clients.emplace_back([&, i] { together[i] = text_of(server_.complete(bodies[i])); });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(together, alone);
}

TEST_F(ConstrainedAnswers, WrongConstraintsAre400WithFieldAndPath) {
  const std::string pattern(1 << 20, 'a');
  std::string deep = "true";
  for (int i = 0; i < 20; ++i) deep = R"({"items":)" + deep + "}";
  for (const auto& [fields, param, part] : std::vector<std::array<std::string, 3>>{
           {schema_format(R"({"properties":{"a":{"not":{}}}})"), "response_format.json_schema.schema",
            "#/properties/a: the keyword 'not' is not supported"},
           {schema_format(R"({"minItems":2,"maxItems":1})"), "response_format.json_schema.schema",
            "minItems 2"},
           {schema_format(R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})"),
            "response_format.json_schema.schema", "no text fulfils"},
           {schema_format(R"({"pattern":")" + pattern + R"("})"), "response_format.json_schema.schema",
            "bytes"},
           {schema_format(R"x({"pattern":"^(a|b)*a(a|b){300}c(a|b)*a(a|b){300}$"})x"), "", ""},
           {schema_format("7"), "response_format.json_schema.schema", "must be an object"},
           {R"("response_format":{"type":"json_schema"})", "response_format.json_schema", "required"},
           {R"("response_format":{"type":"json_schema","json_schema":{"schema":true,"x":1}})",
            "response_format.json_schema.x", "unknown field"},
           {R"("response_format":7)", "response_format", "must be an object"},
           {R"("grammar":"root ::= root \"a\" | \"b\"")", "grammar", "rule root is left-recursive"},
           {R"("guided_regex":"(")", "guided_regex", "expected ')'"},
           {R"("guided_choice":[])", "guided_choice", "at least one"},
           {R"("guided_choice":"a")", "guided_choice", "array of strings"},
           {R"("guided_regex":"a","grammar":"root ::= \"a\"")", "guided_regex", "one of them"},
       }) {
    const HttpAnswer answer = server_.complete(text_body(fields));
    if (param.empty()) {  // any end is right, except a hang
      EXPECT_TRUE(answer.status == 200 || answer.status == 400 || answer.status == 500) << answer.status;
      continue;
    }
    EXPECT_EQ(answer.status, 400) << fields.substr(0, 200);
    const Json error = answer.json().at("error");
    EXPECT_EQ(error.at("param").as_string(), param);
    EXPECT_NE(error.at("message").as_string().find(part), std::string::npos) << error.dump();
  }
  EXPECT_EQ(server_.complete(text_body(schema_format(deep))).status, 200) << "deep, but within the limits";
}

}  // namespace
}  // namespace thimble::constraints_test
