// Tests the other routes, access control, rate limits, metrics and the access log.
#include <gtest/gtest.h>

#include "serve/test_server.h"

namespace thimble {
namespace {

TEST(Routes, AllAnswer) {
  TestServer server;
  for (const Route& route : all_routes()) {
    std::string path(route.path);
    if (path.ends_with('*')) path.replace(path.size() - 1, 1, "small");
    const HttpAnswer answer =
        route.method == "GET" ? get(server.port(), path) : post(server.port(), path, "{}");
    EXPECT_TRUE(answer.status == 200 || answer.status == 400) << route.path << ": " << answer.status;
  }
}

void send_toy(Exchange& exchange) {
  exchange.send_json(Json::object().set("model", exchange.service.model().name));
}

TEST(Routes, AnAdditionalRouteNeedsOneTableEntry) {
  TestServerOptions options;
  options.server.service.api_keys = {"secret"};
  options.server.service.routes.push_back({"GET", "/toy", send_toy});
  TestServer server(options);
  EXPECT_EQ(get(server.port(), "/toy").status, 401);
  EXPECT_EQ(get(server.port(), "/toy", "Authorization: Bearer secret\r\n").json(),
            Json::object().set("model", "small"));
  EXPECT_EQ(post(server.port(), "/toy", "", "Authorization: Bearer secret\r\n").status, 405);
  // A request is counted after its answer was sent.
  EXPECT_TRUE(wait_until([&] {
    return get(server.port(), "/metrics", "Authorization: Bearer secret\r\n")
               .body.find(R"(thimble_requests_total{route="/toy",status="200"} 1)") != std::string::npos;
  }));
}

TEST(Routes, DescribeTheServer) {
  TestServer server;
  EXPECT_EQ(get(server.port(), "/health").json(), Json::object().set("status", "ok"));
  EXPECT_EQ(get(server.port(), "/v1/health").status, 200);
  const Json model = get(server.port(), "/v1/models").json().at("data").as_array().at(0);
  EXPECT_EQ(model.at("id").as_string(), "small");
  EXPECT_EQ(model.at("object").as_string(), "model");
  EXPECT_EQ(model.at("meta").at("n_ctx_train").as_int(), 256);
  EXPECT_EQ(model.at("meta").at("n_params").as_int(), server.model().params().count());
  EXPECT_EQ(model.at("meta").at("size").as_int(),
            static_cast<std::int64_t>(server.model().weights().size_bytes()));
  EXPECT_EQ(get(server.port(), "/models").json(), get(server.port(), "/v1/models").json());
  for (const char* name : {"small", "sm%61ll"})
    EXPECT_EQ(get(server.port(), fmt::format("/v1/models/{}", name)).json(), model) << name;
  for (const char* name : {"", "large", "small/", "small%", "%2", "%zz", "s%mall"})
    EXPECT_EQ(get(server.port(), fmt::format("/v1/models/{}", name)).status, 404) << name;
  EXPECT_EQ(get(server.port(), "/v1/models/large").error(),
            "model 'large' not found; this server serves 'small'");
  EXPECT_TRUE(post(server.port(), "/v1/models/small", "{}").has_header("Allow: GET, OPTIONS"));
  const Json props = get(server.port(), "/props").json();
  EXPECT_EQ(props.at("total_slots").as_int(), 8);
  EXPECT_EQ(props.at("default_generation_settings").at("n_ctx").as_int(), 256);
  EXPECT_EQ(props.at("default_generation_settings").at("params").at("temperature").as_double(), 0.8);
  EXPECT_NE(props.at("chat_template").as_string().find("messages"), std::string::npos);
}

TEST(Routes, ServeThePageWithAStrictPolicy) {
  TestServer server;
  const HttpAnswer page = get(server.port(), "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_TRUE(page.has_header("Content-Type: text/html; charset=utf-8"));
  EXPECT_TRUE(page.has_header("Content-Security-Policy: default-src 'none';"));
  EXPECT_TRUE(page.has_header("X-Content-Type-Options: nosniff"));
  EXPECT_NE(page.body.find("<!doctype html>"), std::string::npos);
  HttpClient client(server.port());
  client.send(http_text("HEAD", "/", "") + http_text("GET", "/health", ""));
  ASSERT_TRUE(client.wait_for("{\"status\":\"ok\"}"));
  EXPECT_EQ(client.buffer().find("<!doctype"), std::string::npos);
}

TEST(Routes, TokenizeAndDetokenize) {
  TestServer server;
  const auto tokenize = [&](const std::string& body) {
    return post(server.port(), "/tokenize", body).json().at("tokens");
  };
  EXPECT_EQ(tokenize(R"({"content":"AB"})"), Json::array({70, 71}));
  EXPECT_EQ(tokenize(R"({"content":"<user>"})"), Json::array({1}));
  EXPECT_EQ(tokenize(R"({"content":"<user>","parse_special":false})").size(), 6u);
  EXPECT_EQ(tokenize(R"({"content":"A","with_pieces":true})"),
            Json::array({Json::object().set("id", 70).set("piece", "A")}));
  EXPECT_EQ(tokenize(R"({"content":"é","with_pieces":true})").as_array()[0].at("piece"), Json::array({195}));
  EXPECT_EQ(post(server.port(), "/detokenize", R"({"tokens":[1,70,71]})").json().at("content").as_string(),
            "<user>AB");
  const Json prompt =
      post(server.port(), "/apply-template", R"({"messages":[{"role":"user","content":"<bos>"}]})").json();
  EXPECT_EQ(prompt.at("prompt").as_string(), "<bos><user><bos><end_turn><assistant>");
  EXPECT_EQ(prompt.at("tokens").size(), 9u);  // the user's "<bos>" is five characters, not a token
}

TEST(Routes, ApplyTemplateRendersTheModelsTemplate) {
  TestServer server({.layout =
                         "jinja:{% for m in messages %}\n"
                         "{% if m.role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}\n"
                         "<user>{{ m.content | trim }}<end_turn>\n"
                         "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"});
  const auto apply = [&](const std::string& role) {
    return post(
        server.port(), "/apply-template",
        R"({"messages":[{"role":")" + role + R"(","content":" <bos> "},{"role":"user","content":"B"}]})");
  };
  const Json prompt = apply("user").json();
  EXPECT_EQ(prompt.at("prompt").as_string(), "<user><bos><end_turn>\n<user>B<end_turn>\n<assistant>");
  EXPECT_EQ(prompt.at("tokens").size(), 13u);  // the user's "<bos>" is five characters, not a token
  const Json error = apply("system").json().at("error");
  EXPECT_EQ(error.at("code").as_int(), 400);
  EXPECT_EQ(error.at("param").as_string(), "messages");
  EXPECT_EQ(post(server.port(), "/v1/chat/completions",
                 R"({"max_tokens":4,"messages":[{"role":"user","content":"A"}]})")
                .status,
            200);
  EXPECT_EQ(get(server.port(), "/props").json().at("chat_layout").as_string(), "jinja");
}

TEST(Routes, ApplyTemplatePassesToolsAndTheirResultsToTheTemplate) {
  TestServer server({.layout =
                         "jinja:{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
                         "{% for m in messages %}<user>{{ m.role }}:{{ m.content }}"
                         "{% for c in m.tool_calls or [] %}{{ c.function.name }}={{ c.function.arguments.x }}"
                         "{% endfor %}<end_turn>{% endfor %}"});
  const auto apply = [&](const std::string& body) { return post(server.port(), "/apply-template", body); };
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"add<user>"}}])";
  const Json prompt =
      apply(R"({"messages":[{"role":"user","content":"A"},{"role":"assistant","content":null,)"
            R"("tool_calls":[{"id":"1","type":"function","function":{"name":"add",)"
            R"("arguments":"{\"x\": 4}"}}]},)"
            R"({"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"5"}]}],)" +
            tools + "}")
          .json();
  EXPECT_EQ(prompt.at("prompt").as_string(),
            "add<user>;<user>user:A<end_turn><user>assistant:add=4<end_turn><user>tool:5<end_turn>");
  EXPECT_EQ(std::ranges::count(prompt.at("tokens").as_array(), Json(1)), 3) << "the tool's <user> is text";
  const auto refused = [&](const std::string& body) { return apply(body).json().at("error").at("param"); };
  const std::string user = R"({"role":"user","content":"A"})";
  EXPECT_EQ(refused(R"({"messages":[)" + user + R"(],"tools":{}})"), Json("tools"));
  EXPECT_EQ(refused(R"({"messages":[)" + user + R"(],"tools":[{"type":"function"}]})"),
            Json("tools[0].function"));
  EXPECT_EQ(
      refused(
          R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}]})"),
      Json("messages[0].tool_calls[0].function.arguments"));
  EXPECT_EQ(
      refused(R"({"messages":[{"role":"user","content":"A","tool_calls":[{"function":{"name":"f"}}]}]})"),
      Json("messages[0].tool_calls"));
  EXPECT_EQ(
      post(server.port(), "/v1/chat/completions", R"({"messages":[)" + user + "]," + tools + "}").status,
      400);
  TestServer plain;
  EXPECT_EQ(post(plain.port(), "/apply-template", R"({"messages":[)" + user + "]," + tools + "}")
                .json()
                .at("error")
                .at("message"),
            Json("the model's chat template takes no tools"));
}

