// Tests invalid requests. Each gets the expected status and a JSON body, and the server keeps
// running.
#include <gtest/gtest.h>

#include "serve/test_server.h"

namespace thimble {
namespace {

struct Malformed {
  std::string name;
  std::string bytes;
  int status;
  std::string error = "";  // part of the error message
};

std::string chat_with(std::string_view body) {
  return http_text("POST", "/v1/chat/completions", body);
}
std::string text_with(std::string_view body) {
  return http_text("POST", "/v1/completions", body);
}
// A valid conversation with an additional field.
std::string chat_field(std::string_view field) {
  return chat_with(
      fmt::format(R"({{"messages":[{{"role":"user","content":"hi"}}],"max_tokens":1,{}}})", field));
}
std::string text_field(std::string_view field) {
  return text_with(fmt::format(R"({{"prompt":"hi","max_tokens":1,{}}})", field));
}
std::string message(std::string_view content) {
  return chat_with(fmt::format(R"({{"messages":[{}]}})", content));
}
std::string repeated(std::string_view text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}
std::string chunked(std::string_view chunks) {
  return fmt::format("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{}",
                     chunks);
}

std::vector<Malformed> bad_http() {
  const std::string host = "Host: localhost\r\n";
  return {
      {"NoRequestLine", "\r\n\r\n", 400},
      {"OneWord", "GET\r\n\r\n", 400, "first line"},
      {"TwoWords", "GET /health\r\n\r\n", 400, "first line"},
      {"BadVersion", "GET /health HTTP/2.0\r\n" + host + "\r\n", 505, "version"},
      {"NotHttp", "GET /health SPDY/1\r\n" + host + "\r\n", 400, "version"},
      {"BadMethod", "G\x01T /health HTTP/1.1\r\n" + host + "\r\n", 400, "method"},
      {"LongMethod", std::string(40, 'G') + " / HTTP/1.1\r\n" + host + "\r\n", 400, "method"},
      {"RelativePath", "GET health HTTP/1.1\r\n" + host + "\r\n", 400, "path"},
      {"AbsolutePath", "GET http://x/health HTTP/1.1\r\n" + host + "\r\n", 400, "path"},
      {"ControlInPath", "GET /he\x01lth HTTP/1.1\r\n" + host + "\r\n", 400, "path"},
      {"Utf8InPath", "GET /h\xc3\xa9 HTTP/1.1\r\n" + host + "\r\n", 400, "path"},
      {"LongPath", "GET /" + std::string(9000, 'a') + " HTTP/1.1\r\n" + host + "\r\n", 414},
      {"NoHost", "GET /health HTTP/1.1\r\n\r\n", 400, "Host"},
      {"TwoHosts", "GET /health HTTP/1.1\r\n" + host + host + "\r\n", 400, "host"},
      {"BareLineFeeds", "GET /health HTTP/1.1\nHost: localhost\n\n", 400, "CR LF"},
      {"FoldedHeader", "GET /health HTTP/1.1\r\n" + host + "A: b\r\n c\r\n\r\n", 400, "header"},
      {"BlankBeforeColon", "GET /health HTTP/1.1\r\n" + host + "A : b\r\n\r\n", 400, "header"},
      {"NoColon", "GET /health HTTP/1.1\r\n" + host + "nonsense\r\n\r\n", 400, "header"},
      {"ControlInHeader", "GET /health HTTP/1.1\r\n" + host + "A: b\x02\r\n\r\n", 400, "control"},
      {"HeaderBomb", "GET /health HTTP/1.1\r\n" + host + repeated("A: b\r\n", 500) + "\r\n", 431, "100"},
      {"HugeHeader", "GET /health HTTP/1.1\r\n" + host + "A: " + std::string(100000, 'a') + "\r\n\r\n", 431},
      {"EndlessHeader", "GET /health HTTP/1.1\r\n" + std::string(200000, 'a'), 431},
      {"NegativeLength", "POST /tokenize HTTP/1.1\r\n" + host + "Content-Length: -1\r\n\r\n", 400, "Length"},
      {"WordAsLength", "POST /tokenize HTTP/1.1\r\n" + host + "Content-Length: ten\r\n\r\n", 400, "Length"},
      {"SignedLength", "POST /tokenize HTTP/1.1\r\n" + host + "Content-Length: +2\r\n\r\n{}", 400, "Length"},
      {"TwoLengths",
       "POST /tokenize HTTP/1.1\r\n" + host + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400,
       "repeated"},
      {"AstronomicLength",
       "POST /tokenize HTTP/1.1\r\n" + host + "Content-Length: 99999999999999999999\r\n\r\n", 413},
      {"LargeLength", "POST /tokenize HTTP/1.1\r\n" + host + "Content-Length: 10485760\r\n\r\n", 413,
       "4194304"},
      {"LengthAndChunks",
       "POST /tokenize HTTP/1.1\r\n" + host + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
       400, "both"},
      {"UnknownEncoding", "POST /tokenize HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip\r\n\r\n", 501},
      {"StackedEncoding",
       "POST /tokenize HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked, chunked\r\n\r\n", 501},
      {"ChunksInOldHttp", "POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
       "HTTP/1.1"},
      {"UnknownExpectation", "GET /health HTTP/1.1\r\n" + host + "Expect: miracles\r\n\r\n", 417},
      {"ChunkSizeIsAWord", chunked("zz\r\n"), 400, "hexadecimal"},
      {"ChunkSizeIsMissing", chunked("\r\n"), 400, "hexadecimal"},
      {"ChunkSizeOverflows", chunked("fffffffffffffffff\r\n"), 413},
      {"ChunkOversize", chunked("500000\r\n"), 413, "4194304"},
      {"ManyChunksOversize", chunked(repeated("80000\r\n" + std::string(0x80000, ' ') + "\r\n", 9)), 413},
      {"ChunkLongerThanItsSize", chunked("2\r\n{}}\r\n0\r\n\r\n"), 400, "chunk"},
      {"ChunkLineIsLong", chunked("2;" + std::string(5000, 'x') + "\r\n{}\r\n0\r\n\r\n"), 400, "short"},
      {"TenMegabytes", text_with("{\"prompt\":\"" + std::string(10 << 20, 'a') + "\"}"), 413},
  };
}

std::vector<Malformed> bad_json() {
  return {
      {"NoBody", http_text("POST", "/v1/completions", ""), 400, "empty body"},
      {"BlankBody", text_with("   "), 400, "empty body"},
      {"TruncatedObject", text_with(R"({"prompt":"hi")"), 400},
      {"TruncatedString", text_with(R"({"prompt":"hi)"), 400},
      {"TruncatedEscape", text_with(R"({"prompt":"\u12)"), 400},
      {"LoneSurrogate", text_with(R"({"prompt":"\ud800"})"), 400},
      {"TrailingComma", text_with(R"({"prompt":"hi",})"), 400},
      {"TextBehind", text_with(R"({"prompt":"hi"} x)"), 400},
      {"TwoKeys", text_with(R"({"prompt":"a","prompt":"b"})"), 400, "prompt"},
      {"InvalidUtf8", text_with("{\"prompt\":\"\xff\xfe\"}"), 400},
      {"OverlongUtf8", text_with("{\"prompt\":\"\xc0\xaf\"}"), 400},
      {"NullByte", text_with(std::string("{\"prompt\":\"a\0b\"}", 16)), 400},
      {"DeepArrays", text_with("{\"prompt\":" + repeated("[", 100000) + repeated("]", 100000) + "}"), 400},
      {"DeepObjects", text_with(repeated("{\"a\":", 50000) + "1" + repeated("}", 50000)), 400},
      {"AnArray", text_with("[]"), 400, "object"},
      {"AString", text_with("\"hi\""), 400, "object"},
      {"NotANumber", text_field(R"("temperature":NaN)"), 400},
      {"Infinity", text_field(R"("temperature":Infinity)"), 400},
      {"HugeNumber", text_field(R"("temperature":1e999)"), 400},
      {"LongNumber", text_field("\"temperature\":" + std::string(5000, '9')), 400},
      {"HexNumber", text_field(R"("seed":0x10)"), 400},
  };
}

std::vector<Malformed> bad_fields() {
  return {
      {"NoMessages", chat_with("{}"), 400, "messages is required"},
      {"NullMessages", chat_with(R"({"messages":null})"), 400, "messages is required"},
      {"EmptyMessages", chat_with(R"({"messages":[]})"), 400, "messages must not be empty"},
      {"MessagesAreText", chat_with(R"({"messages":"hi"})"), 400, "messages must be an array, got a string"},
      {"MessageIsText", message(R"("hi")"), 400, "messages[0] must be an object, got a string"},
      {"NoRole", message(R"({"content":"hi"})"), 400, "messages[0].role is required"},
      {"UnknownRole", message(R"({"role":"wizard","content":"hi"})"), 400, "got 'wizard'"},
      {"ToolRole", message(R"({"role":"tool","content":"hi"})"), 400, "messages[0].role"},
      {"NumberAsRole", message(R"({"role":7,"content":"hi"})"), 400, "messages[0].role must be a string"},
      {"NoContent", message(R"({"role":"user"})"), 400, "messages[0].content is required"},
      {"EmptyContent", message(R"({"role":"user","content":""})"), 400,
       "messages[0].content must not be empty"},
      {"NumberAsContent", message(R"({"role":"user","content":7})"), 400, "messages[0].content must be"},
      {"ImagePart", message(R"({"role":"user","content":[{"type":"image_url"}]})"), 400,
       "messages[0].content[0].type"},
      {"AnswerIsLast", message(R"({"role":"assistant","content":"hi"})"), 400, "must not end with"},
      {"NamedMessage", message(R"({"role":"user","content":"hi","name":"Ann"})"), 400,
       "messages[0].name is not supported"},
      {"NegativeTemperature", chat_field(R"("temperature":-0.5)"), 400, "temperature must be >= 0, got -0.5"},
      {"TextAsTemperature", chat_field(R"("temperature":"hot")"), 400,
       "temperature must be a number, got a string"},
      {"ArrayAsTemperature", chat_field(R"("temperature":[1])"), 400,
       "temperature must be a number, got an array"},
      {"LargeTopP", chat_field(R"("top_p":1.5)"), 400, "top_p must be <= 1, got 1.5"},
      {"NegativeTopK", chat_field(R"("top_k":-2)"), 400, "top_k must be >= 0, got -2"},
      {"FractionalTopK", chat_field(R"("top_k":1.5)"), 400, "top_k must be an integer, got 1.5"},
      {"NegativeMinP", chat_field(R"("min_p":-1)"), 400, "min_p"},
      {"ZeroRepetition", chat_field(R"("repeat_penalty":0)"), 400, "repeat_penalty must be >= 0.01"},
      {"HugePenalty", chat_field(R"("frequency_penalty":1e300)"), 400,
       "frequency_penalty must be <= 1000, got 1e+300"},
      {"HugeTemperature", chat_field(R"("temperature":1e300)"), 400,
       "temperature must be <= 1000, got 1e+300"},
      {"HugeBias", chat_field(R"("logit_bias":{"9":1e300})"), 400, "logit_bias must be <= 100, got 1e+300"},
      {"LargeMinTokens", chat_field(R"("min_tokens":2)"), 400,
       "min_tokens must be at most max_tokens (1), got 2"},
      {"MinTokensOverTheDefault", text_with(R"({"prompt":"hi","min_tokens":17})"), 400,
       "min_tokens must be at most max_tokens (16), got 17"},
      {"TextAsMetadata", chat_field(R"("metadata":"a")"), 400, "metadata must be an object, got a string"},
      {"TextAsStore", chat_field(R"("store":"yes")"), 400, "store must be true or false, got a string"},
      {"ForcedTool", chat_field(R"("tool_choice":"required")"), 400, "tool_choice is not supported"},
      {"ZeroSamples", chat_field(R"("n":0)"), 400, "n must be between 1 and 128, got 0"},
      {"ManySamples", chat_field(R"("n":1000000)"), 400, "n must be"},
      {"HugeSeed", chat_field(R"("seed":1e30)"), 400, "seed must be an integer"},
      {"StopIsANumber", chat_field(R"("stop":5)"), 400, "stop must be a string"},
      {"StopsHoldNumbers", chat_field(R"("stop":[5])"), 400, "stop must contain strings"},
      {"StopIsEmpty", chat_field(R"("stop":"")"), 400, "stop: a string must not be empty"},
      {"ManyStops", chat_field("\"stop\":[" + repeated("\"a\",", 100) + "\"a\"]"), 400, "stop: at most"},
      {"BiasIsAList", chat_field(R"("logit_bias":[1])"), 400, "logit_bias must be an object"},
      {"BiasOfAWord", chat_field(R"("logit_bias":{"cat":1})"), 400, "logit_bias keys must be token ids"},
      {"BiasOfNoToken", chat_field(R"("logit_bias":{"99999":1})"), 400, "logit_bias"},
      {"BiasTooLarge", chat_field(R"("logit_bias":{"9":1000})"), 400, "logit_bias must be <= 100"},
      {"TopWithoutLogprobs", chat_field(R"("top_logprobs":2)"), 400, "top_logprobs requires logprobs: true"},
      {"ManyLogprobs", chat_field(R"("logprobs":true,"top_logprobs":1000)"), 400,
       "top_logprobs must be between"},
      {"NumberAsLogprobs", chat_field(R"("logprobs":5)"), 400, "logprobs must be true or false"},
      {"TextAsStream", chat_field(R"("stream":"yes")"), 400, "stream must be true or false"},
      {"OptionsWithoutStream", chat_field(R"("stream_options":{"include_usage":true})"), 400,
       "stream_options"},
      {"UnknownStreamOption", chat_field(R"("stream":true,"stream_options":{"x":1})"), 400,
       "stream_options.x"},
      {"Tools", chat_field(R"("tools":[{"type":"function"}])"), 400, "tools is not supported"},
      {"ResponseFormat", chat_field(R"("response_format":{"type":"xml"})"), 400, "response_format.type"},
      {"Misspelled", chat_field(R"("temprature":1)"), 400, "did you mean 'temperature'?"},
      {"UnknownField", chat_field(R"("quux":1)"), 400, "unknown field 'quux'"},
      {"TwoMaxTokens", chat_field(R"("max_completion_tokens":2)"), 400, "differ"},
      {"ZeroMaxTokens", chat_with(R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":0})"), 400,
       "max_tokens must be >= 1, got 0"},
      {"UnknownTruncation", chat_field(R"("truncation":"maybe")"), 400, "truncation"},
      {"PromptIsANumber", text_with(R"({"prompt":7})"), 400, "prompt must be a string"},
      {"EmptyPrompts", text_with(R"({"prompt":[]})"), 400, "prompt must not be empty"},
      {"EmptyTokens", text_with(R"({"prompt":[[]]})"), 400, "prompt[0]"},
      {"NegativeToken", text_with(R"({"prompt":[-1]})"), 400, "got -1"},
      {"LargeToken", text_with(R"({"prompt":[999999999999]})"), 400, "token ids below"},
      {"FractionalToken", text_with(R"({"prompt":[1.5]})"), 400, "got 1.5"},
      {"MixedTokens", text_with(R"({"prompt":[1,"a"]})"), 400, "got a string"},
      {"LongPrompt", text_with("{\"prompt\":\"" + std::string(300, 'a') + "\"}"), 400, "context is 256"},
      {"NegativeMaxTokens", text_with(R"({"prompt":"a","max_tokens":-1})"), 400,
       "max_tokens must be >= 0, got -1"},
      {"BestOf", text_field(R"("best_of":3)"), 400, "best_of"},
      {"Suffix", text_field(R"("suffix":"end")"), 400, "suffix is not supported"},
      {"TokenizeNothing", http_text("POST", "/tokenize", "{}"), 400, "content is required"},
      {"TokenizeANumber", http_text("POST", "/tokenize", R"({"content":3})"), 400,
       "content must be a string"},
      {"DetokenizeText", http_text("POST", "/detokenize", R"({"tokens":"a"})"), 400,
       "tokens must be an array"},
      {"DetokenizeNoToken", http_text("POST", "/detokenize", R"({"tokens":[1,99999]})"), 400, "tokens[1]"},
      {"UnknownRoute", http_text("GET", "/nothing", ""), 404, "/nothing"},
      {"PathUpwards", http_text("GET", "/../../etc/passwd", ""), 404},
      {"EncodedPath", http_text("GET", "/%2e%2e/secret", ""), 404},
      {"WrongMethod", http_text("GET", "/v1/completions", ""), 405, "expects POST"},
      {"PostForGet", http_text("POST", "/v1/models", "{}"), 405, "expects GET"},
      {"UnknownMethod", http_text("BREW", "/health", ""), 405},
  };
}

class MalformedRequests : public testing::TestWithParam<std::vector<Malformed> (*)()> {};

TEST_P(MalformedRequests, GetTheExpectedStatusAndAJsonBody) {
  TestServer server;
  for (const Malformed& request : GetParam()()) {
    SCOPED_TRACE(request.name);
    const HttpAnswer answer = ask(server.port(), request.bytes);
    EXPECT_EQ(answer.status, request.status) << answer;
    EXPECT_TRUE(answer.whole);
    ASSERT_TRUE(answer.has_header("Content-Type: application/json")) << answer;
    EXPECT_NE(answer.error().find(request.error), std::string::npos) << answer.error();
    const Json error = answer.json().at("error");
    EXPECT_EQ(error.at("code").as_int(), request.status);
    EXPECT_FALSE(error.at("type").as_string().empty());
    ASSERT_EQ(get(server.port(), "/health").status, 200) << "after this request";
  }
  EXPECT_EQ(server.complete(R"({"prompt":"still there?","max_tokens":2})").status, 200);
}

std::string name_of_table(const testing::TestParamInfo<std::vector<Malformed> (*)()>& info) {
  return std::vector<std::string>{"Http", "Json", "Fields"}[info.index];
}

INSTANTIATE_TEST_SUITE_P(Server, MalformedRequests, testing::Values(&bad_http, &bad_json, &bad_fields),
                         name_of_table);

TEST(MalformedTable, HasMoreThanSixtyCases) {
  EXPECT_GE(bad_http().size() + bad_json().size() + bad_fields().size(), 60u);
}

TEST(MalformedTable, ErrorsNameTheFieldInParam) {
  TestServer server;
  const auto param = [&](const std::string& bytes) {
    return ask(server.port(), bytes).json().at("error").at("param");
  };
  EXPECT_EQ(param(chat_field(R"("temperature":-0.5)")), Json("temperature"));
  EXPECT_EQ(param(chat_field(R"("stop":"")")), Json("stop"));
  EXPECT_EQ(param(chat_field(R"("repeat_penalty":0)")), Json("repeat_penalty"));
  EXPECT_EQ(param(chat_field(R"("repetition_penalty":0)")), Json("repetition_penalty"));
  EXPECT_EQ(param(message(R"({"role":"wizard","content":"hi"})")), Json("messages[0].role"));
  EXPECT_EQ(param(http_text("GET", "/nothing", "")), Json());
}

}  // namespace
}  // namespace thimble