TEST(Microgpt, AnswersLikeTheOriginalServer) {
  TestServer server;
  const auto generate = [&](const std::string& body) {
    return post(server.port(), "/microgpt/v1/generate", body);
  };
  const auto chat = [&](const std::string& body) { return post(server.port(), "/microgpt/v1/chat", body); };
  EXPECT_EQ(generate("{}").json().at("samples").size(), 1u);
  EXPECT_EQ(generate(R"({"max_tokens":3})").json(),
            generate(R"({"seed":42,"temperature":0.8,"max_tokens":3})").json());
  EXPECT_EQ(generate(R"({"num_samples":60,"max_tokens":2})").json().at("samples").size(), 50u);
  const Json two = generate(R"({"num_samples":2,"seed":1,"max_tokens":30})").json().at("samples");
  EXPECT_EQ(two.as_array()[1], generate(R"({"seed":2,"max_tokens":30})").json().at("samples").as_array()[0]);

  const HttpAnswer answer = chat(R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":5})");
  EXPECT_EQ(answer.status, 200) << answer;
  EXPECT_EQ(answer.json().at("role").as_string(), "assistant");
  EXPECT_EQ(answer.json().at("tokens_dropped").as_int(), 0);
  EXPECT_TRUE(answer.json().at("content").is_string());
  const std::string question = R"({"role":"user","content":")" + std::string(100, 'q') + R"("})";
  const std::string answered = question + R"(,{"role":"assistant","content":"a"},)";
  EXPECT_GT(chat(R"({"messages":[)" + answered + answered + answered + question + "]}")
                .json()
                .at("tokens_dropped")
                .as_int(),
            0);
}

TEST(Microgpt, ReturnsTheOriginalErrorMessages) {
  TestServer server;
  const auto error_of = [&](const std::string& route, const std::string& body) {
    const HttpAnswer answer = post(server.port(), "/microgpt/v1/" + route, body);
    EXPECT_EQ(answer.status, 400);
    const Json json = answer.json();
    EXPECT_EQ(json.size(), 1u);
    return json.at("error").as_string();
  };
  EXPECT_EQ(error_of("generate", R"({"temperature":-0.5})"), "temperature must be >= 0, got -0.5");
  EXPECT_EQ(error_of("generate", R"({"temperature":1e300})"), "temperature must be <= 1000, got 1e+300");
  EXPECT_EQ(error_of("generate", R"({"num_samples":0})"), "num_samples must be >= 1");
  EXPECT_EQ(error_of("generate", R"({"max_tokens":0})"), "max_tokens must be >= 1 when specified");
  EXPECT_EQ(error_of("chat", R"({"messages":[]})"), "messages must not be empty");
  EXPECT_EQ(error_of("chat", R"({"messages":[{"role":"system","content":"a"}]})"),
            R"(messages[0]: unknown role "system")");
  EXPECT_EQ(error_of("chat", R"({"messages":[{"role":"user","content":"a"},{"role":"user","content":" "}]})"),
            "messages[1]: content must not be empty");
  error_of("generate", "{");
  error_of("generate", R"({"seed":"x"})");
  EXPECT_EQ(post(server.port(), "/microgpt/v1/generate", "{}", "Accept: text/html\r\n").status, 406);
  EXPECT_EQ(post(server.port(), "/microgpt/v1/generate", "{}", "Accept: text/html, */*;q=0.1\r\n").status,
            200);

  TestServer text({.chats = false});
  const HttpAnswer answer = post(text.port(), "/microgpt/v1/chat", R"({"messages":[]})");
  EXPECT_EQ(answer.error(), "model was not trained with chat tokens");
}

TEST(Keys, AreRequiredExceptForHealthAndThePage) {
  ServerOptions options;
  options.service.api_keys = {"first", "second-key"};
  TestServer server({.server = options});
  for (const char* path : {"/health", "/"}) EXPECT_EQ(get(server.port(), path).status, 200) << path;
  for (const char* path : {"/v1/models", "/props", "/metrics"})
    EXPECT_EQ(get(server.port(), path).status, 401) << path;
  const HttpAnswer refused = server.complete(R"({"prompt":"a"})");
  EXPECT_EQ(refused.status, 401);
  EXPECT_TRUE(refused.has_header("WWW-Authenticate: Bearer"));
  EXPECT_EQ(refused.json().at("error").at("type").as_string(), "authentication_error");
  const auto with = [&](std::string_view header) {
    return get(server.port(), "/v1/models", fmt::format("{}\r\n", header)).status;
  };
  EXPECT_EQ(with("Authorization: Bearer first"), 200);
  EXPECT_EQ(with("Authorization: bearer second-key"), 200) << "the scheme is case-insensitive";
  EXPECT_EQ(with("X-Api-Key: first"), 200);
  for (const char* wrong :
       {"Authorization: Bearer firs", "Authorization: Bearer firstfirst", "Authorization: first",
        "Authorization: Bearer ", "X-Api-Key: ", "X-Api-Key: FIRST"})
    EXPECT_EQ(with(wrong), 401) << wrong;
  for (const std::string& line : server.log_of(15)) EXPECT_EQ(line.find("first"), std::string::npos) << line;
}

TEST(Keys, AreComparedCompletely) {
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  for (const char* other : {"", "a", "ab", "abd", "abcabc", "abcd", "xbc"}) {
    EXPECT_FALSE(equal_in_constant_time("abc", other)) << other;
    EXPECT_FALSE(equal_in_constant_time(other, "abc")) << other;
  }
  EXPECT_EQ(keys_in("one\n\n# no\n  two \r\n"), (std::vector<std::string>{"one", "two"}));
}

// Each line of the file is a key that a client can send, whatever program wrote the file.
TEST(Keys, OfAWindowsFileHaveNoInvisibleCharacters) {
  EXPECT_EQ(keys_in("\xEF\xBB\xBFone\r\ntwo\r\n"), (std::vector<std::string>{"one", "two"}));
}

TEST(Keys, ThatNoClientCanSendAreNamedSo) {
  for (const char* key : {"k", "open sesame", "~!@#"}) EXPECT_EQ(unusable_key(key), "") << key;
  for (const char* key :
       {"", " ", " k", "k ", "k\n", "k\r", "\tk", "a\nb", "\xEF\xBB\xBFk", "\x7f", "gr\xC3\xBC\xC3\x9F"})
    EXPECT_NE(unusable_key(key), "") << key;
}

TEST(RateLimits, ApplyPerClientAndRecoverOverTime) {
  RateLimit limit(2);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(limit.wait_for("a", 100), 0);
  EXPECT_DOUBLE_EQ(limit.wait_for("a", 100), 0.5);
  EXPECT_EQ(limit.wait_for("b", 100), 0);
  EXPECT_EQ(limit.wait_for("a", 100.5), 0);
  EXPECT_GT(limit.wait_for("a", 100.5), 0);
  for (int i = 0; i < 30000; ++i) limit.wait_for(std::to_string(i), 101);  // memory is bounded
  EXPECT_EQ(RateLimit(0).wait_for("a", 1), 0);
}

TEST(RateLimits, ReturnStatus429) {
  ServerOptions options;
  options.service.requests_per_second = 1e-3;  // low enough that the second request is rejected
  TestServer server({.server = options});
  EXPECT_EQ(get(server.port(), "/props").status, 200);
  const HttpAnswer refused = get(server.port(), "/props");
  EXPECT_EQ(refused.status, 429);
  EXPECT_TRUE(refused.has_header("Retry-After: 1000\r\n") || refused.has_header("Retry-After: 9")) << refused;
  EXPECT_EQ(refused.json().at("error").at("type").as_string(), "rate_limit_error");
  EXPECT_EQ(get(server.port(), "/health").status, 200);
}

TEST(Origins, OfThisMachineAreAllowed) {
  TestServer server;
  for (const char* origin :
       {"http://localhost:3000", "http://127.0.0.1", "https://localhost", "http://[::1]:8080"}) {
    const HttpAnswer answer = get(server.port(), "/v1/models", fmt::format("Origin: {}\r\n", origin));
    EXPECT_EQ(answer.status, 200) << origin;
    EXPECT_TRUE(answer.has_header(fmt::format("Access-Control-Allow-Origin: {}\r\n", origin)));
  }
  for (const char* origin :
       {"https://evil.example", "http://localhost.evil.example", "http://evil.example:8080", "null",
        "http://127.0.0.1.evil.example", "file://localhost"}) {
    const HttpAnswer answer = get(server.port(), "/v1/models", fmt::format("Origin: {}\r\n", origin));
    EXPECT_EQ(answer.status, 403) << origin;
    EXPECT_FALSE(answer.has_header("Access-Control-Allow-Origin"));
  }
  const HttpAnswer preflight =
      ask(server.port(), http_text("OPTIONS", "/v1/chat/completions", "",
                                   "Origin: http://localhost:3000\r\nAccess-Control-Request-Method: POST\r\n"
                                   "Access-Control-Request-Headers: authorization,x-stainless-os\r\n"));
  EXPECT_EQ(preflight.status, 204);
  EXPECT_TRUE(preflight.has_header("Access-Control-Allow-Headers: authorization,x-stainless-os"));
}

TEST(Origins, WithForeignHostNamesAreRejected) {
  TestServer server;  // DNS rebinding: a foreign name that resolves to this machine
  EXPECT_EQ(ask(server.port(), "GET /v1/models HTTP/1.1\r\nHost: evil.example:8080\r\n\r\n").status, 403);
  for (const char* host : {"127.0.0.1:1", "127.0.1.1:8080", "Localhost:8080", "[::1]:8080", "localhost"})
    EXPECT_EQ(ask(server.port(), fmt::format("GET /props HTTP/1.1\r\nHost: {}\r\n\r\n", host)).status, 200)
        << host;
  for (const char* host :
       {"127.0.0.1.evil.example", "127.evil.example:8080", "128.0.0.1", "localhost.evil.example", ""})
    EXPECT_EQ(ask(server.port(), fmt::format("GET /props HTTP/1.1\r\nHost: {}\r\n\r\n", host)).status, 403)
        << host;
  ServerOptions keyed;
  keyed.service.api_keys = {"k"};
  TestServer with_key({.server = keyed});
  EXPECT_EQ(ask(with_key.port(), "GET /props HTTP/1.1\r\nHost: my.example\r\nX-Api-Key: k\r\n\r\n").status,
            200);
}

TEST(AccessLog, HasOneLinePerRequestAndNoPrompts) {
  TestServer server;
  server.complete(R"({"prompt":"a secret","max_tokens":3,"ignore_eos":true})");
  server.log_of(1);
  get(server.port(), "/nothing?key=secret");
  server.log_of(2);
  ask(server.port(), "nonsense secret\r\n\r\n");
  const std::vector<std::string> log = server.log_of(3);
  ASSERT_EQ(log.size(), 3u);
  const Json line = parse_json(log[0], "log");
  EXPECT_EQ(line.at("client").as_string(), "127.0.0.1");
  EXPECT_EQ(line.at("method").as_string(), "POST");
  EXPECT_EQ(line.at("path").as_string(), "/v1/completions");
  EXPECT_EQ(line.at("status").as_int(), 200);
  EXPECT_EQ(line.at("completion_tokens").as_int(), 3);
  EXPECT_GT(line.at("seconds").as_double(), 0);
  EXPECT_EQ(parse_json(log[1], "log").at("status").as_int(), 404);
  EXPECT_EQ(parse_json(log[2], "log").at("status").as_int(), 400);
  for (const std::string& text : log) EXPECT_EQ(text.find("secret"), std::string::npos) << text;

  ServerOptions options;
  options.service.log_prompts = true;
  TestServer open({.server = options});
  open.complete(R"({"prompt":"no secret","max_tokens":3})");
  EXPECT_EQ(parse_json(open.log_of(1).at(0), "log").at("prompt").as_string(), "no secret");
}

TEST(MetricsRoute, UsesThePrometheusFormat) {
  TestServer server;
  server.complete(R"({"prompt":"abc","max_tokens":5,"ignore_eos":true})");
  server.complete(R"({"prompt":7})");
  server.log_of(2);
  // The answer is sent before the statistics of its last step are published.
  EXPECT_TRUE(wait_until([&] { return server.server().engine().stats().active == 0; }));
  const HttpAnswer answer = get(server.port(), "/metrics");
  EXPECT_TRUE(answer.has_header("Content-Type: text/plain; version=0.0.4"));
  for (const char* line :
       {"thimble_requests_total{route=\"/v1/completions\",status=\"200\"} 1\n",
        "thimble_requests_total{route=\"/v1/completions\",status=\"400\"} 1\n",
        "thimble_prompt_tokens_total 4\n", "thimble_tokens_predicted_total 5\n",
        "thimble_requests_processing 0\n", "thimble_busy_slots_per_decode 1\n",
        "thimble_requests_deferred 0\n", "# TYPE thimble_time_to_first_token_seconds histogram\n",
        "thimble_time_to_first_token_seconds_count 1\n"})
    EXPECT_NE(answer.body.find(line), std::string::npos) << line << answer.body;
}

}  // namespace
}  // namespace thimble
